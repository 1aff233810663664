"""What the ring hears: things that happened, in the past tense.

``job`` is the admission number; an event about an incarnation that is no longer the current one is ignored.
``done`` is the job's progress then, in the unit of its declared work; ``rate`` is progress per second.
An event is *urgent* when somebody may deserve another decision because of it; quiet ones ride along with the next.
"""

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from shoal.core.arrays import UInt8s
from shoal.core.bids import Rows
from shoal.core.decision import ReasonCode
from shoal.core.goodput import GoodputReport
from shoal.core.job import JobSpec, Launch
from shoal.core.units import JobNumber, Seconds


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A person submitted a job; its admission number is the count of those submitted before.

    ``launch`` says what to execute; a simulated job executes nothing.
    """

    at: Seconds
    spec: JobSpec
    launch: Launch | None = None
    urgent: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class JobStarted:
    """Every rank is up and training from ``done``, at the measured ``rate``."""

    at: Seconds
    job: JobNumber
    incarnation: int
    rate: float
    done: float
    urgent: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class JobMeasured:
    """The job's speed was measured anew and differs from what was known."""

    at: Seconds
    job: JobNumber
    incarnation: int
    rate: float
    done: float
    urgent: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class BatchChanged:
    """The job's owner, by script or by hand, changed its batch size; its speed changed with it."""

    at: Seconds
    job: JobNumber
    incarnation: int
    rate: float
    done: float
    batch_size: int
    urgent: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class JobProfiled:
    """The job's agent, which chooses its batch size, knows more of the job's goodput than before: this is all of it.

    It is urgent where a policy may do more with the job than it could before, as when the job has trained on more GPUs
    than ever.
    """

    at: Seconds
    job: JobNumber
    incarnation: int
    rate: float
    done: float
    report: GoodputReport
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class JobStopped:
    """Every rank has ended as it was told to; progress up to ``done`` is saved."""

    at: Seconds
    job: JobNumber
    incarnation: int
    done: float
    urgent: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class JobCompleted:
    """The job did all its work."""

    at: Seconds
    job: JobNumber
    incarnation: int
    done: float
    urgent: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class JobCrashed:
    """The gang died; it can resume from ``done``. ``blamed`` is false when a node took it down.

    With ``retry_in`` above 0 it is held back, and offered to no policy, until ``JobReleased``.
    """

    at: Seconds
    job: JobNumber
    incarnation: int
    done: float
    blamed: bool
    cause: str
    retry_in: Seconds = 0.0
    urgent: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class JobReleased:
    """A job that was held back after a crash may be tried again."""

    at: Seconds
    job: JobNumber
    urgent: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class JobReshaped:
    """A person asked for another gang for the job; it moves when a policy next seats it."""

    at: Seconds
    job: JobNumber
    gpus: int
    min_gpus: int
    max_gpus: int
    urgent: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """A person withdrew the job."""

    at: Seconds
    job: JobNumber
    urgent: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class AppBid:
    """An app said what GPUs are worth to it, for the jobs it had then: it counts until its jobs are others.

    Nobody deserves another decision for it: it is for the next auction.
    """

    at: Seconds
    app: str
    jobs: tuple[JobNumber, ...]
    rows: Rows
    urgent: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node stopped answering; the jobs on it are reported crashed by events of their own."""

    at: Seconds
    node: int
    urgent: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class NodeReturned:
    """A lost node is back, empty."""

    at: Seconds
    node: int
    urgent: ClassVar[bool] = True


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
    | JobReleased
    | JobReshaped
    | JobProfiled
    | AppBid
)

RunEvent: TypeAlias = JobStarted | JobMeasured | BatchChanged | JobProfiled | JobStopped | JobCompleted | JobCrashed
"""Events about one incarnation of a job."""


@dataclass(frozen=True, slots=True)
class EventBatch:
    """What one wait brought: the time it ended, what happened until then in order, and whether nothing more can.

    ``over`` is said by a backend whose world has come to rest; a live cluster never says it.
    """

    now: Seconds
    events: tuple[Event, ...]
    over: bool = False

    def calls_for_decision(self, review_at: Seconds, told: UInt8s) -> bool:
        """Whether anybody may deserve another decision now; if not, this is only recorded and folded.

        ``told`` are the codes of the last verdicts: the end of a run matters where somebody was kept waiting for it.
        """
        if self.now >= review_at or any(event.urgent for event in self.events):
            return True
        stopped = any(type(event) is JobStopped for event in self.events)
        return stopped and bool((told == ReasonCode.STOPPING).any())
