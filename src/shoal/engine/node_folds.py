"""How the state folds events of nodes: lost, returned, drained, resumed, joined, removed."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.core.errors import JournalError
from shoal.core.events import NodeDrained, NodeJoined, NodeLost, NodeRemoved, NodeResumed, NodeReturned
from shoal.core.interfaces import PerfModel
from shoal.core.job import JobSpec
from shoal.core.lifecycle import JobState
from shoal.core.topology import Node, Topology
from shoal.engine.training_reports import BatchChanges

if TYPE_CHECKING:
    from shoal.core.arrays import Floats
    from shoal.engine.state import State


def _lost(state: "State", event: NodeLost) -> None:
    state.topology = state.topology.without(event.node)
    state.suspensions = state.suspensions.able(event.node, None)
    state.nodes.lost(event.node, state.free_gpus)


def _returned(state: "State", event: NodeReturned) -> None:
    state.topology = state.topology.with_back(event.node)
    state.nodes.returned(event.node, state.free_gpus)


def _drained(state: "State", event: NodeDrained) -> None:
    state.nodes.drain(event, state.free_gpus)


def _resumed(state: "State", event: NodeResumed) -> None:
    state.nodes.resume(event, state.free_gpus, state.topology.down)


def _joined(state: "State", event: NodeJoined) -> None:
    """Add a node, down. One that the cluster has already, as after a restart of the control plane, is marked down."""
    node, topology = Node(event.name, event.kind, event.gpus, event.rack), state.topology
    known = topology.node_index.get(event.name, len(topology.nodes))
    same = known == len(topology.nodes) or (topology.nodes[known].kind, topology.nodes[known].gpus) == (
        node.kind,
        node.gpus,
    )
    if event.node != known or not same:
        raise JournalError(f"node {event.name!r} of {event.gpus} x {event.kind} cannot be node {event.node}")
    set_topology(state, topology.joined(event.node, node))
    state.nodes.lost(event.node, state.free_gpus)


def _removed(state: "State", event: NodeRemoved) -> None:
    """Take a node that is down out of the cluster; its index stays."""
    set_topology(state, state.topology.without_for_good((event.node,)))
    state.nodes.removed(event.node, state.free_gpus)


def set_topology(state: "State", topology: Topology) -> None:
    """Replace the cluster by one with more nodes or with some removed, and estimate all speeds on it anew.

    The policy's ``carry`` is dropped, as after a restart: it may depend on the kinds, nodes and speeds there were.
    """
    before, state.topology, state.perf, state.carry = state.perf, topology, state.perf.on(topology), None
    state.free_gpus.add_nodes(topology)
    rows = state._jobs
    if len(topology.kinds) > rows.kinds:
        rows.add_kinds(len(topology.kinds))
    _set_speeds(state, before, state.register.specs)


def _set_speeds(state: "State", before: PerfModel, jobs: Iterable[int]) -> None:
    """Estimate the speeds of the live jobs anew; kinds that a job is no longer tried on keep the speed 0."""
    rows, changes = state._jobs, state._training_reports.changes
    for number in jobs:
        slot = rows.slot_of(number)
        if slot < 0 or not JobState(rows.state[slot]).live:
            continue
        spec, speeds = state.register.specs[number], rows.speeds_to_change(slot)
        usual = declared_speeds(before, spec, changes.get(number, ()))
        excluded = np.flatnonzero((speeds[: len(usual)] == 0.0) & (usual > 0.0))
        speeds[:] = declared_speeds(state.perf, spec, changes.get(number, ()))
        speeds[excluded] = 0.0


def declared_speeds(perf: PerfModel, spec: JobSpec, changes: BatchChanges) -> "Floats":
    """Return a job's speeds by kind at its last batch size."""
    return perf.speeds(spec, changes[-1][1]) if changes else perf.speeds(spec)


NODES: dict[type, Callable[["State", Any], None]] = {
    NodeLost: _lost,
    NodeReturned: _returned,
    NodeDrained: _drained,
    NodeResumed: _resumed,
    NodeJoined: _joined,
    NodeRemoved: _removed,
}
"""By event of a node, its fold."""
