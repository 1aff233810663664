"""Events from the backend to the ring: what happened, in the past tense.

``job`` is the admission number; an event about an incarnation that is no longer the current one is ignored.
``done`` is the job's progress at ``at``, in the unit of its declared work; ``rate`` is progress per second.
An *urgent* event calls for a decision at once; the others are seen by the next decision.
"""

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from shoal.core.arrays import UInt8s
from shoal.core.bids import Rows
from shoal.core.goodput import GoodputReport
from shoal.core.job import JobSpec, Launch
from shoal.core.node_events import NodeJoined as NodeJoined  # noqa: PLC0414
from shoal.core.node_events import NodeRemoved as NodeRemoved  # noqa: PLC0414
from shoal.core.quota import Quota
from shoal.core.reasons import HELD_UNSAVED, STOPPING
from shoal.core.suspension_events import JobResumed as JobResumed  # noqa: PLC0414
from shoal.core.suspension_events import JobSuspended as JobSuspended  # noqa: PLC0414
from shoal.core.suspension_events import SuspensionReported as SuspensionReported  # noqa: PLC0414
from shoal.core.units import JobNumber, Seconds, TenantId
from shoal.core.value import Value


class JobSubmitted(Value, frozen=True):
    """A job was submitted; its admission number is the number of jobs submitted before it.

    ``launch`` says what to execute; None for a simulated job.
    """

    at: Seconds
    spec: JobSpec
    launch: Launch | None = None
    urgent: ClassVar[bool] = True


class JobStarted(Value, frozen=True):
    """Every rank is up, and the job trains from ``done`` on at the measured ``rate``."""

    at: Seconds
    job: JobNumber
    incarnation: int
    rate: float
    done: float
    urgent: ClassVar[bool] = False


class JobMeasured(Value, frozen=True):
    """The job's speed was measured again and differs from the last measurement."""

    at: Seconds
    job: JobNumber
    incarnation: int
    rate: float
    done: float
    urgent: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class BatchChanged:
    """The job's own script changed its batch size, and with it its speed."""

    at: Seconds
    job: JobNumber
    incarnation: int
    rate: float
    done: float
    batch_size: int
    urgent: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class JobProfiled:
    """The agent that chooses the job's batch size has a new goodput report, which replaces the one before.

    The event is urgent if the job has trained on more GPUs than ever, since a policy may then grant it more.
    """

    at: Seconds
    job: JobNumber
    incarnation: int
    rate: float
    done: float
    report: GoodputReport
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class JobSaved:
    """The job saved its progress up to ``done``, ``age`` seconds ago; a run that ends now resumes from there.

    With ``when_warned`` the job saves whenever it is stopped, so that a stop loses nothing.
    """

    at: Seconds
    job: JobNumber
    incarnation: int
    done: float
    age: Seconds = 0.0
    when_warned: bool = False
    urgent: ClassVar[bool] = False


class JobStopped(Value, frozen=True):
    """Every rank ended after a ``Stop``; progress up to ``done`` is saved, and ``lost`` beyond it was not."""

    at: Seconds
    job: JobNumber
    incarnation: int
    done: float
    lost: float = 0.0
    urgent: ClassVar[bool] = False


