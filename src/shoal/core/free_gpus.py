"""Free GPUs by node, in a form that is cheap to freeze and to search.

Nodes of a kind are grouped by their number of free GPUs, as bit sets held in Python integers: finding the tightest
node that fits, or entirely free nodes, takes a few integer operations on a cluster of any size.
"""

from dataclasses import dataclass, field

from shoal.core.topology import Placement, Topology
from shoal.core.value import Value


class FrozenFreeGpus(Value, frozen=True):
    """The free GPUs at one moment: ``free`` by kind, ``node_free`` by node.

    ``sets[kind][f]`` is the bit set of nodes of that kind with exactly f free GPUs. ``closed`` nodes are in no set.
    """

    free: tuple[int, ...]
    node_free: bytes
    sets: tuple[tuple[int, ...], ...]
    node_kind: tuple[int, ...]
    closed: frozenset[int] = frozenset()

    def thaw(self) -> "FreeGpus":
        """Return a copy that can be changed."""
        sets, closed = [list(s) for s in self.sets], dict.fromkeys(self.closed, 0)
        return FreeGpus(list(self.free), bytearray(self.node_free), sets, self.node_kind, closed)

    def largest_block(self, kind: int) -> int:
        """Return the most free GPUs on any one node of this kind."""
        sets = self.sets[kind]
        return next((f for f in range(len(sets) - 1, 0, -1) if sets[f]), 0)


@dataclass(slots=True)
class FreeGpus:
    """Mutable free GPUs: the state's, or a placer's working copy. Fields as in ``FrozenFreeGpus``.

    ``closed`` maps a closed node to the GPUs that become free when it opens.
    """

    free: list[int]
    node_free: bytearray
    sets: list[list[int]]
    node_kind: tuple[int, ...]
    closed: dict[int, int]
    _frozen: FrozenFreeGpus | None = field(default=None, compare=False, repr=False)
    """The last frozen copy, until the next change."""

    @classmethod
    def of(cls, topology: Topology) -> "FreeGpus":
        """Return all GPUs of a cluster as free; nodes that are down are closed."""
        free = cls([0] * len(topology.types), bytearray(), [[0] for _ in topology.types], (), {})
        free.add_nodes(topology)
        for node in range(len(topology.nodes)):
            if node not in topology.down:
                free.open(node)
        return free

    def add_nodes(self, topology: Topology) -> None:
        """Take over the nodes of a cluster that has grown; the new ones are closed, and entirely free once open."""
        self._frozen = None
        for _ in range(len(topology.types) - len(self.free)):
            self.free.append(0)
            self.sets.append([0])
        for node in range(len(self.node_kind), len(topology.nodes)):
            sets, gpus = self.sets[topology.node_kind[node]], topology.nodes[node].gpus
            sets += [0] * (gpus + 1 - len(sets))
            self.node_free.append(0)
            self.closed[node] = gpus
        self.node_kind = topology.node_kind

    def freeze(self) -> FrozenFreeGpus:
        """Return an immutable copy."""
        if self._frozen is None:
            sets, closed = tuple(map(tuple, self.sets)), frozenset(self.closed)
            self._frozen = FrozenFreeGpus(tuple(self.free), bytes(self.node_free), sets, self.node_kind, closed)
        return self._frozen

    def take(self, placement: Placement) -> None:
        """Occupy these seats; on a closed node, only seats that the same placer freed before."""
        self._move(placement, -1)

    def give(self, placement: Placement) -> None:
        """Free these seats; on a closed node they become free when it opens."""
        self._move(placement, 1)

    def _move(self, placement: Placement, sign: int) -> None:
        self._frozen = None
        closed, node_free = self.closed, self.node_free
        for node, count in placement.seats:
            by = sign * count
            if node in closed:
                closed[node] += by
                continue
            before, kind, bit = node_free[node], self.node_kind[node], 1 << node
            sets = self.sets[kind]
            sets[before] ^= bit
            sets[before + by] ^= bit
            node_free[node] = before + by
            self.free[kind] += by

    def close(self, node: int) -> None:
        """Take a node out of use: no job can be seated there."""
        if node in self.closed:
            return
        self._frozen = None
        kind, free = self.node_kind[node], self.node_free[node]
        self.closed[node] = free
        self.sets[kind][free] ^= 1 << node
        self.node_free[node] = 0
        self.free[kind] -= free

    def open(self, node: int) -> None:
        """Put a closed node back into use."""
        free = self.closed.pop(node, None)
        if free is None:
            return
        self._frozen = None
        kind = self.node_kind[node]
        self.node_free[node] = free
        self.sets[kind][free] |= 1 << node
        self.free[kind] += free
