"""The data of the page's charts: plain lists in hours, thinned to what a screen can show."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from shoal.core.arrays import Floats, Int64s
from shoal.report.files import StoredRun
from shoal.report.history import History
from shoal.report.metrics import DEFINITIONS
from shoal.report.timeline import occupancy, timeline

MOST_ROWS = 300
"""Most jobs of a Gantt chart with a row for each."""

MOST_BARS = 5_000
"""Most bars of a readable Gantt chart; six such charts are half a megabyte of page."""

_POINTS = 800
_OCCUPANCY_POINTS = 400
_INVISIBLE = 1 / 2000
"""Fraction of the run below which a gap is narrower than a pixel."""

_MOST_LABELS = 8
_HOUR = 3600.0

Chart: TypeAlias = dict[str, Any]


def charts(by_policy: Mapping[str, Sequence[StoredRun]]) -> Chart:
    """The data of one workload and cluster; charts over time show each policy's first run that has a journal."""
    made: Chart = {
        "policies": list(by_policy),
        "jct": {},
        "rho": {name: {} for name in DEFINITIONS},
        "time": {},
        "held": {},
    }
    for policy, runs in by_policy.items():
        made["jct"][policy] = _distribution([run.jobs.jct / _HOUR for run in runs])
        for name in DEFINITIONS:
            made["rho"][name][policy] = _distribution([run.jobs.rho[name] for run in runs])
        history = next((found for run in runs if (found := run.history()) is not None), None)
        if history is not None:
            made["time"][policy] = _over_time(history)
            made["held"][policy] = _held(history)
    return made


def _rounded(values: Floats, digits: int = 5) -> list[float]:
    """Round to five digits: finer than a pixel, and a third of the bytes."""
    rounded = (float(f"{value:.{digits}g}") for value in values.tolist())
    return [int(value) if value.is_integer() else value for value in rounded]


def _distribution(samples: Sequence[Floats]) -> Chart:
    """The empirical distribution of values pooled over runs: at each x, the fraction of jobs up to it."""
    values = np.sort(np.concatenate(samples))
    values = values[np.isfinite(values)]
    if not len(values):
        return {"x": [], "y": []}
    ranks = np.unique(np.linspace(0, len(values) - 1, min(len(values), _POINTS)).astype(np.int64))
    return {"x": _rounded(values[ranks]), "y": _rounded((ranks + 1) / len(values))}


def _over_time(history: History) -> Chart:
    line = timeline(history, points=_POINTS)
    gpus = sum(history.topology.installed)
    columns = {
        "queue": line.queue_length,
        "utilization": line.busy / gpus,
        "efficiency": line.efficiency,
        "blocking": line.blocking,
    }
    return {
        "x": _rounded((line.edges - history.begin) / _HOUR),
        **{name: _rounded(np.append(column, column[-1:])) for name, column in columns.items()},
    }


def _held(history: History) -> Chart:
    """By name of a view, the GPUs held over time."""
    views: Chart = {}
    if len(history) <= MOST_ROWS and len((bars := _bars(history))[0]) <= MOST_BARS:
        views["By job"] = _gantt(history, *bars)
    kinds = history.topology.kinds
    tenants, of_job = _labels(history, history.tenants)
    gangs, of_gang = _labels(history, [f"{gpus} GPU{'s' if gpus > 1 else ''}" for gpus in history.gpus.tolist()])
    for name, labels, of_hold in (
        ("By GPU type", kinds, history.holds.kind),
        ("By tenant", tenants, of_job[history.holds.job]),
        ("By gang size", gangs, of_gang[history.holds.job]),
    ):
        if len(labels) > 1:
            views[name] = _stacked(history, labels, of_hold)
    return views or {"All": _stacked(history, ["GPUs held"], np.zeros(len(history.holds.job), dtype=np.int64))}


def _labels(history: History, names: Sequence[str]) -> tuple[list[str], Int64s]:
    """Return labels, the names under which most GPU-seconds were held and one for the rest, and each job's index."""
    distinct, where = np.unique(np.array(names, dtype=str), return_inverse=True)
    holds = history.holds
    held = np.bincount(where[holds.job], weights=holds.gpu_seconds, minlength=len(distinct))
    order = np.argsort(-held, kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    labels = [str(distinct[i]) for i in order]
    if len(labels) > _MOST_LABELS:
        labels = [*labels[: _MOST_LABELS - 1], f"{len(labels) - _MOST_LABELS + 1} others"]
    return labels, np.minimum(rank[where], _MOST_LABELS - 1)


def _stacked(history: History, labels: Sequence[str], of_hold: Int64s) -> Chart:
    edges = np.linspace(history.begin, max(history.end, history.begin + 1.0), _OCCUPANCY_POINTS + 1)
    held = occupancy(history, labels, of_hold, edges)
    return {
        "hours": (edges[-1] - edges[0]) / _HOUR,
        "gpus": sum(history.topology.installed),
        "series": {label: _rounded(np.append(held[label], held[label][-1:]), 3) for label in labels},
    }


def _gantt(history: History, job: Int64s, since: Floats, until: Floats, gpus: Int64s, kind: Int64s) -> Chart:
    """A row per job in order of submission; bars in groups of one colour, by GPU type or by number of GPUs."""
    many = len(set(kind.tolist())) > 1
    prices = [t.price_per_hour or 0.0 for t in history.topology.types]
    ranked = sorted(set(kind.tolist()), key=lambda k: -prices[k]) if many else sorted(set(gpus.tolist()))
    groups = []
    for key in ranked:
        mine = (kind if many else gpus) == key
        name = history.topology.kinds[int(kind[mine][0])]
        groups.append(
            {
                "label": name if many else f"{key} GPU{'s' if key > 1 else ''}",
                "kind": name,
                "row": job[mine].tolist(),
                "since": _rounded((since[mine] - history.begin) / _HOUR),
                "hours": _rounded((until[mine] - since[mine]) / _HOUR),
                "gpus": gpus[mine].tolist(),
            }
        )
    return {
        "jobs": history.ids,
        "tenants": history.tenants,
        "submitted": _rounded((history.submitted - history.begin) / _HOUR),
        "gone": _rounded((history.live_until - history.begin) / _HOUR),
        "coloured": "GPU type" if many else "GPUs held",
        "groups": groups,
    }


def _bars(history: History) -> tuple[Int64s, Floats, Floats, Int64s, Int64s]:
    """Job, begin, end, GPUs and kind of each bar: holds of a job on equal GPUs, joined across invisible gaps."""
    holds = history.holds
    order = np.lexsort((holds.since, holds.job))
    order = order[holds.until[order] > holds.since[order]]
    job, since, until = holds.job[order], holds.since[order], holds.until[order]
    gpus, kind = holds.gpus[order], holds.kind[order]
    gap = _INVISIBLE * (history.end - history.begin)
    fresh = np.ones(len(job), dtype=bool)
    fresh[1:] = (job[1:] != job[:-1]) | (since[1:] - until[:-1] > gap)
    fresh[1:] |= (gpus[1:] != gpus[:-1]) | (kind[1:] != kind[:-1])
    starts = np.flatnonzero(fresh)
    ends = np.append(starts[1:], len(job)) - 1
    return job[starts], since[starts], until[ends], gpus[starts], kind[starts]
