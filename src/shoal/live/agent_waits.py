"""When to check which node again, and which jobs wait until their earlier processes are certainly gone.

With thousands of nodes, none of this may cost a walk over all nodes or all jobs at each event.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf

from shoal.core.units import JobNumber, Seconds
from shoal.live.agent_status import AgentKey, Agents, AgentStatus

_SLACK = 64
"""Entries of a heap, beyond twice those that are valid, at which the others are dropped."""


class Timers(dict[JobNumber, Seconds]):
    """Times by job, as a dictionary whose entries that are due are found with a heap."""

    def __init__(self, times: dict[JobNumber, Seconds] | None = None) -> None:
        super().__init__(times or {})
        self._heap = [(at, job) for job, at in self.items()]
        heapify(self._heap)

    def __setitem__(self, job: JobNumber, at: Seconds) -> None:
        super().__setitem__(job, at)
        if len(self._heap) > 2 * len(self) + _SLACK:
            self._heap = [(at, job) for job, at in self.items()]
            heapify(self._heap)
        else:
            heappush(self._heap, (at, job))

    def take_due(self, now: Seconds) -> list[JobNumber]:
        """Remove the entries that are due and return their jobs, in order of time."""
        due: list[JobNumber] = []
        while self._heap and self._heap[0][0] <= now:
            at, job = heappop(self._heap)
            if self.get(job) == at:
                del self[job]
                due.append(job)
        return due

    @property
    def next(self) -> Seconds:
        """The earliest time; infinity without any."""
        while self._heap and self.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else inf


@dataclass(slots=True)
class AgentWaits:
    """The nodes to check again, by time, and the jobs that wait for nodes to answer; ``agents`` is the registry's.

    Only agents of whole nodes are checked and waited for here.
    """

    agents: Agents
    blocked: dict[JobNumber, Seconds] = field(default_factory=dict)
    """The jobs whose ranks may start once no earlier process of theirs can be left on any node, with their grace."""
    touched: set[AgentKey] = field(default_factory=set)
    """The agents whose orders changed since ``take_touched``."""
    _unclear: set[int] = field(default_factory=set)
    """Nodes that have not reported yet, or have processes that no order names; may hold others."""
    _heap: list[tuple[Seconds, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._unclear = set(range(len(self.agents.nodes)))

    def orders_changed(self, agent: AgentStatus) -> None:
        """Count a change of an agent's orders."""
        agent.generation += 1
        agent.orders = None
        self.touched.add(agent.key)

    def take_touched(self) -> set[AgentKey]:
        """Return the agents whose orders changed since the last call."""
        touched, self.touched = self.touched, set()
        return touched

    def look(self, agent: AgentStatus, at: Seconds) -> None:
        """Have the agent of a node be due at ``at``, unless it is due before."""
        if not agent.allocation and at < agent.look_at:
            agent.look_at = at
            heappush(self._heap, (at, agent.node))

    def due(self, now: Seconds) -> Iterator[AgentStatus]:
        """Yield the agents of nodes that are due, each once."""
        while self._heap and self._heap[0][0] <= now:
            at, index = heappop(self._heap)
            agent = self.agents[index]
            if agent.look_at == at:
                agent.look_at = inf
                yield agent

    @property
    def next_look(self) -> Seconds:
        """When the next node is due."""
        return self._heap[0][0] if self._heap else inf

    def unsure(self, agent: AgentStatus) -> None:
        """Note that it is not known which processes a node has, or that it has some that no order names."""
        if not agent.allocation:
            self._unclear.add(agent.node)

    def unclear(self) -> Iterator[AgentStatus]:
        """Yield the agents whose node may have processes that no order names."""
        for index in tuple(self._unclear):
            agent = self.agents[index]
            if agent.last_report is not None and not agent.strays:
                self._unclear.discard(index)
            else:
                yield agent

    def block(self, job: JobNumber, grace: Seconds) -> None:
        """Let a job wait until no process of an earlier run can be left on any node."""
        self.blocked[job] = grace
        for agent in map(self.agents.__getitem__, self._unclear):
            if not agent.up:
                self.look(agent, agent.quiet_at + grace)

    def next_settlement(self, agent: AgentStatus) -> Seconds:
        """Return when the next run of a lost agent is certain to be gone, or a job blocked by such runs may start."""
        if agent.quiet_at == -inf:
            return inf
        graces = {gang.launch.grace for gang in agent.gangs.values() if not gang.parts[agent.node].phase.over}
        graces.update(self.blocked.values())
        return min((at for grace in graces if (at := agent.quiet_at + grace) > agent.settled_at), default=inf)

    def unblocked_by_report(self) -> list[JobNumber]:
        """Return the blocked jobs that may start once a node has reported: none while another has not reported."""
        if any(agent.up and agent.last_report is None for agent in self.unclear()):
            return []
        return list(self.blocked)
