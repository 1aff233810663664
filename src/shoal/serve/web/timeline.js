// Timeline: which job held which GPUs, until now and as expected beyond it. The canvas is as high as the window at most:
// it stays in sight while the page scrolls, and shows the lanes that have come to its place.
import { call } from "./api.js";
import { colour, prepare, tickLabel, timeTicks } from "./chart.js";
import { h, keep, render, tip } from "./dom.js";
import { clock, clockTime, count, decisionLink, fullTime, gpus, nameTenants, now, shortTime, span, spread, swatch, tenantColour, time } from "./format.js";

const SPANS = [[600, "10 min"], [3600, "1 h"], [21600, "6 h"], [86400, "24 h"]];
const LEFT = 92, TOP = 28, AHEAD = 0.35;
/** Pixels of all lanes together: those of very large clusters get thinner. */
const MOST_HEIGHT = 16_000, LABEL_GAP = 14;
const LEAST_SPAN = 20, MOST_SPAN = 366 * 86400, MOST_LISTED = 200;
/** Waiting jobs with an expected start: lanes of their own below those of the GPUs. */
const MOST_COMING = 8, COMING_GAP = 20, COMING_LANE = 16;

/** The visible stretch of time, kept while the page is open; with `end` null it follows the present. */
const chosen = { seconds: 3600, end: null, fitted: false };

