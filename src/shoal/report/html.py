"""One self-contained page that compares runs: facts, table, charts. It needs no network, now or ever.

The charts are drawn by plotly.js, which its wheel ships and which is put into the page once; the page's own script,
style and frame lie in ``page/``.
"""

import json
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path

from shoal.core.errors import InputError
from shoal.report.chart_data import Chart, charts
from shoal.report.compare import MEASURES, Comparison, PolicyResult, compare, group_runs
from shoal.report.files import StoredRun
from shoal.report.tables import basis, change, figure, heading

_VERDICTS = {"better": "better", "worse": "worse"}


def write_page(runs: Sequence[StoredRun], path: Path, baseline: str | None = None) -> None:
    """Write the page; the same runs give the same bytes."""
    try:
        path.write_text(page(runs, baseline), encoding="utf-8")
    except OSError as error:
        raise InputError("html", str(path), f"cannot be written: {error.strerror or error}") from error


def page(runs: Sequence[StoredRun], baseline: str | None = None) -> str:
    """The whole page: one part for each workload and cluster."""
    from plotly.offline import get_plotlyjs

    comparisons, groups = compare(runs, baseline), group_runs(runs)
    data, parts = [], []
    for number, comparison in enumerate(comparisons):
        by_policy = {name: list(row.values()) for name, row in groups[comparison.workload, comparison.cluster].items()}
        chosen = [run for row in by_policy.values() for run in row]
        data.append(charts(by_policy))
        headline = f"<h2>{escape(_where(comparison))}</h2>" if len(comparisons) > 1 else ""
        parts.append(_part(number, comparison, chosen, data[-1], headline))
    pieces = {
        "title": escape(_title(comparisons)),
        "style": _resource("style.css"),
        "parts": "\n".join(parts),
        # A "</script>" in somebody's job name must not end the element early.
        "data": json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c"),
        "plotly": get_plotlyjs(),
        "script": _resource("script.js"),
    }
    frame = _resource("frame.html")
    head, *rest = frame.split("{{")
    for piece in rest:
        name, _, tail = piece.partition("}}")
        head += pieces[name] + tail
    return head


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
    return f"""
<section class="part" data-part="{number}">
  {headline}{_facts(comparison, runs)}
  <h3>How the policies compare</h3>
  {_table(comparison)}
  <p class="note">{escape(basis(comparison))} The best value of each column is marked. ρ is finish-time fairness
  against a run in which every job holds an equal share of the cluster (<em>isolated</em>): above 1 is worse than that
  share.</p>
  <div class="pair">
    <figure><h3>Job completion time</h3>
      <p class="note">Share of jobs done within a time of their submission. Further left is better.</p>
      <div class="tabs" id="jct-scale-{number}"></div>
      <div class="chart" id="jct-{number}"></div></figure>
    <figure><h3>Finish-time fairness</h3>
      <p class="note">Share of jobs with at most a given ρ. Right of the line: worse than a fair share.</p>
      <div class="tabs" id="rho-name-{number}"></div>
      <div class="chart" id="rho-{number}"></div></figure>
  </div>
  {over_time}
</section>"""


def _over_time(number: int) -> str:
    return f"""<figure><h3>Over time</h3>
    <p class="note" id="time-note-{number}"></p>
    <div class="tabs" id="time-what-{number}"></div>
    <div class="chart tall" id="time-{number}"></div></figure>
  <figure><h3>Who held the GPUs</h3>
    <p class="note" id="held-note-{number}"></p>
    <div class="row">
      <div class="tabs" id="held-policy-{number}"></div>
      <div class="tabs" id="held-view-{number}"></div>
    </div>
    <div class="chart" id="held-{number}"></div></figure>"""


def _facts(comparison: Comparison, runs: Sequence[StoredRun]) -> str:
    seeds = sorted({run.seed for run in runs})
    knowledge = sorted({str(run.summary["knowledge"]) for run in runs if run.summary.get("knowledge")})
    counts = sorted({int(run.summary["jobs"]) for run in runs})
    window = next((run.summary["window"] for run in runs if run.summary.get("window")), None)
    facts = {
        "Cluster": comparison.cluster,
        "Jobs": " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1]))),
        "Jobs measured": f"{window[0]} to {window[1]}" if window else "",
        "Seeds": ", ".join(map(str, seeds)),
        "Knowledge": ", ".join(knowledge),
        **_settings(runs),
        "Baseline": comparison.baseline,
    }
    items = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts.items() if v)
    return f'<dl class="facts">{items}</dl>'


def _settings(runs: Sequence[StoredRun]) -> dict[str, str]:
    """What the runs were made with; where they differ, every value is shown."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        for key, value in (run.summary.get("settings") or {}).items():
            if value is not None:
                found.setdefault(key.replace("_", " ").capitalize(), {})[str(value)] = None
    return {key: ", ".join(values) for key, values in found.items()}


def _table(comparison: Comparison) -> str:
    heads = "".join(f'<th scope="col">{escape(heading(comparison, m))}</th>' for m in MEASURES)
    rows = "".join(_row(at, comparison, standing) for at, standing in enumerate(comparison.standings))
    return (
        f'<div class="scroll"><table><thead><tr><th scope="col">policy</th><th scope="col">completed</th>{heads}</tr>'
        f"</thead><tbody>{rows}</tbody></table></div>"
    )


def _row(at: int, comparison: Comparison, standing: PolicyResult) -> str:
    cells = [f'<th scope="row"><i class="swatch" data-policy="{at}"></i>{escape(standing.policy)}</th>']
    short = standing.completed < standing.jobs
    count = f"{standing.completed:,.6g}" + (f" of {standing.jobs:,.6g}" if short else "")
    cells.append(f"<td{' class=short' if short else ''}>{count}</td>")
    for measure in MEASURES:
        difference = comparison.difference(standing.policy, measure.name)
        said = change(comparison, measure, difference)
        tone = _VERDICTS.get(difference.verdict, "") if difference else ""
        small = "".join(f'<small class="{tone}">{escape(line)}</small>' for line in said)
        best = ' class="best"' if comparison.best.get(measure.name) == standing.policy else ""
        cells.append(f"<td{best}>{figure(comparison, measure, standing.means[measure.name])}{small}</td>")
    return f"<tr>{''.join(cells)}</tr>"
