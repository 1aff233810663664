"""The nodes and the agents as the control plane knows them, apart: an agent is identified by its allocation.

In pilot mode the allocation of a node has one agent, and the node is up while that agent is. In native mode each part
of a run has an allocation and an agent of its own, and a node is up while its engine says so.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TypeAlias

from shoal.core.topology import Node
from shoal.core.units import JobNumber, Seconds
from shoal.live.gang import Gang
from shoal.live.live_job import LiveJob
from shoal.wire.messages import AgentOrders, RunReport, SuspensionAbility

AgentKey: TypeAlias = int | str
"""Which agent: the index of the node that it serves as a whole, or the name of its allocation for one run."""

RunKey: TypeAlias = tuple[JobNumber, int]
"""A job and an incarnation of it."""


@dataclass(slots=True)
class NodeRuns:
    """A node: whether new runs may start there, and the gangs with a part there, by job and incarnation."""

    up: bool = False
    gangs: dict[tuple[JobNumber, int], Gang] = field(default_factory=dict)


@dataclass(slots=True)
class AgentStatus:
    """One agent, its session, and the gangs whose parts it runs, by job and incarnation."""

    node: int = 0
    """Index of the node on which it runs."""
    allocation: str = ""
    """Name of its allocation if that is for one part of a run; empty if it serves the whole node."""
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
    """Whether its lease runs: it has connected, or must before the lease ends."""
    quiet_at: Seconds = -inf
    """When a run without grace was gone after it was lost; others are gone when their own grace has passed too."""
    steady: dict[RunKey, RunReport] = field(default_factory=dict)
    """Its last reports of runs that were up, without fields that are judged again as time passes."""
    orders: AgentOrders | None = None
    """Its orders, until they or its reports change."""
    look_at: Seconds = inf
    """When the agent of a node is to be checked again."""
    settled_at: Seconds = -inf
    """When its runs were last checked after it was lost."""
    gangs: dict[tuple[JobNumber, int], Gang] = field(default_factory=dict)
    strays: frozenset[JobNumber] = frozenset()
    """Jobs with processes on the node that no order names; the agent is ending them."""

    def changes_nothing(self, run: RunReport) -> bool:
        """Return whether a report of a run repeats the last one, and the run continues as it did then."""
        key = run.job, run.incarnation
        gang = self.gangs.get(key)
        return gang is not None and gang.goes_on and not gang.lost(self.node) and self.steady.get(key) == run

    @property
    def key(self) -> AgentKey:
        """The agent's key in `Agents`."""
        return self.allocation or self.node


def steady_runs(runs: Iterable[RunReport]) -> dict[RunKey, RunReport]:
    """Return, by job and incarnation, the reports of runs that are up and report nothing that changes with time alone.

    Left out are reports with a training session, a save, a list of members or a suspension.
    """
    up = (run for run in runs if run.phase == "running" and run.saved is None and run.session is None)
    return {(run.job, run.incarnation): run for run in up if run.roster is None and run.suspension is None}


@dataclass(slots=True)
class Agents:
    """The nodes by index, the agent of each as a whole, and in ``native`` mode the agents of parts of runs."""

    nodes: list[NodeRuns] = field(default_factory=list)
    native: bool = False
    _of_nodes: list[AgentStatus] = field(default_factory=list)
    _of_runs: dict[str, AgentStatus] = field(default_factory=dict)
    """By name of their allocation; one stays until its agent has ended."""
    _of_parts: dict[tuple[JobNumber, int, int], AgentStatus] = field(default_factory=dict)
    """By job, incarnation and node."""
    changes: int = 0
    """Counts up with each part of a run that needs an allocation, or no longer does."""

    def __getitem__(self, key: AgentKey) -> AgentStatus:
        return self._of_runs[key] if isinstance(key, str) else self._of_nodes[key]

    def __iter__(self) -> Iterator[AgentStatus]:
        yield from self._of_nodes
        yield from self._of_runs.values()

    def __contains__(self, key: AgentKey) -> bool:
        return key in self._of_runs if isinstance(key, str) else key < len(self._of_nodes)

    def set_node(self, index: int, generation: int = 1) -> None:
        """Add a node, or forget all of one that was removed; ``generation`` is above those of earlier orders."""
        self.nodes[index : index + 1] = [NodeRuns()]
        self._of_nodes[index : index + 1] = [AgentStatus(index, generation=generation)]

    @property
    def of_nodes(self) -> Sequence[AgentStatus]:
        """The agents of whole nodes, by index."""
        return self._of_nodes

    @property
    def of_runs(self) -> Iterable[AgentStatus]:
        """The agents of parts of runs."""
        return self._of_runs.values()

    def serving(self, gang: Gang, node: int) -> AgentStatus:
        """Return the agent that runs a gang's part on a node, or the node's own agent if the gang has none there."""
        return self._of_parts.get((gang.job, gang.incarnation, node), self._of_nodes[node])

    def serving_all(self, gang: Gang) -> list[AgentStatus]:
        """Return the agents with parts of a gang's chain, now or soon."""
        found = []
        for each in gang.chain:
            # The first of a chain has a part on every node of its placement; a later one has none where workers stay.
            nodes = each.parts if each is gang.chain[0] else {*each.placement.nodes, *each.parts}
            found += [self.serving(each, node) for node in nodes]
        return found

    def add(self, gang: Gang, name: str, node: int, now: Seconds) -> None:
        """Add a gang's part on the node of this name."""
        key = gang.job, gang.incarnation
        if self.native:
            agent = AgentStatus(node, f"{gang.id}.{gang.incarnation}.{name}", generation=round(1000 * now) + 1)
            self._of_runs[agent.allocation] = self._of_parts[*key, node] = agent
            self.changes += 1
        self.serving(gang, node).gangs[key] = self.nodes[node].gangs[key] = gang

    def drop(self, gang: Gang, node: int) -> None:
        """Drop a gang's part; an agent that serves it alone stays until it has ended."""
        agent, key = self.serving(gang, node), (gang.job, gang.incarnation)
        agent.gangs.pop(key, None)
        self.nodes[node].gangs.pop(key, None)
        self._of_parts.pop((*key, node), None)
        if agent.allocation and agent.boot is None:
            self.forget(agent)
        self.changes += 1

    def forget(self, agent: AgentStatus) -> None:
        """Forget the agent of a part of a run, which has ended."""
        self._of_runs.pop(agent.allocation, None)


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


def unrunnable(agents: Agents, nodes: Sequence[Node], job: LiveJob, node: int) -> bool:
    """Return whether a job that a node could not start fails: other jobs run there, or no other node is left."""
    up = {index: nodes[index] for index, state in enumerate(agents.nodes) if state.up and index != node}
    return any(g.started and not g.over for g in agents.nodes[node].gangs.values()) or not job.can_start_on(up)
