// Policies: the one that decides and a switch to another, one that is asked beside it, and simulations side by side.
import { call } from "./api.js";
import { h, keep, render } from "./dom.js";
import { ago, count, decisionLink, gpuHours, gpus, percent, span, swatch, time } from "./format.js";
import { comparison } from "./whatif.js";

const PREVIEW_SEEDS = 3;

export function open({ root, login }) {
  const compare = comparison(), admin = login.role === "admin";
  let policies = null, cluster = null, shadow = null, problem = "", busy = "";

  async function act(what, path, body) {
    [busy, problem] = [what, ""];
    draw();
    try { await call("POST", path, body); } catch (refusal) { problem = refusal.message; }
    busy = "";
    draw();
  }
  const chosen = (event) => { event.preventDefault(); return event.target.querySelector("select").value; };
  const askBeside = (event) => act("shadow", "/v1/policy/shadow", { policy: chosen(event) });
  const preview = (event) => switchDialog(chosen(event), cluster.policy, (policy) => act("switch", "/v1/policy", { policy }));
  const options = (id) => h("select", { id }, policies.filter((each) => each.name !== cluster.policy).map((each) => h("option", { value: each.name, key: each.name }, each.name)));

  function draw() {
    if (!cluster || !policies) return;
    compare.set(policies, cluster);
    render(root, h("h1", {}, "Policies"),
      problem && h("p.bad.card", { key: "problem", role: "alert" }, problem),
      h("div.halves", { key: "halves" },
        h("section.card", { key: "force" }, h("h2", {}, "Decides now"), h("p.lead", {}, cluster.policy), h("p", {}, policies.find((each) => each.name === cluster.policy.split(":")[0])?.summary || ""),
          h("p.note", {}, `${count(cluster.decisions)} decisions so far.`),
          admin && h("form.toolbar", { onsubmit: preview }, h("label", {}, "Switch to ", options("switch")), h("button", { type: "submit", disabled: Boolean(busy) }, busy === "switch" ? "Switching…" : "Preview and switch…"))),
        h("section.card", { key: "shadow" }, h("h2", {}, "Asked beside it"), shadow ? account(shadow) : h("p", {}, "No policy is asked beside the deciding one. A shadow policy gets every snapshot too, and this page keeps what it would have done differently; it changes nothing."),
          admin && h("form.toolbar", { onsubmit: askBeside }, h("label", {}, shadow ? "Ask another " : "Ask ", options("shadow")), h("button", { type: "submit", disabled: Boolean(busy) }, "Start"),
            shadow && h("button", { type: "button", disabled: Boolean(busy), onclick: () => act("shadow", "/v1/policy/shadow", { policy: null }) }, "Stop")))),
      shadow && shadow.decisions.length > 0 && differences(shadow),
      keep(compare.element, "compare", "compare"));
  }
  call("GET", "/v1/policies").then((found) => { policies = found; draw(); }, (refusal) => { policies = []; problem = refusal.message; draw(); });
  return {
    title: "Policies",
    views: ["cluster", "policy"],
    update(rows) {
      if (rows.cluster) cluster = rows.cluster.get("cluster");
      if (rows.policy) shadow = rows.policy.get("policy").shadow;
      draw();
    },
    close() { compare.close(); document.querySelector("dialog")?.remove(); },
  };
}

function account(shadow) {
  const part = shadow.compared ? shadow.same / shadow.compared : 0;
  const facts = [
    ["Policy", shadow.policy], ["Asked for", ago(shadow.since)],
    ["Same verdicts", shadow.compared ? `${percent(part)} of ${count(shadow.compared)} decisions` : "none compared yet"],
    ["Would have run", `${count(shadow.would_run)} verdict${shadow.would_run === 1 ? "" : "s"} that waited`],
    ["Would have waited", `${count(shadow.would_wait)} that ran`],
    ["Other size", shadow.other_size > 0 && `${count(shadow.other_size)} grants`],
    ["Not compared", shadow.skipped > 0 && `${count(shadow.skipped)}: they came faster than 5 % of a core allows`],
  ].filter(([, value]) => value);
  return [shadow.failed && h("p.bad", { role: "alert" }, `It was stopped: ${shadow.failed}`),
    h("dl.facts", {}, facts.map(([name, value]) => h("div", { key: name }, h("dt", {}, name), h("dd", {}, value))))];
}

