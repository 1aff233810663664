"""What a journal says was going on when it ended: the half of recovery that concerns machines, a fold of its own."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from shoal.core.commands import Resize, Start, Stop
from shoal.core.errors import JournalError
from shoal.core.events import (
    BatchChanged,
    Event,
    EventBatch,
    JobCancelled,
    JobCompleted,
    JobCrashed,
    JobMeasured,
    JobProfiled,
    JobReleased,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeLost,
    NodeReturned,
)
from shoal.core.job import JobSpec, Launch
from shoal.core.retry import NO_CRASHES, Crashes
from shoal.core.topology import Placement
from shoal.core.units import JobNumber, Seconds
from shoal.store.codec import Decided, Record


@dataclass(slots=True)
class PastJob:
    """A job as the journal leaves it; ``order`` is the last command that gave it seats it has not left since."""

    spec: JobSpec
    launch: Launch
    saved: float = 0.0
    crashes: Crashes = NO_CRASHES
    incarnation: int = 0
    over: bool = False
    order: Start | Resize | None = None
    started: bool = False
    stopping: bool = False
    batch_size: int | None = None
    measured: tuple[float, Placement] | None = None
    """Its speed where that was last measured."""


@dataclass(slots=True)
class RecoveredRuns:
    """All jobs in order of admission, when held ones are to be tried again, and which nodes were up."""

    jobs: list[PastJob] = field(default_factory=list)
    releases: dict[JobNumber, Seconds] = field(default_factory=dict)
    up: dict[int, bool] = field(default_factory=dict)

    def take(self, record: Record) -> None:
        """Fold one record."""
        if isinstance(record, EventBatch):
            for event in record.events:
                self.hear(event)
        elif isinstance(record, Decided):
            for command in record.commands:
                self.assume(command)

    def hear(self, event: Event) -> None:
        """Fold one event."""
        if isinstance(event, JobSubmitted):
            if event.launch is None:
                raise JournalError(f"job {event.spec.id!r} has nothing to execute: this is a simulation's journal")
            self.jobs.append(PastJob(event.spec, event.launch, batch_size=event.spec.batch_size))
        elif isinstance(event, NodeLost | NodeReturned):
            self.up[event.node] = isinstance(event, NodeReturned)
        elif isinstance(event, JobReleased):
            self.releases.pop(event.job, None)
        elif isinstance(event, JobCancelled):
            self.releases.pop(event.job, None)
            self.jobs[event.job].over = True
            self.jobs[event.job].order = None
        elif isinstance(event, JobStarted):
            job = self.jobs[event.job]
            job.started = job.started or event.incarnation == job.incarnation
        elif isinstance(event, JobMeasured | JobProfiled | BatchChanged):
            self._measured(event)
        elif isinstance(event, JobStopped | JobCompleted | JobCrashed):
            self._end(event)

    def _measured(self, event: JobMeasured | JobProfiled | BatchChanged) -> None:
        job = self.jobs[event.job]
        if isinstance(event, BatchChanged):
            job.batch_size = event.batch_size
        if job.order is not None and event.incarnation == job.incarnation:
            job.measured = event.rate, job.order.placement

    def _end(self, event: JobStopped | JobCompleted | JobCrashed) -> None:
        job = self.jobs[event.job]
        if event.incarnation != job.incarnation or job.order is None:
            return
        job.saved, job.order = event.done, None
        job.over = isinstance(event, JobCompleted)
        if isinstance(event, JobCrashed):
            job.crashes, job.over, _ = job.crashes.after(event.done, blamed=event.blamed)
            if event.retry_in and not job.over:
                self.releases[event.job] = event.at + event.retry_in

    def assume(self, command: Start | Stop | Resize) -> None:
        """Fold one command."""
        job = self.jobs[command.job]
        if isinstance(command, Stop):
            job.stopping = True
        else:
            job.order, job.incarnation = command, command.incarnation
            job.started = job.stopping = False


def recover_runs(records: Iterable[Record]) -> RecoveredRuns:
    """What these records say was going on at their end."""
    recalled = RecoveredRuns()
    for record in records:
        recalled.take(record)
    return recalled
