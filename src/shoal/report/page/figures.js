"use strict";
/* Figures of papers drawn again: the paper's lines dashed, ours solid, in the colour of their name; from #data. */
(() => {
  const charts = JSON.parse(document.getElementById("data").textContent);
  const shown = (value) => Plot.number(value, 4);

  /* Lines of both sides in drawing order, each with its colour and the name in the legend. */
  function linesOf(chart) {
    const names = [...new Set([...chart.ours, ...chart.theirs].map((line) => line.name))];
    const side = (lines, paper) => lines.map((line) => ({
      ...line, paper, colour: `var(--p${names.indexOf(line.name) % 8})`, label: paper && !/\bpaper\b/.test(line.name) ? `${line.name}, paper` : line.name,
    }));
    const all = [...side(chart.theirs, true), ...side(chart.ours, false)];
    return all.sort((a, b) => names.indexOf(a.name) - names.indexOf(b.name) || b.paper - a.paper);
  }
  function reach(values, margin) {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const room = (high - low || Math.abs(high) || 1) * margin;
    return [low - room, high + room];
  }

  const at = (sx, sy, [x, y]) => `${sx(x).toFixed(1)} ${sy(y).toFixed(1)}`;
  const straight = (points) => (sx, sy) => `M${points.map((point) => at(sx, sy, point)).join("L")}`;
  const stepped = (points) => (sx, sy) => Plot.steps(points.map(([x]) => x), points.map(([, y]) => y), sx, sy, false);
  const dots = (points, paper) => (sx, sy) => points.map((point) => {
    const [x, y] = [sx(point[0]), sy(point[1])];
    return paper ? `M${x - 4} ${y}l4 -4l4 4l-4 4Z` : `M${x - 3.2} ${y}a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0 -6.4 0Z`;
  }).join("");
  const band = (line) => (sx, sy) => {
    const edge = (sign) => line.points.map(([x, y], i) => at(sx, sy, [x, y + sign * line.spread[i]]));
    return `M${[...edge(1), ...edge(-1).reverse()].join("L")}Z`;
  };

  function marksOf(line, steps) {
    const { label: name, colour, points, paper } = line;
    const marks = [];
    if (line.spread.length) marks.push({ name, colour, filled: true, opacity: 0.18, path: band(line) });
    marks.push({ name, colour, width: 2, dash: paper ? "6 4" : "", path: (steps ? stepped : straight)(points) });
    if (points.length <= 30 && !steps) marks.push({ name, colour, filled: true, path: dots(points, paper) });
    return marks;
  }
  function valueOf(line, x, steps) {
    if (steps) return Plot.valueAt(line.points.map((p) => p[0]), line.points.map((p) => p[1]), x);
    return line.points.reduce((best, p) => (Math.abs(p[0] - x) < Math.abs(best[0] - x) ? p : best))[1];
  }

  function drawLines(box, chart) {
    const lines = linesOf(chart).filter((line) => line.points.length);
    const steps = chart.kind === "steps";
    const xs = lines.flatMap((line) => line.points.map(([x]) => x));
    const ys = lines.flatMap((line) => line.points.flatMap(([, y], i) => [y - (line.spread[i] ?? 0), y + (line.spread[i] ?? 0)]));
    const log = Math.min(...xs) > 0 && Math.max(...xs) > 200 * Math.min(...xs) && !steps;
    const [low, high] = log ? [Math.min(...xs) / 1.2, Math.max(...xs) * 1.2] : reach(xs, steps ? 0 : 0.04);
    const [least, most] = reach([0, ...ys], 0.06);
    Plot.draw(box, {
      label: chart.title, height: 350,
      x: { title: log ? `${chart.x} (logarithmic)` : chart.x, min: low, max: high, log },
      panels: [{ title: chart.y, min: Math.min(...ys) < 0 ? least : 0, max: most, marks: lines.flatMap((line) => marksOf(line, steps)) }],
      hover: (x, panel, y, hidden) => [
        `${chart.x}: ${shown(x)}`,
        ...lines.filter((line) => !hidden.has(line.label)).map((line) => [line.label, valueOf(line, x, steps)])
          .filter(([, value]) => value !== undefined).map(([label, value]) => `${label}: ${shown(value)}`),
      ],
    });
  }

  /* Bars run to the right, with the labels as rows, so that long labels stay readable on a narrow screen. */
  function drawBars(box, chart) {
    const lines = linesOf(chart);
    const thick = 0.82 / lines.length;
    const room = Math.max(6, Math.floor((box.clientWidth * 0.32) / 6.6));
    const rows = chart.labels.map((label) => (label.length > room ? `${label.slice(0, room - 1)}…` : label));
    const [low, high] = reach([0, ...lines.flatMap((line) => line.points.map(([, y], i) => y + (line.spread[i] ?? 0)))], 0.03);
    const bars = (line, place) => (sx, sy) => line.points.map(([row, value]) => {
      const top = row - 0.41 + place * thick;
      return `M${sx(0)} ${sy(top)}H${sx(value)}V${sy(top + thick * 0.9)}H${sx(0)}Z`;
    }).join("");
    const whiskers = (line, place) => (sx, sy) => line.points.map(([row, value], i) =>
      (line.spread[i] === undefined ? "" : `M${sx(value - line.spread[i])} ${sy(row - 0.41 + (place + 0.45) * thick)}H${sx(value + line.spread[i])}`)).join("");
    Plot.draw(box, {
      label: chart.title, height: 70 + rows.length * (14 + 13 * lines.length),
      x: { title: chart.y, min: low < 0 && Math.min(...lines.flatMap((l) => l.points.map(([, y]) => y))) >= 0 ? 0 : low, max: high },
      panels: [{
        title: "", rows, named: true,
        marks: lines.flatMap((line, place) => [
          { name: line.label, colour: line.colour, filled: true, opacity: line.paper ? 0.4 : 1, path: bars(line, place) },
          { name: line.label, colour: "var(--ink)", width: 1.2, path: whiskers(line, place) },
        ]),
      }],
      hover: (x, panel, y, hidden) => {
        const row = Math.round(y);
        if (chart.labels[row] === undefined) return null;
        const values = lines.filter((line) => !hidden.has(line.label))
          .map((line) => [line.label, line.points.find(([place]) => place === row)]).filter(([, point]) => point);
        return [chart.labels[row], ...values.map(([label, [, value]]) => `${label}: ${shown(value)}`)];
      },
    });
  }

  for (const box of document.querySelectorAll("[data-chart]")) {
    const chart = charts[Number(box.dataset.chart)];
    (chart.kind === "bars" ? drawBars : drawLines)(box, chart);
  }
})();
