// Cluster: every node and its GPUs, use over time, and what is expected within the hour.
import { timeChart } from "./chart.js";
import { h, keep, render, unlessSame } from "./dom.js";
import { ago, bytes, clock, clockTime, count, gpus, latest, nameTenants, now, percent, shortTime, span, swatch, tenantColour } from "./format.js";

const MANY_NODES = 40;
const HOUR = 3600;

/** What the colours of GPUs say; kept while the page is open. */
const chosen = { heat: false };

export function open({ root }) {
  const use = timeChart(), waiting = timeChart();
  let last = {};
  const update = (rows) => {
    last = rows;
    if (!rows.cluster || !rows.nodes) return;
    const cluster = rows.cluster.get("cluster"), nodes = [...rows.nodes.values()], jobs = rows.running || new Map();
    nameTenants([...jobs.values()].map((job) => job.tenant));
    render(root,
      h("h1", {}, "Cluster"),
      cluster.short_of_disk && h("p.bad.card", { role: "alert" }, cluster.short_of_disk),
      tiles(cluster, nodes),
      h("div.columns", { key: "columns" },
        h("section.map", {}, nodes.some((node) => typeof node.recent_use === "number") && colouring((heat) => { chosen.heat = heat; update(last); }),
          kinds(nodes).map(([kind, group]) => kindSection(kind, group, jobs, nodes.length > MANY_NODES)),
          chosen.heat ? scale() : legend(jobs, nodes)),
        h("div.side", {},
          h("section.card", {}, h("h2", {}, "Next hour"), nextHour(jobs)),
          h("section.card", {}, h("h2", {}, "GPUs in use"), keep(use.canvas, "use", "plot"), h("p.note", {}, usageNote(rows.usage))),
          h("section.card", {}, h("h2", {}, "Jobs waiting"), keep(waiting.canvas, "waiting", "plot")))));
    charts(rows.usage, use, waiting);
  };
  return { title: "Cluster", views: ["cluster", "nodes", "running", "usage"], update, close: () => { use.close(); waiting.close(); } };
}

function tiles(cluster, nodes) {
  const up = nodes.filter((node) => node.up).length, drained = nodes.filter((node) => node.drained).length;
  const part = cluster.up_gpus ? cluster.used_gpus / cluster.up_gpus : 0;
  const tile = (label, value, note, meter) => h("div.tile", {}, h("dt", {}, label), h("dd", {}, value, note && h("small", {}, note), meter));
  return h("dl.tiles", {},
    tile("GPUs in use", `${count(cluster.used_gpus)} of ${count(cluster.up_gpus)}`, percent(part),
      h("span.meter", { role: "presentation" }, h("i", { style: { width: `${100 * part}%` } }))),
    tile("Running", count(cluster.running), cluster.running === 1 ? "job" : "jobs"),
    tile("Waiting", count(cluster.waiting), cluster.waiting === 1 ? "job" : "jobs"),
    tile("Nodes up", `${count(up)} of ${count(nodes.length)}`, drained ? `${count(drained)} drained` : ""),
    tile("Policy", cluster.policy, `${count(cluster.decisions)} decisions`));
}

function kinds(nodes) {
  const groups = new Map();
  for (const node of nodes) (groups.get(node.kind) || groups.set(node.kind, []).get(node.kind)).push(node);
  return [...groups].sort(([a], [b]) => a.localeCompare(b));
}

function kindSection(kind, nodes, jobs, many) {
  const up = nodes.filter((node) => node.up);
  const total = up.reduce((sum, node) => sum + node.gpus, 0), used = up.reduce((sum, node) => sum + node.used, 0);
  return h("section.kind", { key: `kind ${kind}` },
    h("h2", {}, kind, h("small", {}, `${count(nodes.length)} node${nodes.length === 1 ? "" : "s"} · ${count(used)} of ${gpus(total)} in use`)),
    h("ul.nodes", { class: many ? "many" : "" }, nodes.map((node) => unlessSame("li", node.name, shownOf(node, jobs, many), () => nodeCard(node, jobs, many)))));
}

