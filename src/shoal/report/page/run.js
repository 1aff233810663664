// The page of a report: a comparison of policies, and the views of the cluster's page for one run at a time.
import * as cluster from "./cluster.js";
import * as compare from "./compare.js";
import { h, render, tip } from "./dom.js";
import * as fairness from "./fairness.js";
import { clock, count, elapsed } from "./format.js";
import * as job from "./job.js";
import * as queue from "./queue.js";
import { choose, Feed } from "./record.js";
import { applyTheme, mark, nextTheme, theme } from "./theme.js";
import * as timeline from "./timeline.js";

const VIEWS = { compare, cluster, queue, timeline, fairness, job };
const TABS = [["compare", "Compare"], ["cluster", "Cluster"], ["queue", "Queue"], ["timeline", "Timeline"], ["fairness", "Fairness"]];
const STEPS = 1000, PLAY_MS = 100, PLAYS_MS = 20_000;

const main = document.getElementById("main");
const page = { places: null, runs: [], at: 0, view: null, feed: null, timer: 0 };

async function unpack() {
  const packed = Uint8Array.from(atob(document.getElementById("data").textContent), (each) => each.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

function route() {
  const [name, argument] = location.hash.replace(/^#\/?/, "").split("/");
  if (name === "job" && argument) return ["job", decodeURIComponent(argument)];
  return [name in VIEWS && name !== "job" && page.runs.length ? name : "compare", null];
}

function show() {
  const [name, argument] = route();
  tip(0, 0);
  page.feed?.close();
  page.view?.close?.();
  main.className = `view ${name === "compare" ? "comparison" : name}`;
  render(main);
  const shown = page.runs[page.at], hidden = name === "timeline" && shown?.data.node_use;
  const view = hidden ? tooLarge() : VIEWS[name].open({ root: main, argument, login: { record: true, tenant: null }, places: page.places });
  document.title = `${view.title} · Shoal report`;
  Object.assign(page, { view, name });
  page.feed = new Feed(view.views || [], argument, {
    onChange: (changed) => { if (page.view === view) view.update(page.feed.rows, changed); },
    onMissing: () => render(main, h("div.empty", { key: "missing" }, h("p", {}, `This report lists no job ${argument}.`), h("p", {}, h("a", { href: "#/queue" }, "See the queue")))),
  });
  frame();
  scrollTo(0, 0);
}

function tooLarge() {
  render(main, h("h1", {}, "Timeline"), h("div.empty", {}, h("p", {}, "This run is too large for a page with a bar for each job."),
    h("p.note", {}, "Fairness shows who held the GPUs over time, Cluster which nodes were in use, and Queue leads to single jobs.")));
  return { title: "Timeline", update() {} };
}

function frame() {
  const [name] = route(), run = page.runs[page.at];
  render(document.getElementById("top"),
    h("a.brand", { href: "#/compare" }, mark(), "Shoal report"),
    h("nav", { "aria-label": "Views" }, TABS.filter(([key]) => key === "compare" || page.runs.length).map(([key, label]) =>
      h("a", { href: `#/${key}`, "aria-current": name === key || (name === "job" && key === "queue") ? "page" : null }, label))),
    h("div.account", {}, h("button.quiet", { onclick: () => { nextTheme(); frame(); }, title: "As the system has them (auto), light or dark" }, `Colours: ${theme()}`)));
  render(document.getElementById("moment"), run && name !== "compare" && bar(run, name));
}

/** Which run is shown, and the moment of it. */
function bar(run, name) {
  const { data } = run, listed = data.jobs.id.length;
  return h("div.moment", {},
    h("label", {}, h("span", {}, "Run"), h("select", { "aria-label": "Run", onchange: (event) => pick(Number(event.target.value)) },
      page.runs.map((each, i) => h("option", { value: String(i), selected: i === page.at }, each.name)))),
    name !== "job" && h("label.wide", {}, h("span", {}, "Moment"),
      h("input", { id: "slider", "aria-label": "Moment", type: "range", min: "0", max: String(STEPS), "aria-valuetext": elapsed(clock.at), oninput: (event) => { stop(); move((clock.end * event.target.value) / STEPS); } }),
      h("output", {}, `${elapsed(clock.at)} of ${elapsed(clock.end)}`)),
    name !== "job" && h("button", { onclick: play, "aria-pressed": String(page.timer > 0) }, page.timer ? "Stop" : "Play"),
    (data.node_use || !data.reasons.texts.length) && h("p.note", {},
      data.node_use && `This run has ${count(data.total)} jobs. Charts, the map and shares are of all of them; lists have the ${count(listed)} that waited longest or used most GPU time. `,
      !data.reasons.texts.length && "The reasons of decisions are not in this report."));
}

function pick(at) {
  stop();
  page.at = at;
  choose(page.runs[at].name, page.runs[at].data);
  show();
  slide();
}
const slide = () => { const slider = document.getElementById("slider"); if (slider) slider.value = String(Math.round((STEPS * clock.at) / clock.end)); };
function move(at) {
  clock.at = Math.max(0, Math.min(clock.end, at));
  page.feed?.refresh();
  frame();
}
function stop() { clearInterval(page.timer); page.timer = 0; }
function play() {
  if (page.timer) { stop(); return frame(); }
  if (clock.at >= clock.end) clock.at = 0;
  page.timer = setInterval(() => {
    if (clock.at >= clock.end) stop();
    move(clock.at + (clock.end * PLAY_MS) / PLAYS_MS);
    slide();
  }, PLAY_MS);
  frame();
}

async function begin() {
  applyTheme();
  page.places = await unpack();
  page.runs = page.places.flatMap((place) => Object.entries(place.runs).map(([policy, data]) =>
    ({ name: page.places.length > 1 ? `${policy}, ${place.name} on ${place.cluster}` : policy, data })));
  if (page.runs.length) choose(page.runs[0].name, page.runs[0].data);
  show();
  slide();
}

document.querySelector(".skip").onclick = (event) => { event.preventDefault(); main.focus(); };
addEventListener("hashchange", () => { if (!page.places) return; stop(); show(); slide(); main.focus(); });
addEventListener("keydown", (event) => {
  if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  const tab = TABS[Number(event.key) - 1];
  if (tab) location.hash = `#/${tab[0]}`;
});
begin();
