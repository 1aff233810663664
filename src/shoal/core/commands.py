"""What the ring orders, in the imperative. Each names a job and the incarnation it is meant for."""

from dataclasses import dataclass
from typing import TypeAlias

from shoal.core.job import BatchSetting
from shoal.core.topology import Placement
from shoal.core.units import JobNumber


@dataclass(frozen=True, slots=True)
class Start:
    """Start the gang on these seats as this incarnation; ``partner`` is the job it shares them with."""

    job: JobNumber
    incarnation: int
    placement: Placement
    batch: BatchSetting | None = None
    partner: JobNumber | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Save progress and end this incarnation."""

    job: JobNumber
    incarnation: int


@dataclass(frozen=True, slots=True)
class Resize:
    """Go on as this next incarnation on other seats: more, fewer or elsewhere."""

    job: JobNumber
    incarnation: int
    placement: Placement
    batch: BatchSetting | None = None
    partner: JobNumber | None = None


Command: TypeAlias = Start | Stop | Resize
