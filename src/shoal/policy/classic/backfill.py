"""EASY backfilling, much as Slurm does it: order of arrival, with reservations for jobs that do not fit.

For each kind of GPU the first job that has to wait for it gets a reservation: the earliest time at which enough GPUs
are free if every running job takes as long as it declares. A later job may start ahead of it only if by its own
declared run time it ends before that time, or if it uses GPUs that the reservation leaves over. No job is preempted.
Jobs without declared run time are taken to run for ever.

Reference: Lifka, "The ANL/IBM SP scheduling system" (JSSPP 1995).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from shoal.core.arrays import Floats, Indices, Int8s, Int32s, UInt8s
from shoal.core.decision import Decision, NumberColumn
from shoal.core.reasons import FITS, NO_ROOM, ReasonTemplate
from shoal.core.snapshot import Snapshot
from shoal.policy.base import all_fit, explained, serve
from shoal.policy.classic.fifo import PASSED_AHEAD
from shoal.policy.tuning import constant

WOULD_DELAY = ReasonTemplate(
    59,
    "WOULD_DELAY",
    "waits: to start now, on {GPUs it asks for:,.0f} GPUs, could delay a job that came earlier",
)

_PART = 32
"""Waiting jobs that are tried one by one before the rest of them is filtered again."""


@dataclass(frozen=True, slots=True)
class BackfillTuning:
    """Constants of backfilling."""

    depth: int = constant(500, "waiting jobs considered at each decision, as Slurm's bf_max_job_test")


@dataclass(slots=True)
class _Reservation:
    start: float
    extra: int


@dataclass(frozen=True, slots=True)
class Backfill:
    """Serves running jobs, then waiting ones in order of arrival, around the reservations."""

    tuning = BackfillTuning()
    reasons = (WOULD_DELAY,)

    def decide(self, snapshot: Snapshot) -> Decision:
        """Verdicts that only arrivals, completions and changes of the cluster can change."""
        if (fitting := all_fit(snapshot)) is not None:
            return Decision(fitting)
        columns, total = snapshot.columns, snapshot.cluster.total_gpus
        plan = _Plan.of(snapshot)
        waiting = ((columns.held == 0) & snapshot.possible).nonzero()[0][: self.tuning.depth]
        codes = np.where(plan.granted > 0, FITS.code, NO_ROOM.code)
        blocked = False
        while len(waiting) and max(plan.free):
            part, waiting = waiting[:_PART], waiting[_PART:]
            blocked = self._fill(snapshot, plan, part, codes, blocked=blocked)
            waiting = plan.undecided(snapshot, waiting)
        free = sum(plan.free)
        numbers: dict[ReasonTemplate, tuple[NumberColumn, ...]] = {
            FITS: (total - free, total),
            PASSED_AHEAD: (columns.gpus,),
            NO_ROOM: (columns.gpus, max(plan.free)),
            WOULD_DELAY: (columns.gpus,),
        }
        kinds = plan.kinds if len(plan.free) > 1 else None
        return Decision(explained(snapshot, plan.granted, codes, numbers, kinds))

    def _fill(self, snapshot: Snapshot, plan: "_Plan", line: Indices, codes: UInt8s, *, blocked: bool) -> bool:
        """Start the jobs of a line that may start; return whether any job, of this line or before it, has to wait."""
        speeds, gangs = snapshot.columns.speeds[line], snapshot.columns.gpus[line]
        fastest_first = np.argsort(-speeds, axis=1, kind="stable").tolist()
        for i, want, order, speed in zip(line.tolist(), gangs.tolist(), fastest_first, speeds.tolist(), strict=True):
            if not max(plan.free):
                break
            usable = [kind for kind in order if speed[kind] > 0.0]
            if plan.place(i, want, usable):
                codes[i] = PASSED_AHEAD.code if blocked else FITS.code
                continue
            blocked = True
            if any(plan.free[kind] >= want for kind in usable):
                codes[i] = WOULD_DELAY.code
        return blocked


@dataclass(slots=True)
class _Plan:
    """GPUs and kinds given so far, the GPUs left by kind, and the reservation of each kind's first waiting job."""

    now: float
    ends: Floats
    granted: Int32s
    kinds: Int8s
    free: list[int]
    reserved: dict[int, _Reservation]

    @classmethod
    def of(cls, snapshot: Snapshot) -> "_Plan":
        """The plan in which running jobs keep their GPUs."""
        columns = snapshot.columns
        served = serve(snapshot, np.flatnonzero(columns.held > 0))
        kinds = np.where(served.gpus > 0, 0, -1).astype(np.int8) if served.kinds is None else served.kinds
        held = np.bincount(kinds[kinds >= 0], weights=served.gpus[kinds >= 0], minlength=len(snapshot.cluster.kinds))
        free = [capacity - int(gpus) for capacity, gpus in zip(snapshot.cluster.capacity, held, strict=True)]
        return cls(snapshot.now, snapshot.now + columns.remaining_seconds, served.gpus, kinds, free, {})

    def undecided(self, snapshot: Snapshot, line: Indices) -> Indices:
        """The jobs of a line that may be started, or have GPUs reserved; nothing would change for the others."""
        enough = np.array(self.free) >= snapshot.columns.gpus[line, None]
        enough[:, [kind for kind in range(len(self.free)) if kind not in self.reserved]] = True
        return line[(enough & (snapshot.columns.speeds[line] > 0.0)).any(axis=1)]

    def place(self, i: int, want: int, usable: Sequence[int]) -> bool:
        """Start a job on the first of these kinds where it delays no reservation; else reserve GPUs if none are."""
        for kind in usable:
            if self.free[kind] < want:
                continue
            ahead = self.reserved.get(kind)
            in_time = ahead is None or (isfinite(self.ends[i]) and self.ends[i] <= ahead.start)
            if in_time or (ahead is not None and ahead.extra >= want):
                if ahead is not None and not in_time:
                    ahead.extra -= want
                self.granted[i], self.kinds[i] = want, kind
                self.free[kind] -= want
                return True
        found = [(self._reservation(kind, want), kind) for kind in usable if kind not in self.reserved]
        if found:
            reservation, kind = min(found, key=lambda pair: pair[0].start)
            self.reserved[kind] = reservation
        return False

    def _reservation(self, kind: int, want: int) -> _Reservation:
        """Return the earliest time at which this many GPUs of a kind are free, and how many are left over then."""
        holders = np.flatnonzero((self.kinds == kind) & (self.granted > 0))
        ends = np.maximum(self.ends[holders], self.now)
        order = ends.argsort(kind="stable")
        freed = self.free[kind] + self.granted[holders[order]].cumsum()
        at = int(freed.searchsorted(want))
        if at >= len(freed):
            return _Reservation(inf, 0)
        return _Reservation(float(ends[order[at]]), int(freed[at]) - want)
