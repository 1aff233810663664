// Decisions: the latest that moved jobs; and one past decision, made again on the snapshot it was made on.
import { call } from "./api.js";
import { h, render } from "./dom.js";
import { bidText, clockTime, count, decisionLink, fullTime, gpus, nameTenants, percent, pill, span, swatch, time } from "./format.js";

const VERBS = { start: "starts", stop: "stops", resize: "resizes", suspend: "suspends", resume: "resumes" };
const MOST_NAMED = 4, MOST_SHOWN = 200, MOST_TRIES = 30;
const BID = "bid for a GPU over the price";
const jobLink = (id) => h("a", { href: `#/job/${encodeURIComponent(id)}` }, id);

export function open(context) {
  return context.argument === null ? openList(context) : openOne(context);
}

function openList({ root }) {
  const go = (event) => {
    event.preventDefault();
    const value = event.target.querySelector("input").value.replaceAll(",", "").trim();
    if (/^\d+$/.test(value)) location.hash = `#/decision/${value}`;
  };
  return {
    title: "Decisions",
    views: ["decisions", "cluster"],
    update(rows) {
      if (!rows.decisions || !rows.cluster) return;
      const found = [...rows.decisions.values()].sort((a, b) => b.number - a.number).slice(0, MOST_SHOWN), { decisions, policy } = rows.cluster.get("cluster");
      render(root, h("h1", {}, "Decisions"),
        h("p.note", {}, `${count(decisions)} decisions were made. Those below moved jobs; open one to see what was known, what each job got and why.`),
        h("form.toolbar", { key: "toolbar", onsubmit: go }, h("label", {}, "Decision ", h("input", { id: "number", inputmode: "numeric", size: "9", placeholder: decisions ? `0 – ${count(decisions - 1)}` : "none yet" })),
          h("button", { type: "submit", disabled: !decisions }, "Open"), h("span.total", {}, `policy ${policy}`)),
        found.length ? h("div.card", { key: "card" }, h("ol.moves", {}, found.map((row) => h("li", { key: `${row.number}` },
          h("span.when", {}, time(row.at)), decisionLink(row.number, `#${count(row.number)}`), h("span", {}, moved(row))))))
          : h("div.empty", { key: "empty" }, h("p", {}, "No decision has moved a job yet.")));
    },
  };
}

/** "starts a, b and 3 more; stops c; moves 2 jobs of others". */
function moved(row) {
  const parts = [];
  for (const [verb, word] of Object.entries(VERBS)) {
    const jobs = row.moves.filter((move) => move.verb === verb).map((move) => move.job);
    if (!jobs.length) continue;
    parts.push(h("span.part", {}, `${word} `, jobs.slice(0, MOST_NAMED).flatMap((id, i) => [i ? ", " : null, jobLink(id)]), jobs.length > MOST_NAMED && ` and ${count(jobs.length - MOST_NAMED)} more`));
  }
  if (row.foreign) parts.push(h("span.part.soft", {}, `moves ${count(row.foreign)} job${row.foreign === 1 ? "" : "s"} of other tenants`));
  return parts;
}

