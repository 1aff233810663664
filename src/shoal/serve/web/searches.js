// Searches: the trials of an app, their losses as curves, which were given up, and where the best checkpoint is.
import { colour, prepare } from "./chart.js";
import { h, keep, render, tip } from "./dom.js";
import { ago, amount, count, nameTenants, percent, swatch } from "./format.js";

const STATES = { training: ["training", "s-running"], waiting: ["waits", "s-pending"], trained: ["trained", "s-completed"], given_up: ["given up", "s-held"], lost: ["lost", "s-failed"] };
const MOST_ROWS = 300, LEFT = 48, BOTTOM = 22, TOP = 8;
const lossOf = (trial) => trial.losses.findLast(([, loss]) => loss !== null)?.[1];
const trained = (trial) => trial.losses.at(-1)?.[0] || 0;

export function open({ root, argument }) {
  const charts = new Map();
  const chart = (key) => { if (!charts.has(key)) charts.set(key, curves()); return charts.get(key); };
  return {
    title: argument ? `Search ${argument}` : "Searches",
    views: ["searches"],
    update(rows) {
      if (!rows.searches) return;
      const found = [...rows.searches.values()].filter((row) => !argument || row.app === argument).sort((a, b) => b.at - a.at);
      nameTenants(new Set(found.map((row) => row.tenant)));
      render(root, argument && h("p.crumb", {}, h("a", { href: "#/searches" }, "Searches"), " / app"), h("h1", {}, argument || "Searches"),
        !found.length && h("div.empty", { key: "empty" }, h("p", {}, argument ? `No search of the app ${argument} has reported.` : "No search has reported since the control plane started."), h("p.note", {}, "Start one: ", h("code", {}, "shoal search search.yaml"))),
        found.map((row) => search(row, chart(`${row.tenant} ${row.app}`), Boolean(argument))));
      for (const row of found) chart(`${row.tenant} ${row.app}`).set(row.report);
    },
    close() { for (const each of charts.values()) each.close(); },
  };
}

function search(row, chart, whole) {
  const { report } = row, best = report.trials.find((trial) => trial.trial === report.best), tally = (state) => report.trials.filter((trial) => trial.state === state).length;
  const facts = [
    ["Scheduler", report.scheduler], ["State", report.over ? "over" : "searching"],
    ["Trials", `${count(report.trials.length)} begun, ${count(tally("training"))} training, ${count(tally("given_up"))} given up${tally("lost") ? `, ${count(tally("lost"))} lost` : ""}`],
    ["Best", best && `trial ${best.trial}${lossOf(best) === undefined ? "" : `, loss ${amount(lossOf(best))}`}`], ["Its parameters", best && parameters(best)],
    ["Best checkpoint", best?.place && h("code", {}, best.place)], ["Last report", [ago(row.at), " ago"]],
  ].filter(([, value]) => value);
  return h("section.card", { key: `${row.tenant} ${row.app}` }, h("h2", {}, whole ? "Search" : h("a", { href: `#/search/${encodeURIComponent(row.app)}` }, row.app), h("small", {}, swatch(row.tenant), row.tenant)),
    h("dl.facts", {}, facts.map(([name, value]) => h("div", { key: name }, h("dt", {}, name), h("dd", {}, value)))),
    h("figure", {}, h("figcaption", {}, "Loss over the part of the training done; the best trial is thick, those given up are pale"), keep(chart.canvas, "curves", "plot tall")), whole && trials(report));
}

const parameters = (trial) => Object.entries(trial.parameters).map(([name, value]) => `${name} ${value}`).join(", ") || "–";

