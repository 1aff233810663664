"""Tiresias: a few queues by attained service, first come first served within each, preemption only between them.

A job begins in the first queue and moves down one whenever its attained GPU-seconds pass the next threshold, so two
jobs of similar age do not alternate as they do under plain least attained service. Order within a queue is that of
arrival; a gang that does not fit is passed over. The default thresholds, 3,250 and 7,200 GPU-seconds, are those of
the authors' published simulator; Pollux §5.1 uses two queues and tunes the threshold to the workload, as one should.

``promote`` is the paper's PROMOTEKNOB: a job that has waited longer than this many times its run time goes back to the
first queue and its service is counted from zero again. 0 turns it off, as in the papers that compare with Tiresias:
then a wide or old job may wait as long as younger ones keep coming. ``lease`` is how long a job that got GPUs keeps
them in any case; the paper has none, since its queues already keep preemption rare.

References: Tiresias (NSDI '19), discretized 2D-LAS; called Tiresias-L in AFS (NSDI '21).
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, isfinite

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices
from shoal.core.columns import sealed
from shoal.core.decision import Decision
from shoal.core.snapshot import Snapshot
from shoal.policy.base import next_second, ranked_verdicts, serve
from shoal.policy.carried_rows import match_rows


@dataclass(frozen=True, slots=True, eq=False)
class _TiresiasCarry:
    """By job: service and run time at the last promotion, and the time since which it waits (infinity: not at all)."""

    rows: Indices
    service: Floats
    run: Floats
    idle: Floats


@dataclass(frozen=True, slots=True)
class Tiresias:
    """Serves the queues in order, each in order of arrival."""

    thresholds: tuple[float, ...] = (3250.0, 7200.0)
    promote: float = 0.0
    lease: float = 0.0

    def __post_init__(self) -> None:
        limits = (0.0, *self.thresholds)
        if len(limits) == 1 or not all(a < b < inf for a, b in pairwise(limits)):
            raise ValueError(f"thresholds must be GPU-seconds above 0 that ascend, at least one, not {self.thresholds}")
        for name in ("promote", "lease"):
            if not (isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"{name} must be a finite number, at least 0, not {getattr(self, name)}")

    def decide(self, snapshot: Snapshot) -> Decision:
        """Verdicts for the queues in order, reviewed when a queue, a lease or a wait next changes that order."""
        columns, now = snapshot.columns, snapshot.now
        held, able = columns.held, snapshot.possible
        carry, service, waits_until = self._promoted(snapshot) if self.promote else (None, columns.attained, None)
        queue = np.searchsorted(self.thresholds, service, side="right").astype(np.uint8)
        ends = columns.since + self.lease
        leased = (held > 0) & (ends > now)
        first = np.where(leased, np.uint8(0), queue + np.uint8(1))
        served = serve(snapshot, np.argsort(first, kind="stable"))
        granted = served.gpus > 0
        review_at = inf
        if (able & ~granted).any():
            below = np.append(self.thresholds, np.inf)[queue]
            moments = [np.where(granted, now + (below - service) / columns.gpus, np.inf), ends[leased]]
            if waits_until is not None:
                moments.append(waits_until[able & ~granted & (queue > 0)])
            review_at = next_second(float(np.concatenate(moments).min(initial=np.inf)), now)
        number: Floats = queue.astype(np.float64) + 1.0
        verdicts = ranked_verdicts(snapshot, served, "queue", number, leased=leased, until=ends)
        return Decision(verdicts, review_at, carry and _with_waits(carry, snapshot, granted))

    def _promoted(self, snapshot: Snapshot) -> tuple[_TiresiasCarry, Floats, Floats]:
        """Return the carry after promotions; by job the service since its last, and when its wait earns the next."""
        columns, count = snapshot.columns, len(snapshot.columns)
        service, run, idle = np.zeros(count), np.zeros(count), np.full(count, np.inf)
        before = snapshot.carry
        if isinstance(before, _TiresiasCarry):
            at, known = match_rows(before.rows, columns.rows)
            for now, then in ((service, before.service), (run, before.run), (idle, before.idle)):
                now[known] = then[at[known]]
        idle = np.where((columns.held == 0) & np.isinf(idle), snapshot.now, idle)
        limit = idle + self.promote * (columns.run_seconds - run)
        starved = (columns.held == 0) & (limit <= snapshot.now)
        service[starved], run[starved] = columns.attained[starved], columns.run_seconds[starved]
        return _TiresiasCarry(columns.rows, service, run, idle), columns.attained - service, limit


def _with_waits(carry: _TiresiasCarry, snapshot: Snapshot, granted: Flags) -> _TiresiasCarry:
    """The carry with the waits that begin or end now; the start of a continuing wait is kept."""
    runs = snapshot.columns.held > 0
    idle = np.where(runs, np.where(granted, np.inf, snapshot.now), carry.idle)
    for array in (carry.service, carry.run, idle):
        sealed(array)
    return replace(carry, idle=idle)
