"""The page of ``shoal advise``: one self-contained file with findings, tables and charts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.errors import InputError
from shoal.report.advice import MEASURES, Advice, AdviceMeasure, AdviceRow, FigureInterval
from shoal.report.advice_words import (
    UNIT_SECONDS,
    change_text,
    finding_sentences,
    in_unit,
    time_text,
    time_unit,
    waste_sentences,
)
from shoal.report.html import escape, fill_frame
from shoal.report.recorded_use import RecordedColumns, use_over_time
from shoal.wire.files import replace_file

_POINTS = 300
_CHARTED = ("mean_jct", "mean_wait")


def write_advice(
    path: Path,
    facts: Mapping[str, str],
    assumptions: Sequence[str],
    advice: Advice,
    waste: Mapping[str, Any],
    columns: RecordedColumns,
) -> None:
    """Write the page."""
    try:
        replace_file(path, advice_page(facts, assumptions, advice, waste, columns).encode())
    except OSError as error:
        raise InputError("html", str(path), f"cannot be written: {error.strerror or error}") from error


def advice_page(
    facts: Mapping[str, str],
    assumptions: Sequence[str],
    advice: Advice,
    waste: Mapping[str, Any],
    columns: RecordedColumns,
) -> str:
    """The whole page as text."""
    rows = (advice.record, *advice.policies)
    data = {
        "rows": [row.name for row in rows],
        "waits": {row.name: _distribution(row.waits) for row in rows},
        "use": use_over_time(columns),
        "gpus": sum(kind["gpus"] for kind in waste["kinds"]),
        "changes": {name: _changes(advice, name) for name in _CHARTED},
        "policies": [row.name for row in advice.policies],
    }
    title = f"What other policies would have changed: {Path(facts['History']).name}"
    return fill_frame(title, _body(facts, assumptions, advice, waste), data, "advice.js")


def _changes(advice: Advice, measure: str) -> dict[str, Any]:
    """Changes of a measure against the baseline and against the record, each with its interval, in one unit."""
    against = {
        f"Against {advice.baseline}": [row.versus_baseline[measure] for row in advice.policies],
        "Against the record": [row.versus_record[measure] for row in advice.policies],
    }
    values = [v for changes in against.values() for c in changes for v in (c.value, c.low, c.high) if v is not None]
    unit = time_unit(values)
    size = UNIT_SECONDS[unit]
    return {
        "unit": unit,
        "against": {
            name: [[None if v is None else round(v / size, 4) for v in (c.value, c.low, c.high)] for c in changes]
            for name, changes in against.items()
        },
    }


def _distribution(waits: Floats) -> dict[str, list[float]]:
    """Cumulative distribution of waits in hours, at no more than a few hundred points."""
    ranked = np.sort(waits) / 3600.0
    at = np.unique(np.linspace(0, len(ranked) - 1, min(len(ranked), _POINTS)).astype(int))
    return {"x": np.round(ranked[at], 5).tolist(), "y": np.round((at + 1) / len(ranked), 5).tolist()}


def _body(facts: Mapping[str, str], assumptions: Sequence[str], advice: Advice, waste: Mapping[str, Any]) -> str:
    items = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts.items() if v)
    findings = "".join(f"<li>{escape(text)}</li>" for text in (*finding_sentences(advice), *waste_sentences(waste)))
    assumed = "".join(f"<li>{escape(text)}</li>" for text in assumptions)
    return f"""
<section>
  <dl class="facts">{items}</dl>
  <h3>Findings</h3>
  <ul class="findings">{findings}</ul>
  <h3>Policies, simulated, beside what was recorded</h3>
  {_table(advice)}
  <p class="note">Small figures: change against {escape(advice.baseline)}, simulated, in place of Slurm, with its 95 %
  interval; green and red where that excludes 0. A value is marked only if its interval lies below those of all other
  policies. {escape(advice.intervals)} Stretch is completion time over run time, the latter counted as at least ten
  minutes; the worst tenant is the one with the highest mean stretch among those with 20 jobs or more. Utilization is
  of the whole cluster, from the first job to the last completion; it has no interval.</p>
  <div class="pair">
    <figure><h3>Change in mean completion time</h3>
      <p class="note">Left of 0 is better. Lines are 95 % intervals.</p>
      <div class="tabs" id="against-mean_jct"></div>
      <div class="chart low" id="change-mean_jct"></div></figure>
    <figure><h3>Change in mean wait</h3>
      <p class="note">Left of 0 is better. Lines are 95 % intervals.</p>
      <div class="tabs" id="against-mean_wait"></div>
      <div class="chart low" id="change-mean_wait"></div></figure>
  </div>
  <div class="pair">
    <figure><h3>Waits</h3>
      <p class="note">Share of jobs that waited at most a given time, in all; further left is better.</p>
      <div class="chart" id="waits"></div></figure>
    <figure><h3>GPUs over time, as recorded</h3>
      <p class="note">Above: GPUs allocated; dashed: all GPUs. Below: GPUs that waiting jobs asked for.</p>
      <div class="chart" id="use"></div></figure>
  </div>
  <h3>Idle and wrong-kind GPU-hours, as recorded</h3>
  {_kinds(waste)}
  <h3>Where allocated GPU-hours ended, as recorded</h3>
  {_states(waste)}
  <h3>Mean wait by tenant</h3>
  <p class="note">The tenants with the most GPU-hours. “Recorded” is what happened; all others are simulated.</p>
  {_tenants(advice)}
  <h3>What is assumed</h3>
  <ul class="findings">{assumed}</ul>