function trials(report) {
  const order = [...report.trials].sort((a, b) => (b.trial === report.best) - (a.trial === report.best) || trained(b) - trained(a) || (lossOf(a) ?? Infinity) - (lossOf(b) ?? Infinity));
  return h("table.list", { key: "trials" },
    h("thead", {}, h("tr", {}, [["Trial", ""], ["State", ""], ["Parameters", ""], ["Loss", "num"], ["Trained", "num"], ["Jobs", ""]].map(([name, cls]) => h("th", { scope: "col", class: cls }, name)))),
    h("tbody", {}, order.slice(0, MOST_ROWS).map((trial) => h("tr", { key: `${trial.trial}` },
      h("th", { scope: "row" }, `${trial.trial}${trial.trial === report.best ? " (best)" : ""}`),
      h("td", { "data-label": "State" }, h("span.pill", { class: STATES[trial.state][1] }, STATES[trial.state][0]), trial.why && h("small", {}, trial.why)),
      h("td", { "data-label": "Parameters" }, parameters(trial)), h("td.num", { "data-label": "Loss" }, lossOf(trial) === undefined ? "–" : amount(lossOf(trial))), h("td.num", { "data-label": "Trained" }, percent(trained(trial))),
      h("td", { "data-label": "Jobs" }, trial.jobs.flatMap((id, i) => [i ? ", " : null, h("a", { href: `#/job/${encodeURIComponent(id)}` }, id)]))))));
}

/** Losses over the fraction of the training, a line for each trial; the best is thick, those given up are faint. */
function curves() {
  const canvas = h("canvas.chart", { role: "img" });
  let report = null, scale = null;
  const known = (trial) => trial.losses.filter(([, loss]) => loss !== null);
  function draw() {
    if (!report || !canvas.isConnected) return;
    const { context: c, width, height } = prepare(canvas), losses = report.trials.flatMap(known).map(([, loss]) => loss);
    if (!losses.length) { c.fillStyle = colour("--soft"); c.fillText("No loss yet: a trial must print `loss NUMBER`.", LEFT, height / 2); return; }
    const low = Math.min(...losses), high = Math.max(...losses, low + 1e-12);
    const x = (part) => LEFT + part * (width - LEFT - 8), y = (loss) => height - BOTTOM - ((loss - low) / (high - low)) * (height - BOTTOM - TOP - 4);
    scale = { x, y };
    c.fillStyle = colour("--soft");
    c.textBaseline = "middle";
    c.textAlign = "right";
    for (const value of [low, high]) { c.fillText(amount(value), LEFT - 8, y(value)); c.fillStyle = colour("--line"); c.fillRect(LEFT, Math.round(y(value)), width - LEFT - 8, 1); c.fillStyle = colour("--soft"); }
    c.textBaseline = "alphabetic";
    c.textAlign = "center";
    for (const part of [0.25, 0.5, 0.75, 1]) c.fillText(percent(part), Math.min(x(part), width - 20), height - 6);
    for (const trial of [...report.trials].sort((a, b) => (a.trial === report.best) - (b.trial === report.best))) line(c, trial, x, y);
    c.globalAlpha = 1;
  }
  function line(c, trial, x, y) {
    const gone = trial.state === "given_up" || trial.state === "lost";
    c.strokeStyle = c.fillStyle = colour(trial.trial === report.best ? "--accent" : gone ? "--t0" : "--t1");
    c.globalAlpha = gone ? 0.6 : 1;
    c.lineWidth = trial.trial === report.best ? 3 : 1.5;
    c.beginPath();
    known(trial).forEach(([part, loss], i) => (i ? c.lineTo(x(part), y(loss)) : c.moveTo(x(part), y(loss))));
    c.stroke();
    for (const [part, loss] of known(trial)) { c.beginPath(); c.arc(x(part), y(loss), 3, 0, 7); c.fill(); }
  }
  canvas.onpointermove = (event) => {
    if (!report || !scale) return;
    const { left, top } = canvas.getBoundingClientRect(), px = event.clientX - left, py = event.clientY - top;
    const near = report.trials.flatMap((trial) => known(trial).map(([part, loss]) => ({ trial, part, loss, far: Math.hypot(scale.x(part) - px, scale.y(loss) - py) }))).sort((a, b) => a.far - b.far)[0];
    if (!near || near.far > 24) return tip(0, 0);
    tip(event.clientX, event.clientY, h("b", {}, `Trial ${near.trial.trial}`), h("div", {}, parameters(near.trial)), h("div", {}, `loss ${amount(near.loss)} after ${percent(near.part)}`));
  };
  canvas.onpointerleave = () => tip(0, 0);
  const observer = new ResizeObserver(draw);
  observer.observe(canvas);
  addEventListener("shoal-theme", draw);
  return {
    canvas,
    set(next) { report = next; canvas.setAttribute("aria-label", `Loss of ${next.trials.length} trials over their training`); draw(); },
    close() { observer.disconnect(); removeEventListener("shoal-theme", draw); },
  };
}
