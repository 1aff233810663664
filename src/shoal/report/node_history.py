"""The nodes of a cluster over a journal: those of its headers, those that joined, and when they were away."""

from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from shoal.core.arrays import Floats, Int64s
from shoal.core.errors import JournalError
from shoal.core.topology import Node, Topology, parse_cluster, topology_of
from shoal.core.units import Seconds


@dataclass(frozen=True, slots=True)
class Seats:
    """GPUs of one node in a hold: the number of the hold, the node and the GPUs."""

    hold: Int64s
    node: Int64s
    gpus: Int64s


@dataclass(slots=True)
class NodeHistory:
    """The cluster with every node it ever had, folded from raw records."""

    topology: Topology = field(default_factory=lambda: Topology(()))
    _away: list[tuple[Seconds, Seconds, int]] = field(default_factory=list)
    _removed: dict[int, Seconds] = field(default_factory=dict)

    def header(self, settings: dict[str, Any]) -> None:
        """Set the cluster to the nodes that a journal's header lists; a later header may list more."""
        prices = settings.get("prices") or {}
        nodes = settings.get("cluster_nodes")
        if nodes is not None:
            self.topology = topology_of([Node(*node) for node in nodes], prices)
        elif isinstance(settings.get("cluster"), str):
            self.topology = parse_cluster(settings["cluster"], prices=prices)
        else:
            raise JournalError("the journal's header does not say which nodes the cluster had (cluster_nodes)")

    def joined(self, event: list[Any]) -> None:
        """Add a node, or note that one that was removed is there again."""
        _, at, index, *node = event
        if index in self._removed:
            self._away.append((self._removed.pop(index), at, node[2]))
        elif index == len(self.topology.nodes):
            self.topology = Topology((*self.topology.nodes, Node(*node)), self.topology.types)
            self._away.append((-inf, at, node[2]))

    def removed(self, event: list[Any]) -> None:
        """Note that a node has left for good."""
        self._removed[event[2]] = event[1]

    def gpu_seconds(self, begin: Seconds, end: Seconds) -> float:
        """Return the GPU-seconds that were installed from ``begin`` to ``end``."""
        gone = [(at, inf, self.topology.nodes[index].gpus) for index, at in self._removed.items()]
        since, until, gpus = self._columns([*self._away, *gone])
        away = np.maximum(np.minimum(until, end) - np.maximum(since, begin), 0.0) @ gpus
        return sum(self.topology.installed) * (end - begin) - float(away)

    @staticmethod
    def _columns(rows: list[tuple[Seconds, Seconds, int]]) -> Floats:
        return np.array(rows, dtype=np.float64).reshape(-1, 3).T
