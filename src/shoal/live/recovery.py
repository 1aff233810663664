"""The runs that a journal leaves unfinished at its end: what the live backend resumes after a restart."""

from dataclasses import dataclass, field

from shoal.core.commands import Decided, Resize, Start, Stop
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
from shoal.store.codec import Record


@dataclass(slots=True)
class PastJob:
    """A job at the end of the journal; ``command`` is the one that gave it the seats it still holds, if any."""

    spec: JobSpec
    launch: Launch
    saved: float = 0.0
    crashes: Crashes = NO_CRASHES
    incarnation: int = 0
    over: bool = False
    command: Start | Resize | None = None
    started: bool = False
    stopping: bool = False
    batch_size: int | None = None
    measured: tuple[float, Placement] | None = None
    """The last measured rate, and the placement it was measured on."""


@dataclass(slots=True)
class RecoveredRuns:
    """A fold over a journal: all jobs in order of admission, release times of held jobs, and which nodes were up."""

    jobs: list[PastJob] = field(default_factory=list)
    releases: dict[JobNumber, Seconds] = field(default_factory=dict)
    up: dict[int, bool] = field(default_factory=dict)

    def fold(self, record: Record) -> None:
        """Fold one record."""
        if isinstance(record, EventBatch):
            for event in record.events:
                self._fold_event(event)
        elif isinstance(record, Decided):
            for command in record.commands:
                self._fold_command(command)

    def _fold_event(self, event: Event) -> None:
        if isinstance(event, JobSubmitted):
            if event.launch is None:
                raise JournalError(f"job {event.spec.id!r} has nothing to execute: this is a simulation's journal")
            self.jobs.append(PastJob(event.spec, event.launch, batch_size=event.spec.batch_size))
        elif isinstance(event, NodeLost | NodeReturned):
            self.up[event.node] = isinstance(event, NodeReturned)
        elif isinstance(event, JobReleased | JobCancelled):
            self.releases.pop(event.job, None)
            if isinstance(event, JobCancelled):
                self.jobs[event.job].over, self.jobs[event.job].command = True, None
        elif isinstance(event, JobStarted):
            self.jobs[event.job].started |= event.incarnation == self.jobs[event.job].incarnation
        elif isinstance(event, JobMeasured | JobProfiled | BatchChanged):
            self._measured(self.jobs[event.job], event)
        elif isinstance(event, JobStopped | JobCompleted | JobCrashed):
            self._ended(self.jobs[event.job], event)

    def _measured(self, job: PastJob, event: JobMeasured | JobProfiled | BatchChanged) -> None:
        if isinstance(event, BatchChanged):
            job.batch_size = event.batch_size
        if job.command is not None and event.incarnation == job.incarnation:
            job.measured = event.rate, job.command.placement

    def _ended(self, job: PastJob, event: JobStopped | JobCompleted | JobCrashed) -> None:
        if event.incarnation != job.incarnation or job.command is None:
            return
        job.saved, job.command = event.done, None
        job.over = isinstance(event, JobCompleted)
        if isinstance(event, JobCrashed):
            job.crashes, job.over, _ = job.crashes.after(event.done, blamed=event.blamed)
            if event.retry_in and not job.over:
                self.releases[event.job] = event.at + event.retry_in

    def _fold_command(self, command: Start | Stop | Resize) -> None:
        job = self.jobs[command.job]
        if isinstance(command, Stop):
            job.stopping = True
        else:
            job.command, job.incarnation = command, command.incarnation
            job.started = job.stopping = False
