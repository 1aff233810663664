"""Least attained service: those who have had the fewest GPU-seconds go first, one quantum at a time.

A job that got GPUs keeps them for a quantum, to the next tick of a tenth of it: re-ordering at every event would
thrash, since the jobs served grow old while they run. New jobs have attained nothing and so start as soon as any GPUs
are not under lease.

References: Tiresias (NSDI '19), 2D-LAS without discretization; Gavel (OSDI '20) §4.1 calls it LAS.
"""

from dataclasses import dataclass
from math import inf

from shoal.core.decision import Decision
from shoal.core.snapshot import Snapshot
from shoal.policy.base import all_fit, ranked_verdicts, round_end, serve_ascending

TICKS_PER_QUANTUM = 10


@dataclass(frozen=True, slots=True)
class Las:
    """Serves jobs under lease, then everyone by attained service."""

    quantum: float = 600.0

    def __post_init__(self) -> None:
        if not 1.0 <= self.quantum < inf:
            raise ValueError("quantum must be a finite number of seconds, at least 1")

    def decide(self, snapshot: Snapshot) -> Decision:
        """A verdict for every live job, reviewed when the first lease ends."""
        if (easy := all_fit(snapshot)) is not None:
            return Decision(easy)
        columns, now = snapshot.columns, snapshot.now
        attained, ends = columns.attained, columns.since + self.quantum
        leased = (columns.held > 0) & (ends > now)
        keeping = leased.nonzero()[0]
        served = serve_ascending(snapshot, attained, first=keeping)
        told = "attained service in GPU-seconds"
        verdicts = ranked_verdicts(snapshot, served, told, attained, leased=leased, until=ends)
        first = float(ends[keeping].min()) if len(keeping) else now
        # Leases that end within one tick are reviewed together: jobs that were started one by one would otherwise
        # each cause a review of their own.
        review_at = round_end(max(first, now), self.quantum / TICKS_PER_QUANTUM) if served.last >= 0 else inf
        return Decision(verdicts, review_at)
