// Training: what a job's trainer library reports over time, each figure as a small chart.
import { timeChart } from "./chart.js";
import { h, keep } from "./dom.js";
import { amount, latest } from "./format.js";

const FIGURES = [
  ["loss", "Loss", "", "--t2"], ["throughput", "Throughput", "samples/s", "--t1"], ["rate", "Goodput", "units of work/s", "--t3"],
  ["batch_size", "Batch size", "samples", "--t4"], ["learning_rate", "Learning rate", "", "--t5"], ["noise", "Gradient noise scale", "samples", "--t7"],
  ["saved", "Checkpoint age", "s", "--t6"],
];

/** The charts of a job's training; `draw(rows)` returns their elements, null without figures, and `show()` fills them. */
export function trainingCharts() {
  const charts = new Map();
  let points = [];
  const values = (key) => points.filter((point) => typeof point[key] === "number").map((point) => ({ at: point.at, values: [key === "saved" ? Math.max(0, point.at - point.saved) : point[key]] }));
  return {
    draw(rows) {
      points = [...(rows?.values() || [])].sort((a, b) => a.at - b.at);
      const found = FIGURES.filter(([key]) => values(key).length);
      if (!found.length) return null;
      const adaptive = points.some((point) => point.throughput !== undefined);
      return h("section.card", { key: "training" }, h("h2", {}, "Training", h("small", {}, "as the job reports it, since the control plane started")),
        h("div.figures", {}, found.map(([key, name, unit]) => {
          if (!charts.has(key)) charts.set(key, timeChart());
          const last = values(key).at(-1).values[0];
          return h("figure", { key }, h("figcaption", {}, key === "rate" && !adaptive ? "Throughput" : name, h("b", {}, `${amount(last)} ${unit}`.trim())), keep(charts.get(key).canvas, `chart ${key}`, "plot small"));
        })));
    },
    show() {
      for (const [key, name, unit, colour] of FIGURES) {
        const found = values(key);
        if (!charts.has(key) || !found.length) continue;
        const from = points[0].at, to = Math.max(latest(), from + 60);
        charts.get(key).set({ from, to, fit: true, unit, points: found, series: [{ name, colour }], label: `${name} over time; last ${amount(found.at(-1).values[0])} ${unit}` });
      }
    },
    close() { for (const chart of charts.values()) chart.close(); },
  };
}