function openOne({ root, argument }) {
  const stop = new AbortController(), began = Date.now();
  let found = null, problem = null, made = 0, search = "", timer = 0;

  async function load() {
    timer = setInterval(draw, 1000);
    for (let tries = 0; !found && !problem; tries++) {
      try { found = await call("GET", `/v1/decisions/${encodeURIComponent(argument)}`, undefined, stop.signal); }
      catch (refusal) {
        if (refusal.name === "AbortError" || stop.signal.aborted) return;
        if (refusal.status !== 429 || tries === MOST_TRIES) problem = refusal;
        else await new Promise((done) => setTimeout(done, 1000)); // an earlier question of this page is still answered
        if (stop.signal.aborted) return;
      }
    }
    clearInterval(timer);
    draw();
  }
  function draw() {
    render(root, h("p.crumb", {}, h("a", { href: "#/decisions" }, "Decisions"), " / decision"),
      h("div.title", { key: "title" }, h("h1", {}, `Decision ${/^\d+$/.test(argument) ? count(Number(argument)) : argument}`),
        found && h("span.pill", { class: found.same ? "good" : "bad" }, found.same ? "same when made again" : "differs when made again")),
      steps(),
      problem && h("div.empty", { key: "problem" }, h("p", {}, problem.status === 404 ? `There is no decision ${argument}.` : problem.message), h("p", {}, h("a", { href: "#/decisions" }, "See the latest"))),
      !found && !problem && h("p.loading", { key: "loading", role: "status" }, `Reading the journal and asking the policy again… ${span((Date.now() - began) / 1000)}`),
      found && [summary(found), verdicts(found), snapshot(found)]);
  }
  function steps() {
    const number = Number(argument);
    if (!Number.isInteger(number)) return null;
    return h("div.toolbar", { key: "steps" }, h("div.chips", { role: "group", "aria-label": "Other decisions" },
      h("button", { disabled: number === 0, onclick: () => { location.hash = `#/decision/${number - 1}`; } }, "← Before"),
      h("button", { disabled: made > 0 && number >= made - 1, onclick: () => { location.hash = `#/decision/${number + 1}`; } }, "After →")),
    h("span.total", {}, found ? h("time", { title: fullTime(found.at) }, clockTime(found.at)) : ""));
  }
  function verdicts(answer) {
    const words = search.toLowerCase().split(/\s+/).filter(Boolean), priced = answer.jobs.some((row) => BID in row.numbers);
    const fits = answer.jobs.filter((row) => words.every((word) => `${row.job} ${row.tenant} ${row.reason} ${row.move}`.toLowerCase().includes(word)));
    return h("section.card", { key: "verdicts" }, h("h2", {}, "Verdicts", h("small", {}, `${count(answer.all_jobs)} job${answer.all_jobs === 1 ? "" : "s"}`)),
      answer.jobs.length > 12 && h("div.toolbar", { key: "search" }, h("input", { type: "search", "aria-label": "Search verdicts", placeholder: "Search job, tenant, reason", oninput: (event) => { search = event.target.value; draw(); } })),
      fits.length ? h("table.list", { key: "table" },
        h("thead", {}, h("tr", {}, ["Job", "Was", "Got", priced && "Bid ÷ price", "Why"].filter(Boolean).map((name) => h("th", { scope: "col", class: name.startsWith("Bid") ? "num tight" : "" }, name)))),
        h("tbody", {}, fits.slice(0, MOST_SHOWN).map((row) => h("tr", { key: row.job },
          h("th", { scope: "row" }, jobLink(row.job), h("small", {}, swatch(row.tenant), row.tenant)),
          h("td", { "data-label": "Was" }, pill(row.state), h("small", {}, row.held ? `${gpus(row.held)}, ${row.nodes.join(", ")}` : `asks for ${gpus(row.wanted)}`)),
          h("td.tight", { "data-label": "Got" }, row.granted ? gpus(row.granted) : "none", row.move && h("small", {}, VERBS[row.move] || row.move)),
          priced && h("td.num", { "data-label": "Bid ÷ price" }, BID in row.numbers ? bidText(row.numbers[BID]) : "–"),
          h("td.wide", { "data-label": "Why" }, row.reason)))))
        : h("p.note", { key: "none" }, answer.all_jobs ? "No job fits the search." : answer.foreign ? "None of your jobs was live then." : "No job was live then."),
      fits.length > MOST_SHOWN && h("p.note", {}, `The first ${count(MOST_SHOWN)} of ${count(fits.length)}; search to see others.`),
      answer.foreign > 0 && h("p.note", {}, `${count(answer.foreign)} job${answer.foreign === 1 ? "" : "s"} of other tenants got ${gpus(answer.foreign_gpus)}.`));
  }
  load();
  return {
    title: `Decision ${argument}`,
    views: ["cluster"],
    update(rows) { if (rows.cluster) { made = rows.cluster.get("cluster").decisions; draw(); } },
    close() { clearInterval(timer); stop.abort(); },
  };
}

function summary(answer) {
  nameTenants(new Set(answer.jobs.map((row) => row.tenant)));
  const facts = [
    ["Made", time(answer.at)],
    ["Policy", answer.policy],
    ["GPUs granted", `${count(answer.granted)} of ${count(answer.gpus)}`],
    ["Proved", answer.gap === null ? "no bound given by this policy" : answer.gap < 1e-9 ? "no better choice exists" : `within ${percent(answer.gap)} of the best choice`],
    ["Next review", answer.review_at === null ? "at the next event" : time(answer.review_at)],
    ["Took", `${answer.seconds < 5e-5 ? "under 0.1" : (1000 * answer.seconds).toFixed(answer.seconds < 0.01 ? 1 : 0)} ms when made again`],
  ];
  return h("section.card", { key: "summary" },
    h("p", { class: answer.same ? "" : "bad" }, answer.same ? "The policy was asked again on the recorded snapshot, and gave the recorded verdicts and commands." : `Asked again on the recorded snapshot, the policy answers differently (${answer.difference}). The rows show the new answer; this version may differ from the one that decided.`),
    h("dl.facts", {}, facts.map(([name, value]) => h("div", { key: name }, h("dt", {}, name), h("dd", {}, value)))),
    h("p.note", {}, "The address of this page is a link to this decision. The same on the command line: ", h("code", {}, "shoal replay"), "."));
}

function snapshot(answer) {
  const kinds = new Map();
  for (const node of answer.nodes) kinds.set(node.kind, [...(kinds.get(node.kind) || []), node]);
  return h("section.card", { key: "snapshot" }, h("h2", {}, "GPUs as they were"), [...kinds].map(([kind, nodes]) => h("div.kind", { key: kind },
    h("h3", {}, kind, h("small", {}, ` ${count(nodes.reduce((sum, node) => sum + node.free, 0))} of ${gpus(nodes.reduce((sum, node) => sum + (node.up ? node.gpus : 0), 0))} free`)),
    h("ul.nodes.many", {}, nodes.slice(0, MOST_SHOWN).map((node) => h("li.node", { key: node.name, class: !node.up ? "down" : node.drained ? "drained" : "" },
      h("h3", {}, h("span", {}, node.name), h("small", {}, !node.up ? "down" : node.drained ? "drained" : node.free ? `${node.free} free` : "full")),
      h("div.seats", { "aria-hidden": "true" }, Array.from({ length: node.gpus }, (_, i) => h("i", { class: i < node.gpus - node.free ? "t0" : "free", style: { "flex-grow": "1" } }))))) ),
    nodes.length > MOST_SHOWN && h("p.note", {}, `and ${count(nodes.length - MOST_SHOWN)} more nodes`))));
}
