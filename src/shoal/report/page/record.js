// The runs of a report in place of the API: the rows of each view at the moment shown.
import { clock, span } from "./format.js";

export class Refusal extends Error {
  constructor(status, { error }) { super(error); this.status = status; }
}

let run = null;

/** Show a run: its columns become jobs with what happened to them, and the clock stands where most jobs wait. */
export function choose(name, data) {
  const seconds = (ticks) => ticks * data.tick, end = seconds(data.end), { jobs, seats, nodes, usage, reasons } = data;
  const known = jobs.id.map((id, i) => ({
    id, tenant: jobs.tenants[jobs.tenant[i]], wanted: jobs.gpus[i], submitted: seconds(jobs.submitted[i]),
    ended: jobs.ended[i] < 0 ? null : seconds(jobs.ended[i]), outcome: jobs.outcomes[jobs.outcome[i]], rho: jobs.rho[i], holds: [], reasons: [],
    crashed: new Set(data.crashed[i] || []), notes: (data.notes[i] || []).map(([at, what]) => ({ at: seconds(at), what })),
  }));
  const rows = seats.job.map((job, i) => {
    const seat = { job: known[job].id, tenant: known[job].tenant, run: seats.run[i], node: nodes.name[seats.node[i]], kind: nodes.kind[seats.node[i]], gpus: seats.gpus[i], began: seconds(seats.since[i]), ended: seconds(seats.until[i]) };
    const { holds } = known[job];
    if (holds.at(-1)?.run !== seat.run) holds.push({ run: seat.run, began: seat.began, ended: seat.ended, crashed: known[job].crashed.has(seats.until[i]), lost: seats.lost[i], seats: [] });
    holds.at(-1).seats.push(seat);
    return seat;
  });
  reasons.job.forEach((job, i) => known[job].reasons.push({ at: seconds(reasons.at[i]), what: reasons.texts[reasons.text[i]] }));
  const points = usage.at.map((at, i) => ({
    at: seconds(at), up: 0, used: usage.used[i], waiting: usage.waiting[i], running: usage.running[i],
    held: Object.fromEntries(usage.tenants.map((tenant, k) => [tenant, usage.held[k][i]])), live: usage.live.map((each) => each[i]),
  }));
  run = { name, data, end, jobs: known, byId: new Map(known.map((job) => [job.id, job])), seats: rows, points, gpus: nodes.gpus.reduce((a, b) => a + b, 0), complete: !data.node_use, tenants: usage.tenants };
  for (const point of points) point.up = run.gpus;
  const busiest = points.reduce((best, point, i) => (point.waiting > points[best].waiting || (point.waiting === points[best].waiting && point.used > points[best].used) ? i : best), 0);
  Object.assign(clock, { end, at: points.length ? (points[busiest].at + (points[busiest + 1]?.at ?? end)) / 2 : 0 });
}

const holdAt = (job, at) => job.holds.find((hold) => hold.began <= at && at < hold.ended);
const holdGpus = (hold) => hold.seats.reduce((sum, seat) => sum + seat.gpus, 0);
const exactly = (at) => ({ median: at, low: at, high: at });
const isOver = (job, at) => job.ended !== null && at >= job.ended;
const reasonAt = (job, at) => job.reasons.findLast((reason) => reason.at <= at)?.what || "";

function queueRow(job, at) {
  const hold = holdAt(job, at), next = hold ? null : job.holds.find((each) => each.began > at);
  return {
    id: job.id, name: job.id, tenant: job.tenant, state: isOver(job, at) ? job.outcome : hold ? "running" : "pending", reason: reasonAt(job, at),
    submitted: job.submitted, wanted: job.wanted, gpus_wanted: job.wanted, held: hold ? holdGpus(hold) : 0, kind: hold?.seats[0].kind, nodes: hold?.seats.map((seat) => seat.node),
    started: job.holds[0]?.began ?? null, ended: isOver(job, at) ? job.ended : null, start: next ? exactly(next.began) : null, end: hold && job.ended !== null ? exactly(job.ended) : null,
  };
}

