"""Whole apps served in an order: the baselines of Themis, which compares schedulers of apps and not of jobs.

GPUs go to the first app in the order, as many as all its jobs can use, then to the next. ``by`` is the order:

- ``service``: the fewest GPU-seconds so far first, completed jobs included. So Themis sets up Tiresias.
- ``time``: the least time left first, had the app all GPUs it can use: SRTF.
- ``work``: the fewest GPU-seconds left first: SRSF.

What is left of an app counts the later phases that it declares; undeclared work is expected as in
`perf.work_prior.remaining_work`. Within an app jobs take as many GPUs as make them faster, in order of arrival. Jobs
keep their GPUs until their lease ends; all leases end together, every ``lease`` seconds, so that there are enough GPUs
for wide gangs. GPUs that become free before go to jobs without any, in the same order.

References: Themis (NSDI '20) §6.1.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import floor, inf

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices, Int32s
from shoal.core.decision import Decision
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds
from shoal.perf.work_prior import remaining_work
from shoal.policy.base import Served, check_round, ranked_verdicts, round_end

_ORDERS = {
    "service": "attained service of its app in GPU-seconds",
    "time": "time left to its app in seconds",
    "work": "service left to its app in GPU-seconds",
}


@dataclass(frozen=True, slots=True, eq=False)
class _AppOrderCarry:
    """Number of the present lease, jobs of named apps ``at`` the last decision, service of completed jobs by app."""

    turn: int = -1
    at: Seconds = 0.0
    rows: Indices = field(default_factory=lambda: np.empty(0, dtype=np.intp))
    app: Int32s = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    attained: Floats = field(default_factory=lambda: np.empty(0))
    held: Int32s = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    gone: Mapping[int, float] = field(default_factory=dict)

    def departed(self, snapshot: Snapshot) -> dict[int, float]:
        """By app the service of its jobs that are no longer live; a job's end is always followed by a decision."""
        service = dict(self.gone)
        ended = ~np.isin(self.rows, snapshot.columns.rows)
        received = self.attained[ended] + self.held[ended] * (snapshot.now - self.at)
        for app, seconds in zip(self.app[ended].tolist(), received.tolist(), strict=True):
            service[app] = service.get(app, 0.0) + seconds
        return service


@dataclass(frozen=True, slots=True)
class AppOrder:
    """Leases of ``lease`` seconds, in one of three orders."""

    by: str = "service"
    lease: float = 600.0

    def __post_init__(self) -> None:
        if self.by not in _ORDERS:
            raise ValueError(f"by must be {', '.join(_ORDERS)}, not {self.by}")
        check_round(self.lease)

    def decide(self, snapshot: Snapshot) -> Decision:
        """A verdict for every live job, reviewed at the end of the lease if some job could use more GPUs."""
        columns, now = snapshot.columns, snapshot.now
        carry = snapshot.carry if isinstance(snapshot.carry, _AppOrderCarry) else _AppOrderCarry()
        gone, turn = carry.departed(snapshot), floor(now / self.lease)
        key = self._keys(snapshot, gone)
        leased = (columns.held > 0) & (turn == carry.turn)
        served = _serve(snapshot, np.argsort(key, kind="stable"), leased)
        ends = round_end(now, self.lease)
        verdicts = ranked_verdicts(snapshot, served, _ORDERS[self.by], key, leased=leased, until=ends)
        satisfied = (served.gpus >= columns.max_gpus) | ~snapshot.possible
        named = np.array([spec.app is not None for spec in snapshot.specs], dtype=bool)
        seen = (columns.rows[named], columns.app[named], columns.attained[named], served.gpus[named])
        return Decision(verdicts, inf if satisfied.all() else ends, _AppOrderCarry(turn, now, *seen, gone))

    def _keys(self, snapshot: Snapshot, gone: Mapping[int, float]) -> Floats:
        """By job the sort key of its app, the lowest first."""
        columns = snapshot.columns
        apps, at = np.unique(columns.app, return_inverse=True)
        if self.by == "service":
            service = np.bincount(at, columns.attained, len(apps)) + [gone.get(app, 0.0) for app in apps.tolist()]
            return np.asarray(service[at], dtype=np.float64)
        left, total = np.full(len(columns), inf), np.zeros(len(apps))
        work, speed = remaining_work(columns.work, columns.done, columns.best_speed), columns.best_speed
        np.divide(work, speed, out=left, where=speed > 0)
        if self.by == "work":
            np.add.at(total, at, left * columns.gpus)
        else:
            np.maximum.at(total, at, left)
        latest = dict(zip(at.tolist(), range(len(at)), strict=True))
        ahead = [_ahead(snapshot, latest[app], wide=self.by == "work") for app in range(len(apps))]
        return np.asarray((total + ahead)[at], dtype=np.float64)


def _ahead(snapshot: Snapshot, i: int, *, wide: bool) -> float:
    """Seconds, or with ``wide`` GPU-seconds, of the later phases that an app's latest job declares."""
    spec, speed = snapshot.specs[i], float(snapshot.columns.best_speed[i])
    total = 0.0
    for jobs, gpus, work in spec.ahead:
        # Without a model, work is seconds on the gang itself; with one it is samples, and speed grows with the gang.
        seconds = work if spec.model is None else work / (speed * gpus / spec.gpus) if speed > 0 else inf
        total += seconds * jobs * gpus if wide else seconds
    return total


def _serve(snapshot: Snapshot, order: Indices, leased: Flags) -> Served:
    """Give leased jobs their GPUs, then each job, in order, as many GPUs of one kind as make it faster."""
    columns, cluster = snapshot.columns, snapshot.cluster
    gpus = np.where(leased, columns.held, 0).astype(np.int32)
    kinds = np.where(leased, columns.kind, -1).astype(np.int8)
    used = np.bincount(columns.kind[leased], columns.held[leased], len(cluster.kinds))
    free = [capacity - int(taken) for capacity, taken in zip(cluster.capacity, used, strict=True)]
    last = -1
    for i in order.tolist():
        if leased[i] or not any(free):
            continue
        k, count = _best(snapshot, i, free)
        if count:
            gpus[i], kinds[i], last = count, k, i
            free[k] -= count
    return Served(gpus, kinds, last, sum(free), max(free, default=0))


def _best(snapshot: Snapshot, i: int, free: list[int]) -> tuple[int, int]:
    """The kind and number of free GPUs on which a job is fastest; its present kind among equals."""
    columns, view = snapshot.columns, snapshot.jobs.at(i)
    least, most = int(columns.min_gpus[i]), int(columns.max_gpus[i])
    best, choice = 0.0, (-1, 0)
    kinds = sorted(range(len(free)), key=lambda k: k != columns.kind[i])
    for k in kinds:
        if least == most:
            rate, count = float(columns.speeds[i, k]), most if most <= free[k] else 0
        else:
            curve = snapshot.perf.curve(view, snapshot.cluster.kinds[k])[: min(most, free[k]) + 1]
            count = least + int(curve[least:].argmax()) if len(curve) > least else 0
            rate = float(curve[count])
        if count and rate > best:
            best, choice = rate, (k, count)
    return choice
