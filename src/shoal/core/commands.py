"""Commands from the ring to the backend. Each names a job by admission number and the incarnation it is meant for."""

from typing import TypeAlias

from shoal.core.job import BatchSetting
from shoal.core.topology import Placement
from shoal.core.units import JobNumber, Seconds
from shoal.core.value import Value


class Start(Value, frozen=True):
    """Start the gang on these seats as this incarnation; ``partner`` is a job that shares the seats."""

    job: JobNumber
    incarnation: int
    placement: Placement
    batch: BatchSetting | None = None
    partner: JobNumber | None = None


class Stop(Value, frozen=True):
    """Save progress and end this incarnation."""

    job: JobNumber
    incarnation: int


class Resize(Value, frozen=True):
    """Continue on other seats (more, fewer or elsewhere) as this next incarnation."""

    job: JobNumber
    incarnation: int
    placement: Placement
    batch: BatchSetting | None = None
    partner: JobNumber | None = None


class Suspend(Value, frozen=True):
    """Freeze the processes of this incarnation in place and take them off their GPUs; they lose nothing."""

    job: JobNumber
    incarnation: int


class Resume(Value, frozen=True):
    """Continue a suspended incarnation, on the seats from which it was suspended."""

    job: JobNumber
    incarnation: int
    placement: Placement


Command: TypeAlias = Start | Stop | Resize | Suspend | Resume


class Decided(Value, frozen=True):
    """The record that ends a cycle: a digest of the verdicts, the time of the next review, and the commands given."""

    digest: int
    review_at: Seconds
    commands: tuple[Command, ...]