</section>"""


def _grid(heads: Sequence[str], rows: Sequence[Sequence[str]], classes: Sequence[Sequence[str]] | None = None) -> str:
    top = "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    body = []
    for r, (name, *cells) in enumerate(rows):
        marks = classes[r] if classes else [""] * len(cells)
        row = "".join(
            f'<td data-label="{escape(head)}"{f" class={mark}" if mark else ""}>{cell}</td>'
            for head, cell, mark in zip(heads[1:], cells, marks, strict=True)
        )
        body.append(f'<tr><th scope="row">{name}</th>{row}</tr>')
    return f"<table><thead><tr>{top}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _table(advice: Advice) -> str:
    rows = (advice.record, *advice.policies)
    units = {m.name: m.unit if m.unit != "s" else time_unit([r.figures[m.name].value for r in rows]) for m in MEASURES}
    heads = ["policy", *(f"{m.title} ({units[m.name]})" if m.unit == "s" else m.title for m in MEASURES)]
    cells, classes = [], []
    for at, row in enumerate(rows):
        swatch = f'<i class="swatch" data-row="{at}"></i>'
        extra = f"{row.restarts:,}" if row is not advice.record else "–"
        values = [_cell(row, m, units[m.name]) for m in MEASURES]
        cells.append([f"{swatch}{escape(row.name)}", *values, f"{row.utilization:.1%}", extra])
        classes.append([*("best" if advice.best.get(m.name) == row.name else "" for m in MEASURES), "", ""])
    return _grid([*heads, "utilization", "restarts"], cells, classes)


def _cell(row: AdviceRow, measure: AdviceMeasure, unit: str) -> str:
    figure = row.figures[measure.name]
    text = in_unit(figure.value, unit) if unit != "×" else f"{figure.value:.2f}"
    change = row.versus_baseline.get(measure.name)
    if change is None or change == FigureInterval(0.0, 0.0, 0.0):
        return text
    tone = ("better" if change.value < 0.0 else "worse") if change.excludes_zero else ""
    # A line breaks only before the interval.
    words = escape(change_text(change, unit)).replace(" (", " <span>(").replace(")", ")</span>")
    return f'{text}<div><small class="{tone}">{words}</small></div>'


def _kinds(waste: Mapping[str, Any]) -> str:
    keys = ("used", "idle", "idle_while_waiting", "wrong_kind")
    heads = [
        "kind",
        "GPUs",
        "GPU-hours",
        "allocated",
        "idle",
        "idle while jobs for it waited",
        "idle, others asked for",
    ]
    rows = []
    for kind in waste["kinds"]:
        total = kind["gpu_hours"] or 1.0
        shares = [f"{kind[key]:,.0f} <small>{kind[key] / total:.1%}</small>" for key in keys]
        rows.append([escape(kind["kind"]), f"{kind['gpus']:,}", f"{kind['gpu_hours']:,.0f}", *shares])
    return _grid(heads, rows)


def _states(waste: Mapping[str, Any]) -> str:
    hours = waste["gpu_hours_by_state"]
    total = sum(hours.values()) or 1.0
    rows = [[escape(state), f"{value:,.0f}", f"{value / total:.1%}"] for state, value in hours.items()]
    return _grid(["state", "GPU-hours", "share"], rows)


def _tenants(advice: Advice) -> str:
    rows = (advice.record, *advice.policies)
    table = [[escape(t), *(time_text(row.by_tenant[t]) for row in rows)] for t in advice.tenants]
    return _grid(["tenant", *(row.name for row in rows)], table)
