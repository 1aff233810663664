// Job: its state and why, what it used, its story, and its logs as they grow.
import { call } from "./api.js";
import { h, keep, render } from "./dom.js";
import { ago, amount, count, decisionLink, fullTime, gpuHours, now, percent, pill, span, spread, swatch, time } from "./format.js";
import { logPane } from "./logs.js";
import { trainingCharts } from "./training.js";

const ENDED = new Set(["completed", "failed", "cancelled"]);

export function open({ root, argument, login }) {
  const logs = login.record ? null : logPane(argument, (found) => { tracked = found; draw(); });
  const charts = trainingCharts();
  let tracked = [], detail = null, story = [], training = null, busy = "", problem = "";
  const path = `/v1/jobs/${encodeURIComponent(argument)}`;

  async function act(what, method, where, body) {
    [busy, problem] = [what, ""];
    draw();
    try { await call(method, where, body); } catch (refusal) { problem = refusal.message; }
    busy = "";
    draw();
  }
  const verbs = {
    hold: () => act("hold", "POST", `${path}/hold`),
    release: () => act("release", "POST", `${path}/release`),
    requeue: () => ask(`Stop ${argument} and put it back into the queue?`, detail.stop || "It is warned to save, and starts again when its turn comes.", "Put back", () => act("requeue", "POST", `${path}/requeue`)),
    cancel: () => ask(`Cancel ${argument}?`, `Its ranks are warned and have ${span(detail.grace)} to save. A cancelled job does not start again.`, "Cancel the job", () => act("cancel", "DELETE", path)),
    priority(event) {
      event.preventDefault();
      const value = Number(event.target.querySelector("input").value);
      if (Number.isInteger(value)) act("priority", "POST", `${path}/priority`, { priority: value });
    },
  };

  function draw() {
    if (!detail) return;
    const { job } = detail;
    render(root,
      h("p.crumb", {}, h("a", { href: "#/queue" }, "Queue"), " / job"),
      h("div.title", {}, h("h1", {}, job.id), pill(job.state), h("span.soft", {}, swatch(job.tenant), job.tenant)),
      !ENDED.has(job.state) && !login.record && actions(detail, verbs, busy),
      problem && h("p.bad", { role: "alert" }, problem),
      h("div.halves", { key: "halves" },
        h("div", {},
          h("section.card.why", {}, h("h2", {}, "Why"), h("p.lead", {}, sentence(detail.decision)),
            detail.change && h("p", {}, sentence(detail.change)), detail.stop && h("p.note", {}, sentence(detail.stop)),
            !ENDED.has(job.state) && h("p.note", {}, "Decided ", ago(detail.decided), " ago")),
          h("section.card", {}, h("h2", {}, "Story"), h("ol.story", { tabindex: "0", "aria-label": "Story, the latest first" }, story.map((moment, i) =>
            h("li", { key: `${i}`, class: tone(moment.what) }, time(moment.at), h("span", {}, sentence(moment.what), moment.decision !== undefined && [" ", decisionLink(moment.decision, `#${count(moment.decision)}`)]))).reverse()))),
        h("section.card", {}, h("h2", {}, "Facts"), progress(detail), facts(detail, tracked, [...(training?.values() || [])].at(-1)?.saved))),
      charts.draw(training),
      logs && h("section.card", { key: "log card" }, h("h2", {}, "Log"), keep(logs.element, "log", "log")));
    charts.show();
    logs?.set(detail.incarnation, ENDED.has(job.state));
  }
  return {
    title: argument,
    views: login.record ? ["job"] : ["job", "training"],
    update(rows) {
      if (!rows.job) return;
      detail = rows.job.get("detail");
      training = rows.training;
      story = [...rows.job].filter(([key]) => key !== "detail").sort(([a], [b]) => (a < b ? -1 : 1)).map(([, moment]) => moment);
      draw();
    },
    close() { logs?.close(); charts.close(); document.querySelector("dialog")?.remove(); },
  };
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const tone = (what) => (/^(crashed|could not|not resumed)/.test(what) ? "bad" : /^(completed|all ranks)/.test(what) ? "good" : "");

function actions(detail, verbs, busy) {
  const { job } = detail, held = job.state === "held", runs = job.held > 0 || job.state === "suspended";
  const button = (name, label, cls) => h("button", { onclick: verbs[name], disabled: Boolean(busy), class: cls || "" }, busy === name ? `${label}…` : label);
  return h("div.actions", { role: "group", "aria-label": "What to do with the job" },
    held ? button("release", "Release") : job.state !== "cancelling" && button("hold", "Hold"),
    runs && job.state === "running" && button("requeue", "Put back into the queue"),
    h("form.inline", { onsubmit: verbs.priority }, h("label", { for: "priority" }, "Priority"),
      h("input", { id: "priority", type: "number", step: "1", min: "-1000000", max: "1000000", value: String(job.priority || 0) }), h("button", { type: "submit", disabled: Boolean(busy) }, "Set")),
    job.state !== "cancelling" && button("cancel", "Cancel", "danger"));
}

/** Ask before something that cannot be undone. */
function ask(question, text, yes, then) {
  const close = () => dialog.remove();
  const dialog = h("dialog", { "aria-labelledby": "question", onclose: close },
    h("h2", { id: "question" }, question), h("p", {}, text),
    h("div.actions", {}, h("button", { onclick: close, autofocus: true }, "Keep it as it is"), h("button.danger", { onclick: () => { close(); then(); } }, yes)));
  document.body.append(dialog);
  dialog.showModal();
}

function progress(detail) {
  if (!detail.work || detail.job.state === "completed") return null;  // its last report may lie long before its end
  const part = Math.min(1, detail.done / detail.work);
  return h("div.progress", {}, h("div.meter", { role: "progressbar", "aria-label": "Work done", "aria-valuemin": "0", "aria-valuemax": "100", "aria-valuenow": String(Math.round(100 * part)) }, h("i", { style: { width: `${100 * part}%` } })),
    h("span", {}, `${percent(part)} of its work: ${amount(detail.done)} of ${amount(detail.work)}`));
}

/** Links of a job to its runs in W&B, MLflow and the like; an address that is not of the web is shown as text. */
const links = (found) => found?.length > 0 && found.map((url) => h("div", {}, /^https?:\/\//.test(url) ? h("a", { href: url, target: "_blank", rel: "noreferrer noopener" }, url.replace(/^https?:\/\//, "")) : url));

function facts(detail, tracked, saved) {
  const { job } = detail, at = now();
  const all = [
    ["GPUs", job.held ? `${count(job.held)} of ${count(job.wanted)}${job.kind ? ` (${job.kind})` : ""}` : `asks for ${count(job.wanted)}`],
    ["Nodes", job.nodes?.join(", ")],
    ["Expected end", job.end && h("span", { title: fullTime(job.end.median) }, `in ${spread(job.end, at)}`)],
    ["Expected start", job.start && h("span", { title: fullTime(job.start.median) }, `in ${spread(job.start, at)}`)],
    ["Submitted", time(job.submitted)],
    ["First start", job.started && time(job.started)],
    ["Ended", detail.ended && time(detail.ended)],
    ["Throughput", detail.rate > 0 && `${amount(detail.rate)} unit${detail.rate === 1 ? "" : "s"} of work per second`],
    ["Last checkpoint", saved && [ago(saved), " ago"]],
    ["Tracked at", links([...new Set([...(detail.links || []), ...tracked])])],
    ["GPU time used", gpuHours(detail.gpu_seconds)],
    ["GPU time lost", detail.lost_gpu_seconds >= 1 && `${gpuHours(detail.lost_gpu_seconds)} in stops and crashes`],
    ["Run", detail.incarnation > 0 && `${count(detail.incarnation)}${detail.restarts ? `, ${count(detail.restarts)} restart${detail.restarts === 1 ? "" : "s"}` : ""}${detail.crashes ? `, ${count(detail.crashes)} crash${detail.crashes === 1 ? "" : "es"} in a row` : ""}`],
    ["Finish-time fairness", detail.rho && `ρ = ${detail.rho}`],
    ["Time limit", detail.time && span(detail.time)],
    ["Exit status", detail.exit_status !== null && detail.exit_status !== undefined && String(detail.exit_status)],
    ["Priority", job.priority && String(job.priority)],
    ["Array", job.array],
    ["Ranks", detail.ranks && (detail.ranks === "gpu" ? "one for each GPU" : "one for each node")],
    ["Grace", detail.grace && span(detail.grace)],
    ["Folder", detail.workdir && h("code", {}, detail.workdir)],
  ].filter(([, value]) => value);
  return [
    h("dl.facts", {}, all.map(([name, value]) => h("div", { key: name }, h("dt", {}, name), h("dd", {}, value)))),
    detail.command.length > 0 && h("div.command", {}, h("span.soft", {}, "Command"), h("pre", { tabindex: "0" }, detail.command.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`)).join(" "))),
  ];
}
