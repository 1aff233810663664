// Compare: the policies of a workload and cluster side by side, and how sure the differences are.
import { timeChart } from "./chart.js";
import { h, keep, render } from "./dom.js";
import { elapsed } from "./format.js";

const PANELS = {
  queue: ["Jobs waiting", "", "jobs"],
  utilization: ["GPUs in use", "Share of the GPUs held.", ""],
  efficiency: ["Cluster efficiency", "Progress made over that of one GPU, for each GPU of the cluster: 100 % if every GPU is as useful as a job's first.", ""],
  blocking: ["Blocking index", "Time waited over time left, averaged over waiting jobs: high if short jobs wait long.", ""],
};

export function open({ root, places }) {
  const parts = places.map(part);
  render(root, parts.map((each) => each.element));
  for (const each of parts) each.draw();
  return { title: "Compare", views: [], update() {}, close() { for (const each of parts) each.close(); } };
}

function part(place, number) {
  const charts = { jct: timeChart(), rho: timeChart(), over: timeChart() };
  const chosen = { log: wide(place.jct), rho: "isolated", over: "queue" }, key = (name) => `${name} ${number}`;
  const element = h("section.compared", {}), timed = Object.keys(place.time), fair = Object.values(place.rho.isolated).some((curve) => curve.x.length);
  const chips = (label, options, name) => options.length > 1 && h("div.chips", { role: "group", "aria-label": label }, options.map(([value, text]) =>
    h("button", { "aria-pressed": String(chosen[name] === value), onclick: () => { chosen[name] = value; draw(); } }, text)));
  function draw() {
    const [title, note] = PANELS[chosen.over];
    render(element,
      h(number ? "h2" : "h1", {}, place.name || "Policies compared"),
      h("dl.facts.card", {}, place.facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
      table(place),
      h("p.note", {}, place.note),
      h("div.pair", {},
        h("section.card", {}, h("h2", {}, "Job completion time"), h("p.note", {}, "Share of jobs completed within a time of their submission. Further left is better."),
          chips("Scale", [[false, "Linear"], [true, "Logarithmic"]], "log"), keep(charts.jct.canvas, key("jct"), "plot tall"), legend(place.policies, place)),
        fair && h("section.card", {}, h("h2", {}, "Finish-time fairness"), h("p.note", {}, "Share of jobs with at most a given ρ. Dashed: a fair share; beyond it is worse."),
          chips("Definition of ρ", Object.keys(place.rho).map((name) => [name, name]), "rho"), keep(charts.rho.canvas, key("rho"), "plot tall"), legend(place.policies, place))),
      timed.length > 0 && h("section.card", {}, h("h2", {}, title), chips("Figure over time", Object.entries(PANELS).map(([name, [label]]) => [name, label]), "over"),
        h("p.note", {}, `${note} First seed of each policy.`), keep(charts.over.canvas, key("over"), "plot tall"), legend(timed, place)));
    distribution(charts.jct, place, place.jct, chosen.log, (value) => `${short(value)} ${place.unit}`, "Distribution of job completion times");
    if (fair) distribution(charts.rho, place, place.rho[chosen.rho], wide(place.rho[chosen.rho]), (value) => short(value), `Distribution of ρ, ${chosen.rho}`, 1);
    if (timed.length) overTime(charts.over, place, timed, chosen.over);
  }
  return { element, draw, close() { for (const chart of Object.values(charts)) chart.close(); } };
}

const short = (value) => Number(value.toPrecision(3)).toLocaleString("en");
const paint = (place, policy) => `--t${(place.policies.indexOf(policy) % 8) + 1}`;
const legend = (policies, place) => h("p.legend", {}, policies.map((policy) => h("span", {}, swatch(place, policy), policy)));
const swatch = (place, policy) => h("i.swatch", { "aria-hidden": "true", style: { background: `var(${paint(place, policy)})` } });

function table(place) {
  return h("div.card", {}, h("table.list.policies", {},
    h("thead", {}, h("tr", {}, ["Policy", "Completed", ...place.heads].map((name, i) => h("th", { scope: "col", class: i ? "num" : "" }, name)))),
    h("tbody", {}, place.rows.map((row) => h("tr", {},
      h("th", { scope: "row" }, swatch(place, row.policy), row.policy),
      h("td.num", { "data-label": "Completed", class: row.short ? "bad" : "" }, row.completed),
      row.cells.map((cell, i) => h("td.num", { "data-label": place.heads[i], class: cell.best ? "best" : "" }, cell.value, cell.lines.map((line) => h("small", { class: cell.tone }, line)))))))));
}

/** The least positive and the greatest value of several curves. */
function reach(curves) {
  const values = Object.values(curves).flatMap((curve) => curve.x).filter((x) => x > 0);
  return values.length ? [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))] : [1, 2];
}
const wide = (curves) => { const [least, most] = reach(curves); return most / least > 50; };

/** Points at which any curve changes, each with the values of all. */
function merge(curves, names, key) {
  const next = names.map(() => 0), values = names.map(() => 0);
  return [...new Set(names.flatMap((name) => curves[name].x))].sort((a, b) => a - b).map((at) => {
    names.forEach((name, i) => {
      const { x, [key]: y } = curves[name];
      while (next[i] < x.length && x[next[i]] <= at) values[i] = y[next[i]++];
      if (key !== "y" && next[i] >= x.length && at > x.at(-1)) values[i] = 0;
    });
    return { at, values: [...values] };
  });
}

function distribution(chart, place, curves, log, say, label, mark) {
  const [least, most] = reach(curves), from = log ? least * 0.9 : 0;
  chart.set({ from, to: Math.max(most * 1.02, from * 1.1), percent: true, unit: "", label, x: { say, log, mark }, points: merge(curves, place.policies, "y"),
    series: place.policies.map((name) => ({ name, colour: paint(place, name) })) });
}

function overTime(chart, place, policies, what) {
  const to = Math.max(...policies.map((name) => place.time[name].x.at(-1)));
  const size = { s: 1, min: 60, h: 3600 }[place.unit];
  chart.set({ from: 0, to, percent: what === "utilization" || what === "efficiency", unit: PANELS[what][2], label: `${PANELS[what][0]} over time`, x: { say: (value) => elapsed(value * size, to * size < 7200 ? 3 : 2) },
    points: merge(place.time, policies, what), series: policies.map((name) => ({ name, colour: paint(place, name) })) });
}
