"""One run as the columns from which a report's page makes the rows of its views.

Times are whole ticks since the first submission. Of a run too large for the page only some jobs are listed, with all
that happened to them; figures over time and by node count all jobs.
"""

from collections.abc import Sequence
from math import floor, log10
from typing import Any

import numpy as np

from shoal.core.arrays import Flags, Floats, Int64s
from shoal.core.lifecycle import JobState
from shoal.report.history import History
from shoal.report.job_story import WaitingReason
from shoal.report.step_functions import Steps
from shoal.report.timeline import occupancy, timeline

_POINTS = 300
_BINS = 100
_MOST_NODE_VALUES = 200_000
_MOST_TENANTS = 12
_OTHERS = "others"


def run_data(history: History, rho: Floats, reasons: Sequence[WaitingReason], most: int) -> dict[str, Any]:
    """Return the columns of a run, with at most ``most`` seats and half as many jobs."""
    length = max(history.end - history.begin, 1e-3)
    tick = float(10.0 ** min(0, max(-3, floor(log10(length)) - 6)))
    clock = _Ticks(history.begin, tick)
    listed = _listed(history, most)
    complete = len(listed) == len(history)
    place = np.full(len(history), -1, dtype=np.int64)
    place[listed] = np.arange(len(listed))
    nodes = history.topology.nodes
    made = {
        "tick": tick,
        "end": clock.of(history.end),
        "decisions": history.decisions,
        "total": len(history),
        "nodes": {
            "name": [node.name for node in nodes],
            "kind": [node.kind for node in nodes],
            "gpus": [node.gpus for node in nodes],
            "rack": [node.rack for node in nodes],
        },
        "usage": _usage(history, clock),
        "jobs": _jobs(history, rho, listed, clock),
        "seats": _seats(history, place, clock),
        "crashed": {int(place[job]): list(map(clock.of, at)) for job, at in history.crashed.items() if place[job] >= 0},
        "notes": {
            int(place[job]): [(clock.of(at), text) for at, text in notes]
            for job, notes in history.notes.items()
            if place[job] >= 0
        },
        "reasons": _reasons(reasons, place, clock),
    }
    return made if complete else {**made, "node_use": _node_use(history)}


class _Ticks:
    """Turns times into whole ticks since the begin of a run."""

    def __init__(self, begin: float, tick: float) -> None:
        self._begin, self._tick = begin, tick

    def of(self, at: float) -> int:
        return round((at - self._begin) / self._tick)

    def all(self, times: Floats) -> list[int]:
        ticks = np.round((times - self._begin) / self._tick)
        return [int(value) if value < np.inf else -1 for value in ticks.tolist()]


