"""One self-contained page that compares runs: settings, table, charts. It loads nothing from anywhere.

Frame, style and scripts are in ``page/``: ``plot.js`` is a small plotting library, ``charts.js`` draws this page's
charts with it.
"""

import json
from collections.abc import Sequence
from html import escape as escape_html
from importlib import resources
from pathlib import Path

from shoal.core.errors import InputError
from shoal.core.printable import printable, printable_json
from shoal.report.chart_data import Chart, charts
from shoal.report.compare import Comparison, PolicyResult, compare, differing_settings, group_runs, settings_of_run
from shoal.report.files import StoredRun
from shoal.report.tables import basis, change, figure, heading
from shoal.wire.files import replace_file


def write_page(runs: Sequence[StoredRun], path: Path, baseline: str | None = None) -> None:
    """Write the page; the same runs give the same bytes."""
    try:
        replace_file(path, page(runs, baseline).encode())
    except OSError as error:
        raise InputError("html", str(path), f"cannot be written: {error.strerror or error}") from error


def page(runs: Sequence[StoredRun], baseline: str | None = None) -> str:
    """The whole page: one section for each workload and cluster."""
    comparisons, groups = compare(runs, baseline), group_runs(runs)
    data, parts = [], []
    for number, comparison in enumerate(comparisons):
        by_policy = {name: list(row.values()) for name, row in groups[comparison.workload, comparison.cluster].items()}
        chosen = [run for row in by_policy.values() for run in row]
        data.append(charts(by_policy))
        headline = f"<h2>{escape(_where(comparison))}</h2>" if len(comparisons) > 1 else ""
        parts.append(_part(number, comparison, chosen, data[-1], headline))
    return fill_frame(_title(comparisons), "\n".join(parts), data, "charts.js")


def fill_frame(title: str, parts: str, data: object, script: str) -> str:
    """A self-contained page: the frame with its style, these parts, and the data that a script of ``page/`` draws."""
    pieces = {
        "title": escape(title),
        "style": _resource("style.css"),
        "parts": parts,
        # A "</script>" in a job's name must not end the element early.
        "data": printable_json(json.dumps(data, separators=(",", ":"), ensure_ascii=False)).replace("<", "\\u003c"),
        "plot": _resource("plot.js"),
        "charts": _resource(script),
    }
    frame = _resource("frame.html")
    head, *rest = frame.split("{{")
    for piece in rest:
        name, _, tail = piece.partition("}}")
        head += pieces[name] + tail
    return head


def escape(text: str) -> str:
    """Return text as HTML, without control characters and bidirectional marks."""
    return escape_html(printable(text))


def _resource(name: str) -> str:
    return resources.files("shoal.report").joinpath("page", name).read_text(encoding="utf-8")


def _title(comparisons: Sequence[Comparison]) -> str:
    policies = list(dict.fromkeys(s.policy for c in comparisons for s in c.standings))
    names = f"{', '.join(policies[:-1])} and {policies[-1]}" if len(policies) > 1 else policies[0]
    places = {_where(c): None for c in comparisons}
    return f"{names} on {next(iter(places)) if len(places) == 1 else f'{len(places)} workloads'}"


def _where(comparison: Comparison) -> str:
    return comparison.workload or "an unnamed workload"


def _part(number: int, comparison: Comparison, runs: Sequence[StoredRun], data: Chart, headline: str) -> str:
    over_time = _over_time(number) if data["time"] else ""
    marked = "A marked value is significantly better than every other in its column. " if comparison.best else ""
    return f"""
<section>
  {headline}{_facts(comparison, runs)}
  <h3>How the policies compare</h3>
  {_table(comparison)}
  <p class="note">{escape(basis(comparison))} {marked}ρ is finish-time fairness against a run in which every job holds
  an equal share of the cluster (<em>isolated</em>): above 1 is worse than that share.</p>
  <div class="pair">
    <figure><h3>Job completion time</h3>
      <p class="note">Share of jobs completed within a time of their submission. Further left is better.</p>
      <div class="tabs" id="jct-scale-{number}"></div>
      <div class="chart" id="jct-{number}"></div></figure>
    <figure><h3>Finish-time fairness</h3>
      <p class="note">Share of jobs with at most a given ρ. Dashed: a fair share; beyond it is worse.</p>
      <div class="tabs" id="rho-name-{number}"></div>
      <div class="chart" id="rho-{number}"></div></figure>
  </div>
  {over_time}
</section>"""


def _over_time(number: int) -> str:
    return f"""<figure><h3>Over time</h3>
    <p class="note" id="time-note-{number}"></p>
    <div class="tabs" id="time-what-{number}"></div>
    <div class="chart" id="time-{number}"></div></figure>
  <figure><h3>GPUs held</h3>
    <p class="note" id="held-note-{number}"></p>
    <div class="row">
      <div class="tabs" id="held-policy-{number}"></div>
      <div class="tabs" id="held-view-{number}"></div>
    </div>
    <div class="chart" id="held-{number}"></div></figure>"""


def _facts(comparison: Comparison, runs: Sequence[StoredRun]) -> str:
    counts = sorted({int(run.summary["jobs"]) for run in runs})
    differing = differing_settings(runs)  # these are in the names of the rows
    settings = {name: value for name, value in settings_of_run(runs[0].summary).items() if name not in differing}
    facts = {
        "Cluster": comparison.cluster,
        "Jobs": " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1]))),
        "Seeds": ", ".join(map(str, sorted({run.seed for run in runs}))),
        "Baseline": comparison.baseline,
    }
    for name, value in settings.items():
        facts.setdefault(name.replace("-", " ").capitalize(), value)
    items = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts.items() if v)
    return f'<dl class="facts">{items}</dl>'


def _table(comparison: Comparison) -> str:
    heads = "".join(f'<th scope="col">{escape(heading(comparison, m))}</th>' for m in comparison.measures())
    rows = "".join(_row(at, comparison, standing) for at, standing in enumerate(comparison.standings))
    return (
        f'<table><thead><tr><th scope="col">policy</th><th scope="col">completed</th>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def _row(at: int, comparison: Comparison, standing: PolicyResult) -> str:
    short = standing.completed < standing.jobs
    count = f"{standing.completed:,.6g}" + (f" of {standing.jobs:,.6g}" if short else "")
    cells = [
        f'<th scope="row"><i class="swatch" data-policy="{at}"></i>{escape(standing.policy)}</th>',
        f'<td data-label="completed"{" class=short" if short else ""}>{count}</td>',
    ]
    for measure in comparison.measures():
        difference = comparison.difference(standing.policy, measure.name)
        tone = difference.verdict if difference and difference.verdict in ("better", "worse") else ""
        lines = change(comparison, measure, difference)
        small = " ".join(f'<small class="{tone}">{escape(line)}</small>' for line in lines)
        small = f"<div>{small}</div>" if lines else ""
        best = ' class="best"' if comparison.best.get(measure.name) == standing.policy else ""
        label = f' data-label="{escape(heading(comparison, measure))}"'
        cells.append(f"<td{label}{best}>{figure(comparison, measure, standing.means[measure.name])}{small}</td>")
    return f"<tr>{''.join(cells)}</tr>"
