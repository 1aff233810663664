"""A run over time: queue length, cluster efficiency, blocking index, GPUs in use and live jobs.

Between two change points all of these are constant, except the blocking index, which rises linearly. A timeline has a
limited number of intervals with the exact average over each, so that its integral is exact.

References: Hwang et al., NSDI 2021, §2.2 (QL, CE, BI).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Floats, Int64s
from shoal.perf.catalog import Catalog, catalog
from shoal.report.history import History
from shoal.report.isolated_run import single_gpu_rates
from shoal.report.step_functions import Steps

MOST_POINTS = 2000
"""Intervals in a timeline: more than a screen has columns of pixels."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Averages over the intervals between ``edges``, which has one entry more than every column.

    - ``queue_length`` (QL): live jobs without GPUs.
    - ``efficiency`` (CE): Σ over running jobs of rate / rate on one GPU of its kind, divided by all GPUs.
    - ``blocking`` (BI): mean over waiting jobs of the total time waited over the time left on one GPU of the best kind;
      0 when no job waits. Jobs without a known total are left out.
    - ``busy`` and ``live``: GPUs in use and live jobs.
    """

    edges: Floats
    queue_length: Floats
    efficiency: Floats
    blocking: Floats
    busy: Floats
    live: Floats


def timeline(history: History, *, points: int = MOST_POINTS) -> Timeline:
    """The timeline of a history in at most ``points`` intervals that begin and end at change points."""
    known, busy, waits = catalog(), _busy(history), _waits(history)
    live = Steps.of(history.submitted, history.live_until, np.ones(len(history)))
    edges = _thinned(history, np.concatenate([busy.times, live.times]), points)
    queue = Steps.of(waits.since, waits.until, np.ones(len(waits.job)))
    columns = (queue, _efficiency(history, known), _blocking(history, waits, known, edges), busy, live)
    return Timeline(edges, *(steps.mean(edges[:-1], edges[1:]) for steps in columns))


def occupancy(history: History, labels: Sequence[str], of_hold: Int64s, edges: Floats) -> dict[str, Floats]:
    """GPUs held over time by the holds of each label, averaged between edges; ``of_hold`` indexes ``labels``."""
    holds, found = history.holds, {}
    for index, label in enumerate(labels):
        mine = of_hold == index
        steps = Steps.of(holds.since[mine], holds.until[mine], holds.gpus[mine].astype(np.float64))
        found[label] = steps.mean(edges[:-1], edges[1:])
    return found


def _thinned(history: History, times: Floats, points: int) -> Floats:
    """Return the interval edges: all change points if there are few enough, else those next to even steps of time."""
    end = max(history.end, history.begin)
    moments = np.unique(np.concatenate([times[(times >= history.begin) & (times <= end)], [history.begin, end]]))
    if len(moments) <= points + 1:
        return moments
    even = np.linspace(moments[0], moments[-1], points + 1)
    return moments[np.unique(np.searchsorted(moments, even))]


def _busy(history: History) -> Steps:
    holds, overlaps = history.holds, history.overlaps
    return Steps.of(
        np.concatenate([holds.since, overlaps.since]),
        np.concatenate([holds.until, overlaps.until]),
        np.concatenate([holds.gpus, -overlaps.gpus]).astype(np.float64),
    )


def _efficiency(history: History, known: Catalog) -> Steps:
    rates, holds = history.rates, history.holds
    types = history.type[holds.job[rates.hold]]
    single = single_gpu_rates(history, known, types, rates.batch_size, holds.kind[rates.hold])
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = np.where(single > 0, rates.rate / single, 0.0)
    return Steps.of(rates.since, rates.until, gain / sum(history.topology.installed))


@dataclass(frozen=True, slots=True)
class _Waits:
    """Intervals in which a job was live without GPUs, the time it had waited ``before``, and the work ``done``."""

    job: Int64s
    since: Floats
    until: Floats
    before: Floats
    done: Floats


def _waits(history: History) -> _Waits:
    """The gaps before, between and after the holds of each job."""
    holds, count = history.holds, len(history)
    jobs = np.concatenate([np.arange(count), holds.job])
    order = np.lexsort((np.concatenate([np.zeros(count), np.ones(len(holds.job))]), jobs))
    job = jobs[order]
    since = np.concatenate([history.submitted, holds.until])[order]
    done = np.concatenate([np.zeros(count), holds.done])[order]
    nexts = np.concatenate([history.submitted, holds.since])[order]
    last = np.append(job[1:] != job[:-1], True)[: len(job)]
    until = np.where(last, history.live_until[job], np.append(nexts[1:], 0.0)[: len(job)])
    length = np.maximum(until - since, 0.0)
    total = np.concatenate([[0.0], np.cumsum(length)])[:-1]
    first = np.searchsorted(job, np.arange(count))
    kept = length > 0
    return _Waits(job[kept], since[kept], until[kept], (total - total[first][job])[kept], done[kept])


def _blocking(history: History, waits: _Waits, known: Catalog, edges: Floats) -> Steps:
    """The blocking index, exact between any two times that are edges or change points."""
    declared, anywhere = np.zeros(len(waits.job), dtype=np.int64), np.full(len(waits.job), -1)
    single = single_gpu_rates(history, known, history.type[waits.job], declared, anywhere)
    with np.errstate(divide="ignore", invalid="ignore"):
        pressure = single / (history.work[waits.job] - np.nan_to_num(waits.done))
    kept = np.isfinite(pressure) & (pressure > 0)
    pressure, since, until, before = pressure[kept], waits.since[kept], waits.until[kept], waits.before[kept]
    # Each job adds (before + t − since) · pressure: a constant and a slope, both changing in steps.
    times = np.concatenate([since, until, edges])
    order = np.argsort(times, kind="stable")
    times = times[order]

    def level(weight: Floats) -> Floats:
        return np.cumsum(np.concatenate([weight, -weight, np.zeros(len(edges))])[order])[:-1]

    constant, slope, waiting = level((before - since) * pressure), level(pressure), level(np.ones(len(pressure)))
    middle = (times[:-1] + times[1:]) / 2
    index = np.where(waiting > 0, (constant + slope * middle) / np.maximum(waiting, 1.0), 0.0)
    return Steps.through(times, np.maximum(index, 0.0))