class JobCompleted(Value, frozen=True):
    """The job has done all its work."""

    at: Seconds
    job: JobNumber
    incarnation: int
    done: float
    urgent: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class JobCrashed:
    """The gang died; it can resume from ``done``. ``blamed`` is false if the job is not at fault, as when a node died.

    With ``retry_in`` above 0 the job is held back, and no policy sees it, until ``JobReleased``. ``ran``: seconds for
    which its ranks were up; None in journals of older versions. ``failed_on``: index of a node that could not start
    its ranks, which the job's next placements avoid. ``failed``: whether this was its last try (see `core.retry`); None
    in journals of older versions. ``status``: exit status of the rank that failed first, negative for a signal, if one.
    """

    at: Seconds
    job: JobNumber
    incarnation: int
    done: float
    blamed: bool
    cause: str
    retry_in: Seconds = 0.0
    ran: Seconds | None = None
    failed_on: int | None = None
    failed: bool | None = None
    status: int | None = None
    urgent: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class JobReleased:
    """A job that was held back may start: its conditions hold, and its back-off after a crash and any hold are over."""

    at: Seconds
    job: JobNumber
    urgent: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class JobReshaped:
    """The job's owner changed the gang it asks for; it moves when a policy next grants it GPUs."""

    at: Seconds
    job: JobNumber
    gpus: int
    min_gpus: int
    max_gpus: int
    urgent: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """The job has no process left and its GPUs are free. It was cancelled or, with ``failed``, reached its time limit.

    ``cause`` is set where no person cancelled it: a job that it was to follow did not end as required.
    """

    at: Seconds
    job: JobNumber
    cause: str = ""
    failed: bool = False
    urgent: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class AppBid:
    """An app declared its valuation of GPUs for the next auction; the valuation holds until the app's jobs change."""

    at: Seconds
    app: str
    jobs: tuple[JobNumber, ...]
    rows: Rows
    urgent: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node stopped answering; each job on it has a ``JobCrashed`` of its own."""

    at: Seconds
    node: int
    urgent: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class NodeReturned:
    """A lost node is back, empty."""

    at: Seconds
    node: int
    place: str = ""
    """Where its agent runs; an agent elsewhere may take the node's name only after the lease of this agent."""
    urgent: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class NodeDrained:
    """A node gets no new runs until ``NodeResumed``, for this reason; runs that are there continue."""

    at: Seconds
    node: int
    reason: str
    by: str = ""
    """The operator who drained it; empty if the backend did, which then probes it."""
    urgent: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class NodeResumed:
    """A drained node gets runs again: without limit or, as a ``probe``, one start, after which it is drained again."""

    at: Seconds
    node: int
    probe: bool = False
    urgent: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class JobSetAside:
    """The policy failed because of this job, so it decides without the job until ``retry_at`` or another policy.

    ``reason`` is the policy's fault. Recorded by the control plane between a batch of events and the decision on it.
    """

    at: Seconds
    job: JobNumber
    reason: str
    retry_at: Seconds
    urgent: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class QuotaSet:
    """An operator set a tenant's quota, in place of the one before."""

    at: Seconds
    tenant: TenantId
    quota: Quota
    urgent: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class PolicyOverran:
    """The policy took too long and no single job was found to be the cause: the next decision keeps every placement.

    Recorded by the control plane between a batch of events and the decision on it.
    """

    at: Seconds
    reason: str
    urgent: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """A job that runs was cancelled. It holds its GPUs, and no policy sees it, until ``JobCancelled``.

    ``ends_by`` is when its grace has passed.
    """

    at: Seconds
    job: JobNumber
    ends_by: Seconds
    urgent: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class JobHeld:
    """The job was held by a person: a waiting one does not start, a running one is not started again once it stops."""

    at: Seconds
    job: JobNumber
    by: str
    admin: bool = False
    """Whether only an administrator may release it."""
    urgent: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class HoldLifted:
    """A person released a held job; ``JobReleased`` follows as soon as it need not wait for anything else."""

    at: Seconds
    job: JobNumber
    by: str
    urgent: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class JobRequeued:
    """The job's owner had this run stopped; the job waits again once ``JobStopped`` reports that it has ended."""

    at: Seconds
    job: JobNumber
    incarnation: int
    by: str
    urgent: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class TimeLimitReached:
    """A run of the job lasted as long as its time limit, in seconds.

    The job holds its GPUs, and no policy sees it, until ``JobCancelled`` reports that it has failed and its run has
    ended; ``ends_by`` is when its grace has passed.
    """

    at: Seconds
    job: JobNumber
    limit: Seconds
    ends_by: Seconds
    urgent: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class PriorityChanged:
    """The job's owner or an operator changed its priority."""

    at: Seconds
    job: JobNumber
    priority: int
    by: str
    urgent: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class RunsImported:
    """Runs of an earlier history were read from a file: they count as older than those that ended here.

    ``keys`` are as in ``perf.length_history.LengthImage``; a ``source`` that was imported before is ignored.
    """

    at: Seconds
    source: str
    keys: tuple[tuple[tuple[str, ...], int, bytes], ...]
    urgent: ClassVar[bool] = False


# The order of the union is that of the journal's tags: add new events at its end.
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
    | NodeDrained
    | NodeResumed
    | JobSetAside
    | QuotaSet
    | PolicyOverran
    | CancelRequested
    | JobSaved
    | JobHeld
    | HoldLifted
    | JobRequeued
    | TimeLimitReached
    | PriorityChanged
    | JobSuspended
    | JobResumed
    | SuspensionReported
    | NodeJoined
    | NodeRemoved
    | RunsImported
)

RunEvent: TypeAlias = (
    JobStarted
    | JobMeasured
    | BatchChanged
    | JobProfiled
    | JobSaved
    | JobStopped
    | JobCompleted
    | JobCrashed
    | JobRequeued
    | JobSuspended
    | JobResumed
)
"""Events about one incarnation of a job."""


class EventBatch(Value, frozen=True):
    """The events of one ``Backend.wait``, in order, up to ``now``; ``over`` if nothing more can happen."""

    now: Seconds
    events: tuple[Event, ...]
    over: bool = False

    @property
    def of_a_decision(self) -> bool:
        """Whether these are events that the control plane recorded while it decided, after the batch it decides on."""
        return bool(self.events) and all(isinstance(event, JobSetAside | PolicyOverran) for event in self.events)

    def calls_for_decision(self, review_at: Seconds, verdict_codes: UInt8s) -> bool:
        """Return whether a decision is due; if not, the batch is only recorded and folded.

        A decision is due at ``review_at`` and after an urgent event. It is also due if a stopped run has ended or a job
        has saved its work, and another job waits for that; ``verdict_codes``, the reason codes of the last decision,
        show whether one does.
        """
        if self.now >= review_at:
            return True
        for event in self.events:
            if event.urgent:
                return True
        awaited = [_AWAITED[type(event)] for event in self.events if type(event) in _AWAITED]
        return any(bool((verdict_codes == template.code).any()) for template in awaited)


_AWAITED = {JobStopped: STOPPING, JobSaved: HELD_UNSAVED}
"""By type of event that is not urgent, the reason of the jobs that wait for one."""