/** All that a node's card depends on; a row of a node that did not change stays the same object. */
const shownOf = (node, jobs, many) => [node, many, chosen.heat, Object.keys(node.held).map((id) => jobs.get(id)?.tenant || "").join(), node.up || !node.heard ? "" : span(now() - node.heard)];

function nodeCard(node, jobs, many) {
  const heat = chosen.heat && typeof node.recent_use === "number" ? node.recent_use : null;
  const held = Object.entries(node.held).sort(([a], [b]) => a.localeCompare(b));
  const own = held.reduce((sum, [, n]) => sum + n, 0), foreign = Math.max(0, node.used - own), free = Math.max(0, node.gpus - node.used);
  const unnamed = node.unnamed || "of other tenants";
  const parts = [
    ...held.map(([id, n]) => ({ n, cls: `t${tenantColour(jobs.get(id)?.tenant || "others")}`, what: `${id}, ${gpus(n)}` })),
    ...(foreign ? [{ n: foreign, cls: "t0", what: `${gpus(foreign)} ${unnamed}` }] : []),
    ...Array.from({ length: free }, () => ({ n: 1, cls: node.up && !node.drained ? "free" : "free off", what: "free" })),
  ];
  const state = !node.up ? "down" : node.drained ? "drained" : free ? `${free} free` : "full";
  const share = heat === null ? "" : `${Math.round(100 * heat)} % used`, plain = many && node.up && !node.drained;
  // One cell for each GPU, those of one job without a gap.
  const cell = ({ n, cls, what }) => h("i", { class: heat === null ? cls : `${cls} heat`, title: what, style: { "flex-grow": String(n), "--n": String(n) } });
  return h("li.node", { class: !node.up ? "down" : node.drained ? "drained" : "" },
    h("h3", { title: [facts(node), node.drained && `drained: ${node.drained}`].filter(Boolean).join(" · ") }, h("span", {}, node.name), h("small", {}, plain || (share && state === "full") ? share : [state, share].filter(Boolean).join(" · "))),
    h("div.seats", { "aria-hidden": "true", style: heat === null ? {} : { "--heat": `${Math.round(100 * heat)}%` } }, parts.map(cell)),
    !node.up && !many && h("p.bad", {}, node.heard ? ["not heard from for ", ago(node.heard)] : "has not connected yet"),
    node.drained && !many && h("p.warn", {}, `drained: ${node.drained}`),
    !many && h("ul.held", {},
      held.map(([id, n]) => h("li", {}, swatch(jobs.get(id)?.tenant || "others"), h("a", { href: `#/job/${encodeURIComponent(id)}` }, id), h("small", {}, gpus(n)))),
      foreign > 0 && h("li", {}, swatch("others"), node.unnamed || "other tenants", h("small", {}, gpus(foreign))),
      node.suspended.map((id) => h("li.suspended", {}, h("i.swatch.paused", { "aria-hidden": "true" }), h("a", { href: `#/job/${encodeURIComponent(id)}` }, id), h("small", {}, "suspended")))));
}

const facts = (node) => [
  `${node.kind}, ${gpus(node.gpus)}`, node.rack && `rack ${node.rack}`, node.cpus && `${count(node.cpus)} CPUs`,
  node.memory && `${bytes(node.memory)} of memory`, node.disk_free !== null && `${bytes(node.disk_free)} of disk free`,
  typeof node.recent_use === "number" && `${Math.round(100 * node.recent_use)} % used in the last hour`,
].filter(Boolean).join(" · ");

/** A switch between the colours of tenants and those of use. */
const colouring = (choose) => h("div.toolbar", { key: "colouring" }, h("div.chips", { role: "group", "aria-label": "What the colours of GPUs say" },
  [["Jobs by tenant", false], ["Use in the last hour", true]].map(([name, heat]) => h("button", { "aria-pressed": String(chosen.heat === heat), onclick: () => choose(heat) }, name))));