function differences(shadow) {
  return h("section.card", { key: "differences" }, h("h2", {}, `What ${shadow.policy} would have done differently`),
    shadow.tenants.length > 0 && h("p.legend", { key: "use" }, shadow.tenants.slice(0, 12).map((use) => h("span", {}, swatch(use.tenant), `${use.tenant}: ${gpuHours(use.would)} instead of ${gpuHours(use.granted)}`))),
    h("ol.moves", { key: "list" }, shadow.decisions.slice(0, 8).map((each) => h("li", { key: `${each.number}` }, h("span.when", {}, time(each.at)), decisionLink(each.number, `#${count(each.number)}`),
      h("span", {}, each.jobs.slice(0, 5).map((job) => h("div", { key: job.job }, h("a", { href: `#/job/${encodeURIComponent(job.job)}` }, job.job), `: ${job.would ? gpus(job.would) : "none"} instead of ${job.granted ? gpus(job.granted) : "none"} `, h("small", {}, job.reason))),
        each.differing > Math.min(5, each.jobs.length) && h("small", {}, `and ${count(each.differing - Math.min(5, each.jobs.length))} more jobs`))))),
    h("p.note", { key: "note" }, "Each decision is compared on the cluster as it really is: what the shadow would have changed earlier is not carried on. For that, simulate below."));
}

/** Simulate the next hour under a policy beside the present one, then ask whether to switch. */
function switchDialog(policy, present, then) {
  const stop = new AbortController();
  const close = () => { stop.abort(); dialog.remove(); };
  const preview = h("div", { "aria-live": "polite" }, h("p.soft", {}, "Simulating the next hour…"));
  const dialog = h("dialog.switch", { "aria-labelledby": "question", onclose: close }, h("h2", { id: "question" }, `Switch from ${present} to ${policy}?`), preview,
    h("p.note", {}, "It decides at once, and until the control plane restarts. The journal records the switch."),
    h("div.actions", {}, h("button", { onclick: close, autofocus: true }, "Keep it as it is"), h("button.primary", { onclick: () => { close(); then(policy); } }, `Switch to ${policy}`)));
  document.body.append(dialog);
  dialog.showModal();
  call("POST", "/v1/whatif", { policies: [policy], seeds: PREVIEW_SEEDS }, stop.signal).then((answer) => render(preview, nextHour(answer)), (refusal) => {
    if (refusal.name !== "AbortError") render(preview, h("p.bad", { role: "alert" }, `No preview: ${refusal.message}`));
  });
}

function nextHour({ runs, jobs }) {
  const number = (value) => (Number.isInteger(value) ? count(value) : value.toFixed(1));
  const rows = [["Waiting jobs that start", "starts"], ["Jobs that end", "ends"], ["Stops and suspensions", "stops"]];
  const at = (job, key) => (job?.[key] ? job[key].median : Infinity), HOUR = 3600;
  const before = new Map(jobs.filter((job) => job.label === runs[0].label).map((job) => [job.id, job]));
  const moved = jobs.filter((job) => job.label === runs[1].label).map((job) => ({ id: job.id, now: at(before.get(job.id), "start"), then: at(job, "start") }))
    .filter(({ now, then }) => Math.min(now, then) <= HOUR && Math.abs(now - then) > 30).sort((a, b) => Math.abs(b.now - b.then) - Math.abs(a.now - a.then));
  const when = (value) => (value === Infinity ? "not in this simulation" : value < 1 ? "at once" : `in ${span(value)}`);
  return [h("table.list", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "In the next hour"), runs.map((run) => h("th.num", { scope: "col" }, run.policy)))),
    h("tbody", {}, rows.map(([label, key]) => h("tr", {}, h("th", { scope: "row" }, label), runs.map((run) => h("td.num", { "data-label": run.policy }, number(run.hour[key]))))))),
  moved.length > 0 && h("ul.held", {}, moved.slice(0, 6).map((job) => h("li", {}, job.id, h("small", {}, `starts ${when(job.then)} instead of ${when(job.now)}`))))];
}
