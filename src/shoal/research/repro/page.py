"""A self-contained page of all reproductions: by paper, what is made, with every table, verdict and redrawn figure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from shoal.report.html import escape, fill_frame
from shoal.report.run_page import save_page
from shoal.research.repro import registry
from shoal.research.repro.inventory import NO_EXPERIMENT, InventoryRow, brief_causes, brief_verdict, inventory, tally
from shoal.research.repro.recorded import RecordedRun, recorded_runs
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.runner import ReproOutcome
from shoal.research.repro.table import REPRODUCES, Chart, Line, Table

_POINTS = 400
"""Points of a line beyond which only some are drawn."""

_TITLE = "Figures of five papers, theirs and ours"


def write_figures_page(outcomes: Sequence[ReproOutcome], path: Path, *, quick: bool = False) -> None:
    """Write the page of these outcomes; figures that did not run now have the verdict of the last recorded run."""
    save_page(figures_page(outcomes, registry.reproductions(), recorded_runs(), quick=quick), path)


def figures_page(
    outcomes: Sequence[ReproOutcome],
    known: Mapping[str, Reproduction],
    recorded: Mapping[str, RecordedRun],
    *,
    quick: bool = False,
) -> str:
    """Return the page as text."""
    now = {one.name: RecordedRun(one.verdicts, one.cpu) for one in outcomes if one.tables}
    runs, ended = {**recorded, **now}, {one.name: one for one in outcomes}
    charts: list[Chart] = []
    rows = inventory(known)
    papers = list(dict.fromkeys([*(row.paper for row in rows), *(known[name].paper for name in ended)]))
    parts = [_introduction(papers, rows, runs, quick)]
    for paper in papers:
        made = [ended[name] for name, one in known.items() if one.paper == paper and name in ended]
        of_paper = [row for row in rows if row.paper == paper]
        parts.append(f'<section><h2 id="{_anchor(paper)}">{escape(paper)}</h2>')
        if of_paper:
            parts.append(f'<p class="counts">{escape(tally(of_paper, runs))}.</p>{_inventory(of_paper, runs, ended)}')
        parts += [_reproduction(one, known[one.name].what, charts) for one in made]
        parts.append("</section>")
    return fill_frame(_TITLE, "\n".join(parts), [_drawn(chart) for chart in charts], "figures.js", "figures.css")


def _introduction(
    papers: Sequence[str], rows: Sequence[InventoryRow], runs: Mapping[str, RecordedRun], quick: bool
) -> str:
    items = []
    for paper in papers:
        of_paper = [row for row in rows if row.paper == paper]
        count = f" <small>{escape(tally(of_paper, runs))}</small>" if of_paper else ""
        items.append(f'<li><a href="#{_anchor(paper)}">{escape(paper)}</a>{count}</li>')
    note = (
        "In charts the paper's values, as far as they are printed, are dashed lines with diamonds or pale bars; ours "
        "are solid. A figure that did not run now has the verdict of the last full run."
    )
    if quick:
        note = f"Quick run: a small part of each experiment, whose verdicts say little. {note}"
    return f'<ul class="papers">{"".join(items)}</ul><p class="note">{escape(note)}</p>'


def _inventory(rows: Iterable[InventoryRow], runs: Mapping[str, RecordedRun], ended: Mapping[str, ReproOutcome]) -> str:
    lines = []
    for row in rows:
        how = escape(": ".join(filter(None, (row.state, row.reason))))
        links = ", ".join(
            f'<a href="#{_anchor(name)}">{escape(name)}</a>' if name in ended else escape(name) for name in row.names
        )
        failed = "; ".join(f"{n} failed: {ended[n].failure}" for n in row.names if n in ended and ended[n].failure)
        shown = "" if row.state == NO_EXPERIMENT else _verdict(failed or brief_verdict(row, runs))
        why = "" if failed else escape(brief_causes(row, runs))
        kind = ' class="none"' if not row.names else ""
        lines.append(
            f"<tr{kind}><th scope=row>{escape(row.number)}</th><td>{escape(row.shows)}</td>"
            f"<td>{how}{': ' if links and row.reason else ' by ' if links else ''}{links}</td>"
            f"<td>{shown}</td><td>{why}</td></tr>"
        )
    head = "<thead><tr><th>figure</th><th>what it shows</th><th>made</th><th>verdict</th><th>why</th></tr></thead>"
    return f'<table class="figures">{head}<tbody>{"".join(lines)}</tbody></table>'


def _reproduction(outcome: ReproOutcome, what: str, charts: list[Chart]) -> str:
    parts = [f'<div class="made" id="{_anchor(outcome.name)}"><h3>{escape(outcome.name)}: {escape(what)}</h3>']
    if outcome.failure:
        parts.append(f'<p class="verdict other">failed: {escape(outcome.failure)}</p>')
    for table in outcome.tables:
        parts.append(f"<h4>{escape(table.title)}</h4>")
        if table.verdict:
            parts.append(f"<p>{_verdict(table.verdict)}</p>")
        parts.append(_table(table))
        parts += [f'<p class="note">{escape(note)}</p>' for note in table.notes() if not note.startswith("verdict: ")]
        parts += [_figure(chart, charts) for chart in table.charts if chart.ours or chart.theirs]
    return "\n".join([*parts, "</div>"])


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(column.name)}</th>" for column in table.columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.cells())
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _figure(chart: Chart, charts: list[Chart]) -> str:
    charts.append(chart)
    kind = "low" if chart.kind == "bars" else "line"
    title = escape(chart.title)
    return f'<figure><h4>{title}</h4><div class="chart {kind}" data-chart="{len(charts) - 1}"></div></figure>'


def _verdict(text: str) -> str:
    tone = "same" if text == REPRODUCES else "other" if "differs" in text or "failed" in text else "open"
    return f'<span class="verdict {tone}">{escape(text)}</span>'


def _anchor(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def _drawn(chart: Chart) -> dict[str, Any]:
    """Return a chart as plain JSON, without points that are not finite and with places of bars counted from 0."""
    places = [x for line in (*chart.theirs, *chart.ours) for x, _ in line.points]
    first = 1.0 if chart.kind == "bars" and max(places, default=0.0) >= len(chart.labels) else 0.0
    theirs, ours = ([_line(line, first) for line in side] for side in (chart.theirs, chart.ours))
    names = {"title": chart.title, "x": chart.x, "y": chart.y, "kind": chart.kind, "labels": chart.labels}
    return {**names, "theirs": theirs, "ours": ours}


def _line(line: Line, first: float) -> dict[str, Any]:
    spread = line.spread if len(line.spread) == len(line.points) else (0.0,) * len(line.points)
    every = -(-len(line.points) // _POINTS) or 1
    kept = [
        (float(x) - first, float(y), float(half) if isfinite(half) else 0.0)
        for (x, y), half in zip(line.points[::every], spread[::every], strict=True)
        if isfinite(x) and isfinite(y)
    ]
    rounded = [[_short(value) for value in point] for point in kept]
    halves = [point[2] for point in rounded] if any(point[2] for point in rounded) else []
    return {"name": line.name, "points": [point[:2] for point in rounded], "spread": halves}


def _short(value: float) -> float:
    return float(f"{value:.6g}")