export function open({ root }) {
  const canvas = h("canvas.lanes", { tabindex: "0", role: "application", "aria-label": "Timeline of GPUs; arrow keys move, plus and minus zoom" });
  const space = h("div.space", {}, canvas);
  let lanes = [], bars = [], byLane = [], firstOf = [], jobs = new Map(), picked = null, decision = "", drag = null, loaded = false;

  if (clock.end !== null && chosen.run !== clock.end) Object.assign(chosen, { run: clock.end, seconds: Math.max(LEAST_SPAN, clock.end), end: Math.max(LEAST_SPAN, clock.end) });
  const range = () => { const to = chosen.end ?? now() + AHEAD * chosen.seconds; return [to - chosen.seconds, to]; };
  const spans = () => (clock.end === null ? SPANS : [...SPANS.filter(([seconds]) => seconds < clock.end), [Math.max(LEAST_SPAN, clock.end), "all"]]);
  const lane = () => Math.min(lanes.length > 64 ? 10 : lanes.length > 24 ? 16 : 20, MOST_HEIGHT / Math.max(1, lanes.length));
  /** Distances from the top of the first lane's place; the canvas shows them from `above()` on. */
  const comingTop = () => TOP + lanes.length * lane() + COMING_GAP;
  const above = () => canvas.offsetTop;
  let coming = [];
  const xOf = (width) => { const [from, to] = range(); return (at) => LEFT + ((at - from) / (to - from)) * (width - LEFT); };

  function draw() {
    if (!canvas.isConnected) return;
    coming = [...jobs.values()].filter((job) => job.start).sort((a, b) => a.start.median - b.start.median).slice(0, MOST_COMING);
    const whole = coming.length ? comingTop() + coming.length * COMING_LANE + 8 : comingTop() - COMING_GAP + 8;
    space.style.height = `${whole}px`;
    canvas.style.height = `${Math.min(whole, innerHeight)}px`;
    const { context: c, width, height } = prepare(canvas), [from, to] = range(), x = xOf(width), size = lane(), at = now(), up = above();
    times(c, { width, height, from, to, x });
    c.save();
    c.beginPath();
    c.rect(0, TOP, width, height - TOP);
    c.clip();
    names(c, { width, height, size, up });
    c.beginPath();
    c.rect(LEFT, TOP, width - LEFT, height - TOP);
    c.clip();
    runs(c, { height, from, to, x, size, at, up });
    c.globalAlpha = 1;
    if (at > from && at < to) { c.fillStyle = colour("--bad"); c.fillRect(Math.round(x(at)), TOP, 2, height); }
    coming.forEach((job, i) => expectedStart(c, job, x, comingTop() + i * COMING_LANE + 2 - up, width));
    c.restore();
    if (at > from && at < to) { c.fillStyle = colour("--bad"); c.textAlign = "center"; c.fillText(clock.end === null ? "now" : "shown", x(at), TOP - 16); }
  }
  /** The runs on the lanes in sight, but none that lies within the last pixel of the one before it on its lane. */
  function runs(c, { height, from, to, x, size, at, up }) {
    const first = Math.max(0, Math.floor((up - TOP) / size)), last = (up + height - TOP) / size, gap = size > 4 ? 1 : 0;
    let lane_ = -1, many = 0, edge = 0;
    for (let i = firstOf[Math.min(first, lanes.length - 1)] ?? 0; i < byLane.length && byLane[i].lane < last; i++) {
      const bar = byLane[i], ends = bar.ended ?? at, likely = bar.ended === undefined ? jobs.get(bar.job)?.end : null;
      if (bar.began > to || Math.max(ends, likely?.high ?? 0) < from) continue;
      const left = x(bar.began), right = Math.max(left + 1, x(ends));
      if (bar.lane === lane_ && bar.gpus <= many && x(ends) <= edge && bar !== picked && !likely) continue;
      [lane_, many, edge] = [bar.lane, bar.gpus, right];
      const y = TOP + bar.lane * size + gap - up, tall = Math.max(1, bar.gpus * size - 2 * gap);
      c.fillStyle = colours[tenantColour(bar.tenant)];
      c.globalAlpha = bar === picked ? 1 : 0.88;
      c.fillRect(left, y, right - left, tall);
      if (likely) future(c, likely, x, y, tall, at);
      if (bar === picked) { c.globalAlpha = 1; c.strokeStyle = colour("--ink"); c.lineWidth = 2; c.strokeRect(left, y, right - left, tall); }
      label(c, bar, Math.max(left, LEFT), right, y, tall);
    }
  }
  /** Certain to run until the 10th percentile, less and less likely up to the 90th. */
  function future(c, { low, median, high }, x, y, tall, at) {
    for (const [until, alpha] of [[low, 0.5], [median, 0.32], [high, 0.15]]) {
      if (until <= at) continue;
      c.globalAlpha = alpha;
      c.fillRect(x(at), y + tall * 0.15, x(until) - x(at), tall * 0.7);
    }
  }
  /** A waiting job: pale from the 10th to the 90th percentile of its start, a mark at the median, its name beside. */
  function expectedStart(c, job, x, y, width) {
    const { low, median, high } = job.start, tall = COMING_LANE - 4, from = x(low), to = Math.max(x(high), x(median) + 3);
    c.fillStyle = colours[tenantColour(job.tenant)];
    c.globalAlpha = 0.3;
    c.fillRect(from, y, to - from, tall);
    c.globalAlpha = 1;
    c.fillRect(x(median) - 1, y, 3, tall);
    const later = median > range()[1], text = `${job.id}, ${gpus(job.wanted)}${later ? `, ${shortTime(median)} →` : ""}`, right = to + 8 + c.measureText(text).width > width;
    c.textAlign = right ? "right" : "left";
    c.textBaseline = "middle";
    const place = right ? Math.min(from, width) - 6 : to + 6;
    [c.strokeStyle, c.lineWidth, c.lineJoin] = [colour("--card"), 4, "round"]; // keeps the name legible over the line of now
    c.strokeText(text, place, y + tall / 2);
    c.fillStyle = colour("--ink");
    c.fillText(text, place, y + tall / 2);
    c.textBaseline = "alphabetic";
  }
  function label(c, bar, left, right, y, tall) {
    if (!bar.job || right - left < 46 || tall < 13) return;
    c.globalAlpha = 1;
    c.fillStyle = colour("--on-tenant");
    c.textAlign = "left";
    c.textBaseline = "middle";
    const room = right - left - 10, fits = Math.floor((bar.job.length * room) / c.measureText(bar.job).width);
    c.fillText(bar.job.length > fits ? `${bar.job.slice(0, Math.max(1, fits - 1))}…` : bar.job, left + 5, y + tall / 2 + 1);
    c.textBaseline = "alphabetic";
  }
  function times(c, { width, height, from, to, x }) {
    c.textAlign = "center";
    const { ticks, step } = timeTicks(from, to, width - LEFT), [thin, soft] = ["--line", "--soft"].map(colour);
    for (const at of ticks) {
      if (x(at) < LEFT + 16) continue;
      c.fillStyle = thin;
      c.fillRect(Math.round(x(at)), TOP, 1, height - TOP);
      c.fillStyle = soft;
      if (Math.abs(x(at) - x(now())) > 40) c.fillText(tickLabel(at, step), Math.min(x(at), width - 30), TOP - 16);
    }
  }
  function names(c, { width, height, size, up }) {
    c.textAlign = "left";
    const [thin, ink, soft] = ["--line", "--ink", "--soft"].map(colour);
    let free = 0; // the first line of pixels below the last node's name
    lanes.forEach(({ node, first, many }, i) => {
      const y = TOP + i * size;
      if (!first || y < free) return;
      free = y + LABEL_GAP;
      const seen = y - up;
      if (seen + many * size < 0 || seen > height) return;
      c.fillStyle = thin;
      c.fillRect(0, seen, width, 1);
      c.fillStyle = ink;
      c.fillText(node.length > 13 ? `${node.slice(0, 12)}…` : node, 4, seen + Math.max(10, Math.min(15, size)));
      if (many * size > 30) { c.fillStyle = soft; c.fillText(gpus(many), 4, seen + 30); }
    });
    if (!coming.length) return;
    const y = comingTop() - up;
    c.fillStyle = thin;
    c.fillRect(0, y - COMING_GAP / 2, width, 1);
    c.fillStyle = ink;
    c.fillText("waiting", 4, y + 12);
    c.fillStyle = soft;
    if (coming.length > 1) c.fillText("to start", 4, y + 27);
  }

  const at_ = (event) => {
    const box = canvas.getBoundingClientRect(), down = event.clientY - box.top, y = down + above(), row = down < TOP ? -1 : Math.floor((y - TOP) / lane());
    const [from, to] = range(), t = from + ((event.clientX - box.left - LEFT) / (box.width - LEFT)) * (to - from);
    const next = y < comingTop() ? undefined : coming[Math.floor((y - comingTop()) / COMING_LANE)];
    return { t, next, bar: bars.find((bar) => row >= bar.lane && row < bar.lane + bar.gpus && t >= bar.began && t <= (bar.ended ?? Math.max(now(), jobs.get(bar.job)?.end?.high ?? 0))) };
  };
  const all = () => { draw(); bar(); };
  /** Draw once in the next frame, however often it is asked for until then; after a move all that depends on the range. */
  let frame = 0, next_ = draw;
  const soon = (what) => {
    next_ = frame && next_ === all ? all : what;
    frame ||= requestAnimationFrame(() => { frame = 0; next_(); });
  };
  const scrolled = () => soon(draw);
  function move(end) { chosen.end = Math.min(end, (clock.end ?? now()) + chosen.seconds); soon(all); }
  function zoom(factor, around) {
    const [from, to] = range(), centre = around ?? (from + to) / 2, seconds = Math.min(MOST_SPAN, Math.max(LEAST_SPAN, chosen.seconds * factor));
    const end = centre + ((to - centre) * seconds) / chosen.seconds;
    chosen.seconds = seconds;
    move(end);
  }
  canvas.onwheel = (event) => { if (!event.ctrlKey && !event.shiftKey) return; event.preventDefault(); zoom(event.deltaY > 0 ? 1.25 : 0.8, at_(event).t); };
  canvas.onpointerdown = (event) => { drag = { x: event.clientX, end: range()[1], moved: false }; canvas.setPointerCapture(event.pointerId); };
  canvas.onpointermove = (event) => {
    if (drag) {
      const shift = ((event.clientX - drag.x) / (canvas.clientWidth - LEFT)) * chosen.seconds;
      if (Math.abs(event.clientX - drag.x) > 4) { drag.moved = true; move(drag.end - shift); }
      return;
    }
    const { bar, next } = at_(event);
    canvas.style.cursor = bar?.job || next ? "pointer" : "";
    if (next) return tip(event.clientX, event.clientY, h("b", {}, next.id), h("div", {}, `${next.tenant} · waits for ${gpus(next.wanted)}`),
      h("div", {}, `starts in ${spread(next.start, now())}: between ${clockTime(next.start.low)} and ${clockTime(next.start.high)} in 8 of 10 cases`));
    if (!bar) return tip(0, 0);
    tip(event.clientX, event.clientY, h("b", {}, bar.job || "another tenant's job"), h("div", {}, `${bar.tenant} · ${gpus(bar.gpus)} on ${bar.node}`),
      h("div", {}, `${clockTime(bar.began)} – ${bar.ended === undefined ? "now" : clockTime(bar.ended)} (${span((bar.ended ?? now()) - bar.began)})`));
  };
  canvas.onpointerup = (event) => { const moved = drag?.moved; drag = null; if (moved) return; const { bar, next } = at_(event); if (next) location.hash = `#/job/${encodeURIComponent(next.id)}`; else pick(bar); };
  canvas.onpointerleave = () => tip(0, 0);
  canvas.onkeydown = (event) => {
    const [, to] = range();
    const act = { ArrowLeft: () => move(to - chosen.seconds / 4), ArrowRight: () => move(to + chosen.seconds / 4), "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), Home: () => { chosen.end = null; all(); } }[event.key];
    if (act) { event.preventDefault(); act(); }
  };

  async function pick(bar_) {
    [picked, decision] = [bar_?.job ? bar_ : null, "Loading…"];
    draw();
    bar();
    if (!picked) return;
    try {
      const detail = await call("GET", `/v1/jobs/${encodeURIComponent(picked.job)}`), wanted = bar_;
      const before = detail.story.filter((moment) => moment.at <= wanted.began + 1 && /^(runs|keeps|starts|gets)/.test(moment.what));
      if (picked === wanted) decision = before.at(-1)?.what || detail.story.findLast((moment) => moment.at <= wanted.began + 1)?.what || "not recorded";
    } catch (refusal) { decision = refusal.message; }
    bar();
  }

  function bar() {
    const [from, to] = range(), visible = bars.filter((each) => each.began < to && (each.ended ?? Infinity) > from);
    render(root, h("h1", {}, "Timeline"),
      h("div.toolbar", { key: "toolbar" },
        h("div.chips", { role: "group", "aria-label": "Length of time" }, spans().map(([seconds, name]) =>
          h("button", { "aria-pressed": String(Math.abs(chosen.seconds - seconds) < 1), onclick: () => { chosen.seconds = seconds; if (clock.end !== null) chosen.end = Math.max(seconds, Math.min(clock.end, now() + seconds / 2)); all(); } }, name))),
        h("div.chips", { role: "group", "aria-label": "Move" },
          h("button", { onclick: () => move(to - chosen.seconds / 2), title: "earlier", "aria-label": "Earlier" }, "←"),
          h("button", { onclick: () => move(to + chosen.seconds / 2), title: "later", "aria-label": "Later" }, "→"),
          h("button", { onclick: () => zoom(0.5), "aria-label": "Zoom in" }, "+"), h("button", { onclick: () => zoom(2), "aria-label": "Zoom out" }, "−"),
          h("button", { "aria-pressed": String(chosen.end === null), onclick: () => { chosen.end = null; all(); } }, clock.end === null ? "Now" : "Moment")),
        h("span.total", {}, `${count(visible.length)} run${visible.length === 1 ? "" : "s"} shown`)),
      picked && h("section.card.picked", { key: "picked", "aria-live": "polite" },
        h("h2", {}, h("a", { href: `#/job/${encodeURIComponent(picked.job)}` }, picked.job), h("small", {}, swatch(picked.tenant), picked.tenant)),
        h("p", {}, `Run ${picked.run}: ${gpus(picked.gpus)} on ${picked.node}, from `, time(picked.began), " to ", picked.ended === undefined ? "now" : time(picked.ended), ` (${span((picked.ended ?? now()) - picked.began)}).`),
        picked.ended === undefined && jobs.get(picked.job)?.end && h("p", { title: fullTime(jobs.get(picked.job).end.median) }, `Expected to end in ${spread(jobs.get(picked.job).end, now())}.`),
        h("p", {}, h("span.soft", {}, "Why: "), decision, picked.decision !== undefined && [" (", decisionLink(picked.decision), ")"])),
      h("div.card.lanes", { key: "card" }, keep(space, "canvas")),
      loaded && !bars.length && h("div.empty", { key: "empty" }, h("p", {}, "No job has held a GPU yet.")),
      h("p.note", { key: "note" }, `${clock.end === null ? "Paler parts to the right of now are expected: until the 10th, the 50th and the 90th percentile of the end; below, when waiting jobs are expected to start, from the 10th to the 90th percentile. " : ""}Drag to move, Ctrl and the wheel to zoom, click a run for the decision that placed it.`),
      waiting(), asTable(visible));
  }
  function waiting() {
    const soon = [...jobs.values()].filter((job) => job.start).sort((a, b) => a.start.median - b.start.median).slice(0, 8);
    if (!soon.length) return null;
    return h("section.card", { key: "soon" }, h("h2", {}, clock.end === null ? "Expected to start" : "Start next"), h("ol.soon", {}, soon.map((job) =>
      h("li", { key: job.id }, h("time", { title: fullTime(job.start.median) }, shortTime(job.start.median)),
        h("span", {}, h("a", { href: `#/job/${encodeURIComponent(job.id)}` }, job.id), ` on ${gpus(job.wanted)}, in ${spread(job.start, now())}`)))));
  }
  function asTable(visible) {
    return h("details", { key: "table", ontoggle: bar }, h("summary", {}, "As a table"),
      root.querySelector("details")?.open && h("table.list", {}, h("thead", {}, h("tr", {}, ["Job", "Tenant", "Node", "GPUs", "From", "To"].map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, visible.slice(-MOST_LISTED).reverse().map((each) => h("tr", {},
          h("th", { scope: "row" }, each.job ? h("a", { href: `#/job/${encodeURIComponent(each.job)}` }, each.job) : "–"), h("td", { "data-label": "Tenant" }, each.tenant), h("td", { "data-label": "Node" }, each.node),
          h("td", { "data-label": "GPUs" }, count(each.gpus)), h("td", { "data-label": "From" }, time(each.began)), h("td", { "data-label": "To" }, each.ended === undefined ? "now" : time(each.ended)))))));
  }

  /** At first, show the shortest stretch that holds every run known. */
  function fit() {
    const age = now() - bars[0].began;
    Object.assign(chosen, { fitted: true, seconds: (SPANS.find(([seconds]) => seconds * (1 - AHEAD) >= age) || SPANS.at(-1))[0] });
  }
  let colours = [];
  const theme = () => { colours = Array.from({ length: 9 }, (_, i) => colour(`--t${i}`)); draw(); };
  theme();
  addEventListener("shoal-theme", theme);
  const resized = new ResizeObserver(draw);
  resized.observe(space);
  addEventListener("scroll", scrolled, { passive: true });
  addEventListener("resize", scrolled);
  const timer = setInterval(draw, 1000);
  return {
    title: "Timeline",
    views: ["seats", "nodes", "running"],
    update(rows, changed) {
      if (!rows.seats || !rows.nodes) return;
      loaded = true;
      jobs = rows.running || new Map();
      if (changed.includes("seats") || changed.includes("nodes")) {
        const key = picked && `${picked.began} ${picked.node} ${picked.job} ${picked.run}`;
        nameTenants(new Set([...rows.seats.values()].map((row) => row.tenant)));
        ({ lanes, bars, byLane, firstOf } = arrange([...rows.seats.values()], [...rows.nodes.values()]));
        if (!chosen.fitted && clock.end === null && bars.length) fit();
        picked = key && bars.find((each) => `${each.began} ${each.node} ${each.job} ${each.run}` === key);
      }
      bar();
      draw();
    },
    close() { for (const [event, heard] of [["shoal-theme", theme], ["scroll", scrolled], ["resize", scrolled]]) removeEventListener(event, heard); cancelAnimationFrame(frame); resized.disconnect(); clearInterval(timer); tip(0, 0); },
  };
}

/**
 * Give each run lanes of its node that are free from its begin on: as many as it has GPUs, next to each other if possible.
 * `bars` are in the order of their begins, `byLane` in that of their first lanes; `firstOf` says for each lane where the
 * bars of its node begin in `byLane`.
 */
function arrange(rows, nodes) {
  const lanes = [], places = new Map(), bars = [];
  for (const node of nodes) {
    places.set(node.name, { first: lanes.length, free: new Array(node.gpus).fill(-Infinity) });
    for (let i = 0; i < node.gpus; i++) lanes.push({ node: node.name, first: i === 0, many: node.gpus });
  }
  for (const row of rows.sort((a, b) => a.began - b.began)) {
    const place = places.get(row.node);
    if (!place) continue;
    const { free } = place, fits = (i) => free.slice(i, i + row.gpus).every((until) => until <= row.began + 0.05);
    const starts = Array.from({ length: Math.max(1, free.length - row.gpus + 1) }, (_, i) => i);
    const start = starts.find(fits);
    const ended = row.ended ?? undefined, until = ended ?? Infinity;
    if (start !== undefined) {
      for (let i = start; i < start + row.gpus; i++) free[i] = until;
      bars.push({ ...row, ended, lane: place.first + start });
      continue;
    }
    const open = free.map((each, i) => [each, i]).sort(([a], [b]) => a - b).slice(0, row.gpus);
    for (const [, i] of open) { free[i] = Math.max(free[i], until); bars.push({ ...row, ended, gpus: 1, lane: place.first + i }); }
  }
  const byLane = [...bars].sort((a, b) => a.lane - b.lane || a.began - b.began), firstOf = [];
  let next = 0;
  lanes.forEach(({ first }, i) => {
    while (next < byLane.length && byLane[next].lane < i) next++;
    firstOf.push(first ? next : firstOf[i - 1]);
  });
  return { lanes, bars, byLane, firstOf };
}
