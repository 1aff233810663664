"use strict";
/* A small plotting library: step lines, stacked areas and Gantt rows in SVG, with hover values and zoom along x.

   Plot.draw(box, spec) draws into an element and redraws it when its width changes. A spec has
     height     pixels, legend not counted
     x          {title, min, max, log}
     panels     one or two, stacked, on one x axis: {title, min, max, percent, integer, marks, limit}
     hover(x, panel, y, hidden)   lines of text for the tooltip, the first one bold; null for none
   marks are {name, colour, path(sx, sy)} in drawing order, with stroke or fill and optionally width, dash and opacity;
   limit is {y} or {x, label}: a dashed line. Colours are CSS values, so light and dark need no redraw. */
const Plot = (() => {
  const NS = "http://www.w3.org/2000/svg";
  let clips = 0;

  function element(name, attributes, parent) {
    const made = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    parent?.append(made);
    return made;
  }
  function html(name, className, parent, text) {
    const made = document.createElement(name);
    made.className = className;
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  }

  /* A function from values to pixels, with `invert` for the way back. */
  function scale(min, max, from, to, log) {
    const onto = log ? Math.log10 : (v) => v;
    const [a, b] = [onto(min), onto(max)];
    const factor = (to - from) / (b - a || 1);
    const map = (value) => from + (onto(log ? Math.max(value, min / 1e3) : value) - a) * factor;
    map.invert = (pixel) => { const at = a + (pixel - from) / factor; return log ? 10 ** at : at; };
    return Object.assign(map, { min, max, log });
  }
  function ticks(min, max, count, log, integer) {
    if (log && max / min > 12) {
      const powers = [];
      for (let k = Math.ceil(Math.log10(min) - 1e-9); 10 ** k <= max * 1.0001; k++) powers.push(10 ** k);
      const every = Math.ceil(powers.length / count);
      return powers.filter((_, i) => i % every === 0);
    }
    const rough = (max - min) / Math.max(count, 1) || 1;
    const unit = 10 ** Math.floor(Math.log10(rough));
    let step = unit * [1, 2, 5, 10].find((m) => m * unit >= rough * 0.999);
    if (integer) step = Math.max(step, 1);
    const found = [];
    for (let k = Math.ceil(min / step - 1e-9); k * step <= max + step * 1e-6; k++) found.push(k * step || 0);
    return found;
  }
  const number = (value, digits = 3) => value.toLocaleString("en", { maximumSignificantDigits: Math.max(digits, Math.ceil(Math.log10(Math.abs(value) + 1))) });
  const percent = (value) => `${number(100 * value)} %`;

  /* Steps: each value holds from its x to the next. `rise` starts the line at 0 and carries the last value to the edge. */
  function steps(x, y, sx, sy, rise) {
    if (!x.length) return "";
    const at = (v) => sx(v).toFixed(1);
    const parts = [`M${at(x[0])} ${sy(rise ? 0 : y[0]).toFixed(1)}V${sy(y[0]).toFixed(1)}`];
    for (let i = 1; i < x.length; i++) parts.push(`H${at(x[i])}V${sy(y[i]).toFixed(1)}`);
    if (rise) parts.push(`H${at(sx.max)}`);
    return parts.join("");
  }
  /* The area between two step functions on the same x. */
  function band(x, low, high, sx, sy) {
    const parts = [];
    for (let i = 0; i < x.length; i++) parts.push(`${i ? "H" : "M"}${sx(x[i]).toFixed(1)}${i ? "V" : " "}${sy(high[i]).toFixed(1)}`);
    for (let i = x.length - 1; i >= 0; i--) parts.push(`${i === x.length - 1 ? "V" : "H" + sx(x[i + 1]).toFixed(1) + "V"}${sy(low[i]).toFixed(1)}`);
    return parts.join("") + `H${sx(x[0]).toFixed(1)}Z`;
  }
  /* The value of steps at a place: of the last x not after it; `before` ahead of the first. */
  function valueAt(x, y, place, before) {
    let [low, high] = [0, x.length];
    while (low < high) { const middle = (low + high) >> 1; if (x[middle] <= place) low = middle + 1; else high = middle; }
    return low ? y[low - 1] : before;
  }

  function legend(box, state, spec, redraw) {
    const row = html("div", "legend", box);
    const seen = new Set();
    for (const { name, colour } of spec.panels.flatMap((panel) => panel.marks)) {
      if (!name || seen.has(name)) continue;
      seen.add(name);
      const button = html("button", "", row);
      button.type = "button";
      button.setAttribute("aria-pressed", !state.hidden.has(name));
      html("i", "swatch", button).style.background = colour;
      button.append(name);
      button.addEventListener("click", () => {
        if (!state.hidden.delete(name)) state.hidden.add(name);
        redraw();
      });
    }
    if (state.zoom) {
      const reset = html("button", "reset", row, "Reset zoom");
      reset.type = "button";
      reset.addEventListener("click", () => { state.zoom = null; redraw(); });
    }
  }

  /* Axes, grid and marks of one panel between two heights. */
  function panel(root, look, sx, left, top, bottom, width) {
    const rows = look.rows;
    const sy = rows ? scale(-0.6, rows.length - 0.4, top, bottom) : scale(look.min ?? 0, look.max, bottom, top);
    const right = left + width;
    if (rows) {
      if (look.named) rows.forEach((name, i) => element("text", { x: left - 6, y: sy(i) + 4, class: "row end" }, root).textContent = name);
      else for (const i of ticks(1, rows.length, 6, false, true)) element("text", { x: left - 6, y: sy(i - 1) + 4, class: "end" }, root).textContent = number(i, 9);
    } else {
      for (const value of ticks(look.min ?? 0, look.max, (bottom - top) / 45, false, look.integer)) {
        element("line", { x1: left, x2: right, y1: sy(value), y2: sy(value), class: "grid" }, root);
        element("text", { x: left - 6, y: sy(value) + 4, class: "end" }, root).textContent = look.percent ? percent(value) : number(value);
      }
    }
    element("line", { x1: left, x2: left, y1: top, y2: bottom, class: "axis" }, root);
    element("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" }, root);
    const middle = (top + bottom) / 2;
    element("text", { x: 12, y: middle, transform: `rotate(-90 12 ${middle})`, class: "middle title" }, root).textContent = look.title;
    const clip = `clip-${clips++}`;
    element("rect", { x: left, y: top - 2, width, height: bottom - top + 4 }, element("clipPath", { id: clip }, root));
    const area = element("g", { "clip-path": `url(#${clip})` }, root);
    for (const mark of look.marks) {
      if (look.hidden.has(mark.name)) continue;
      const style = mark.filled ? `fill:${mark.colour}` : `fill:none;stroke:${mark.colour};stroke-width:${mark.width ?? 1.8}${mark.dash ? `;stroke-dasharray:${mark.dash}` : ""}`;
      element("path", { d: mark.path(sx, sy), style: `${style};opacity:${mark.opacity ?? 1}` }, area);
    }
    if (look.limit) {
      const { x, y, label } = look.limit;
      const ends = x === undefined ? { x1: left, x2: right, y1: sy(y), y2: sy(y) } : { x1: sx(x), x2: sx(x), y1: top, y2: bottom };
      element("line", { ...ends, class: "limit" }, area);
      if (label) element("text", { x: sx(x) + 5, y: bottom - 8 }, area).textContent = label;
    }
    return sy;
  }

  function marginLeft(spec, width) {
    const widest = Math.max(...spec.panels.map((look) => {
      if (look.named) return Math.max(...look.rows.map((name) => name.length)) * 6.4;
      if (look.rows) return String(look.rows.length).length * 8;
      return Math.max(...ticks(look.min ?? 0, look.max, 6, false, look.integer).map((v) => (look.percent ? percent(v) : number(v)).length)) * 7.2;
    }));
    return Math.min(widest, width * 0.32) + 30;
  }

  function render(box, state) {
    const spec = state.spec;
    const redraw = () => render(box, state);
    box.replaceChildren();
    legend(box, state, spec, redraw);
    const width = Math.max(box.clientWidth, 200);
    const left = marginLeft(spec, width), right = 12, top = 8, below = 42, gap = 22;
    const root = element("svg", { width, height: spec.height, class: "plot", role: "img", "aria-label": spec.label }, box);
    const [low, high] = state.zoom ?? [spec.x.min, spec.x.max];
    const sx = scale(low, high, left, width - right, spec.x.log);
    const bottom = spec.height - below;
    const each = (bottom - top - gap * (spec.panels.length - 1)) / spec.panels.length;
    for (const value of ticks(low, high, (width - left) / 75, spec.x.log)) {
      element("line", { x1: sx(value), x2: sx(value), y1: top, y2: bottom, class: "grid" }, root);
      element("text", { x: sx(value), y: bottom + 16, class: "middle" }, root).textContent = number(value, 4);
    }
    element("text", { x: (left + width - right) / 2, y: spec.height - 6, class: "middle title" }, root).textContent = spec.x.title;
    const areas = spec.panels.map((look, i) => {
      const from = top + i * (each + gap);
      return { from, to: from + each, sy: panel(root, { ...look, hidden: state.hidden }, sx, left, from, from + each, width - left - right) };
    });
    interact(box, root, state, { sx, areas, left, right: width - right, top, bottom, redraw });
  }

  /* The tooltip with its vertical line, and zoom by dragging with a mouse. */
  function interact(box, root, state, frame) {
    const tip = html("div", "tip", box);
    const cursor = element("line", { y1: frame.top, y2: frame.bottom, class: "cursor" }, root);
    const chosen = element("rect", { y: frame.top, height: frame.bottom - frame.top, class: "chosen" }, root);
    let from = null;
    const place = (event) => Math.min(Math.max(event.clientX - root.getBoundingClientRect().left, frame.left), frame.right);
    const show = (event) => {
      const bounds = root.getBoundingClientRect();
      const [x, y] = [place(event), event.clientY - bounds.top];
      const found = frame.areas.findIndex((area) => y <= area.to + 11);
      const index = found < 0 ? frame.areas.length - 1 : found;
      const lines = state.spec.hover(frame.sx.invert(x), index, frame.areas[index].sy.invert(y), state.hidden);
      tip.style.display = cursor.style.display = lines ? "block" : "none";
      if (!lines) return;
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
      tip.replaceChildren();
      lines.forEach((line, i) => html(i ? "div" : "b", "", tip, line));
      const beside = x + 14 + tip.offsetWidth > box.clientWidth ? x - 14 - tip.offsetWidth : x + 14;
      tip.style.left = `${Math.max(0, beside)}px`;
      tip.style.top = `${bounds.top - box.getBoundingClientRect().top + Math.min(Math.max(y, 10), state.spec.height - tip.offsetHeight - 10)}px`;
    };
    root.addEventListener("pointermove", (event) => {
      show(event);
      if (from === null) return;
      const to = place(event);
      chosen.setAttribute("x", Math.min(from, to));
      chosen.setAttribute("width", Math.abs(to - from));
    });
    root.addEventListener("pointerdown", (event) => {
      show(event);
      if (event.pointerType === "mouse" && event.button === 0) { from = place(event); root.setPointerCapture(event.pointerId); }
    });
    root.addEventListener("pointerup", (event) => {
      const to = place(event);
      if (from !== null && Math.abs(to - from) > 8) {
        state.zoom = [Math.min(from, to), Math.max(from, to)].map(frame.sx.invert);
        frame.redraw();
      }
      from = null;
    });
    root.addEventListener("pointerleave", () => { tip.style.display = cursor.style.display = "none"; });
    root.addEventListener("dblclick", () => { state.zoom = null; frame.redraw(); });
  }

  const states = new WeakMap();
  function draw(box, spec) {
    let state = states.get(box);
    if (!state) {
      state = { hidden: new Set(), zoom: null, width: 0 };
      states.set(box, state);
      new ResizeObserver(() => {
        if (box.clientWidth !== state.width) { state.width = box.clientWidth; render(box, state); }
      }).observe(box);
    }
    if (state.spec && (state.spec.x.log !== spec.x.log || state.spec.x.max !== spec.x.max)) state.zoom = null;
    state.spec = spec;
    state.width = box.clientWidth;
    render(box, state);
  }

  return { draw, steps, band, valueAt, number, percent };
})();
