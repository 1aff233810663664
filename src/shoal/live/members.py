"""Nodes that join a running cluster and nodes that are removed from it, as operators and agents ask."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from threading import RLock

from shoal.core.errors import InputError
from shoal.core.events import NodeJoined, NodeRemoved
from shoal.core.topology import Node, Topology
from shoal.core.units import Seconds
from shoal.live.backend import LiveBackend
from shoal.live.runs import RunRegistry
from shoal.wire.node_messages import NewNode

MOST_LIVE_NODES = 20_000
"""Most nodes of one control plane."""

TOO_MANY = f"and a control plane serves at most {MOST_LIVE_NODES:,}: run several"


@dataclass(slots=True)
class Members:
    """The nodes of a control plane; ``retired`` ones are in its journal and, since its last start, not in its cluster.

    ``changed`` is called with the present cluster when a node has joined or was removed. Futures resolve when the
    change is durable.
    """

    backend: LiveBackend
    retired: set[int]
    lock: RLock
    changed: Callable[[Topology], None]

    @property
    def away(self) -> frozenset[int]:
        """The nodes that have an index but are not in the cluster: they are retired or removed."""
        return self.backend.topology.removed.union(self.retired)

    @property
    def present(self) -> Topology:
        """The nodes of the cluster, without those that are away, and its kinds."""
        known, away = self.backend.topology, self.away
        nodes = tuple(node for index, node in enumerate(known.nodes) if index not in away)
        return Topology(nodes, known.types)

    def begin(self, declared: Topology) -> None:
        """Restore the nodes of a journal; a removed node that the settings declare again joins again."""
        for node in declared.nodes:
            if self.backend.topology.node_index[node.name] in self.backend.topology.removed:
                self.add(NewNode(node.name, node.kind, node.gpus, node.rack))
        self.changed(self.present)

    def add(self, wanted: NewNode, *, again: bool = False) -> "Future[None]":
        """Add a node. One that the cluster has is refused; ``again`` allows it if it is down and has the same GPUs."""
        node = Node(wanted.name, wanted.kind, wanted.gpus, wanted.rack)
        with self.lock:
            known = self.backend.topology
            index = known.node_index.get(node.name, len(known.nodes))
            if index >= MOST_LIVE_NODES:
                raise InputError("node", node.name, f"is one more than {MOST_LIVE_NODES:,}, {TOO_MANY}")
            if index < len(known.nodes):
                self._check_known(index, known.nodes[index], node, again=again)
            future = self.backend.change(lambda runs, now: self._join(runs, index, node, now))
            self.retired.discard(index)
            self.changed(self.present)
            return future

    def has_runs(self, name: str) -> bool:
        """Return whether a node has runs, or may have."""
        return bool(self.backend._runs.agents.nodes[self.backend.index_of(name)].gangs)

    def _check_known(self, index: int, known: Node, node: Node, *, again: bool) -> None:
        if (known.kind, known.gpus) != (node.kind, node.gpus):
            hint = f"is {known.gpus} x {known.kind} in this home's journal: give it another name"
            raise InputError(f"node {node.name}", f"{node.gpus} x {node.kind}", hint)
        if index in self.away:
            return
        if not again:
            raise InputError("node", node.name, "is a node of this cluster already")
        if self.backend.is_up(index):
            raise InputError("node", node.name, "is up: stop its agent and wait for its lease, or choose another name")

    def _join(self, runs: RunRegistry, index: int, node: Node, now: Seconds) -> None:
        if index in runs.agents and index not in self.away:  # an agent that comes back: its hello does the rest
            return
        self.backend.topology = self.backend.topology.joined(index, node)
        runs.nodes = self.backend.topology.nodes
        if index not in runs.agents:
            # Above every generation of an earlier control plane, as in ``resumption``.
            runs.agents.set_node(index, round(1000 * now) + 1)
        runs.events.append(NodeJoined(now, index, node.name, node.kind, node.gpus, node.rack))

    def remove(self, name: str) -> "Future[None]":
        """Remove a node without runs from the cluster; its agent, if it has one, is refused from now on."""
        with self.lock:
            index = self.backend.index_of(name)
            if index in self.backend.topology.removed:
                raise InputError("node", name, "was removed already")
            future = self.backend.change(lambda runs, now: self._remove(runs, index, name, now))
            self.changed(self.present)
            return future

    def _remove(self, runs: RunRegistry, index: int, name: str, now: Seconds) -> None:
        node, agent = runs.agents.nodes[index], runs.agents[index]
        if node.gangs:
            jobs = ", ".join(sorted({gang.id for gang in node.gangs.values()})[:3])
            hint = f"has runs of {jobs}: `shoal nodes drain {name}` and wait for their end, or cancel them"
            raise InputError("node", name, hint)
        if node.up:
            runs.lose(index, now, now)
        runs.health.resume(index, now)
        runs.agents.set_node(index, agent.generation + 1)
        self.backend.topology = self.backend.topology.without_for_good((index,))
        self.backend.machines.pop(index, None)
        runs.events.append(NodeRemoved(now, index))
