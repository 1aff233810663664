"""A policy that cannot decide with one of the jobs, and what the control plane does about it, in a trial's time."""

from dataclasses import dataclass
from typing import Any

from shoal.core.decision import Decision
from shoal.core.events import JobSetAside
from shoal.core.interfaces import Policy
from shoal.core.snapshot import Snapshot

ASIDE_SECONDS = 20.0
"""Seconds for which a job that the policy fails on is set aside."""


@dataclass
class PoisonedPolicy:
    """A policy that fails when it sees the poisonous job of its control plane, if there is one."""

    policy: Policy
    plane: Any

    def decide(self, snapshot: Snapshot) -> Decision:
        """Return the decision of the real policy, or raise what the poison makes it raise."""
        job, error = self.plane.poison or (None, Exception)
        if job in snapshot.ids:
            raise error
        return self.policy.decide(snapshot)


def set_aside_briefly(snapshot: Snapshot, i: int, fault: str, *_: float) -> JobSetAside:
    """Set a job aside as ``engine.guard`` does, for seconds instead of an hour, so that it ends in the trial."""
    return JobSetAside(snapshot.now, int(snapshot.columns.rows[i]), fault, snapshot.now + ASIDE_SECONDS)