def _listed(history: History, most: int) -> Int64s:
    """Return the jobs to list: all, or those that waited longest or used most GPU time, in order of admission."""
    holds, count = history.holds, len(history)
    seats = np.bincount(holds.job[history.seats.hold], minlength=count)
    if seats.sum() <= most and count <= most / 2:
        return np.arange(count)
    ran = np.bincount(holds.job, weights=holds.until - holds.since, minlength=count)
    used: Floats = np.bincount(holds.job, weights=holds.gpu_seconds, minlength=count).astype(np.float64)
    waited = history.live_until - history.submitted - ran
    rank = np.minimum(_ranks(-waited), _ranks(-used))
    order = np.argsort(rank, kind="stable")
    fit = int(np.searchsorted(np.cumsum(seats[order]), most, side="right"))
    return np.sort(order[: min(fit, most // 2)])


def _ranks(values: Floats) -> Int64s:
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[np.argsort(values, kind="stable")] = np.arange(len(values))
    return ranks


def _jobs(history: History, rho: Floats, listed: Int64s, clock: _Ticks) -> dict[str, Any]:
    names = sorted({history.tenants[job] for job in listed.tolist()})
    number = {name: at for at, name in enumerate(names)}
    states = [JobState(int(history.outcome[job])).name.lower() for job in listed.tolist()]
    kinds = list(dict.fromkeys(states))
    return {
        "id": [history.ids[job] for job in listed.tolist()],
        "tenants": names,
        "tenant": [number[history.tenants[job]] for job in listed.tolist()],
        "gpus": history.gpus[listed].tolist(),
        "submitted": clock.all(history.submitted[listed]),
        "ended": clock.all(history.ended[listed]),
        "outcomes": kinds,
        "outcome": [kinds.index(state) for state in states],
        "rho": [float(f"{value:.3g}") if np.isfinite(value) else None for value in rho[listed].tolist()],
    }


def _seats(history: History, place: Int64s, clock: _Ticks) -> dict[str, Any]:
    """Return the seats of the listed jobs by job and begin; ``run`` numbers the holds of a job from 1."""
    seats, holds = history.seats, history.holds
    jobs = place[holds.job]
    order = np.lexsort((seats.node, seats.hold, jobs[seats.hold]))
    order = order[jobs[seats.hold[order]] >= 0]
    hold = seats.hold[order]
    job = jobs[hold]
    fresh = np.append(True, hold[1:] != hold[:-1])[: len(hold)]
    first = np.append(True, job[1:] != job[:-1])[: len(job)]
    number = np.cumsum(fresh)
    return {
        "job": job.tolist(),
        "run": (number - np.maximum.accumulate(np.where(first, number, 0)) + 1).tolist() if len(job) else [],
        "node": seats.node[order].tolist(),
        "gpus": seats.gpus[order].tolist(),
        "since": clock.all(holds.since[hold]),
        "until": clock.all(holds.until[hold]),
        "lost": [float(f"{value:.3g}") for value in np.nan_to_num(holds.lost[hold]).tolist()],
    }


def _usage(history: History, clock: _Ticks) -> dict[str, Any]:
    """Return the use of GPUs over time, in all and by the tenants that used most."""
    line = timeline(history, points=_POINTS)
    names, of_job = np.unique(np.array(history.tenants, dtype=str), return_inverse=True)
    holds = history.holds
    used = np.bincount(of_job[holds.job], weights=holds.gpu_seconds, minlength=len(names))
    order = np.argsort(-used, kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    label = np.minimum(rank[of_job], _MOST_TENANTS)
    labels = [str(names[i]) for i in order[:_MOST_TENANTS]] + [_OTHERS] * (len(names) > _MOST_TENANTS)
    held = occupancy(history, labels, label[holds.job], line.edges)
    live = [_live(history, label == index, line.edges) for index in range(len(labels))]
    return {
        "at": clock.all(line.edges[:-1]),
        "used": _short(line.busy),
        "waiting": _short(line.queue_length),
        "running": _short(np.maximum(line.live - line.queue_length, 0.0)),
        "tenants": labels,
        "held": [_short(held[name]) for name in labels],
        "live": [_short(values) for values in live],
    }


def _live(history: History, mine: Flags, edges: Floats) -> Floats:
    steps = Steps.of(history.submitted[mine], history.live_until[mine], np.ones(int(mine.sum())))
    return steps.mean(edges[:-1], edges[1:])


def _short(values: Floats) -> list[float]:
    rounded = [float(f"{value:.3g}") for value in np.nan_to_num(values).tolist()]
    return [int(value) if value.is_integer() else value for value in rounded]


def _node_use(history: History) -> list[list[int]]:
    """Return the GPUs in use on each node, on average over each of equal parts of the run."""
    count = len(history.topology.nodes)
    edges = np.linspace(history.begin, history.end, 1 + max(1, min(_BINS, _MOST_NODE_VALUES // count)))
    seats, holds = history.seats, history.holds
    since, until = holds.since[seats.hold], holds.until[seats.hold]
    held = np.array(
        [np.bincount(seats.node, np.clip(edge - since, 0.0, until - since) * seats.gpus, count) for edge in edges]
    )
    average = np.round(np.diff(held, axis=0) / np.diff(edges)[:, None])
    return [[int(value) for value in row] for row in average.tolist()]


def _reasons(reasons: Sequence[WaitingReason], place: Int64s, clock: _Ticks) -> dict[str, Any]:
    listed = sorted((int(place[r.job]), clock.of(r.at), r.sentence) for r in reasons if place[r.job] >= 0)
    texts: dict[str, int] = {}
    return {
        "job": [job for job, _, _ in listed],
        "at": [at for _, at, _ in listed],
        "text": [texts.setdefault(sentence, len(texts)) for _, _, sentence in listed],
        "texts": list(texts),
    }
