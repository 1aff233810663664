// Queue: every job in a list of which only the visible rows are in the document.
import { call } from "./api.js";
import { h, keep, render } from "./dom.js";
import { ago, bidText, clockTime, count, fullTime, nameTenants, now, pill, span, spread, stateName, swatch } from "./format.js";
import { submitDialog } from "./submit.js";

const WAITING = new Set(["pending", "held", "suspended"]);
const FILTERS = [["live", "All live"], ["running", "Running"], ["waiting", "Waiting"], ["held", "Held"], ["ended", "Ended"]];
const RUNNING = new Set(["running", "starting", "stopping", "cancelling"]);
const SHOWN = {
  live: () => true,
  running: (row) => RUNNING.has(row.state),
  waiting: (row) => row.state === "pending" || row.state === "suspended",
  held: (row) => row.state === "held",
  ended: () => true,
};
const COLUMNS = [
  ["place", "#", "place in line among the waiting jobs"], ["state", "State"], ["job", "Job"], ["tenant", "Tenant"],
  ["gpus", "GPUs", "GPUs held of those asked for"], ["bid", "Bid", "bid for a GPU over its price at the last decision: from 1 on a job gets GPUs"], ["expected", "Starts / ends", "expected time, with the 10th and 90th percentile"],
  ["age", "Submitted", "time since submission"], ["reason", "Reason"],
];
const MOST_ENDED = 1000;

/** What the list shows; kept while the page is open. */
const chosen = { filter: "live", tenant: "", search: "", sort: "place", down: false };

export function open({ root, login }) {
  let rows = null, ended = null, shown = [], tenants = [], problem = "";
  const list = h("div.rows", { role: "rowgroup", tabindex: "-1" }), space = h("div.space", {});
  const viewport = h("div.viewport", { tabindex: "0", role: "table", "aria-label": "Jobs" }, header(), h("div.scroll", {}, space, list));
  const scroll = viewport.querySelector(".scroll");

  function header() {
    return h("div.head", { role: "rowgroup" }, h("div.row", { role: "row", "aria-rowindex": "1" }, COLUMNS.map(([key, label, title]) =>
      h("div", { role: "columnheader", class: key, "aria-sort": chosen.sort === key ? (chosen.down ? "descending" : "ascending") : "none" },
        h("button", { title: title || null, onclick: () => sortBy(key) }, label, chosen.sort === key && key !== "place" ? (chosen.down ? " ↓" : " ↑") : "")))));
  }
  function sortBy(key) {
    Object.assign(chosen, { down: chosen.sort === key && key !== "place" ? !chosen.down : false, sort: key });
    render(viewport.firstChild, header().firstChild);
    arrange();
  }
  const height = () => parseFloat(getComputedStyle(viewport).getPropertyValue("--row-height")) || 44;

  function arrange() {
    const source = chosen.filter === "ended" ? ended : rows;
    if (!source) return draw();
    const words = chosen.search.toLowerCase().split(/\s+/).filter(Boolean);
    shown = source.filter((row) => SHOWN[chosen.filter](row) && (!chosen.tenant || row.tenant === chosen.tenant) && words.every((word) => row.text.includes(word)));
    if (chosen.sort !== "place") {
      const key = KEYS[chosen.sort], sign = chosen.down ? -1 : 1;
      shown = shown.map((row) => [key(row), row]).sort(([a], [b]) => sign * (a < b ? -1 : a > b ? 1 : 0)).map(([, row]) => row);
    }
    draw();
  }

  function draw() {
    const size = height(), first = Math.max(0, Math.floor(scroll.scrollTop / size) - 6);
    const last = Math.min(shown.length, first + Math.ceil((scroll.clientHeight || 600) / size) + 12);
    space.style.height = scroll.style.height = `${shown.length * size}px`;
    viewport.classList.toggle("long", scroll.scrollHeight > scroll.clientHeight);
    list.style.transform = `translateY(${first * size}px)`;
    viewport.setAttribute("aria-rowcount", String(shown.length + 1));
    render(list, shown.slice(first, last).map((row, i) => line(row, first + i)));
    toolbar();
  }

  function toolbar() {
    const source = chosen.filter === "ended" ? ended : rows;
    const total = source ? count(shown.length) : "…";
    render(root, h("h1", {}, "Queue"),
      h("div.toolbar", { key: "toolbar" },
        h("input", { id: "search", type: "search", placeholder: "Search job, tenant, reason ( / )", "aria-label": "Search jobs", value: null, oninput: (event) => { chosen.search = event.target.value; scroll.scrollTop = 0; arrange(); } }),
        h("div.chips", { role: "group", "aria-label": "Which jobs" }, FILTERS.map(([key, label]) =>
          h("button", { "aria-pressed": String(chosen.filter === key), onclick: () => pick(key) }, label))),
        h("select", { "aria-label": "Tenant", onchange: (event) => { chosen.tenant = event.target.value; scroll.scrollTop = 0; arrange(); } },
          h("option", { value: "" }, "All tenants"), tenants.map((name) => h("option", { value: name, selected: name === chosen.tenant }, name))),
        !login.record && h("button.primary", { onclick: submitDialog }, "Submit a job"),
        h("span.total", { role: "status" }, `${total} job${shown.length === 1 ? "" : "s"}`)),
      problem && h("p.bad", { role: "alert" }, problem),
      keep(viewport, "holder"),
      source && !shown.length && h("div.empty", { key: "empty" }, emptyText(source.length)));
    viewport.hidden = Boolean(source && !shown.length);
  }

  async function pick(filter) {
    chosen.filter = filter;
    scroll.scrollTop = 0;
    if (filter === "ended") {
      ended = null;
      shown = [];
      draw();
      try {
        const found = await call("GET", `/v1/jobs?all=true&offset=${rows ? rows.length : 0}&limit=${MOST_ENDED}`);
        ended = found.filter((row) => row.ended !== null).map(endedRow);
        problem = "";
      } catch (refusal) { [problem, ended] = [refusal.message, []]; }
    }
    arrange();
  }

  scroll.onscroll = () => requestAnimationFrame(draw);
  viewport.onkeydown = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const links = [...list.querySelectorAll("a")], at = links.indexOf(document.activeElement);
    (links[at + step] || links[at] || links[0])?.focus();
  };
  const resized = new ResizeObserver(draw);
  resized.observe(scroll);
  return {
    title: "Queue",
    views: ["jobs"],
    update(found, changed) {
      if (!found.jobs) return;
      if (changed.length || !rows) {
        rows = inOrder([...found.jobs.values()]);
        tenants = [...new Set(rows.map((row) => row.tenant))].sort();
        nameTenants(tenants);
        arrange();
        if (!document.getElementById("search").value && chosen.search) document.getElementById("search").value = chosen.search;
        if (chosen.filter === "ended" && !ended) pick("ended");
      } else draw();
    },
    close() { resized.disconnect(); document.querySelector("dialog")?.remove(); },
  };
}

