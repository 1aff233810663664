"""Simulated faults, scripted or drawn at random from a seed."""

from collections.abc import Sequence
from dataclasses import dataclass

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
class Faults:
    """Scripted faults, and mean seconds between random ones (None for never).

    A crash sets a job back to its last checkpoint; there is one every ``checkpoint_every`` seconds of a run. Gangs over
    several nodes run at ``interference_speed``, a fraction of their speed, while they share a node.
    """

    script: Sequence[NodeFault | JobFault | Straggler] = ()
    node_mtbf: Seconds | None = None
    node_repair: Seconds = 1800.0
    gpu_mtbf: Seconds | None = None
    straggler_mtbf: Seconds | None = None
    straggler_speed: float = 0.5
    straggler_lasts: Seconds = 3600.0
    checkpoint_every: Seconds = 1800.0
    interference_speed: float = 1.0


NO_FAULTS = Faults()