const scale = () => h("p.legend", {}, "Part of its GPUs' time that jobs held: ", [0, 25, 50, 75, 100].map((part) => h("span", {}, h("i.swatch.heat", { "aria-hidden": "true", style: { "--heat": `${part}%` } }), `${part} %`)));

function legend(jobs, nodes) {
  const named = nodes.some((node) => Object.keys(node.held).length);
  const tenants = new Set([...jobs.values()].filter((job) => named && job.held).map((job) => job.tenant));
  const foreign = nodes.some((node) => node.used > Object.values(node.held).reduce((a, b) => a + b, 0));
  if (!tenants.size && !foreign) return null;
  return h("p.legend", {}, [...tenants].sort().map((tenant) => h("span", {}, swatch(tenant), tenant)),
    foreign && h("span", {}, swatch("others"), nodes[0].unnamed || "other tenants"), h("span", {}, h("i.swatch.free", { "aria-hidden": "true" }), "free"));
}

function nextHour(jobs) {
  const at = now(), soon = [];
  for (const job of jobs.values()) {
    if (job.end && job.end.median < at + HOUR) soon.push({ at: job.end, job, what: `frees ${gpus(job.held)}` });
    if (job.start && job.start.median < at + HOUR) soon.push({ at: job.start, job, what: `starts on ${gpus(job.wanted)}` });
  }
  if (!soon.length) return h("p.note", {}, clock.end === null ? "No job with a known length is expected to start or end." : "No job starts or ends.");
  soon.sort((a, b) => a.at.median - b.at.median);
  const ends = soon.filter((each) => each.at === each.job.end), freed = ends.reduce((sum, each) => sum + each.job.held, 0);
  return [
    h("p", {}, `${count(ends.length)} job${ends.length === 1 ? "" : "s"} ${clock.end === null ? "expected to end" : "end"} (${gpus(freed)}), ${count(soon.length - ends.length)} ${clock.end === null ? "to start" : "start"}.`),
    h("ol.soon", {}, soon.slice(0, 6).map(({ at: expected, job, what }) =>
      h("li", { key: `${job.id} ${what}` }, h("time", { title: `in ${span(expected.median - at)}; between ${clockTime(expected.low)} and ${clockTime(expected.high)} in 8 of 10 cases` }, shortTime(expected.median)),
        h("span", {}, h("a", { href: `#/job/${encodeURIComponent(job.id)}` }, job.id), ` ${what}`)))),
    soon.length > 6 && h("p.note", {}, `and ${count(soon.length - 6)} more`),
  ];
}

function usageNote(usage) {
  if (!usage?.size) return "";
  if (clock.end !== null) return "The whole run; the line is the moment shown.";
  const first = Math.min(...[...usage.values()].map((row) => row.at));
  return now() - first < 82800 ? `Recorded since ${shortTime(first)}, when the control plane started.` : "The last 24 hours.";
}

function charts(usage, use, waiting) {
  if (!usage?.size) return;
  const points = [...usage.values()].sort((a, b) => a.at - b.at), last = points.at(-1);
  const to = latest(), from = clock.end === null ? Math.min(points[0].at, to - 120) : 0;
  use.set({ from, to, unit: "GPUs", limit: last.up, points: points.map((row) => ({ at: row.at, values: [row.used] })),
    series: [{ name: "in use", colour: "--accent-fill", area: true }], label: `GPUs in use over time; now ${last.used} of ${last.up}` });
  waiting.set({ from, to, unit: "jobs", points: points.map((row) => ({ at: row.at, values: [row.waiting] })),
    series: [{ name: "waiting", colour: "--wait-fill", area: true }], label: `Jobs waiting over time; now ${last.waiting}` });
}