const live = (at) => run.jobs.filter((job) => job.submitted <= at && !isOver(job, at));
const byKey = (rows, key) => new Map(rows.map((row) => [row[key], row]));
const pointAt = (at) => run.points.findLast((point) => point.at <= at) || run.points[0];

/** GPUs in use on each node, of a run too large to list all its jobs. */
const binAt = (at) => { const bins = run.data.node_use; return bins?.[Math.min(bins.length - 1, Math.floor((at / run.end) * bins.length))]; };

const FIND = {
  cluster(at) {
    const rows = live(at).map((job) => queueRow(job, at)), running = rows.filter((row) => row.held), point = pointAt(at), whole = run.complete;
    return new Map([["cluster", {
      policy: run.name, cluster: "", now: at, up_gpus: run.gpus, decisions: run.data.decisions, short_of_disk: "",
      used_gpus: whole ? FIND.used(at).total : binAt(at).reduce((a, b) => a + b, 0), running: whole ? running.length : point.running, waiting: whole ? rows.length - running.length : point.waiting,
    }]]);
  },
  /** GPUs of each node that jobs hold; a GPU that two jobs share counts once. */
  used(at) {
    const held = new Map();
    for (const seat of run.seats) if (seat.began <= at && at < seat.ended) held.set(seat.node, { ...held.get(seat.node), [seat.job]: seat.gpus });
    const { name, gpus } = run.data.nodes;
    const of = (node, most) => Math.min(most, Object.values(held.get(node) || {}).reduce((a, b) => a + b, 0));
    return { held, total: name.reduce((sum, node, i) => sum + of(node, gpus[i]), 0), of };
  },
  /** Part of each node's GPU time that jobs held in the hour before; null where not all runs are listed. */
  recent(at) {
    if (!run.complete || at < 1) return null;
    const { name, gpus } = run.data.nodes, since = Math.max(0, at - 3600), held = new Map();
    for (const seat of run.seats) {
      const seconds = Math.min(seat.ended, at) - Math.max(seat.began, since);
      if (seconds > 0) held.set(seat.node, (held.get(seat.node) || 0) + seconds * seat.gpus);
    }
    return new Map(name.map((node, i) => [node, Math.min(1, (held.get(node) || 0) / (gpus[i] * (at - since)))]));
  },
  nodes(at) {
    const { name, kind, gpus, rack } = run.data.nodes, bin = binAt(at), { held, of } = FIND.used(at), recent = FIND.recent(at);
    return byKey(name.map((node, i) => ({ name: node, kind: kind[i], gpus: gpus[i], rack: rack[i], up: true, drained: "", suspended: [], heard: null, disk_free: null,
      used: bin ? bin[i] : of(node, gpus[i]), held: bin ? {} : held.get(node) || {}, unnamed: bin ? "in use" : "", recent_use: recent?.get(node) })), "name");
  },
  running: (at) => byKey(live(at).map((job) => queueRow(job, at)).filter((row) => row.held || row.start), "id"),
  jobs: (at) => byKey(live(at).map((job) => queueRow(job, at)), "id"),
  usage: () => new Map(run.points.map((point) => [String(point.at), point])),
  seats: () => new Map(run.seats.map((seat, i) => [String(i), seat])),
  tenants(at) {
    const point = pointAt(at), used = run.tenants.map(() => 0);
    run.points.forEach((each, i) => run.tenants.forEach((tenant, k) => { used[k] += each.held[tenant] * Math.max(0, Math.min(at, run.points[i + 1]?.at ?? run.end) - each.at); }));
    const all = used.reduce((a, b) => a + b, 0) || 1, now = run.tenants.reduce((sum, tenant) => sum + point.held[tenant], 0) || 1;
    return byKey(run.tenants.map((tenant, k) => ({ tenant, live: point.live[k], held: point.held[tenant], gpu_seconds: used[k], part_now: point.held[tenant] / now, part_ever: used[k] / all, most: null, guaranteed: 0 })), "tenant");
  },
  job: (at, id) => { const { story, ...detail } = detailOf(id); return new Map([["detail", detail], ...story.map((moment, i) => [String(i).padStart(6, "0"), moment])]); },
};

