"""The cluster: nodes in racks, kinds of accelerator with prices, and seats on the nodes.

A ``Topology`` is a value. A node that is lost is marked down in a new ``Topology``, one that left for good as removed;
node indices, and with them placements, stay valid.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from shoal.core.cached import cached
from shoal.core.errors import InputError
from shoal.core.value import Value

MOST_GPUS_PER_NODE = 255
"""Most GPUs of one node: free GPUs are counted in one byte per node."""

MOST_NODES = 1_000_000
"""Most nodes of a cluster, so that a typing error cannot exhaust memory."""


class Locality(IntEnum):
    """The distance between the GPUs of one job, the fastest first."""

    SAME_NODE = 0
    CROSS_NODE = 1
    CROSS_RACK = 2


@dataclass(frozen=True, slots=True)
class AcceleratorType:
    """A kind of accelerator; its price is in dollars per GPU-hour, or None if not given."""

    name: str
    price_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A machine with GPUs of one kind."""

    name: str
    kind: str
    gpus: int
    rack: str = "r0"


class Placement(Value, frozen=True):
    """The seats of one job: (node index, GPUs) by ascending index, all of one kind."""

    seats: tuple[tuple[int, int], ...]

    @property
    def gpus(self) -> int:
        """The total number of GPUs."""
        return self.seats[0][1] if len(self.seats) == 1 else sum(count for _, count in self.seats)

    @property
    def nodes(self) -> tuple[int, ...]:
        """The indices of the nodes."""
        return tuple(node for node, _ in self.seats)


@dataclass(frozen=True)
class Topology:
    """Nodes in a fixed order, their kinds of accelerator, and the nodes that are down or partly withheld."""

    nodes: tuple[Node, ...]
    types: tuple[AcceleratorType, ...] = ()
    down: frozenset[int] = field(default_factory=frozenset)
    withheld: tuple[tuple[int, int], ...] = ()
    """(node, GPUs) that are free but may not be used, since the node is drained."""
    removed: frozenset[int] = field(default_factory=frozenset)
    """Nodes that have left the cluster for good."""

    def __post_init__(self) -> None:
        known = {t.name for t in self.types}
        missing = tuple(AcceleratorType(k) for k in dict.fromkeys(n.kind for n in self.nodes) if k not in known)
        if missing:
            object.__setattr__(self, "types", self.types + missing)

    @cached
    def kinds(self) -> tuple[str, ...]:
        """The names of the accelerator kinds, in the order the operator listed them."""
        return tuple(t.name for t in self.types)

    @cached
    def kind_index(self) -> Mapping[str, int]:
        """By name of a kind, its index in ``kinds``."""
        return {name: k for k, name in enumerate(self.kinds)}

    @cached
    def node_index(self) -> Mapping[str, int]:
        """By name of a node, its index."""
        return {node.name: i for i, node in enumerate(self.nodes)}

    @cached
    def node_kind(self) -> tuple[int, ...]:
        """By node, the index of its kind."""
        return tuple(self.kind_index[node.kind] for node in self.nodes)

    @cached
    def usable(self) -> tuple[int, ...]:
        """GPUs that jobs may hold, by node: none on nodes that are down or removed, and no withheld ones."""
        withheld, away = dict(self.withheld), self.down | self.removed
        return tuple(0 if i in away else node.gpus - withheld.get(i, 0) for i, node in enumerate(self.nodes))

    @cached
    def capacity(self) -> tuple[int, ...]:
        """GPUs that jobs may hold, by kind."""
        totals = [0] * len(self.types)
        for kind, gpus in zip(self.node_kind, self.usable, strict=True):
            totals[kind] += gpus
        return tuple(totals)

    @cached
    def total_gpus(self) -> int:
        """GPUs that jobs may hold, of every kind."""
        return sum(self.capacity)

    @cached
    def installed(self) -> tuple[int, ...]:
        """GPUs by kind, including withheld ones and those of nodes that are down."""
        return replace(self, down=frozenset(), withheld=()).capacity if self.down or self.withheld else self.capacity

    @cached
    def node_size(self) -> tuple[int, ...]:
        """The most GPUs of one node, by kind."""
        sizes = [0] * len(self.types)
        for i, (k, node) in enumerate(zip(self.node_kind, self.nodes, strict=True)):
            if i not in self.removed:
                sizes[k] = max(sizes[k], node.gpus)
        return tuple(sizes)

    def joined(self, index: int, node: Node) -> "Topology":
        """Return the cluster with this node, down, at ``index``: after the others, or in place of a removed one."""
        nodes = (*self.nodes[:index], node, *self.nodes[index + 1 :])
        return replace(self, nodes=nodes, down=self.down | {index}, removed=self.removed - {index})

    def without_for_good(self, nodes: Iterable[int]) -> "Topology":
        """Return the cluster with these nodes, which are down, removed."""
        return replace(self, down=self.down.union(nodes), removed=self.removed.union(nodes))

    def without(self, node: int) -> "Topology":
        """Return the cluster with this node down."""
        return replace(self, down=self.down | {node})

    def with_back(self, node: int) -> "Topology":
        """Return the cluster with this node up."""
        return replace(self, down=self.down - {node})

    def keeping(self, down: frozenset[int], withheld: tuple[tuple[int, int], ...]) -> "Topology":
        """Return the cluster with exactly these nodes down and these GPUs, by node, withheld."""
        same = (down, withheld) == (self.down, self.withheld)
        return self if same else replace(self, down=down, withheld=withheld)

    def locality(self, placement: Placement) -> Locality:
        """Return the distance between these seats."""
        if len(placement.seats) == 1:
            return Locality.SAME_NODE
        racks = {self.nodes[node].rack for node, _ in placement.seats}
        return Locality.CROSS_NODE if len(racks) == 1 else Locality.CROSS_RACK

    def kind_of(self, placement: Placement) -> int:
        """Return the index of the kind of these seats."""
        return self.node_kind[placement.seats[0][0]]

    def describe(self) -> str:
        """Return the compact specification, for example ``v100:9x4,p100:9x4``: a group for each run of equal nodes."""
        groups: list[tuple[str, int, int]] = []
        for i, node in enumerate(self.nodes):
            if i in self.removed:
                continue
            if groups and (groups[-1][0], groups[-1][2]) == (node.kind, node.gpus):
                groups[-1] = (node.kind, groups[-1][1] + 1, node.gpus)
            else:
                groups.append((node.kind, 1, node.gpus))
        return ",".join(f"{kind}:{count}x{gpus}" for kind, count, gpus in groups)


