// What if: the cluster's jobs simulated from now on, under other policies or with more nodes, side by side.
import { call } from "./api.js";
import { h, render } from "./dom.js";
import { count, span } from "./format.js";

const MOST_POLICIES = 8;
const MEASURES = [["avg_jct", "Mean completion time"], ["avg_wait", "Mean wait"], ["makespan", "Until the last job ends"]];

/** What was chosen and answered; kept while the page is open. */
const kept = { chosen: new Set(["srtf"]), add: "", answer: null };

/** A form and its answer; `set(policies, cluster)` says what can be chosen. */
export function comparison() {
  const root = h("div", {});
  let policies = null, cluster = null, problem = "", since = 0, stop = null, timer = 0;

  async function ask(event) {
    event.preventDefault();
    [problem, since, stop] = ["", Date.now(), new AbortController()];
    timer = setInterval(draw, 1000);
    draw();
    try {
      const body = { policies: [...kept.chosen] };
      if (kept.add.trim()) body.add = kept.add.trim();
      kept.answer = await call("POST", "/v1/whatif", body, stop.signal);
    } catch (refusal) {
      if (refusal.name === "AbortError") return;
      problem = refusal.message;
    }
    clearInterval(timer);
    since = 0;
    draw();
  }
  function toggle(name, on) {
    if (on) kept.chosen.add(name); else kept.chosen.delete(name);
    draw();
  }
  function draw() {
    if (!cluster || !policies) return;
    const full = kept.chosen.size >= MOST_POLICIES;
    render(root, h("h2", {}, "What if"),
      h("p.note", {}, "Simulates the jobs of this cluster from now on, beside how it goes under the present policy. Nothing is changed."),
      h("form.card", { key: "form", onsubmit: ask },
        h("fieldset", {}, h("legend", {}, `Policies to try beside ${cluster.policy}`),
          h("div.choices", { tabindex: "0", "aria-label": "Policies" }, policies.filter((each) => each.name !== cluster.policy).map((each) =>
            h("label", { key: each.name, title: each.paper }, h("input", { type: "checkbox", checked: kept.chosen.has(each.name), disabled: full && !kept.chosen.has(each.name), onchange: (event) => toggle(each.name, event.target.checked) }),
              h("span", {}, h("b", {}, each.name), h("small", {}, each.summary)))))),
        h("div.toolbar", {}, h("label", {}, "More nodes ", h("input", { type: "text", placeholder: "a100:1x8", size: "14", oninput: (event) => { kept.add = event.target.value; } })),
          h("button.primary", { type: "submit", disabled: since > 0 || !(kept.chosen.size || kept.add.trim()) }, "Compare"),
          since > 0 && h("span.soft", { role: "status" }, `Simulating for ${span((Date.now() - since) / 1000)}…`))),
      problem && h("p.bad.card", { key: "problem", role: "alert" }, problem),
      kept.answer && results(kept.answer));
  }
  return {
    element: root,
    set(found, present) { [policies, cluster] = [found, present]; draw(); },
    close() { clearInterval(timer); stop?.abort(); },
  };
}

function results(answer) {
  return h("section.card", { key: "results", "aria-live": "polite" }, h("h2", {}, "Compared"),
    h("table.list", {},
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Case"), MEASURES.map(([, label]) => h("th.num", { scope: "col" }, label)), h("th.num", { scope: "col" }, "Jobs that do not end"))),
      h("tbody", {}, answer.runs.map((run) => h("tr", { key: run.label },
        h("th", { scope: "row" }, run.label, !run.label.includes(run.policy) && h("small", {}, ` (${run.policy})`)),
        MEASURES.map(([key, label]) => h("td.num", { "data-label": label }, span(run[key]?.mean), change(run, key))),
        h("td.num", { "data-label": "Jobs that do not end" }, `${count(run.unfinished)} of ${count(run.jobs)}`))))),
    h("p.note", {}, `Means over ${answer.runs[0].seeds} simulations; differences from “as it is” with 95 % intervals. Assumed: ${answer.assumptions.join("; ")}.`));
}

/** A difference is good or bad only if its interval does not hold 0. */
function change(run, key) {
  const found = run.difference?.[key];
  if (!found) return null;
  const sign = (value) => (value > 0 ? `+${span(value)}` : span(value));
  const sure = found.low > 0 || found.high < 0;
  return h("small", { class: sure ? (found.mean < 0 ? "good" : "bad") : "" }, sure ? `${sign(found.mean)} (${sign(found.low)} to ${sign(found.high)})` : "no significant difference");
}
