"""What the ring hears: things that happened, in the past tense.

``job`` is the admission number; an event about an incarnation that is no longer the current one is ignored.
``done`` is the job's progress then, in the unit of its declared work; ``rate`` is progress per second.
An event is *loud* when somebody may deserve another decision because of it; quiet ones ride along with the next.
"""

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from shoal.core.job import JobSpec
from shoal.core.units import JobNumber, Seconds


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A person submitted a job; its admission number is the count of those submitted before."""

    at: Seconds
    spec: JobSpec
    loud: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class JobStarted:
    """Every rank is up and training from ``done``, at the measured ``rate``."""

    at: Seconds
    job: JobNumber
    incarnation: int
    rate: float
    done: float
    loud: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class JobMeasured:
    """The job's speed was measured anew and differs from what was known."""

    at: Seconds
    job: JobNumber
    incarnation: int
    rate: float
    done: float
    loud: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class BatchChanged:
    """The job's owner, by script or by hand, changed its batch size; its speed changed with it."""

    at: Seconds
    job: JobNumber
    incarnation: int
    rate: float
    done: float
    batch_size: int
    loud: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class JobStopped:
    """Every rank has ended as it was told to; progress up to ``done`` is saved."""

    at: Seconds
    job: JobNumber
    incarnation: int
    done: float
    loud: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class JobCompleted:
    """The job did all its work."""

    at: Seconds
    job: JobNumber
    incarnation: int
    done: float
    loud: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class JobCrashed:
    """The gang died; it can resume from ``done``. ``blamed`` is false when a node took it down."""

    at: Seconds
    job: JobNumber
    incarnation: int
    done: float
    blamed: bool
    cause: str
    loud: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """A person withdrew the job."""

    at: Seconds
    job: JobNumber
    loud: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node stopped answering; the jobs on it are reported crashed by events of their own."""

    at: Seconds
    node: int
    loud: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class NodeReturned:
    """A lost node is back, empty."""

    at: Seconds
    node: int
    loud: ClassVar[bool] = True


Event: TypeAlias = (
    JobSubmitted
    | JobStarted
    | JobMeasured
    | BatchChanged
    | JobStopped
    | JobCompleted
    | JobCrashed
    | JobCancelled
    | NodeLost
    | NodeReturned
)


@dataclass(frozen=True, slots=True)
class Heard:
    """What one wait brought: the time it ended, what happened until then in order, and whether nothing more can.

    ``over`` is said by a backend whose world has come to rest; a live cluster never says it.
    """

    now: Seconds
    events: tuple[Event, ...]
    over: bool = False
