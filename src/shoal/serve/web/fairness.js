// Fairness: what each tenant was promised, holds and has used, and who uses GPUs that others are promised.
import { timeChart } from "./chart.js";
import { h, keep, render } from "./dom.js";
import { clock, clockTime, count, gpuHours, gpus, latest, nameTenants, percent, swatch, tenantColour } from "./format.js";

/** The tenant whose history is shown; kept while the page is open. */
const chosen = { tenant: "" };

export function open({ root, login }) {
  const chart = timeChart(), share = timeChart(), rho = timeChart();
  let last = null;
  const update = (rows) => {
    last = rows;
    if (!rows.tenants || !rows.cluster) return;
    const cluster = rows.cluster.get("cluster"), samples = [...(rows.fairness?.values() || [])].sort((a, b) => a.at - b.at);
    const fare = new Map((samples.at(-1)?.rows || []).filter((row) => !row.app).map((row) => [row.tenant, row])), spent = samples.at(-1)?.spent || {};
    const tenants = promised([...rows.tenants.values()], cluster.up_gpus, login.tenant);
    nameTenants(tenants.map((row) => row.tenant));
    render(root, h("h1", {}, "Fairness"),
      h("p.note", {}, login.tenant
        ? "Your share of the cluster, and that of all other tenants together."
        : "A tenant's promise is its guarantee (shoal quota) and an equal part of the GPUs that are not guaranteed, among the tenants that have jobs. GPUs that a tenant does not use are lent to others."),
      tenants.length ? table(tenants, fare, spent) : h("div.empty", {}, h("p", {}, "No tenant has submitted a job yet.")),
      tenants.length > 0 && h("section.card", {}, h("h2", {}, "Who borrows from whom"), borrowing(tenants)),
      apps(samples.at(-1)?.rows || []),
      h("section.card", {}, h("h2", {}, "GPUs held over time"), keep(chart.canvas, "chart", "plot tall"), legend(tenants)),
      samples.length > 0 && tenants.length > 0 && history(tenants, samples));
    draw(rows.usage, tenants, chart);
    drawHistory(samples, tenants);
  };
  const known = (tenants) => (login.tenant || tenants.some((row) => row.tenant === chosen.tenant) ? login.tenant || chosen.tenant : tenants[0].tenant);
  function history(tenants, samples) {
    return h("section.card", { key: "history" }, h("h2", {}, "Promised, had and ρ over time"),
      !login.tenant && h("div.toolbar", {}, h("label", {}, "Tenant ", h("select", { id: "tenant", onchange: (event) => { chosen.tenant = event.target.value; update(last); } }, tenants.map((row) => h("option", { value: row.tenant, selected: row.tenant === known(tenants) }, row.tenant))))),
      h("div.pair", {}, h("figure", {}, h("figcaption", {}, login.tenant ? "GPUs held" : "GPUs held, and promised (dashed)"), keep(share.canvas, "share", "plot")),
        h("figure", {}, h("figcaption", {}, "ρ: mean of its live jobs; above 1 is worse than 1/n of the cluster"), keep(rho.canvas, "rho", "plot"))),
      !samples.some((sample) => sample.rows.some((row) => row.rho !== undefined)) && h("p.note", {}, "ρ needs jobs that declare their work."));
  }
  function drawHistory(samples, tenants) {
    if (!samples.length || !tenants.length) return;
    const name = known(tenants), to = latest(), from = Math.min(samples[0].at, to - 120);
    const row = (sample) => sample.rows.find((each) => each.tenant === name && !each.app);
    const promise = (sample) => promised(tenants.map((each) => ({ ...each, live: sample.rows.find((found) => found.tenant === each.tenant && !found.app)?.jobs || 0 })), sample.up, null).find((each) => each.tenant === name)?.promise || 0;
    share.set({ from, to, unit: "GPUs", points: samples.map((sample) => ({ at: sample.at, values: login.tenant ? [row(sample)?.held || 0] : [row(sample)?.held || 0, promise(sample)] })),
      series: [{ name: "held", colour: `--t${tenantColour(name)}`, area: true }, ...(login.tenant ? [] : [{ name: "promised", colour: "--ink", dash: [4, 4] }])], label: `GPUs held by ${name} over time` });
    const points = samples.filter((sample) => row(sample)?.rho !== undefined).map((sample) => ({ at: sample.at, values: [row(sample).rho, row(sample).worst] }));
    rho.set({ from, to, unit: "", limit: 1, points, series: [{ name: "mean ρ", colour: `--t${tenantColour(name)}` }, { name: "highest ρ", colour: "--soft", dash: [2, 3] }], label: `ρ of ${name} over time; last ${points.at(-1)?.values[0] ?? "not known"}` });
  }
  return { title: "Fairness", views: login.record ? ["cluster", "tenants", "usage"] : ["cluster", "tenants", "usage", "fairness"], update, close: () => { chart.close(); share.close(); rho.close(); } };
}

