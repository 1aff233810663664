"""OSSP: the least makespan of the live jobs; no single job is promised anything.

Up to ``exact`` jobs of a kind are scheduled by search (``solve.makespan``), which says how far from a lower bound it
ended; the jobs that its schedule starts now run. With more jobs the longest that fits goes first, and a running job is
stopped only for an urgent one: one that, begun a round later, would end after the bound on the makespan. Stops happen
at the ends of rounds; the search, too, keeps running jobs unless stopping them would end the schedule earlier by more
than a restart could cost.

On a cluster of several kinds waiting jobs are assigned, longest first, to the kind that would be done with its load
first; running ones stay, or move to a kind that is free and faster by a tenth if that saves more than a minute. A job
that declares no work is expected to run as long again as it has run, and an hour at least.

References: Shockwave (NSDI '23) §8.2 calls the makespan baseline OSSP (open-shop scheduling).
"""

from dataclasses import dataclass
from math import inf

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices, Int32s
from shoal.core.decision import Decision, Numbers
from shoal.core.snapshot import Snapshot
from shoal.perf.work_prior import PRIOR_SECONDS
from shoal.policy.base import MIGRATION, MigrationTuning, check_round, explained, next_review
from shoal.policy.run_seconds import run_seconds
from shoal.policy.shared_reasons import LATER_ON_BETTER, MATCHED
from shoal.policy.tuning import constant
from shoal.solve.first_fit import first_fit
from shoal.solve.makespan import lower_bound, shortest_makespan
from shoal.solve.migrations import faster_kinds


@dataclass(frozen=True, slots=True)
class OsspTuning:
    """Constants of OSSP."""

    stopping_costs: float = constant(60.0, "seconds by which a schedule that stops a job must be shorter")
    prior_seconds: float = constant(PRIOR_SECONDS, "least expected run time of a job that declares no work")
    migration: MigrationTuning = MIGRATION


@dataclass(frozen=True, slots=True)
class Ossp:
    """Least makespan, by rounds of ``round`` seconds."""

    reasons = (MATCHED, LATER_ON_BETTER)
    tuning = OsspTuning()
    round: float = 120.0
    exact: int = 12

    def __post_init__(self) -> None:
        check_round(self.round)
        if not 0 <= self.exact <= 16:
            raise ValueError("exact must be a number of jobs from 0 to 16: the search grows too large beyond")

    def decide(self, snapshot: Snapshot) -> Decision:
        """Verdicts of the schedule, reviewed each round while a job waits."""
        columns, names = snapshot.columns, np.asarray(snapshot.cluster.kinds)
        due, review_at = next_review(snapshot.carry, snapshot.now, self.round)
        every = run_seconds(snapshot)
        running = (columns.held > 0) & (columns.held == columns.gpus)
        planned = _assigned(snapshot, every, running)
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
            LATER_ON_BETTER: (number, names[planned], starts),
        }
        verdicts = explained(snapshot, gpus, codes, numbers, np.where(gpus > 0, planned, -1).astype(np.int8))
        return Decision(verdicts, review_at if number.any() else inf, review_at)

    def _exact(self, seconds: Floats, gpus: Int32s, capacity: int, running: Flags, due: bool) -> Floats:
        """Return the start times in the best schedule found."""
        times, widths, under_way = seconds.tolist(), gpus.tolist(), np.flatnonzero(running).tolist()
        best = shortest_makespan(times, widths, capacity, under_way)
        target = best.makespan - self.tuning.stopping_costs
        if due and under_way and target > lower_bound(times, widths, capacity):
            afresh = shortest_makespan(times, widths, capacity)
            if afresh.makespan < target:
                best = afresh
        return np.array(best.starts)

    def _longest(self, seconds: Floats, gpus: Int32s, capacity: int, running: Flags, due: bool) -> Floats:
        """Return start times, the longest job first; those of waiting jobs are estimated from the work before them."""
        bound = lower_bound(seconds.tolist(), gpus.tolist(), capacity)
        # A running job counts as a round longer, so that equal jobs do not alternate at the cost of restarts.
        needs = seconds + self.round * running
        urgent = due & (needs >= bound - self.round)
        order = np.lexsort((-needs, ~running & ~urgent, ~urgent))
        starts: Floats = np.zeros(len(seconds))
        fits = first_fit(gpus[order], capacity)
        waiting = order[~fits]
        area = np.cumsum(seconds[waiting] * gpus[waiting]) + float((seconds * gpus)[order[fits]].sum())
        starts[waiting] = np.maximum((area - seconds[waiting] * gpus[waiting]) / capacity, 1e-3)
        return starts


def _assigned(snapshot: Snapshot, seconds: Floats, running: Flags) -> Indices:
    """Return each job's kind; −1 for a job that cannot run on any."""
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
    """Return the plan with running jobs, the longest first, moved to a faster kind with free GPUs."""
    columns, granted = snapshot.columns, gpus > 0
    used = np.bincount(planned[granted], gpus[granted], len(snapshot.cluster.kinds))
    free = (np.asarray(snapshot.cluster.capacity) - used).astype(np.int32)
    who = running[np.argsort(-columns.remaining_seconds[running], kind="stable")]
    here = planned[who].astype(np.int8)
    moved = planned.copy()
    limits = {"gain": MIGRATION.gain, "saves": MIGRATION.saves}
    moved[who] = faster_kinds(columns.speeds[who], gpus[who], here, free, columns.remaining[who], **limits)
    return moved
