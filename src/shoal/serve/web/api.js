// The public API: requests, and the event stream of what changed.
import { clock } from "./format.js";

/** A request that the server refused; `status` is 0 where it did not answer. */
export class Refusal extends Error {
  constructor(status, problem) {
    const { error, field, value, hint } = problem;
    super([field ? `${field}: ${error}` : error, hint].filter(Boolean).join(": ") + (field && value !== null && value !== undefined ? ` (${value})` : ""));
    this.status = status;
  }
}

/** Call the API; returns the decoded answer, null without content. */
export async function call(method, path, body, signal) {
  let answer;
  try {
    const headers = { Accept: "application/json" };
    if (body !== undefined) headers["Content-Type"] = "application/json";
    answer = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), credentials: "same-origin", signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, { error: "the control plane does not answer" });
  }
  if (answer.status === 204) return null;
  const document = await answer.json().catch(() => ({ error: `answered ${answer.status}` }));
  if (!answer.ok) throw new Refusal(answer.status, document);
  return document;
}

/** Why the server refuses a stream, which an EventSource does not say; null if it does not. */
async function refusalOf(path) {
  const stop = new AbortController();
  try {
    const answer = await fetch(path, { signal: stop.signal });
    if (answer.ok) return null;
    return new Refusal(answer.status, await answer.json().catch(() => ({ error: `answered ${answer.status}` })));
  } catch {
    return new Refusal(0, { error: "the control plane does not answer" });
  } finally {
    stop.abort();
  }
}

const HIDDEN_MS = 60_000;
const LONGEST_PAUSE_MS = 15_000;

/**
 * The rows of some views, kept up to date. After an interruption it asks only for what changed meanwhile.
 * `rows[view]` is a Map from key to row, or undefined until its first rows have come.
 */
export class Feed {
  constructor(views, job, { onChange, onState, onLogout, onMissing }) {
    Object.assign(this, { views, job, onChange, onState, onLogout, onMissing });
    /** @type {Record<string, Map<string, any>>} */
    this.rows = {};
    this.since = "";
    this.failures = 0;
    this.lostAt = null;
    this.visibility = () => this.#visible();
    document.addEventListener("visibilitychange", this.visibility);
    this.open();
  }

  open() {
    const query = new URLSearchParams({ views: this.views.join(",") });
    if (this.job) query.set("job", this.job);
    if (this.since) query.set("since", this.since);
    this.path = `/v1/watch?${query}`;
    this.source = new EventSource(this.path);
    this.source.addEventListener("changed", (event) => this.#take(event));
    this.source.onopen = () => { this.failures = 0; this.lostAt = null; this.onState("live"); };
    this.source.onerror = () => this.#lost();
  }

  close() {
    document.removeEventListener("visibilitychange", this.visibility);
    this.#stop();
    this.closed = true;
  }

  #stop() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  #take(event) {
    const { now, views } = JSON.parse(event.data);
    this.since = event.lastEventId;
    clock.skew = now - Date.now() / 1000;
    for (const [view, { reset, gone, rows }] of Object.entries(views)) {
      if (reset || !this.rows[view]) this.rows[view] = new Map();
      for (const key of gone) this.rows[view].delete(key);
      for (const key in rows) this.rows[view].set(key, rows[key]);
    }
    this.onChange(Object.keys(views));
  }

  async #lost() {
    this.#stop();
    this.lostAt ??= Date.now() / 1000;
    const pause = Math.min(LONGEST_PAUSE_MS, 500 * 2 ** this.failures++);
    const problem = await refusalOf(this.path);
    if (this.closed) return;
    if (problem?.status === 401) return this.onLogout();
    if (problem?.status === 404) return this.onMissing();
    if (problem) this.onState("lost", this.lostAt, problem);
    this.timer = setTimeout(() => this.open(), pause);
  }

  /** A hidden page closes its event stream after a minute, because a browser opens at most six to one server. */
  #visible() {
    clearTimeout(this.hidden);
    if (document.hidden) this.hidden = setTimeout(() => this.#stop(), HIDDEN_MS);
    else if (!this.source) this.open();
  }
}