const ratio = (value) => value?.toFixed(2) ?? "–";

/** Add to each tenant the GPUs it is promised: a guarantee, and a part of the rest if it has jobs. */
function promised(rows, up, own) {
  const guaranteed = rows.reduce((sum, row) => sum + row.guaranteed, 0), active = rows.filter((row) => row.live > 0).length;
  const part = active ? Math.max(0, up - guaranteed) / active : 0;
  return rows.map((row) => ({ ...row, promise: own ? null : Math.min(row.most ?? Infinity, row.guaranteed + (row.live ? part : 0)) }))
    .sort((a, b) => b.held - a.held || b.gpu_seconds - a.gpu_seconds);
}

function table(tenants, fare, spent) {
  const priced = tenants.some((row) => spent[row.tenant] || fare.get(row.tenant)?.dollars), rhos = fare.size > 0;
  const money = (value) => `$${value.toFixed(value < 10 ? 2 : 0)}`;
  const most = Math.max(1, ...tenants.map((row) => Math.max(row.held, row.promise || 0)));
  const head = [["Tenant", ""], ["Holds now", ""], ["Promised", "num"], ["Quota", "num"], ["Live jobs", "num"], ["Used since the start", "num"], ["Part of all use", "num"], rhos && ["ρ now", "num"], priced && ["Cost", "num"]].filter(Boolean);
  return h("div.card", {}, h("table.list", {},
    h("thead", {}, h("tr", {}, head.map(([label, cls]) => h("th", { scope: "col", class: cls }, label)))),
    h("tbody", {}, tenants.map((row) => h("tr", { key: row.tenant },
      h("th", { scope: "row" }, swatch(row.tenant), row.tenant),
      h("td", { "data-label": "Holds now" }, h("div.bar", { "aria-hidden": "true" }, h("i", { class: `t${tenantColour(row.tenant)}`, style: { width: `${(100 * row.held) / most}%` } }),
        row.promise !== null && h("b", { title: `promised ${row.promise.toFixed(1)} GPUs`, style: { left: `${(100 * row.promise) / most}%` } })), h("span", {}, gpus(row.held))),
      h("td.num", { "data-label": "Promised" }, row.promise === null ? "–" : `${row.promise.toFixed(1)} GPUs`),
      h("td.num", { "data-label": "Quota" }, row.most === null ? "none" : `at most ${count(row.most)}`, row.guaranteed ? h("small", {}, `${count(row.guaranteed)} guaranteed`) : null),
      h("td.num", { "data-label": "Live jobs" }, count(row.live)),
      h("td.num", { "data-label": "Used since the start" }, gpuHours(row.gpu_seconds)),
      h("td.num", { "data-label": "Part of all use" }, percent(row.part_ever)),
      rhos && h("td.num", { "data-label": "ρ now", title: "mean over its live jobs whose work is known; above 1 is worse than 1/n of the cluster" }, ratio(fare.get(row.tenant)?.rho), fare.get(row.tenant)?.worst !== undefined && h("small", {}, `highest ${ratio(fare.get(row.tenant).worst)}`)),
      priced && h("td.num", { "data-label": "Cost" }, `${money(fare.get(row.tenant)?.dollars || 0)} / h`, h("small", {}, `${money(spent[row.tenant] || 0)} since the start`)))))));
}

