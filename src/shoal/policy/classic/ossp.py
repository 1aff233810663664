"""OSSP: the live jobs finished as early as possible all together; nothing is promised to any one of them.

Up to ``exact`` jobs a kind are scheduled by search (``solve.makespan``), which says how far from a lower bound it
ended; those that its schedule starts now run. Beyond that the longest job that fits goes first, and a job is stopped
only for one that has no time to lose: one whose remaining time, begun a round later, would end after the bound on
the makespan. Stops happen at the ends of rounds; the search, too, goes on with what runs unless stopping it would end
the schedule earlier by more than a restart could cost.

On a cluster of several kinds waiting jobs are dealt out, longest first, to the kind that would be done with its load
first; running ones stay, or move to a kind that is free and faster by a tenth if that saves more than a minute. A job
that declares no work is taken to be half done, or to take an hour.

References: Shockwave (NSDI '23) §8.2 calls the makespan baseline OSSP (open-shop scheduling).
"""

from dataclasses import dataclass
from math import inf

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices, Int32s
from shoal.core.decision import Decision, Numbers
from shoal.core.snapshot import Snapshot
from shoal.policy.base import explained
from shoal.policy.classic.allox import run_seconds
from shoal.policy.elastic.optimus import next_review
from shoal.policy.shared_reasons import LATER_ON_BETTER, MATCHED
from shoal.solve.first_fit import first_fit
from shoal.solve.makespan import lower_bound, shortest_makespan
from shoal.solve.migrations import faster_kinds

_STOPPING_COSTS = 60.0
"""Seconds by which a schedule that stops somebody must be shorter than the best one found that does not."""


@dataclass(frozen=True, slots=True)
class Ossp:
    """Least makespan, by rounds of ``round`` seconds."""

    reasons = (MATCHED, LATER_ON_BETTER)
    round: float = 120.0
    exact: int = 12

    def __post_init__(self) -> None:
        if not 1.0 <= self.round < inf:
            raise ValueError("round must be a finite number of seconds, at least 1")
        if not 0 <= self.exact <= 16:
            raise ValueError("exact must be a number of jobs from 0 to 16: the search grows too large beyond")

    def decide(self, snapshot: Snapshot) -> Decision:
        """A verdict for every live job, reviewed each round while somebody waits."""
        columns, names = snapshot.columns, np.asarray(snapshot.cluster.kinds)
        due, review_at = next_review(snapshot, self.round)
        every = run_seconds(snapshot)
        running = (columns.held > 0) & (columns.held == columns.gpus)
        planned = _dealt(snapshot, every, running)
        gpus, starts = np.zeros(len(columns), dtype=np.int32), np.zeros(len(columns))
        number = np.zeros(len(columns), dtype=np.int32)
        seconds = np.where(planned >= 0, every[np.arange(len(columns)), planned], 0.0)
        for k, capacity in enumerate(snapshot.cluster.capacity):
            here = np.flatnonzero(planned == k)
            plan = self._exact if len(here) <= self.exact else self._longest
            starts[here] = plan(seconds[here], columns.gpus[here], capacity, running[here], due)
            now = here[starts[here] <= 0.0]
            gpus[now] = columns.gpus[now]
            later = here[starts[here] > 0.0]
            number[later[np.argsort(starts[later], kind="stable")]] = np.arange(1, len(later) + 1)
        if due and len(names) > 1:
            planned = _moved(snapshot, planned, gpus, np.flatnonzero(running & (gpus > 0)))
        codes = np.where(gpus > 0, MATCHED.code, LATER_ON_BETTER.code)
        numbers: Numbers = {
            MATCHED: (names[planned], seconds),
            LATER_ON_BETTER: (names[planned], number, starts),
        }
        verdicts = explained(snapshot, gpus, codes, numbers, np.where(gpus > 0, planned, -1).astype(np.int8))
        return Decision(verdicts, review_at if number.any() else inf, review_at)

    def _exact(self, seconds: Floats, gpus: Int32s, capacity: int, running: Flags, due: bool) -> Floats:
        """When each starts in the best schedule found."""
        times, widths, under_way = seconds.tolist(), gpus.tolist(), np.flatnonzero(running).tolist()
        best = shortest_makespan(times, widths, capacity, under_way)
        if due and under_way and best.makespan - _STOPPING_COSTS > lower_bound(times, widths, capacity):
            anew = shortest_makespan(times, widths, capacity)
            if anew.makespan < best.makespan - _STOPPING_COSTS:
                best = anew
        return np.array(best.starts)

    def _longest(self, seconds: Floats, gpus: Int32s, capacity: int, running: Flags, due: bool) -> Floats:
        """When each starts, longest first; for those that wait only roughly, by the work before them."""
        bound = lower_bound(seconds.tolist(), gpus.tolist(), capacity)
        # What runs counts as a round longer than it is: equals must not take turns, at a restart each.
        needs = seconds + self.round * running
        pressing = due & (needs >= bound - self.round)
        order = np.lexsort((-needs, ~running & ~pressing, ~pressing))
        starts: Floats = np.zeros(len(seconds))
        fits = first_fit(gpus[order], capacity)
        waiting = order[~fits]
        area = np.cumsum(seconds[waiting] * gpus[waiting]) + float((seconds * gpus)[order[fits]].sum())
        starts[waiting] = np.maximum((area - seconds[waiting] * gpus[waiting]) / capacity, 1e-3)
        return starts


def _dealt(snapshot: Snapshot, seconds: Floats, running: Flags) -> Indices:
    """Each job's kind, −1 for those that cannot run on any."""
    columns, capacity = snapshot.columns, snapshot.cluster.capacity
    planned = np.where(running, columns.kind, -1).astype(np.intp)
    waiting = np.flatnonzero(~running & snapshot.possible)
    if len(capacity) == 1:
        planned[waiting] = 0
        return planned
    load = [float((seconds[:, k] * columns.gpus)[planned == k].sum()) for k in range(len(capacity))]
    best = seconds[waiting].min(axis=1)
    for i in waiting[np.argsort(-best, kind="stable")].tolist():
        area = [s * int(columns.gpus[i]) for s in seconds[i].tolist()]
        k = min((k for k in range(len(load)) if area[k] < inf), key=lambda k: (load[k] + area[k]) / capacity[k])
        planned[i], load[k] = k, load[k] + area[k]
    return planned


def _moved(snapshot: Snapshot, planned: Indices, gpus: Int32s, running: Indices) -> Indices:
    """The same plan with running jobs, the longest first, on a faster kind that nobody else was given."""
    columns, granted = snapshot.columns, gpus > 0
    used = np.bincount(planned[granted], gpus[granted], len(snapshot.cluster.kinds))
    free = (np.asarray(snapshot.cluster.capacity) - used).astype(np.int32)
    who = running[np.argsort(-columns.remaining_seconds[running], kind="stable")]
    here = planned[who].astype(np.int8)
    moved = planned.copy()
    moved[who] = faster_kinds(columns.speeds[who], gpus[who], here, free, columns.remaining[who], gain=1.1, saves=60.0)
    return moved
