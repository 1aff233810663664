"""Simulated faults, scripted or drawn at random from a seed."""

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.core.topology import Node, Topology
from shoal.core.units import Seconds


@dataclass(frozen=True, slots=True)
class NodeFault:
    """A node is lost ``at`` a time and returns after ``down_for`` seconds."""

    at: Seconds
    node: int
    down_for: Seconds


@dataclass(frozen=True, slots=True)
class JobFault:
    """A job, by admission number, crashes through its own fault if it runs at that time."""

    at: Seconds
    job: int


@dataclass(frozen=True, slots=True)
class Straggler:
    """A node, and every gang with a seat on it, runs at a fraction of its speed for ``lasts`` seconds."""

    at: Seconds
    node: int
    speed: float
    lasts: Seconds


@dataclass(frozen=True, slots=True)
class NodeJoin:
    """A node joins the cluster ``at`` a time."""

    at: Seconds
    node: Node


@dataclass(frozen=True, slots=True)
class Faults:
    """Scripted faults and nodes that join, and mean seconds between random ones (None for never).

    A crash sets a job back to its last checkpoint; there is one every ``checkpoint_every`` seconds of a run. Gangs over
    several nodes run at ``interference_speed``, a fraction of their speed, while they share a node.
    """

    script: Sequence[NodeFault | JobFault | Straggler | NodeJoin] = ()
    node_mtbf: Seconds | None = None
    node_repair: Seconds = 1800.0
    gpu_mtbf: Seconds | None = None
    straggler_mtbf: Seconds | None = None
    straggler_speed: float = 0.5
    straggler_lasts: Seconds = 3600.0
    checkpoint_every: Seconds = 1800.0
    interference_speed: float = 1.0

    @property
    def joins(self) -> list[NodeJoin]:
        """The nodes that join, in the order in which they do."""
        return sorted((entry for entry in self.script if isinstance(entry, NodeJoin)), key=lambda join: join.at)

    def grown(self, cluster: Topology) -> Topology:
        """Return the cluster with all nodes that ever join it."""
        return Topology((*cluster.nodes, *(join.node for join in self.joins)), cluster.types)


NO_FAULTS = Faults()
