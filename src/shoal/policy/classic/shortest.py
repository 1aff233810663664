"""Shortest first: preemptive service in ascending remaining time (SRTF) or remaining service (SRSF).

Remaining service is remaining time × GPUs. A job that does not fit is passed over. Between arrivals and completions
the order of running jobs cannot change to a waiting job's advantage, so nothing is reviewed in between.

References: Tiresias (NSDI '19) and AFS (NSDI '21) use both as baselines.
"""

from dataclasses import dataclass

from shoal.core.decision import Decision
from shoal.core.snapshot import Snapshot
from shoal.policy.base import all_fit, ranked_verdicts, serve_ascending


@dataclass(frozen=True, slots=True)
class Srtf:
    """Shortest remaining time first."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """A verdict for every live job."""
        if (easy := all_fit(snapshot)) is not None:
            return Decision(easy)
        key = snapshot.columns.remaining_seconds
        return Decision(ranked_verdicts(snapshot, serve_ascending(snapshot, key), "remaining time in seconds", key))


@dataclass(frozen=True, slots=True)
class Srsf:
    """Shortest remaining service first."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """A verdict for every live job."""
        if (easy := all_fit(snapshot)) is not None:
            return Decision(easy)
        key = snapshot.columns.remaining_seconds * snapshot.columns.gpus
        return Decision(ranked_verdicts(snapshot, serve_ascending(snapshot, key), "remaining GPU-seconds", key))
