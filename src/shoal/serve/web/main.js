// The page: logs in, shows one view at a time, and says when the control plane does not answer.
import { call, Feed } from "./api.js";
import { h, render, tip } from "./dom.js";
import { clockTime, fullTime } from "./format.js";
import { applyTheme, mark, nextTheme, theme } from "./theme.js";
import * as cluster from "./cluster.js";
import * as decisions from "./decisions.js";
import * as fairness from "./fairness.js";
import * as job from "./job.js";
import * as policies from "./policies.js";
import * as queue from "./queue.js";
import * as searches from "./searches.js";
import * as timeline from "./timeline.js";

const VIEWS = { cluster, queue, timeline, decisions, fairness, policies, searches, job, decision: decisions, search: searches };
/** The tab that a view of one thing belongs to. */
const ONE = { job: "queue", decision: "decisions", search: "searches" };
const TABS = [["cluster", "Cluster"], ["queue", "Queue"], ["timeline", "Timeline"], ["decisions", "Decisions"], ["fairness", "Fairness"], ["policies", "Policies"], ["searches", "Searches"]];

/** The address that `shoal web` prints. */
const CODE = /^#code=([\w-]+)/;

const main = document.getElementById("main");
/** The login, the open view and its event stream. */
const page = { login: null, view: null, name: "", feed: null, state: "connecting", since: null };

function route() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  if (name in ONE && rest[0]) return [name, decodeURIComponent(rest[0])];
  return [name in VIEWS && !(name in ONE) ? name : "cluster", null];
}

function show() {
  if (!page.login) return;
  const [name, argument] = route();
  tip(0, 0);
  close();
  main.className = `view ${name}`;
  render(main, h("p.loading", { key: "loading" }, "Loading…"));
  const view = VIEWS[name].open({ root: main, argument, login: page.login, feed: () => page.feed });
  document.title = `${view.title} · Shoal`;
  Object.assign(page, { view, name, state: "connecting" });
  page.feed = new Feed(view.views, name === "job" ? argument : null, {
    onChange: (changed) => { if (page.view === view) view.update(page.feed.rows, changed); },
    onState: (state, since, problem) => { Object.assign(page, { state, since, problem }); frame(); },
    onMissing: () => { page.state = "live"; frame(); missing(argument); },
    onLogout: () => signIn("You were logged out."),
  });
  frame();
  scrollTo(0, 0);
}

function missing(job) {
  page.view?.close?.();
  page.view = null;
  render(main, h("div.empty", { key: "missing" }, h("p", {}, `There is no job ${job}, or it is another tenant's.`), h("p", {}, h("a", { href: "#/queue" }, "See the queue"))));
}

function close() {
  page.feed?.close();
  page.view?.close?.();
  Object.assign(page, { feed: null, view: null });
}

function frame() {
  const [name] = route();
  const { login, state } = page;
  const live = { live: "live", lost: "not connected", connecting: "connecting" }[state];
  render(
    document.getElementById("top"),
    h("a.brand", { href: "#/cluster" }, mark(), "Shoal"),
    login && h("nav", { "aria-label": "Views" }, TABS.map(([key, label]) =>
      h("a", { href: `#/${key}`, "aria-current": name === key || ONE[name] === key ? "page" : null }, label))),
    h("div.account", {},
      login && h("span.live", { class: state, title: "Whether changes arrive as they happen" }, h("i", { "aria-hidden": "true" }), live),
      h("button.quiet", { onclick: () => { nextTheme(); frame(); }, title: "As the system has them (auto), light or dark" }, `Colours: ${theme()}`),
      login && h("span.who", { title: `logged in until ${fullTime(login.expires)}` }, login.tenant || login.name),
      login && h("button.quiet", { onclick: logOut }, "Log out")),
  );
  const current = document.querySelector("nav [aria-current]");
  if (current && page.shown !== name) { page.shown = name; current.parentElement.scrollLeft = current.offsetLeft - current.parentElement.offsetLeft - 40; }
  render(
    document.getElementById("banner"),
    login && state === "lost" && h("p.lost", {}, page.problem.status
      ? `The control plane refuses updates since ${clockTime(page.since)}: ${page.problem.message}.`
      : `The control plane does not answer since ${clockTime(page.since)}. This is what was last seen; the page goes on by itself when it answers again.`),
  );
}

async function logOut() {
  close();
  try { await call("DELETE", "/v1/login"); } catch { /* it is over either way */ }
  signIn("You are logged out.");
}

function signIn(note, failed = false) {
  close();
  page.login = null;
  frame();
  document.title = "Log in · Shoal";
  main.className = "view";
  const submit = async (event) => {
    event.preventDefault();
    const field = event.target.querySelector("input");
    try { await enter({ token: field.value.trim() }); }
    catch (refusal) { signIn(refusal.message, true); document.querySelector(".login input").select(); }
  };
  render(main, h("form.login.card", { key: "login", onsubmit: submit },
    h("h1", {}, "Log in"),
    note && h("p", { class: failed ? "bad" : "note", role: "alert" }, note),
    h("label", { for: "token" }, "Token"),
    h("input", { id: "token", type: "password", autocomplete: "current-password", required: true, placeholder: "shoal_…", spellcheck: "false" }),
    h("button.primary", { type: "submit" }, "Log in"),
    h("p.note", {}, "On a machine with access to the cluster, ", h("code", {}, "shoal web"), " prints a link that logs this browser in. An administrator creates tokens with ", h("code", {}, "shoal token create"), ".")));
  document.getElementById("token").focus();
}

async function enter(secret) {
  page.login = await call("POST", "/v1/login", secret);
  show();
}

async function begin() {
  applyTheme();
  const code = location.hash.match(CODE);
  if (code) history.replaceState(null, "", "/#/cluster");
  try {
    if (code) await enter({ code: code[1] });
    else { page.login = await call("GET", "/v1/login"); show(); }
  } catch (refusal) {
    if (refusal.status) signIn(code ? refusal.message : "", Boolean(code));
    else { render(main, h("p.empty", {}, "The control plane does not answer. Trying again…")); setTimeout(begin, 2000); }
  }
}

document.querySelector(".skip").onclick = (event) => { event.preventDefault(); main.focus(); };
// A link of `shoal web` opened in a tab that shows this page changes the address only: the page is not loaded again.
addEventListener("hashchange", () => { if (CODE.test(location.hash)) begin(); else { show(); main.focus(); } });
// Ages and expected times move on also when nothing changes.
setInterval(() => { if (page.view && !document.hidden && page.feed?.rows) page.view.update(page.feed.rows, []); }, 5000);
addEventListener("keydown", (event) => {
  if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  const tab = TABS[Number(event.key) - 1];
  if (tab) location.hash = `#/${tab[0]}`;
  if (event.key === "/" && page.login) { event.preventDefault(); if (page.name !== "queue") location.hash = "#/queue"; setTimeout(() => document.getElementById("search")?.focus(), 50); }
});
begin();
