"use strict";
/* The charts of the report, drawn from the JSON in #data: one entry for each workload and cluster. */
(() => {
  const parts = JSON.parse(document.getElementById("data").textContent);
  const policyColour = (i) => `var(--p${i % 8})`;
  const hours = (value) => `${Plot.number(value, 4)} h`;
  const byId = (id) => document.getElementById(id);
  const TIME = "time since the first submission (hours)";

  /* A row of buttons of which one is pressed; a single option needs no row. */
  function choose(id, options, picked, onPick) {
    const box = byId(id);
    if (options.length < 2) { box.remove(); return; }
    for (const option of options) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = option;
      button.setAttribute("aria-pressed", option === picked);
      button.addEventListener("click", () => {
        for (const other of box.children) other.setAttribute("aria-pressed", other === button);
        onPick(option);
      });
      box.append(button);
    }
  }

  /* The least positive and the greatest x of several curves. */
  function reach(series) {
    const values = Object.values(series).flatMap((curve) => curve.x).filter((x) => x > 0);
    return values.length ? [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))] : [1, 1];
  }

  /* Cumulative distributions of several policies. */
  function distribution(part, series, { log, title, label, limit, at }) {
    const [least, most] = reach(series);
    return {
      label, height: 330,
      x: { title, log, min: log ? least * 0.9 : 0, max: most * 1.02 },
      panels: [{
        title: "share of jobs", max: 1, percent: true, limit,
        marks: part.policies.map((name, i) => ({
          name, colour: policyColour(i), path: (sx, sy) => Plot.steps(series[name].x, series[name].y, sx, sy, true),
        })),
      }],
      hover: (x, panel, y, hidden) => [at(x), ...part.policies.filter((name) => !hidden.has(name))
        .map((name) => `${name}: ${Plot.percent(Plot.valueAt(series[name].x, series[name].y, x, 0))}`)],
    };
  }
  const wide = (series) => { const [least, most] = reach(series); return most / least > 50; };

  function completion(part, n) {
    let scale = wide(part.jct) ? "Logarithmic" : "Linear";
    const draw = () => Plot.draw(byId(`jct-${n}`), distribution(part, part.jct, {
      log: scale === "Logarithmic", title: "completion time (hours)", label: "Distribution of job completion times",
      at: (x) => `completed within ${hours(x)}`,
    }));
    choose(`jct-scale-${n}`, ["Linear", "Logarithmic"], scale, (picked) => { scale = picked; draw(); });
    draw();
  }

  function fairness(part, n) {
    let name = "isolated";
    const draw = () => {
      const log = wide(part.rho[name]);
      Plot.draw(byId(`rho-${n}`), distribution(part, part.rho[name], {
        log, title: `ρ, ${name}${log ? " (logarithmic)" : ""}`, label: "Distribution of finish-time fairness",
        limit: { x: 1, label: "fair share" }, at: (x) => `ρ of at most ${Plot.number(x)}`,
      }));
    };
    choose(`rho-name-${n}`, Object.keys(part.rho), name, (picked) => { name = picked; draw(); });
    draw();
  }

  const PANELS = {
    "Queue and utilization": {
      note: "Above: jobs waiting without GPUs. Below: the share of GPUs held.",
      rows: [{ key: "queue", title: "jobs waiting", integer: true }, { key: "utilization", title: "GPUs in use", percent: true }],
    },
    "Efficiency and blocking": {
      note: "Above: cluster efficiency (CE), the progress made over that of one GPU, for each GPU of the cluster; 100 % if every GPU is as "
        + "useful as a job's first. Below: blocking index (BI), the time waited over the time left, averaged over waiting jobs; high if "
        + "short jobs wait long.",
      rows: [{ key: "efficiency", title: "cluster efficiency", percent: true }, { key: "blocking", title: "blocking index" }],
    },
  };

  function overTime(part, n) {
    let what = Object.keys(PANELS)[0];
    const shown = part.policies.filter((policy) => part.time[policy]);
    const end = Math.max(...shown.map((policy) => part.time[policy].x.at(-1)));
    const draw = () => {
      byId(`time-note-${n}`).textContent = `${PANELS[what].note} Averages over short intervals; first seed of each policy.`;
      const rows = PANELS[what].rows;
      Plot.draw(byId(`time-${n}`), {
        label: what, height: 460, x: { title: TIME, min: 0, max: end },
        panels: rows.map((row) => {
          const most = Math.max(...shown.map((policy) => Math.max(...part.time[policy][row.key])));
          return {
            ...row, max: row.key === "utilization" ? 1 : most * 1.05 || 1,
            marks: shown.map((name) => ({
              name, colour: policyColour(part.policies.indexOf(name)), width: 1.5,
              path: (sx, sy) => Plot.steps(part.time[name].x, part.time[name][row.key], sx, sy, false),
            })),
          };
        }),
        hover: (x, panel, y, hidden) => [`${rows[panel].title} at ${hours(x)}`, ...shown.filter((name) => !hidden.has(name)).map((name) => {
          const { x: edges, [rows[panel].key]: values } = part.time[name];
          const value = x > edges.at(-1) ? null : Plot.valueAt(edges, values, x, 0);
          return `${name}: ${value === null ? "ended" : rows[panel].percent ? Plot.percent(value) : Plot.number(value)}`;
        })],
      });
    };
    choose(`time-what-${n}`, Object.keys(PANELS), what, (picked) => { what = picked; draw(); });
    draw();
  }

  function gantt(view, end) {
    const rows = view.jobs;
    const named = rows.length <= 60;
    const bars = rows.map(() => []);
    for (const group of view.groups) group.row.forEach((row, k) => bars[row].push([group.since[k], group.hours[k], `${group.gpus[k]} × ${group.kind}`]));
    const half = 0.43;
    const rectangles = (group, sx, sy) => group.row.map((row, k) => {
      const x = sx(group.since[k]);
      const width = Math.max(sx(group.since[k] + group.hours[k]) - x, 0.4);
      return `M${x.toFixed(1)} ${sy(row - half).toFixed(1)}h${width.toFixed(1)}V${sy(row + half).toFixed(1)}h${(-width).toFixed(1)}z`;
    }).join("");
    return {
      label: "GPUs held by each job over time", height: Math.max(300, Math.min(1000, 90 + rows.length * (named ? 18 : 4))),
      x: { title: TIME, min: 0, max: end },
      panels: [{
        title: "jobs in order of submission", rows, named,
        marks: [
          { name: "waiting", colour: "var(--soft)", width: named ? 1 : 0.6, opacity: 0.7,
            path: (sx, sy) => view.submitted.map((since, i) => `M${sx(since).toFixed(1)} ${sy(i).toFixed(1)}H${sx(view.gone[i]).toFixed(1)}`).join("") },
          ...view.groups.map((group, i) => ({ name: group.label, colour: `var(--r${i % 6})`, filled: true, path: (sx, sy) => rectangles(group, sx, sy) })),
        ],
      }],
      hover: (x, panel, y) => {
        const row = Math.round(y);
        if (!(row in rows)) return null;
        const bar = bars[row].find(([since, length]) => since <= x && x <= since + length);
        const state = bar ? [bar[2], `${hours(bar[0])} to ${hours(bar[0] + bar[1])} (${hours(bar[1])})`]
          : [x < view.submitted[row] ? `submitted at ${hours(view.submitted[row])}` : x > view.gone[row] ? `ended at ${hours(view.gone[row])}` : "waiting"];
        return [`${rows[row]} (${view.tenants[row]})`, ...state];
      },
    };
  }

  function stacked(view, end) {
    const count = Object.values(view.series)[0].length;
    const x = Array.from({ length: count }, (_, i) => view.hours * i / (count - 1));
    let low = Array(count).fill(0);
    const marks = Object.entries(view.series).map(([name, values], i) => {
      const [from, to] = [low, low.map((value, k) => value + values[k])];
      low = to;
      return { name, colour: `var(--g${i % 8})`, filled: true, path: (sx, sy) => Plot.band(x, from, to, sx, sy) };
    });
    return {
      label: "GPUs held over time", height: 340, x: { title: TIME, min: 0, max: end },
      panels: [{ title: "GPUs held", max: view.gpus * 1.04, integer: true, marks, limit: { y: view.gpus } }],
      hover: (place, panel, y, hidden) => place > view.hours ? null : [`at ${hours(place)}`, ...Object.entries(view.series)
        .filter(([name]) => !hidden.has(name)).reverse()
        .map(([name, values]) => `${name}: ${Plot.number(Plot.valueAt(x, values, place, 0))} GPUs`)],
    };
  }

  function held(part, n) {
    const shown = part.policies.filter((policy) => part.held[policy]);
    const views = [...new Set(shown.flatMap((policy) => Object.keys(part.held[policy])))];
    let [policy, view] = [shown[0], Object.keys(part.held[shown[0]])[0]];
    /* One scale for all policies, so that switching between them compares. */
    const end = Math.max(...shown.map((name) => part.time[name].x.at(-1)));
    const draw = () => {
      const found = part.held[policy][view] ?? Object.values(part.held[policy])[0];
      byId(`held-note-${n}`).textContent = found.groups
        ? `Each row is a job: a thin line while it waits, a bar while it holds GPUs, coloured by ${found.coloured}. First seed of ${policy}.`
        : `GPUs held over time; the dashed line is the size of the cluster. First seed of ${policy}.`;
      Plot.draw(byId(`held-${n}`), found.groups ? gantt(found, end) : stacked(found, end));
    };
    choose(`held-policy-${n}`, shown, policy, (picked) => { policy = picked; draw(); });
    choose(`held-view-${n}`, views, view, (picked) => { view = picked; draw(); });
    draw();
  }

  for (const swatch of document.querySelectorAll("table .swatch")) swatch.style.background = policyColour(+swatch.dataset.policy);
  parts.forEach((part, n) => {
    completion(part, n);
    fairness(part, n);
    if (Object.keys(part.time).length) { overTime(part, n); held(part, n); }
  });
})();
