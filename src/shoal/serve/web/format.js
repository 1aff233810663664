// Numbers, times and colours as people read them: every number has its unit.
import { h } from "./dom.js";

/**
 * Seconds to add to this machine's clock to get the server's. Of a finished run: the moment shown (`at`) and the run's
 * end, in seconds since its begin, and so are all its times.
 */
export const clock = { skew: 0, at: null, end: null };
export const now = () => clock.at ?? Date.now() / 1000 + clock.skew;
/** The latest time that is recorded. */
export const latest = () => clock.end ?? now();

const digits = (value) => (value < 10 ? value.toFixed(1).replace(/\.0$/, "") : Math.round(value).toLocaleString("en"));
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
const unitOf = (seconds) => UNITS.find(([size]) => seconds >= size * (size === 60 ? 2 : 1.995)) || UNITS[3];

/** A length of time: "16 s", "4.5 min", "2.1 h". */
export function span(seconds) {
  if (seconds === null || seconds === undefined || !isFinite(seconds)) return "–";
  const [size, unit] = unitOf(Math.abs(seconds));
  return `${seconds < 0 ? "−" : ""}${digits(Math.abs(seconds) / size)} ${unit}`;
}

/** A median with its 10th and 90th percentile: "12 min (8–17)", or "22 s (6 s – 12 min)" where their units differ. */
export function spread(expected, from) {
  const [mid, low, high] = [expected.median, expected.low, expected.high].map((at) => Math.max(0, at - from));
  const [size] = unitOf(mid), same = unitOf(low)[0] === size && unitOf(high)[0] === size;
  if (expected.low === expected.high) return span(mid);
  return `${span(mid)} (${same ? `${digits(low / size)}–${digits(high / size)}` : `${span(low)} – ${span(high)}`})`;
}

export const count = (value) => Math.round(value).toLocaleString("en");
export const gpus = (value) => `${count(value)} GPU${value === 1 ? "" : "s"}`;
export const percent = (part) => `${(100 * part).toFixed(part > 0 && part < 0.0995 ? 1 : 0)} %`;
/** GPU time: "48 GPU-s", "3.2 GPU-min", "12 GPU-h". */
export const gpuHours = (seconds) => seconds < 120 ? `${digits(seconds)} GPU-s` : seconds < 3600 ? `${digits(seconds / 60)} GPU-min` : `${digits(seconds / 3600)} GPU-h`;
export const bytes = (value) => {
  const at = value < 1 ? 0 : Math.min(4, Math.floor(Math.log10(value) / 3));
  return `${digits(value / 10 ** (3 * at))} ${["B", "kB", "MB", "GB", "TB"][at]}`;
};
/** What a job bids for a GPU, over its price. */
export const bidText = (value) => (Math.abs(value) < 100 ? value.toFixed(2) : count(value));
/** A number of samples or other units of work, short. */
export const amount = (value) => Math.abs(value) >= 1e6 ? value.toExponential(2) : Number(value.toPrecision(4)).toLocaleString("en");

const SHORT = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const DAY = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const FULL = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });
const date = (unix) => new Date(unix * 1000);

/** Days, hours, minutes and seconds since the begin of a run: "2 d 03:14:05". */
export function elapsed(seconds, parts = 3) {
  const whole = Math.floor(seconds), two = (value) => String(value).padStart(2, "0");
  const days = Math.floor(whole / 86400), clocks = [Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60, whole % 60].slice(0, parts);
  return `${days ? `${days} d ` : ""}${clocks.map(two).join(":")}`;
}

/** Within 18 h: its date need not be said. */
const near = (unix) => Math.abs(now() - unix) < 64800;
export const fullTime = (unix) => (clock.end === null ? FULL.format(date(unix)) : `${elapsed(unix)} (h:min:s) after the begin of the run`);
export const clockTime = (unix) => (clock.end === null ? (near(unix) ? SHORT : DAY).format(date(unix)) : elapsed(unix));
/** Hours and minutes, and in a short run seconds; of another day with its date. */
export const shortTime = (unix) => (clock.end === null ? (near(unix) ? clockTime(unix).slice(0, 5) : clockTime(unix)) : elapsed(unix, clock.end < 7200 ? 3 : 2));

const stamp = (unix, text) => h("time", { datetime: clock.end === null ? date(unix).toISOString() : null, title: fullTime(unix) }, text);
/** A local time; the date and the zone are in its tooltip. */
export const time = (unix) => stamp(unix, clockTime(unix));
/** How long ago a time is; the time itself is in its tooltip. */
export const ago = (unix) => stamp(unix, span(Math.max(0, now() - unix)));

/** The number, 1 to 8, of a tenant's colour: that of a hash of its name, or the next one that no other tenant has yet. */
const known = new Map();
export function tenantColour(tenant) {
  if (tenant === "others") return 0;
  if (!known.has(tenant)) {
    const own = [...tenant].reduce((hash, letter) => (Math.imul(hash ^ letter.codePointAt(0), 0x01000193) >>> 0), 0x811c9dc5) % 8, taken = new Set(known.values());
    const free = [0, 1, 2, 3, 4, 5, 6, 7].map((step) => ((own + step) % 8) + 1).find((each) => !taken.has(each));
    known.set(tenant, free ?? own + 1);
  }
  return known.get(tenant);
}
/** Give colours in the order of names. */
export function nameTenants(tenants) { for (const tenant of [...tenants].sort()) tenantColour(tenant); }
export const swatch = (tenant) => h("i.swatch", { class: `t${tenantColour(tenant)}`, "aria-hidden": "true" });

const STATES = { pending: "waiting", running: "running", starting: "starting", stopping: "stopping", held: "held", suspended: "suspended", cancelling: "cancelling", completed: "completed", failed: "failed", cancelled: "cancelled" };
export const stateName = (state) => STATES[state] || state;
export const pill = (state) => h("span.pill", { class: `s-${state}` }, stateName(state));

/** A link to a decision; its number is what a bug report needs. */
export const decisionLink = (number, text) => h("a", { href: `#/decision/${number}` }, text || `decision ${count(number)}`);