function emptyText(known) {
  if (known) return [h("p", {}, "No job fits."), h("p.note", {}, "Change the search, the states or the tenant.")];
  if (chosen.filter === "ended") return h("p", {}, "No job has ended yet.");
  return [h("p", {}, "No job runs or waits."), h("p.note", {}, "Submit one: ", h("code", {}, "shoal submit -- python train.py"))];
}

const KEYS = {
  state: (row) => stateName(row.state), job: (row) => row.id, tenant: (row) => row.tenant, gpus: (row) => row.wanted, bid: (row) => -(row.bid ?? -1),
  expected: (row) => (row.end || row.start)?.median ?? row.ended ?? Infinity, age: (row) => -row.submitted, reason: (row) => row.reason,
};

/** Running jobs by start, then waiting ones by expected start and submission, each with its place in line. */
function inOrder(all) {
  const waiting = all.filter((row) => WAITING.has(row.state)), running = all.filter((row) => !WAITING.has(row.state));
  const start = (row) => row.start?.median ?? Infinity;
  running.sort((a, b) => (a.started ?? a.submitted) - (b.started ?? b.submitted));
  waiting.sort((a, b) => (start(a) === start(b) ? a.submitted - b.submitted : start(a) - start(b)));
  waiting.forEach((row, i) => { row.place = i + 1; });
  for (const row of all) row.text ??= `${row.id} ${row.tenant} ${stateName(row.state)} ${row.kind || ""} ${row.nodes?.join(" ") || ""} ${row.reason}`.toLowerCase();
  return [...running, ...waiting];
}

function endedRow(row) {
  const made = { ...row, wanted: row.gpus_wanted, held: 0, start: null, end: null };
  made.text = `${row.id} ${row.tenant} ${row.state} ${row.reason}`.toLowerCase();
  return made;
}

function expected(row) {
  if (row.ended) return h("span", { title: `ended ${fullTime(row.ended)}` }, `ended ${clockTime(row.ended)}`);
  const found = row.end || row.start;
  if (!found) return h("span.soft", {}, "not known");
  const title = `${row.end ? "end" : "start"} expected ${fullTime(found.median)}; between ${clockTime(found.low)} and ${clockTime(found.high)} in 8 of 10 cases`;
  return h("span", { title }, `${row.end ? "ends" : "starts"} in ${spread(found, now())}`);
}

function line(row, index) {
  const waits = WAITING.has(row.state), cell = (key, ...children) => h(`div.${key}`, { role: "cell" }, ...children);
  return h("div.row", { role: "row", key: row.id, "aria-rowindex": String(index + 2) },
    cell("place", waits ? count(row.place) : ""),
    cell("state", pill(row.state), row.part !== undefined && row.part !== null && !waits ? h("small", {}, `${Math.round(100 * row.part)} %`) : null),
    cell("job", h("a", { href: `#/job/${encodeURIComponent(row.id)}` }, row.id)),
    cell("tenant", swatch(row.tenant), row.tenant),
    cell("gpus", row.ended ? `${row.wanted}` : `${row.held || 0} / ${row.wanted}`, row.kind ? h("small", {}, row.kind) : null),
    cell("bid", typeof row.bid === "number" ? bidText(row.bid) : "–"),
    cell("expected", expected(row)),
    cell("age", ago(row.submitted), " ago"),
    h("div.reason", { role: "cell", title: row.reason }, row.reason));
}