_MOST_DIGITS = 20
"""Digits of a number that are read: more only make a number that is too large anyway, and Python refuses thousands."""

_GROUP = re.compile(r"^(?P<kind>[A-Za-z0-9_.\-]+):(?P<nodes>[0-9]+)x(?P<gpus>[0-9]+)$")


def parse_cluster(
    spec: str,
    *,
    nodes_per_rack: int = 16,
    prices: Mapping[str, float] | None = None,
    most_nodes: int | None = None,
) -> Topology:
    """Read ``TYPE:NODESxGPUS[,…]``; nodes are numbered within their kind and fill racks of ``nodes_per_rack``.

    Nodes are counted before any is made: more than ``most_nodes`` (``MOST_NODES`` by default) are refused.
    """
    left = most = MOST_NODES if most_nodes is None else most_nodes
    groups = []
    for group in spec.split(","):
        groups.append(_parse_group(spec, group))
        left -= groups[-1][1]
        if left < 0:
            raise InputError("cluster", spec, f"{group!r}: a cluster can have at most {most:,} nodes")
    nodes: list[Node] = []
    seen: Counter[str] = Counter()
    for kind, count, gpus in groups:
        first, racks = seen[kind], len(nodes)
        nodes += [Node(f"{kind}-{first + i}", kind, gpus, f"r{(racks + i) // nodes_per_rack}") for i in range(count)]
        seen[kind] += count
    return topology_of(nodes, prices or {})


def _parse_group(spec: str, group: str) -> tuple[str, int, int]:
    """Return the kind, the number of nodes and the GPUs per node of one group."""
    match = _GROUP.match(group.strip())
    if match is None:
        raise InputError("cluster", spec, f"{group!r} is not TYPE:NODESxGPUS, e.g. v100:9x4,p100:9x4")
    count, gpus = int(match["nodes"][:_MOST_DIGITS]), int(match["gpus"][:_MOST_DIGITS])
    if count < 1 or gpus < 1:
        raise InputError("cluster", spec, f"{group!r} has no GPUs; nodes and GPUs per node must be at least 1")
    if gpus > MOST_GPUS_PER_NODE:
        raise InputError("cluster", spec, f"{group!r}: a node can have at most {MOST_GPUS_PER_NODE} GPUs")
    return match["kind"], count, gpus


def topology_of(nodes: Sequence[Node], prices: Mapping[str, float]) -> Topology:
    """Return a topology of these nodes, with kinds in order of first appearance and prices by kind where given."""
    kinds = tuple(dict.fromkeys(node.kind for node in nodes))
    return Topology(tuple(nodes), tuple(AcceleratorType(kind, prices.get(kind)) for kind in kinds))