function borrowing(tenants) {
  if (tenants[0].promise === null) return h("p.note", {}, "Only administrators see what others are promised.");
  const over = tenants.filter((row) => row.held > row.promise + 0.5), under = tenants.filter((row) => row.promise > row.held + 0.5);
  const short = under.filter((row) => row.live).map((row) => row.tenant), fewer = `${short.join(", ")} ${short.length === 1 ? "has" : "have"} jobs and less than promised.`;
  if (!over.length) return h("p.note", {}, short.length ? `No tenant holds more than it is promised. ${fewer}` : "Every tenant holds about what it is promised.");
  const lent = under.reduce((sum, row) => sum + row.promise - row.held, 0), part = (value) => `${value.toFixed(1)} GPUs`;
  return [h("ul", {}, over.map((row) => h("li", { key: row.tenant }, swatch(row.tenant), h("b", {}, row.tenant), h("span.soft", {}, lent > 0
    ? ` borrows ${part(row.held - row.promise)}: ${under.map((other) => `${part(Math.min(row.held - row.promise, lent) * (other.promise - other.held) / lent)} of ${other.tenant}'s`).join(", ")}`
    : ` holds ${part(row.held - row.promise)} more than promised, which would be idle`)))),
  short.length > 0 && h("p.note", {}, fewer)];
}

function apps(rows) {
  const found = rows.filter((row) => row.app);
  if (!found.length) return null;
  return h("section.card", { key: "apps" }, h("h2", {}, "Apps"), h("table.list", {},
    h("thead", {}, h("tr", {}, [["App", ""], ["Tenant", ""], ["Live jobs", "num"], ["Holds now", "num"], ["ρ now", "num"]].map(([label, cls]) => h("th", { scope: "col", class: cls }, label)))),
    h("tbody", {}, found.map((row) => h("tr", { key: `${row.tenant} ${row.app}` }, h("th", { scope: "row" }, h("a", { href: `#/search/${encodeURIComponent(row.app)}` }, row.app)), h("td", { "data-label": "Tenant" }, swatch(row.tenant), row.tenant),
      h("td.num", { "data-label": "Live jobs" }, count(row.jobs || 0)), h("td.num", { "data-label": "Holds now" }, gpus(row.held || 0)), h("td.num", { "data-label": "ρ now" }, ratio(row.rho)))))));
}

const legend = (tenants) => h("p.legend", {}, tenants.filter((row) => row.held || row.gpu_seconds).slice(0, 12).map((row) => h("span", {}, swatch(row.tenant), row.tenant)));

function draw(usage, tenants, chart) {
  if (!usage?.size) return;
  const points = [...usage.values()].sort((a, b) => a.at - b.at), names = new Set();
  for (const point of points) for (const name in point.held) names.add(name);
  const order = [...names].sort((a, b) => (a === "others") - (b === "others") || a.localeCompare(b)), to = latest(), last = points.at(-1);
  chart.set({ from: clock.end === null ? Math.min(points[0].at, to - 120) : 0, to, unit: "GPUs", limit: last.up,
    points: points.map((row) => ({ at: row.at, values: order.map((name) => row.held[name] || 0) })),
    series: order.map((name) => ({ name, colour: `--t${tenantColour(name)}`, area: true })),
    label: `GPUs held by tenant since ${clockTime(points[0].at)}; now ${order.map((name) => `${name} ${last.held[name] || 0}`).join(", ")}` });
}
