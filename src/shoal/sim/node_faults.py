"""Faults of simulated nodes: nodes that are lost and return, and nodes that are slow for a while."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np

from shoal.core.events import Event, JobCrashed, NodeJoined, NodeLost, NodeReturned
from shoal.core.units import Seconds
from shoal.sim.event_queue import EventQueue, Happening
from shoal.sim.faults import Faults, JobFault, NodeFault, NodeJoin, Straggler
from shoal.sim.running_jobs import RunningJobs
from shoal.sim.truth import Truth

SCRIPTED = {
    NodeFault: Happening.NODE_LOSS_SCRIPTED,
    JobFault: Happening.CRASH_SCRIPTED,
    Straggler: Happening.STRAGGLER_SCRIPTED,
}
"""By type of a scripted fault, the happening scheduled for it."""


@dataclass(slots=True)
class NodeFaults:
    """Handlers of nodes' happenings: each appends events and returns whether they call for a decision.

    ``crash`` ends a job's run for a cause that is not its fault. Nodes in ``down`` are never lost again.
    """

    faults: Faults
    truth: Truth
    queue: EventQueue
    jobs: RunningJobs
    rng: np.random.Generator
    down: Collection[int]
    clock: Callable[[], Seconds]
    crash: Callable[[int, str], JobCrashed]
    lost: set[int] = field(default_factory=set)
    _slowdowns: dict[int, dict[int, float]] = field(default_factory=dict)
    _stragglers: int = 0

    def begin(self) -> None:
        """Schedule the script and the first random fault of each node; nodes that join later are down until they do."""
        for i, fault in enumerate(self.faults.script):
            if not isinstance(fault, NodeJoin):
                self.queue.push(fault.at, SCRIPTED[type(fault)], i)
        joins = self.faults.joins
        first = len(self.truth.topology.nodes) - len(joins)
        for node in range(first):
            self._begin_faults(node)
        for node, join in enumerate(joins, first):
            self.lost.add(node)
            self.queue.push(join.at, Happening.NODE_JOINED, node)

    def _begin_faults(self, node: int) -> None:
        self._schedule(self.faults.node_mtbf, 0.0, Happening.NODE_LOST, node)
        self._schedule(self.faults.straggler_mtbf, 0.0, Happening.STRAGGLED, node)

    def node_joined(self, node: int, _: int, events: list[Event]) -> bool:
        """Let a node join, up."""
        joined = self.truth.topology.nodes[node]
        events.append(NodeJoined(self.clock(), node, joined.name, joined.kind, joined.gpus, joined.rack))
        self._begin_faults(node)
        return self.node_returned(node, _, events)

    def _lose(self, node: int, down_for: Seconds, events: list[Event]) -> bool:
        if node in self.lost or node in self.down:
            return False
        self.lost.add(node)
        events.append(NodeLost(self.clock(), node))
        cause = f"node {self.truth.topology.nodes[node].name} was lost"
        events += [self.crash(job, cause) for job in self.jobs.on(node, bound=True)]
        self.queue.push(self.clock() + down_for, Happening.NODE_RETURNED, node)
        return True

    def node_lost(self, node: int, _: int, events: list[Event]) -> bool:
        """Lose a node at random, and schedule its next loss."""
        repair = self.faults.node_repair
        self._schedule(self.faults.node_mtbf, repair, Happening.NODE_LOST, node)
        return self._lose(node, repair, events)

    def node_loss_scripted(self, index: int, _: int, events: list[Event]) -> bool:
        """Lose a node as the script says."""
        fault = self.faults.script[index]
        return isinstance(fault, NodeFault) and self._lose(fault.node, fault.down_for, events)

    def node_returned(self, node: int, _: int, events: list[Event]) -> bool:
        """Return a lost node."""
        self.lost.discard(node)
        events.append(NodeReturned(self.clock(), node))
        return True

    def straggled(self, node: int, *_: object) -> bool:
        """Slow a node down at random, and schedule the next time."""
        lasts = self.faults.straggler_lasts
        self._schedule(self.faults.straggler_mtbf, lasts, Happening.STRAGGLED, node)
        return self._slow(node, self.faults.straggler_speed, lasts)

    def straggler_scripted(self, index: int, *_: object) -> bool:
        """Slow a node down as the script says."""
        fault = self.faults.script[index]
        return isinstance(fault, Straggler) and self._slow(fault.node, fault.speed, fault.lasts)

    def _slow(self, node: int, speed: float, lasts: Seconds) -> bool:
        self._stragglers += 1
        self._slowdowns.setdefault(node, {})[self._stragglers] = speed
        self.queue.push(self.clock() + lasts, Happening.STRAGGLER_ENDED, node, self._stragglers)
        return self._set_node_speed(node)

    def straggler_ended(self, node: int, straggler: int, _: list[Event]) -> bool:
        """End one slowdown of a node."""
        del self._slowdowns[node][straggler]
        return self._set_node_speed(node)

    def _set_node_speed(self, node: int) -> bool:
        """Set a node's speed to the least of its slowdown factors."""
        self.truth.node_speed[node] = min(self._slowdowns[node].values(), default=1.0)
        for job in self.jobs.on(node):
            self.jobs.rerate(job, self.clock())
        return False

    def _schedule(self, mean: Seconds | None, after: Seconds, what: Happening, node: int) -> None:
        """Schedule a node's next random fault, on average ``mean`` seconds after the present one has ended."""
        if mean is not None:
            self.queue.push(self.clock() + after + self.rng.exponential(mean), what, node)
