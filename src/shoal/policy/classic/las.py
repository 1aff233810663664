"""Least attained service: the jobs with the fewest GPU-seconds so far go first, one quantum at a time.

A job that got GPUs keeps them for a quantum, rounded up to the next tick of a tenth of it: to re-order at every event
would thrash, since the attained service of running jobs grows. A new job has attained nothing and so starts as soon as
enough GPUs are not under lease.

References: Tiresias (NSDI '19), 2D-LAS without discretization; Gavel (OSDI '20) §4.1 calls it LAS.
"""

from dataclasses import dataclass
from math import inf

from shoal.core.decision import Decision
from shoal.core.snapshot import Snapshot
from shoal.policy.base import all_fit, check_round, ranked_verdicts, round_end, serve_ascending
from shoal.policy.tuning import constant


@dataclass(frozen=True, slots=True)
class LasTuning:
    """Constants of LAS."""

    ticks_per_quantum: int = constant(10, "reviews per quantum at most: leases that end within a tick end together")


@dataclass(frozen=True, slots=True)
class Las:
    """Serves jobs under lease, then the others by attained service."""

    tuning = LasTuning()
    quantum: float = 600.0

    def __post_init__(self) -> None:
        check_round(self.quantum, "quantum")

    def decide(self, snapshot: Snapshot) -> Decision:
        """Verdicts for the jobs in that order, reviewed when the first lease ends."""
        if (fitting := all_fit(snapshot)) is not None:
            return Decision(fitting)
        columns, now = snapshot.columns, snapshot.now
        attained, ends = columns.attained, columns.since + self.quantum
        leased = (columns.held > 0) & (ends > now)
        keeping = leased.nonzero()[0]
        served = serve_ascending(snapshot, attained, first=keeping)
        name = "attained service in GPU-seconds"
        verdicts = ranked_verdicts(snapshot, served, name, attained, leased=leased, until=ends)
        first = float(ends[keeping].min()) if len(keeping) else now
        tick = self.quantum / self.tuning.ticks_per_quantum
        return Decision(verdicts, round_end(max(first, now), tick) if served.last >= 0 else inf)
