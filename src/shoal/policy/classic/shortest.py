"""Shortest first: preemptive service in ascending remaining time (SRTF) or remaining service (SRSF).

Remaining service is remaining time × GPUs. A job that does not fit is passed over. Between arrivals and completions
a waiting job cannot overtake a running one, so no review is needed in between.

References: Tiresias (NSDI '19) and AFS (NSDI '21) use both as baselines.
"""

from collections.abc import Callable
from dataclasses import dataclass

from shoal.core.arrays import Floats
from shoal.core.columns import Columns
from shoal.core.decision import Decision
from shoal.core.snapshot import Snapshot
from shoal.policy.base import all_fit, ranked_verdicts, serve_ascending


@dataclass(frozen=True, slots=True)
class Srtf:
    """Shortest remaining time first."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """Serve jobs in ascending remaining time."""
        return _ascending(snapshot, "remaining time in seconds", lambda columns: columns.remaining_seconds)


@dataclass(frozen=True, slots=True)
class Srsf:
    """Shortest remaining service first."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """Serve jobs in ascending remaining GPU-seconds."""
        return _ascending(
            snapshot, "remaining service in GPU-seconds", lambda columns: columns.remaining_seconds * columns.gpus
        )


def _ascending(snapshot: Snapshot, name: str, key_of: Callable[[Columns], Floats]) -> Decision:
    if (fitting := all_fit(snapshot)) is not None:
        return Decision(fitting)  # most decisions: the key, which costs more, is not needed
    key = key_of(snapshot.columns)
    return Decision(ranked_verdicts(snapshot, serve_ascending(snapshot, key), name, key))
