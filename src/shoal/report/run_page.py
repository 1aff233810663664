"""One self-contained page of runs: policies compared, and the views of the cluster's page for each run.

The views are those of ``serve/web``; ``page/record.js`` answers them from the data of the runs instead of the API.
"""

import gzip
import hashlib
import json
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from shoal.core.errors import InputError
from shoal.core.printable import printable
from shoal.core.units import span
from shoal.report.bundle import bundle, web_text
from shoal.report.chart_data import charts
from shoal.report.compare import Comparison, PolicyResult, compare, differing_settings, group_runs, settings_of_run
from shoal.report.files import StoredRun
from shoal.report.history import History
from shoal.report.html import escape, filled
from shoal.report.job_story import WaitingReason
from shoal.report.run_data import run_data
from shoal.report.tables import basis, change, figure, heading
from shoal.wire.files import replace_file

_SECONDS = frozenset({"most-lost", "restart-cost", "round"})
_SETTING_NAMES = {"most-lost": "Most lost by a stop"}

MOST_BYTES = 1_000_000
"""Most bytes of a page."""

_MOST_SEATS = (24_000, 12_000, 6_000, 3_000, 1_500, 0)
"""Seats of all runs together, tried in turn until the page is small enough."""

_MOST_REPLAYED = 3_000
"""Jobs of all runs together up to which reasons are derived: a replay takes as long as the simulation."""

ReasonsOf: TypeAlias = Callable[[Path], Sequence[WaitingReason]]
"""Returns the reasons for the verdicts in a journal file, where they change."""

_RHO = (
    "ρ is finish-time fairness against a run in which every job holds an equal share of the cluster (isolated): "
    "above 1 is worse than that share."
)


def write_page(
    runs: Sequence[StoredRun], path: Path, baseline: str | None = None, reasons: ReasonsOf | None = None
) -> None:
    """Write the page; the same runs give the same bytes."""
    save_page(page(runs, baseline, reasons), path)


def save_page(text: str, path: Path) -> None:
    """Write a page to a file."""
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise InputError("html", str(path), f"cannot be written: {error.strerror or error}") from error


