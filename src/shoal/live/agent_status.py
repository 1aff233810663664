"""What the control plane knows of a node's agent."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from shoal.core.units import JobNumber, Seconds
from shoal.live.gang import Gang
from shoal.live.live_job import LiveJob
from shoal.wire.messages import SuspensionAbility


@dataclass(slots=True)
class AgentStatus:
    """The agent of one node, and the gangs with a part there, by job and incarnation."""

    boot: str | None = None
    replaced: dict[str, int] = field(default_factory=dict)
    """By boot, how often another one replaced it, the latest last."""
    session: str = ""
    """Given to the agent with the answer to its last hello."""
    address: str = ""
    place: str = ""
    """Where it runs, as its hello says; the agent of this name that the node had last, also before a restart."""
    generation: int = 1
    last_report: Seconds | None = None
    """The time of its last report; None if the state of its node is not known until it reports."""
    last_contact: Seconds = 0.0
    disk_free: int | None = None
    """Bytes free on its disk at its last report."""
    suspension: SuspensionAbility | None = None
    """How it suspends runs, as reported to the ring."""
    up: bool = False
    quiet_at: Seconds = -inf
    """When a run without grace was gone from the lost node; others are gone when their own grace has passed too."""
    settled_at: Seconds = -inf
    """When the runs on the lost node were last looked at."""
    gangs: dict[tuple[JobNumber, int], Gang] = field(default_factory=dict)
    strays: frozenset[JobNumber] = frozenset()
    """Jobs with processes on the node that no order names; the agent is ending them."""


def alone(agents: Iterable[AgentStatus], job: LiveJob, gang: Gang, now: Seconds) -> bool:
    """Return whether no process of an earlier incarnation is left on any node, so that no job runs twice at once.

    After a restart of the control plane that is certain of a node only once it has reported, or was lost for long
    enough.
    """
    if gang.incarnation == 1:
        return True

    def clear(agent: AgentStatus) -> bool:
        if not agent.up and now >= agent.quiet_at + job.launch.grace:
            return True
        return agent.last_report is not None and gang.job not in agent.strays

    return all(map(clear, agents)) and all(other.over for other in job.gangs if other is not gang)
