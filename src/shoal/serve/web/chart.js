// Charts on a canvas: stacked areas and lines over time or over another quantity.
import { h, tip } from "./dom.js";
import { clock, clockTime, elapsed, fullTime } from "./format.js";

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Make the canvas as sharp as the screen; returns its context and its size in CSS pixels. */
export function prepare(canvas) {
  const { width, height } = canvas.getBoundingClientRect();
  const scale = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  return { context, width, height };
}

const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 345600, 604800, 1209600, 2592000, 3888000, 7776000, 31536000];

/** Times of a round number of seconds, minutes, hours or local days between two times: at most one per `gap` pixels. */
export function timeTicks(from, to, width, gap = 90) {
  const step = STEPS.find((each) => each >= ((to - from) / Math.max(width, 1)) * gap) || STEPS.at(-1);
  const zone = clock.end === null ? new Date(from * 1000).getTimezoneOffset() * 60 : 0;
  const ticks = [];
  for (let at = Math.ceil((from - zone) / step) * step + zone; at <= to; at += step) ticks.push(at);
  return { ticks, step };
}
const MINUTES = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const DATES = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });
export function tickLabel(at, step) {
  if (clock.end !== null) return step >= 86400 ? `${Math.round(at / 86400)} d` : elapsed(at, step < 60 ? 3 : 2);
  const date = new Date(at * 1000);
  if (step < 60) return clockTime(at);
  return step >= 86400 || (step >= 10800 && date.getHours() === 0) ? DATES.format(date) : MINUTES.format(date);
}

/** Round numbers between two: powers of ten on a logarithmic axis, else about one per `gap` pixels. */
function numberTicks(from, to, log, width, gap = 70) {
  const ticks = [];
  if (log) {
    const [first, last] = [from, to].map((each) => Math.floor(Math.log10(each)));
    for (const part of last - first < 3 ? [1, 2, 5] : [1]) for (let power = first; power <= last; power++) ticks.push(part * 10 ** power);
    return ticks.filter((each) => each >= from && each <= to);
  }
  const rough = ((to - from) / Math.max(width, 1)) * gap, unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * unit).find((each) => each >= rough);
  for (let i = Math.ceil(from / step); i * step <= to; i++) ticks.push(i * step);
  return ticks;
}

function roundUp(value) {
  if (value <= 4) return Math.max(1, Math.ceil(value));
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 3, 4, 5, 6, 8, 10].map((each) => each * unit).find((each) => each >= value);
}

const SHORT = new Intl.NumberFormat("en", { notation: "compact" });
const brief = (value) => (value !== 0 && Math.abs(value) < 0.01 ? value.toExponential(0) : Math.abs(value) < 100 ? String(Number(value.toPrecision(2))) : SHORT.format(value));
const LEFT = 46, BOTTOM = 22, TOP = 8;

/**
 * A chart of series over time, each held until its next value.
 * `set({ from, to, points: [{ at, values }], series: [{ name, colour, area }], limit, unit, label })`; with
 * `x: { say, log, mark }` over another quantity, of which `say` makes text and `mark` is drawn as a line; with
 * `percent` values are fractions. With `fit` the axis spans the values alone, and lines join them.
 */
