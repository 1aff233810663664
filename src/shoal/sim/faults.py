"""What goes wrong, by script or by seeded chance."""

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.core.units import Seconds


@dataclass(frozen=True, slots=True)
class NodeFault:
    """A node is lost at a time and back after a while."""

    at: Seconds
    node: int
    down_for: Seconds


@dataclass(frozen=True, slots=True)
class JobFault:
    """A job, if it runs then, crashes through its own fault."""

    at: Seconds
    job: int


@dataclass(frozen=True, slots=True)
class Straggler:
    """A node runs at a fraction of its speed for a while, and with it every gang that has a seat there."""

    at: Seconds
    node: int
    speed: float
    lasts: Seconds


@dataclass(frozen=True, slots=True)
class Faults:
    """Scripted faults, and mean times between random ones (None for never).

    A crash sets the job back to its last checkpoint, taken every ``checkpoint_every`` seconds of a run. Gangs over
    several nodes that share one of them run at ``interference_speed`` while they do.
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
