"""Commands from the ring to the backend. Each names a job by admission number and the incarnation it is meant for."""

from dataclasses import dataclass
from typing import TypeAlias

from shoal.core.job import BatchSetting
from shoal.core.topology import Placement
from shoal.core.units import JobNumber, Seconds


@dataclass(frozen=True, slots=True)
class Start:
    """Start the gang on these seats as this incarnation; ``partner`` is a job that shares the seats."""

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
    """Continue on other seats (more, fewer or elsewhere) as this next incarnation."""

    job: JobNumber
    incarnation: int
    placement: Placement
    batch: BatchSetting | None = None
    partner: JobNumber | None = None


@dataclass(frozen=True, slots=True)
class Suspend:
    """Freeze the processes of this incarnation in place and take them off their GPUs; they lose nothing."""

    job: JobNumber
    incarnation: int


@dataclass(frozen=True, slots=True)
class Resume:
    """Continue a suspended incarnation, on the seats from which it was suspended."""

    job: JobNumber
    incarnation: int
    placement: Placement


Command: TypeAlias = Start | Stop | Resize | Suspend | Resume


@dataclass(frozen=True, slots=True)
class Decided:
    """The record that ends a cycle: a digest of the verdicts, the time of the next review, and the commands given."""

    digest: int
    review_at: Seconds
    commands: tuple[Command, ...]