export function timeChart() {
  const canvas = h("canvas.chart", { role: "img" });
  let data = null;
  const shape = (value) => (data.x?.log ? Math.log(Math.max(value, data.from)) : value);
  const scaleX = (width) => (at) => LEFT + ((shape(at) - shape(data.from)) / (shape(data.to) - shape(data.from))) * (width - LEFT - 8);
  const say = (value) => (data.percent ? `${Number((100 * value).toPrecision(3))} %` : `${Number(value.toPrecision(4)).toLocaleString("en")} ${value === 1 ? data.unit.replace(/^(GPU|job)s$/, "$1") : data.unit}`);
  const draw = () => {
    if (!data || !canvas.isConnected) return;
    const { context: c, width, height } = prepare(canvas);
    const most = data.points.reduce((top, point) => Math.max(top, stackTop(point, data.series)), data.limit || 0);
    const top = data.fit ? most : data.percent ? Math.max(1, most) : roundUp(Math.max(1, most));
    const least = data.fit ? data.points.reduce((low, point) => Math.min(low, point.values[0]), most) : 0, flat = top === least;
    const part = (value) => (flat && data.fit ? 0.5 : (value - least) / (top - least));
    const x = scaleX(width), y = (value) => height - BOTTOM - part(value) * (height - BOTTOM - TOP);
    axes(c, { width, height, values: data.fit ? (flat ? [top] : [least, top]) : top <= 4 ? [0, top] : [0, top / 2, top], x, y });
    drawSeries(c, { width, x, y });
    const mark = data.x ? data.x.mark : clock.at;
    if (mark >= data.from && mark <= data.to) line(c, [[x(mark), TOP], [x(mark), height - BOTTOM]], colour("--bad"), data.x ? [4, 4] : []);
    if (data.limit) line(c, [[LEFT, y(data.limit)], [width - 8, y(data.limit)]], colour("--soft"), [4, 4]);
  };
  const axes = (c, { width, height, values, x, y }) => {
    c.fillStyle = colour("--soft");
    c.textAlign = "right";
    c.textBaseline = "middle";
    for (const value of values) {
      c.fillText(data.percent ? `${Math.round(100 * value)} %` : data.fit ? brief(value) : SHORT.format(value), LEFT - 8, y(value));
      line(c, [[LEFT, Math.round(y(value)) + 0.5], [width - 8, Math.round(y(value)) + 0.5]], colour("--line"));
    }
    c.textBaseline = "alphabetic";
    c.textAlign = "center";
    const { ticks, step } = data.x ? { ticks: numberTicks(data.from, data.to, data.x.log, width - LEFT) } : timeTicks(data.from, data.to, width - LEFT);
    for (const at of ticks) {
      const text = data.x ? data.x.say(at) : tickLabel(at, step);
      if (x(at) > LEFT + 20 && x(at) < width - 24) c.fillText(text, Math.min(x(at), width - c.measureText(text).width / 2), height - 6);
    }
  };
  const drawSeries = (c, { x, y }) => {
    const base = data.points.map(() => 0);
    data.series.forEach((series, index) => {
      const edge = [];
      data.points.forEach((point, i) => {
        const next = i + 1 < data.points.length ? data.points[i + 1].at : data.to;
        const value = (series.area ? base[i] : 0) + (point.values[index] || 0);
        edge.push([x(point.at), y(value)]);
        if (!data.fit) edge.push([x(next), y(value)]);
      });
      if (!edge.length) return;
      if (series.area) {
        const under = [];
        data.points.forEach((point, i) => {
          const next = i + 1 < data.points.length ? data.points[i + 1].at : data.to;
          under.push([x(point.at), y(base[i])], [x(next), y(base[i])]);
          base[i] += point.values[index] || 0;
        });
        c.fillStyle = colour(series.colour);
        c.beginPath();
        [...edge, ...under.reverse()].forEach(([px, py], i) => (i ? c.lineTo(px, py) : c.moveTo(px, py)));
        c.fill();
      } else line(c, edge, colour(series.colour), series.dash || [], 2);
    });
  };
  const line = (c, points, stroke, dash = [], width = 1) => {
    c.strokeStyle = stroke;
    c.lineWidth = width;
    c.setLineDash(dash);
    c.beginPath();
    points.forEach(([px, py], i) => (i ? c.lineTo(px, py) : c.moveTo(px, py)));
    c.stroke();
    c.setLineDash([]);
  };
  canvas.onpointermove = (event) => {
    if (!data?.points.length) return;
    const { left, width } = canvas.getBoundingClientRect();
    const part = (event.clientX - left - LEFT) / (width - LEFT - 8), low = shape(data.from), place = low + part * (shape(data.to) - low);
    const at = data.x?.log ? Math.exp(place) : place;
    const point = data.points.findLast((each) => each.at <= at);
    if (!point || at > data.to) return tip(0, 0);
    tip(event.clientX, event.clientY, h("b", {}, data.x ? data.x.say(at) : fullTime(at)), data.series.map((series, i) =>
      h("div", {}, h("i.swatch", { style: { background: `var(${series.colour})` } }), `${series.name}: ${say(point.values[i] || 0)}`)));
  };
  canvas.onpointerleave = () => tip(0, 0);
  const observer = new ResizeObserver(draw);
  observer.observe(canvas);
  addEventListener("shoal-theme", draw);
  return {
    canvas,
    set(next) { data = next; canvas.setAttribute("aria-label", next.label); draw(); },
    close() { observer.disconnect(); removeEventListener("shoal-theme", draw); },
  };
}

const stackTop = (point, series) => {
  let sum = 0, most = 0;
  series.forEach((each, i) => { if (each.area) sum += point.values[i] || 0; else most = Math.max(most, point.values[i] || 0); });
  return Math.max(sum, most);
};
