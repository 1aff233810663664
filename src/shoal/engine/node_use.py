"""Restrictions on nodes, as part of the state: nodes that are drained or probed, and nodes that a job avoids."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.core.events import NodeDrained, NodeResumed
from shoal.core.free_gpus import FreeGpus
from shoal.core.topology import Placement, Topology
from shoal.core.units import JobNumber


@dataclass(slots=True)
class NodeUse:
    """The restrictions in force. The mappings are replaced and never changed in place, so snapshots may hold them."""

    drained: Mapping[int, str] = field(default_factory=dict)
    """By drained node, the reason."""
    probed: frozenset[int] = frozenset()
    """Drained nodes that may get one start."""
    avoided: Mapping[JobNumber, frozenset[int]] = field(default_factory=dict)
    """By job, the nodes that could not start its ranks."""

    def drain(self, event: NodeDrained, free: FreeGpus) -> None:
        """Close a node for new runs."""
        self.drained = {**self.drained, event.node: event.reason}
        self._close(event.node, free)

    def resume(self, event: NodeResumed, free: FreeGpus, down: frozenset[int]) -> None:
        """Open a drained node: as a probe for one start, else for all jobs, including jobs that avoided it."""
        node = event.node
        if node not in self.drained:
            return
        if not event.probe:
            self.drained = {other: reason for other, reason in self.drained.items() if other != node}
            self._avoid_no_more(node)
        self.probed = self.probed | {node} if event.probe else self.probed - {node}
        if node not in down:
            free.open(node)

    def lost(self, node: int, free: FreeGpus) -> None:
        """Close a node that is down."""
        self._close(node, free)

    def removed(self, node: int, free: FreeGpus) -> None:
        """Close a node that has left for good; it is not drained if it joins again."""
        self.drained = {other: reason for other, reason in self.drained.items() if other != node}
        self._avoid_no_more(node)
        self._close(node, free)

    def returned(self, node: int, free: FreeGpus) -> None:
        """Open a node that is up again, unless it is drained; jobs that avoided it may use it."""
        self._avoid_no_more(node)
        if node not in self.drained:
            free.open(node)

    def placed(self, placement: Placement, free: FreeGpus) -> None:
        """Close the probed nodes among these seats: they had their one start."""
        for node in self.probed.intersection(placement.nodes):
            self._close(node, free)

    def avoid(self, job: JobNumber, node: int) -> None:
        """Keep a job off a node that could not start it."""
        self.avoided = {**self.avoided, job: self.avoided.get(job, frozenset()) | {node}}

    def forget(self, job: JobNumber) -> None:
        """Forget which nodes an ended job avoided."""
        if job in self.avoided:
            self.avoided = {other: nodes for other, nodes in self.avoided.items() if other != job}

    def available(self, topology: Topology, free: FreeGpus, ending: Mapping[int, int]) -> Topology:
        """Return the cluster as policies see it: of a drained or lost node only the GPUs in use.

        A job on a lost node may be within its grace, and holds its GPUs until it is certain to be gone. GPUs of
        cancelled jobs, ``ending`` by node, are not in use there.
        """
        if not self.drained and not topology.down:
            return topology
        unused = {node: gpus + ending.get(node, 0) for node, gpus in free.closed.items()}
        held = {node for node in topology.down if unused.get(node, 0) < topology.nodes[node].gpus}
        closed = held.union(self.drained).intersection(unused) - (topology.down - held)
        idle = tuple((node, unused[node]) for node in sorted(closed))
        return topology.keeping(topology.down - held, idle)

    def _close(self, node: int, free: FreeGpus) -> None:
        self.probed -= {node}
        free.close(node)

    def _avoid_no_more(self, node: int) -> None:
        left = {job: nodes - {node} for job, nodes in self.avoided.items()}
        self.avoided = {job: nodes for job, nodes in left.items() if nodes}