/** A job as it was at the end of the run, and its story. */
function detailOf(id) {
  const job = run.byId.get(id);
  if (!job) throw new Refusal(404, { error: `this report lists no job ${id}` });
  const row = queueRow(job, run.end), ran = job.holds.reduce((sum, hold) => sum + hold.ended - hold.began, 0), until = job.ended ?? run.end;
  const waited = Math.max(0, until - job.submitted - ran), count = job.holds.length;
  const said = isOver(job, run.end) ? `${job.outcome} ${span(until - job.submitted)} after its submission, of which it waited ${span(waited)} and ran ${span(ran)}` : row.reason || (row.held ? "still ran when the run ended" : "still waited when the run ended");
  return {
    job: row, ended: job.ended, decision: said, decided: run.end, change: "", stop: "", command: [], incarnation: count, restarts: Math.max(0, count - 1), crashes: job.crashed.size, rho: job.rho,
    gpu_seconds: job.holds.reduce((sum, hold) => sum + holdGpus(hold) * (hold.ended - hold.began), 0), story: story(job),
  };
}

function story(job) {
  const moments = [{ at: job.submitted, what: `submitted; asks for ${plural(job.wanted)}` }, ...job.notes];
  job.holds.forEach((hold, i) => {
    const before = job.holds[i - 1], moved = before && before.ended === hold.began && !before.crashed, why = job.reasons.findLast((reason) => reason.at === hold.began);
    const where = [...new Set(hold.seats.map((seat) => `${seat.node} (${seat.kind})`))].join(", ");
    moments.push({ at: hold.began, what: `${moved ? `gets ${plural(holdGpus(hold))} instead of ${holdGpus(before)}` : before ? `starts again with ${plural(holdGpus(hold))}` : `starts with ${plural(holdGpus(hold))}`} on ${where}${why ? `; ${why.what}` : ""}` });
    const ends = job.ended === hold.ended, goesOn = job.holds[i + 1]?.began === hold.ended;
    if (hold.crashed) moments.push({ at: hold.ended, what: "crashed" });
    else if (!ends && !goesOn && hold.ended < run.end) moments.push({ at: hold.ended, what: `stopped${hold.lost > 0 ? "; work since its last save is lost" : ""}` });
  });
  const starts = new Set(job.holds.map((hold) => hold.began));
  for (const reason of job.reasons) if (!starts.has(reason.at)) moments.push(reason);
  if (job.ended !== null) moments.push({ at: job.ended, what: job.outcome });
  return moments.map((moment, i) => [moment, i]).sort(([a, i], [b, j]) => a.at - b.at || i - j).map(([moment]) => moment);
}
const plural = (gpus) => `${gpus} GPU${gpus === 1 ? "" : "s"}`;

/** Answer what the views ask of the API. */
export async function call(method, path) {
  const url = new URL(path, "https://record/"), one = url.pathname.match(/^\/v1\/jobs\/([^/]+)$/);
  if (method === "GET" && one) return detailOf(decodeURIComponent(one[1]));
  if (method === "GET" && url.pathname === "/v1/jobs") {
    const over = run.jobs.filter((job) => isOver(job, clock.at)).sort((a, b) => b.ended - a.ended);
    return over.slice(0, Number(url.searchParams.get("limit") || over.length)).map((job) => queueRow(job, clock.at));
  }
  throw new Refusal(404, { error: "a finished run does not answer this" });
}

/** The rows of some views, found anew when the moment changes. */
export class Feed {
  constructor(views, job, { onChange, onMissing }) {
    Object.assign(this, { views, job, onChange, onMissing, rows: {} });
    setTimeout(() => { if (!this.closed) this.refresh(); });
  }

  refresh() {
    try {
      for (const view of this.views) if (view in FIND) this.rows[view] = FIND[view](clock.at, this.job);
    } catch (refusal) {
      if (!(refusal instanceof Refusal)) throw refusal;
      return this.onMissing();
    }
    this.onChange(this.views);
  }

  close() { this.closed = true; }
}
