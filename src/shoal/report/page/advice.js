"use strict";
/* The charts of `shoal advise`, drawn from the JSON in #data. */
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const colour = (i) => (i ? `var(--p${(i - 1) % 8})` : "var(--ink)");
  const box = (id) => document.getElementById(id);
  const reach = (values) => [Math.min(0, ...values), Math.max(0, ...values)];
  for (const swatch of document.querySelectorAll("[data-row]")) swatch.style.background = colour(Number(swatch.dataset.row));

  /* A dot and its interval for each policy, against the baseline or the record. */
  function changes(name, { unit, against }) {
    const say = (v) => `${v > 0 ? "+" : ""}${Plot.number(v)} ${unit}`;
    const draw = (rows) => {
      const [low, high] = reach(rows.flat().filter((v) => v !== null));
      const margin = 0.05 * (high - low || 1);
      const span = ([, from, to], i) => (sx, sy) => (from === null ? "" : `M${sx(from)} ${sy(i)}H${sx(to)}`);
      const dot = ([value], i) => (sx, sy) => `M${sx(value) - 5} ${sy(i)}a5 5 0 1 0 10 0a5 5 0 1 0 -10 0Z`;
      Plot.draw(box(`change-${name}`), {
        label: `Change by policy (${unit})`, height: 60 + 26 * rows.length,
        x: { title: `change (${unit})`, min: low - margin, max: high + margin },
        panels: [{
          title: "", rows: data.policies, named: true, limit: { x: 0 },
          marks: rows.flatMap((row, i) => [
            { colour: colour(i + 1), width: 2.4, path: span(row, i) }, { colour: colour(i + 1), filled: true, path: dot(row, i) },
          ]),
        }],
        hover: (x, panel, y) => {
          const row = rows[Math.round(y)];
          if (!row) return null;
          return [data.policies[Math.round(y)], say(row[0]), ...(row[1] === null ? [] : [`${say(row[1])} to ${say(row[2])}`])];
        },
      });
    };
    const tabs = box(`against-${name}`);
    for (const [title, rows] of Object.entries(against)) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = title;
      button.addEventListener("click", () => {
        for (const other of tabs.children) other.setAttribute("aria-pressed", other === button);
        draw(rows);
      });
      tabs.append(button);
    }
    tabs.firstChild.click();
  }

  function waits() {
    const all = data.rows.flatMap((name) => data.waits[name].x);
    const most = Math.max(1 / 60, ...all);
    const least = 1 / 60;
    Plot.draw(box("waits"), {
      label: "Distribution of waits", height: 330,
      x: { title: "wait (hours, logarithmic from one minute)", log: true, min: least, max: Math.max(most * 1.02, least * 13) },
      panels: [{
        title: "share of jobs", max: 1, percent: true,
        marks: data.rows.map((name, i) => ({
          name, colour: colour(i), width: i ? 1.6 : 2.6, path: (sx, sy) => Plot.steps(data.waits[name].x, data.waits[name].y, sx, sy, true),
        })),
      }],
      hover: (x, panel, y, hidden) => [`waited at most ${Plot.number(x)} h`, ...data.rows.filter((name) => !hidden.has(name))
        .map((name) => `${name}: ${Plot.percent(Plot.valueAt(data.waits[name].x, data.waits[name].y, x, 0))}`)],
    });
  }

  function use() {
    const { x, used, waiting } = data.use;
    const end = x[x.length - 1] + (x[1] - x[0] || 1);
    const area = (y, paint) => [{ colour: paint, filled: true, path: (sx, sy) => Plot.band(x, y.map(() => 0), y, sx, sy) }];
    Plot.draw(box("use"), {
      label: "GPUs over time", height: 330,
      x: { title: "time since the first job (hours)", min: 0, max: end },
      panels: [
        { title: "GPUs", max: Math.max(data.gpus, ...used) * 1.05, limit: { y: data.gpus }, marks: area(used, "var(--g0)") },
        { title: "GPUs asked for", max: Math.max(1, ...waiting) * 1.05, marks: area(waiting, "var(--g1)") },
      ],
      hover: (at) => [`${Plot.number(at, 4)} h`, `allocated: ${Plot.number(Plot.valueAt(x, used, at, 0))} of ${data.gpus} GPUs`,
        `waiting jobs ask for ${Plot.number(Plot.valueAt(x, waiting, at, 0))} GPUs`],
    });
  }

  for (const [name, rows] of Object.entries(data.changes)) changes(name, rows);
  waits();
  use();
})();