def page(runs: Sequence[StoredRun], baseline: str | None = None, reasons: ReasonsOf | None = None) -> str:
    """Return the page, of at most ``MOST_BYTES``: if all seats do not fit, fewer jobs are listed."""
    comparisons = compare(runs, baseline)
    groups = group_runs(runs)
    places = [
        _Place(comparison, {name: list(row.values()) for name, row in rows.items()})
        for comparison, rows in ((c, groups[c.workload, c.cluster]) for c in comparisons)
    ]
    shown = sum(len(place.histories) for place in places) or 1
    jobs = sum(len(history) for place in places for _, history in place.histories.values())
    found = reasons if reasons is not None and jobs <= _MOST_REPLAYED else None
    for place in places:
        place.derive(found)
    text = ""
    for most in _MOST_SEATS:
        text = _fill(_title(comparisons), [place.data(most // shown) for place in places])
        if len(text.encode()) <= MOST_BYTES:
            break
    return text


class _Place:
    """The runs on one workload and cluster; views show each policy's first run that has a journal."""

    def __init__(self, comparison: Comparison, by_policy: Mapping[str, Sequence[StoredRun]]) -> None:
        self.histories: dict[str, tuple[StoredRun, History]] = {}
        for policy, runs in by_policy.items():
            found = next(((run, history) for run in runs if (history := run.history()) is not None), None)
            if found is not None:
                self.histories[policy] = found
        self._reasons: dict[str, Sequence[WaitingReason]] = {}
        self._compared: dict[str, Any] = {
            **_compared(comparison, [run for runs in by_policy.values() for run in runs]),
            **charts(by_policy, {policy: history for policy, (_, history) in self.histories.items()}),
        }

    def derive(self, reasons: ReasonsOf | None) -> None:
        """Find the reasons of the runs shown."""
        if reasons is not None:
            self._reasons = {p: reasons(run.journal) for p, (run, _) in self.histories.items() if run.journal}

    def data(self, most: int) -> dict[str, Any]:
        """Return the columns for the page, with at most ``most`` seats in each run."""
        runs = {
            policy: run_data(history, _rho(run, history), self._reasons.get(policy, ()), most)
            for policy, (run, history) in self.histories.items()
        }
        return {**self._compared, "runs": runs}


def _rho(run: StoredRun, history: History) -> Any:
    rho = run.jobs.rho["isolated"]
    return rho if len(rho) == len(history) else np.full(len(history), np.nan)


def _compared(comparison: Comparison, runs: Sequence[StoredRun]) -> dict[str, Any]:
    """Return the table of a comparison and the facts that all its runs share."""
    measures = comparison.measures()
    fair = any(standing.means.get("rho_max") is not None for standing in comparison.standings)
    marked = "A marked value is significantly better than every other in its column." if comparison.best else ""
    return {
        "name": comparison.workload or "an unnamed workload",
        "cluster": comparison.cluster,
        "policies": [standing.policy for standing in comparison.standings],
        "facts": _facts(comparison, runs),
        "heads": [heading(comparison, measure) for measure in measures],
        "rows": [_row(comparison, standing) for standing in comparison.standings],
        "note": " ".join(filter(None, (basis(comparison), marked, _RHO if fair else ""))),
    }


def _row(comparison: Comparison, standing: PolicyResult) -> dict[str, Any]:
    short = standing.completed < standing.jobs
    cells = []
    for measure in comparison.measures():
        difference = comparison.difference(standing.policy, measure.name)
        tones = {"better": "good", "worse": "bad"}
        cells.append(
            {
                "value": figure(comparison, measure, standing.means[measure.name]),
                "lines": change(comparison, measure, difference),
                "tone": tones.get(difference.verdict, "") if difference else "",
                "best": comparison.best.get(measure.name) == standing.policy,
            }
        )
    count = f"{standing.completed:,.6g}" + (f" of {standing.jobs:,.6g}" if short else "")
    return {"policy": standing.policy, "completed": count, "short": short, "cells": cells}


def _facts(comparison: Comparison, runs: Sequence[StoredRun]) -> list[tuple[str, str]]:
    counts = sorted({int(run.summary["jobs"]) for run in runs})
    differing = differing_settings(runs)  # these are in the names of the rows
    facts = {
        "Cluster": comparison.cluster,
        "Jobs": " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1]))),
        "Seeds": ", ".join(map(str, sorted({run.seed for run in runs}))),
        "Baseline": comparison.baseline,
    }
    for name, value in settings_of_run(runs[0].summary).items():
        if name not in differing:
            facts.setdefault(*_setting(name, value))
    return [(name, value) for name, value in facts.items() if value]


def _setting(name: str, value: str) -> tuple[str, str]:
    """Return a setting's name and value in readable form: times have units."""
    if name == "restart-cost" and value == "job":
        value = "as each job says"
    elif name in _SECONDS and value.replace(".", "", 1).isdigit():
        value = span(float(value))
    return _SETTING_NAMES.get(name) or name.replace("-", " ").capitalize(), value


def _title(comparisons: Sequence[Comparison]) -> str:
    policies = list(dict.fromkeys(s.policy for c in comparisons for s in c.standings))
    names = f"{', '.join(policies[:-1])} and {policies[-1]}" if len(policies) > 1 else policies[0]
    places = list(dict.fromkeys(c.workload or "an unnamed workload" for c in comparisons))
    return f"{names} on {places[0] if len(places) == 1 else f'{len(places)} workloads'}"


def _fill(title: str, data: Sequence[Mapping[str, Any]]) -> str:
    packed = gzip.compress(json.dumps(_printable(data), separators=(",", ":"), ensure_ascii=False).encode(), 9, mtime=0)
    style = web_text("style.css") + web_text("run.css")
    script = bundle("run.js", {"api.js": "record.js"})
    pieces = {
        "title": escape(title),
        "policy": f"script-src {_hash(script)}; style-src {_hash(style)}",
        "style": style,
        "script": script,
        "data": b64encode(packed).decode(),
    }
    return filled(web_text("run.html"), pieces)


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _printable(value: Any) -> Any:
    """Return plain values in which no text has control characters or bidirectional marks."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable(str(key)): _printable(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(part) for part in value] if not value or not isinstance(value[0], int | float) else value
    return value
