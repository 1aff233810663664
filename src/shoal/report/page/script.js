"use strict";
(() => {
  const parts = JSON.parse(document.getElementById("data").textContent);
  const POLICY = ["#2f6fb7", "#d9682c", "#2f9467", "#9457a8", "#b58a14", "#c43d66", "#5f6b7a", "#159aa8"];
  const RAMP = ["#0b3c6f", "#2c78b5", "#7fb6dc", "#c3d9ea", "#98a4b3", "#5d6b7c"];
  const GROUP = ["#4c7fb0", "#e0a458", "#6aa888", "#b279a2", "#c8694f", "#8c9a3c", "#7a8694", "#58b0bd"];
  const config = { responsive: true, displayModeBar: false };
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (list, i) => list[i % list.length];
  const redraws = [];

  const axis = (title, extra) => ({
    title: { text: title, standoff: 8 }, gridcolor: css("--line"), linecolor: css("--soft"), showline: true,
    zeroline: false, ticks: "outside", tickcolor: css("--soft"), automargin: true, ...extra,
  });
  const layout = (extra) => ({
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 58, r: 14, t: 34, b: 48 },
    font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: css("--ink") },
    legend: { orientation: "h", y: 1.01, yanchor: "bottom", x: 0, traceorder: "normal" },
    hoverlabel: { align: "left", font: { family: getComputedStyle(document.body).fontFamily } }, ...extra,
  });

  /* A row of buttons of which one is pressed; a single option needs no row. */
  function choose(id, options, picked, onPick) {
    const box = document.getElementById(id);
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

  function drawn(id, make) {
    const draw = () => {
      const { traces, look } = make();
      const box = document.getElementById(id);
      box.style.height = look.height ? look.height + "px" : "";
      Plotly.react(box, traces, look, config);
    };
    redraws.push(draw);
    draw();
    return draw;
  }

  function steps(part, series, upTo) {
    return part.policies.map((policy, i) => ({
      name: policy, x: series[policy].x, y: series[policy].y, mode: "lines", line: { color: colour(POLICY, i), width: 2, shape: "hv" },
      hovertemplate: `%{y:.1%} of jobs ${upTo}<extra>${policy}</extra>`,
    }));
  }

  const spread = (series) => {
    const values = Object.values(series).flatMap((s) => s.x).filter((x) => x > 0);
    return values.length ? Math.max(...values) / Math.min(...values) : 1;
  };

  function completion(part, n) {
    let scale = spread(part.jct) > 50 ? "Logarithmic" : "Linear";
    const draw = drawn(`jct-${n}`, () => ({
      traces: steps(part, part.jct, "within %{x:,.3~f} h"),
      look: layout({
        xaxis: axis("completion time (hours)", scale === "Linear" ? { rangemode: "tozero" } : { type: "log", dtick: 1 }),
        yaxis: axis("share of jobs", { tickformat: ".0%", range: [0, 1.02] }),
      }),
    }));
    choose(`jct-scale-${n}`, ["Linear", "Logarithmic"], scale, (picked) => { scale = picked; draw(); });
  }

  function fairness(part, n) {
    let name = "isolated";
    const draw = drawn(`rho-${n}`, () => {
      const wide = spread(part.rho[name]) > 50;
      return {
        traces: steps(part, part.rho[name], "with ρ up to %{x:,.3~f}"),
        look: layout({
          xaxis: axis(`ρ, ${name}` + (wide ? " (logarithmic)" : ""), wide ? { type: "log", dtick: 1 } : { rangemode: "tozero" }),
          yaxis: axis("share of jobs", { tickformat: ".0%", range: [0, 1.02] }),
          shapes: [{ type: "line", x0: 1, x1: 1, yref: "paper", y0: 0, y1: 1, line: { color: css("--ink"), width: 1.2, dash: "dash" } }],
          annotations: [{
            x: wide ? 0 : 1, y: 0.04, yref: "paper", text: "fair share", showarrow: false, xanchor: "left", xshift: 5, font: { color: css("--soft"), size: 12 },
          }],
        }),
      };
    });
    choose(`rho-name-${n}`, Object.keys(part.rho), name, (picked) => { name = picked; draw(); });
  }

  const PANELS = {
    "Queue and utilization": {
      note: "Above, jobs waiting without GPUs; below, the share of GPUs held.",
      rows: [["queue", "jobs waiting", ",.1~f", ""], ["utilization", "GPUs in use (%)", ".1f", " %"]],
    },
    "Efficiency and blocking": {
      note: "Above, progress made over that of one GPU for each GPU of the cluster (CE): 100 % when every GPU is as useful as a job's first. "
        + "Below, time waited over time left, averaged over waiting jobs (BI): high when short jobs wait long.",
      rows: [["efficiency", "cluster efficiency (%)", ".1f", " %"], ["blocking", "blocking index", ".3~g", ""]],
    },
  };

  function overTime(part, n) {
    let what = Object.keys(PANELS)[0];
    const shown = part.policies.filter((policy) => part.time[policy]);
    const draw = drawn(`time-${n}`, () => {
      document.getElementById(`time-note-${n}`).textContent = PANELS[what].note + " Averages over short intervals, of each policy's first seed.";
      const traces = PANELS[what].rows.flatMap(([key, , format, unit], row) => shown.map((policy) => ({
        name: policy, legendgroup: policy, showlegend: row === 0, x: part.time[policy].x, y: part.time[policy][key], mode: "lines",
        yaxis: row ? "y2" : "y", line: { color: colour(POLICY, part.policies.indexOf(policy)), width: 1.6, shape: "hv" },
        hovertemplate: `%{y:${format}}${unit} at %{x:,.3~f} h<extra>${policy}</extra>`,
      })));
      const [above, below] = PANELS[what].rows;
      const share = (key) => (key === "utilization" ? { range: [0, 103] } : { rangemode: "tozero" });
      return {
        traces,
        look: layout({
          xaxis: axis("time since the first submission (hours)", { anchor: "y2" }),
          yaxis: axis(above[1], { domain: [0.56, 1], ...share(above[0]) }),
          yaxis2: axis(below[1], { domain: [0, 0.46], ...share(below[0]) }),
        }),
      };
    });
    choose(`time-what-${n}`, Object.keys(PANELS), what, (picked) => { what = picked; draw(); });
  }

  function gantt(view, range) {
    const rows = view.jobs.length;
    const life = { x: [], y: [] };
    view.submitted.forEach((since, i) => { life.x.push(since, view.gone[i], null); life.y.push(i, i, null); });
    const waiting = { ...life, type: "scatter", mode: "lines", name: "waiting", line: { color: css("--soft"), width: rows > 80 ? 0.6 : 1 }, opacity: 0.6, hoverinfo: "skip" };
    const bars = view.groups.map((group, i) => ({
      type: "bar", orientation: "h", name: group.label, base: group.since, x: group.hours, y: group.row, width: 0.86,
      marker: { color: colour(RAMP, i), line: { width: 0 } },
      customdata: group.row.map((row, k) => [view.jobs[row], view.tenants[row], group.what[k], group.since[k], group.since[k] + group.hours[k], group.hours[k]]),
      hovertemplate: "<b>%{customdata[0]}</b> (%{customdata[1]})<br>%{customdata[2]}<br>%{customdata[3]:,.3~f} to %{customdata[4]:,.3~f} h (%{customdata[5]:,.3~f} h)<extra></extra>",
    }));
    const named = rows <= 60;
    return {
      traces: [waiting, ...bars],
      look: layout({
        height: Math.max(300, Math.min(1000, 120 + rows * (named ? 18 : 5))), barmode: "overlay", hovermode: "closest",
        xaxis: axis("time since the first submission (hours)", { range }),
        yaxis: axis("jobs in order of submission", {
          range: [rows - 0.4, -0.6], showgrid: false,
          ...(named ? { tickvals: view.jobs.map((_, i) => i), ticktext: view.jobs, tickfont: { size: 11 } } : {}),
        }),
      }),
    };
  }

  function stacked(view, range) {
    const traces = Object.entries(view.series).map(([label, y], i) => ({
      name: label, x: view.x, y, mode: "lines", stackgroup: "held", line: { width: 0, shape: "hv" }, fillcolor: colour(GROUP, i),
      hovertemplate: "%{y:,.1f} GPUs at %{x:,.3~f} h<extra>" + label + "</extra>",
    }));
    return {
      traces,
      look: layout({
        xaxis: axis("time since the first submission (hours)", { range }), yaxis: axis("GPUs held", { range: [0, view.gpus * 1.04] }),
        shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: view.gpus, y1: view.gpus, line: { color: css("--soft"), width: 1, dash: "dot" } }],
      }),
    };
  }

  function held(part, n) {
    const shown = part.policies.filter((policy) => part.held[policy]);
    let policy = shown[0];
    const views = Object.keys(part.held[policy]);
    let view = views[0];
    /* One scale for all policies, so that switching between them compares. */
    const range = [0, Math.max(...shown.map((name) => part.time[name].x.at(-1)))];
    const draw = drawn(`held-${n}`, () => {
      const found = part.held[policy][view] ?? Object.values(part.held[policy])[0];
      const many = found.type === "gantt";
      document.getElementById(`held-note-${n}`).textContent = many
        ? `Each row is a job: a thin line while it waits, a bar while it holds GPUs, coloured by ${found.coloured}. First seed of ${policy}.`
        : `GPUs held over time; the dotted line is all the cluster has. First seed of ${policy}.`;
      return many ? gantt(found, range) : stacked(found, range);
    });
    choose(`held-policy-${n}`, shown, policy, (picked) => { policy = picked; draw(); });
    choose(`held-view-${n}`, views, view, (picked) => { view = picked; draw(); });
  }

  for (const swatch of document.querySelectorAll(".swatch")) swatch.style.background = colour(POLICY, +swatch.dataset.policy);
  parts.forEach((part, n) => {
    completion(part, n);
    fairness(part, n);
    if (Object.keys(part.time).length) { overTime(part, n); held(part, n); }
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraws.forEach((draw) => draw()));
})();
