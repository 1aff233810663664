"""The data of a comparison's charts: plain lists in one unit of time, thinned to the resolution of a screen."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from shoal.core.arrays import Floats
from shoal.report.files import StoredRun
from shoal.report.history import History
from shoal.report.metrics import DEFINITIONS
from shoal.report.timeline import timeline

_POINTS = 400
_UNITS = (("s", 1.0, 300.0), ("min", 60.0, 4 * 3600.0), ("h", 3600.0, np.inf))
"""Units of time: name, seconds, and the longest run in seconds for which it is used."""

Chart: TypeAlias = dict[str, Any]


def charts(by_policy: Mapping[str, Sequence[StoredRun]], histories: Mapping[str, History]) -> Chart:
    """The data of one workload and cluster; charts over time show the policies of which there is a history."""
    name, unit, _ = _unit(by_policy, list(histories.values()))
    return {
        "unit": name,
        "jct": {policy: _distribution([run.jobs.jct / unit for run in runs]) for policy, runs in by_policy.items()},
        "rho": {
            rho: {policy: _distribution([run.jobs.rho[rho] for run in runs]) for policy, runs in by_policy.items()}
            for rho in DEFINITIONS
        },
        "time": {policy: _over_time(history, unit) for policy, history in histories.items()},
    }


def _unit(by_policy: Mapping[str, Sequence[StoredRun]], histories: Sequence[History]) -> tuple[str, float, float]:
    """Return the unit of time for runs this long."""
    times = [run.jobs.jct[np.isfinite(run.jobs.jct)] for runs in by_policy.values() for run in runs]
    longest = max((float(jct.max()) for jct in times if len(jct)), default=0.0)
    longest = max([longest, *(history.end - history.begin for history in histories)])
    return next(unit for unit in _UNITS if longest <= unit[2])


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


def _over_time(history: History, unit: float) -> Chart:
    line = timeline(history, points=_POINTS)
    gpus = sum(history.topology.installed)
    columns = {
        "queue": line.queue_length,
        "utilization": line.busy / gpus,
        "efficiency": line.efficiency,
        "blocking": line.blocking,
    }
    return {
        "x": _rounded((line.edges - history.begin) / unit),
        **{name: _rounded(np.append(column, column[-1:])) for name, column in columns.items()},
    }
