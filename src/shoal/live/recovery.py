"""The jobs and runs unfinished at a journal's end, which the live backend resumes after a restart."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from shoal.core import events
from shoal.core.commands import Command, Decided, Resize, Resume, Start, Stop, Suspend
from shoal.core.job import Launch
from shoal.core.units import JobNumber, Seconds
from shoal.live.live_job import LiveJob, next_turn
from shoal.live.node_health import note_start
from shoal.store.codec import Record

NO_LAUNCH = Launch("job", ())
"""The launch of a job of a simulation's journal."""


@dataclass(slots=True)
class UnfinishedRun:
    """An unfinished run: the command that gave it its seats, whether its ranks were up, and whether it was stopping."""

    command: Start | Resize
    started: bool = False
    stopping: bool = False
    turn: int = 0
    """Number of its last order to suspend it (odd) or to resume it (even)."""
    turned: int = 0
    """The last of them whose result is in the journal."""
    limit_left: Seconds | None = None
    """Of a suspended run with a time limit: the seconds of it that are left."""


@dataclass(slots=True)
class RecoveredRuns:
    """A fold over a journal: live jobs, unfinished runs, held jobs, which nodes were up, and the number of jobs."""

    submitted: int = 0
    jobs: dict[JobNumber, LiveJob] = field(default_factory=dict)
    runs: dict[JobNumber, UnfinishedRun] = field(default_factory=dict)
    releases: dict[JobNumber, Seconds] = field(default_factory=dict)
    """When held jobs may be tried again, and the earliest start of jobs that have one."""
    limits: dict[JobNumber, Seconds] = field(default_factory=dict)
    """When running jobs reach their time limit."""
    up: dict[int, bool] = field(default_factory=dict)
    places: dict[int, str] = field(default_factory=dict)
    """By node, where its last agent ran."""
    drained: dict[int, events.NodeDrained] = field(default_factory=dict)
    """By node, the event that drained it."""
    failures: dict[int, set[JobNumber]] = field(default_factory=dict)
    """By node, the jobs that could not start there and started elsewhere, since the last start there."""
    causes: dict[int, str] = field(default_factory=dict)
    """By node, why the last start that failed there did."""

    def fold(self, record: Record) -> None:
        """Fold one record."""
        if isinstance(record, events.EventBatch):
            self.apply_events(record.events)
        elif isinstance(record, Decided):
            self.apply_commands(record.commands)

    def apply_events(self, new: Iterable[events.Event]) -> None:
        """Fold events."""
        for event in new:
            self._apply_event(event)

    def apply_commands(self, commands: Iterable[Command]) -> None:
        """Fold commands."""
        for command in commands:
            self._apply_command(command)

    def _apply_event(self, event: events.Event) -> None:
        match event:
            case events.JobSubmitted():
                self._submitted(event)
            case events.NodeLost() | events.NodeReturned() | events.NodeRemoved():
                self._lost_or_returned(event)
            case events.NodeDrained() | events.NodeResumed():
                self._drained_or_resumed(event)
            case events.JobReleased() | events.JobHeld() | events.HoldLifted():
                self._held_or_released(event)
            case events.CancelRequested() | events.TimeLimitReached():
                self._cancel_requested(event)
            case events.JobCancelled():
                self._forget(event.job)
            case (
                events.JobReshaped()
                | events.AppBid()
                | events.JobSetAside()
                | events.PolicyOverran()
                | events.QuotaSet()
                | events.PriorityChanged()
                | events.SuspensionReported()
                | events.NodeJoined()
                | events.RunsImported()
            ):
                pass
            case _:
                if event.job in self.jobs:
                    self._apply_run_event(self.jobs[event.job], event)

    def _submitted(self, event: events.JobSubmitted) -> None:
        spec = event.spec
        job = self.jobs[self.submitted] = LiveJob(spec, event.launch or NO_LAUNCH, batch_size=spec.batch_size)
        if spec.conditions is not None:
            job.on_hold = spec.conditions.hold
            if spec.conditions.begin is not None:
                self.releases[self.submitted] = spec.conditions.begin
        self.submitted += 1

    def _held_or_released(self, event: events.JobReleased | events.JobHeld | events.HoldLifted) -> None:
        if isinstance(event, events.JobReleased):
            self.releases.pop(event.job, None)
        if (job := self.jobs.get(event.job)) is None:
            return
        if isinstance(event, events.JobReleased):
            job.released = True
        else:
            job.on_hold = isinstance(event, events.JobHeld)

    def _forget(self, job: JobNumber) -> None:
        """Drop a job that has ended."""
        for table in (self.releases, self.limits, self.runs, self.jobs):
            table.pop(job, None)

    def _cancel_requested(self, event: events.CancelRequested | events.TimeLimitReached) -> None:
        number = event.job
        self.releases.pop(number, None)
        self.limits.pop(number, None)
        if number in self.jobs:
            job = self.jobs[number]
            job.over = job.cancelling = True
            job.timed_out |= isinstance(event, events.TimeLimitReached)
        if number in self.runs:
            self.runs[number].stopping = True

    def _lost_or_returned(self, event: events.NodeLost | events.NodeReturned | events.NodeRemoved) -> None:
        if isinstance(event, events.NodeRemoved):  # one that joins again is another machine
            for table in (self.up, self.places, self.drained, self.failures, self.causes):
                table.pop(event.node, None)
            return
        self.up[event.node] = isinstance(event, events.NodeReturned)
        if isinstance(event, events.NodeReturned):
            self.places[event.node] = event.place

    def _drained_or_resumed(self, event: events.NodeDrained | events.NodeResumed) -> None:
        if isinstance(event, events.NodeDrained):
            self.drained[event.node] = event
        elif not event.probe:
            self.drained.pop(event.node, None)
            self.failures.pop(event.node, None)

    def _apply_run_event(self, job: LiveJob, event: events.RunEvent) -> None:
        if isinstance(event, events.BatchChanged):
            job.batch_size = event.batch_size
        run = self.runs.get(event.job)
        if run is None or event.incarnation != job.incarnation or isinstance(event, events.JobSaved):
            return
        if isinstance(event, events.JobStarted):
            run.started = job.started = True
            if job.spec.time is not None and (event.job not in self.limits or not job.launch.in_place):
                self.limits[event.job] = event.at + job.spec.time
            note_start(self.failures, event.job, run.command.placement.nodes, job.failed_on)
        elif isinstance(event, events.JobSuspended | events.JobResumed):
            self._turned(run, event)
        elif isinstance(event, events.JobMeasured | events.JobProfiled | events.BatchChanged):
            job.measured = event.rate, run.command.placement
        elif isinstance(event, events.JobRequeued):
            run.stopping = True
        else:
            self._run_ended(job, event)

    def _turned(self, run: UnfinishedRun, event: events.JobSuspended | events.JobResumed) -> None:
        """Note that a run was suspended or continues; suspended time does not count towards its time limit."""
        run.turn += bool(event.cause)
        run.turned = run.turn
        if isinstance(event, events.JobSuspended) and event.job in self.limits:
            run.limit_left = self.limits.pop(event.job) - event.at
        elif isinstance(event, events.JobResumed) and run.limit_left is not None:
            self.limits[event.job], run.limit_left = event.at + run.limit_left, None

    def _run_ended(self, job: LiveJob, event: events.JobStopped | events.JobCompleted | events.JobCrashed) -> None:
        del self.runs[event.job]
        self.limits.pop(event.job, None)
        job.saved, job.over = event.done, isinstance(event, events.JobCompleted)
        if isinstance(event, events.JobCrashed):
            if event.failed_on is not None:
                job.failed_on.add(event.failed_on)
                self.causes[event.failed_on] = event.cause
            job.crashes, job.over, _ = job.crashes.fold(event)
            if event.retry_in and not job.over:
                self.releases[event.job] = event.at + event.retry_in
        if job.over:
            self._forget(event.job)

    def _apply_command(self, command: Command) -> None:
        if command.job not in self.jobs:
            return
        if isinstance(command, Suspend | Resume):
            if (run := self.runs.get(command.job)) is not None:
                run.turn = next_turn(run.turn, suspend=isinstance(command, Suspend))
        elif not isinstance(command, Stop):
            self.jobs[command.job].incarnation = command.incarnation
            self.runs[command.job] = UnfinishedRun(command)
        elif command.job in self.runs:
            self.runs[command.job].stopping = True
