// The log of one rank, read in parts as it grows; only its end is kept in the page.
import { call } from "./api.js";
import { h, render } from "./dom.js";
import { bytes } from "./format.js";

const HEAD_BYTES = 2 ** 13, FIRST_BYTES = 2 ** 16, PART_BYTES = 2 ** 18, MOST_CHARACTERS = 2 ** 18;
const EVERY_MS = 1500, MOST_LINKS = 4;
const ESCAPES = /\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|[\x00-\x08\x0b-\x1a\x1c-\x1f]/g;

/** What Weights & Biases and MLflow print when a run of theirs begins. */
const TRACKED = /View run\b.{0,200}?\bat:? *(https?:\/\/[^\s\x1b]+)/g;

/**
 * A pane that follows a job's log; `set(run, ended)` says which run is the latest. `onLinks` gets the addresses of runs
 * in trackers of experiments that the log's first lines name.
 */
export function logPane(job, onLinks) {
  const pre = h("pre.output", { tabindex: "0", "aria-label": "Output", role: "log" });
  const bar = h("div.toolbar", {}), note = h("p.note", {});
  const element = h("div", {}, bar, pre, note), links = new Set();
  let latest = null, run = null, rank = 0, ranks = 1, next = null, follow = true, ended = false, timer = 0, text = "", size = 0, state = "", closed = false, generation = 0;

  function restart() {
    [next, text, size, state] = [null, "", 0, "loading"];
    generation += 1;
    pre.textContent = "";
    draw();
    read();
  }
  async function read() {
    clearTimeout(timer);
    const own = generation;
    if (closed || !run) return;
    try {
      const query = (offset, most) => `/v1/jobs/${encodeURIComponent(job)}/log?incarnation=${run}&rank=${rank}&offset=${offset}&most=${most}`;
      if (next === null) {
        const head = await call("GET", query(0, HEAD_BYTES));
        look(head.text);
        next = Math.max(0, head.size - FIRST_BYTES);
      }
      const part = await call("GET", query(next, PART_BYTES));
      if (own !== generation || closed) return;
      [ranks, size, state] = [part.ranks, part.size, part.live ? "live" : "whole"];
      const gained = part.next > next || part.text;
      if (next < HEAD_BYTES) look(part.text);
      next = part.next;
      if (gained) add(part.text);
      if (part.live || next < size) timer = setTimeout(read, next < size ? 0 : EVERY_MS);
    } catch (refusal) {
      if (own !== generation || closed) return;
      state = refusal.message;
      if (!ended) timer = setTimeout(read, 2 * EVERY_MS);
    }
    draw();
  }
  function look(text) {
    for (const [, link] of text.matchAll(TRACKED)) if (links.size < MOST_LINKS) links.add(link);
    if (links.size) onLinks([...links]);
  }
  function add(more) {
    const atEnd = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 24;
    text = (text + more.replace(ESCAPES, "")).slice(-MOST_CHARACTERS);
    pre.textContent = text;
    if (follow || atEnd) pre.scrollTop = pre.scrollHeight;
  }
  function draw() {
    const number = (from, to, chosen, label) => Array.from({ length: to - from + 1 }, (_, i) => h("option", { value: String(from + i), selected: from + i === chosen }, `${label} ${from + i}`));
    render(bar,
      latest > 1 && h("select", { "aria-label": "Run", onchange: (event) => { run = Number(event.target.value); rank = 0; restart(); } }, number(1, latest, run, "run")),
      ranks > 1 && h("select", { "aria-label": "Rank", onchange: (event) => { rank = Number(event.target.value); restart(); } }, number(0, ranks - 1, rank, "rank")),
      h("label", {}, h("input", { type: "checkbox", checked: true, onchange: (event) => { follow = event.target.checked; if (follow) pre.scrollTop = pre.scrollHeight; } }), "follow the end"),
      h("span.total", {}, size ? bytes(size) : ""));
    pre.hidden = !text;
    const more = size > FIRST_BYTES ? `The last ${bytes(Math.min(size, MOST_CHARACTERS))}; the whole log: shoal logs ${job}. ` : "";
    const says = { loading: "Loading…", live: text ? "" : "Nothing written yet.", whole: text ? "" : "It wrote nothing." };
    render(note, !run ? "It has not started yet, so there is no log." : more + (says[state] ?? state));
  }
  draw();
  return {
    element,
    set(incarnation, over) {
      ended = over;
      if (incarnation && incarnation !== latest) {
        latest = incarnation;
        run = incarnation;
        rank = 0;
        restart();
      }
    },
    close() { closed = true; clearTimeout(timer); },
  };
}
