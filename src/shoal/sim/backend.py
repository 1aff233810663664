"""The simulated cluster, which jumps from one event to the next.

Events of one moment are reported as one batch: completions, then crashes, then nodes, then arrivals (`Happening`). A
simulation may begin in the middle of jobs' lives: see ``standings``.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop
from math import inf

import numpy as np

from shoal.core.commands import Command, Resize, Resume, Start, Stop, Suspend
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
    JobResumed,
    JobSaved,
    JobStarted,
    JobStopped,
    JobSubmitted,
    TimeLimitReached,
)
from shoal.core.job import ADAPTIVE, JobSpec
from shoal.core.lifecycle import JobState
from shoal.core.units import JobId, Seconds
from shoal.perf.batch_tuner import TICK
from shoal.sim.adaptive_jobs import AdaptiveJobs, TickResult, TunerOptions
from shoal.sim.checkpoints import kept_at_crash, kept_at_stop, next_save, set_back
from shoal.sim.event_queue import EventQueue, Handler, Happening
from shoal.sim.faults import NO_FAULTS, Faults, JobFault
from shoal.sim.job_run import JobRun, JobStart
from shoal.sim.node_faults import NodeFaults
from shoal.sim.running_jobs import RunningJobs
from shoal.sim.suspension import SuspendedRuns, SuspensionCost
from shoal.sim.truth import RestartCost, Truth
from shoal.sim.waits import SimulatedWaits
from shoal.workload.schema import Job

_IDLE_REVIEWS = 1000
"""Reviews in a row with nothing running and nothing to arrive after which the simulation ends."""


@dataclass(slots=True)
class SimulatedBackend:
    """Simulated `core.interfaces.Backend`: ``specs`` arrive at their submission times, ``truth`` gives their speeds.

    With ``standings`` the simulation begins at ``now`` with the first of the specs admitted already, in these states.
    Nodes in ``down`` are lost from the start and never return. A job with ``marks``, by id, is measured whenever its
    progress reaches the next one. ``measurement_noise`` is the σ of the log error of what adaptive jobs measure;
    ``tuning`` is how they choose batch sizes. With a ``suspension`` every node suspends runs, at its price.
    `live.backend.LiveBackend` is the other implementation.
    """

    truth: Truth
    specs: Sequence[JobSpec]
    restart_cost: RestartCost = field(default_factory=RestartCost)
    faults: Faults = NO_FAULTS
    seed: int = 0
    now: Seconds = 0.0
    standings: Sequence[JobStart] = ()
    down: Collection[int] = ()
    marks: Mapping[JobId, Sequence[float]] = field(default_factory=dict)
    measurement_noise: float = 0.0
    tuning: TunerOptions = field(default_factory=TunerOptions)
    suspension: SuspensionCost | None = None
    _queue: EventQueue = field(default_factory=EventQueue)
    _outbox: list[Event] = field(default_factory=list)
    _jobs: RunningJobs = field(init=False)
    _adaptive: AdaptiveJobs = field(init=False)
    _handlers: Mapping[int, Handler] = field(init=False)
    _arrived: int = 0
    _unfinished: int = 0
    _nodes: NodeFaults = field(init=False)
    _held_back: int = 0
    _idle: int = 0
    _woken: bool = False
    _suspended: SuspendedRuns = field(init=False)
    _rng: np.random.Generator = field(init=False)
    _waits: SimulatedWaits | None = None
    """None if no job has conditions."""

    def __post_init__(self) -> None:
        self._unfinished = len(self.specs)
        self._rng = np.random.default_rng([self.seed, 2])
        measuring = np.random.default_rng([self.seed, 4])
        self._adaptive = AdaptiveJobs(self.truth, self.measurement_noise, measuring, self.tuning)
        interference = self.faults.interference_speed
        self._jobs = RunningJobs(self.truth, self._adaptive, self._queue, self._outbox, self.marks, interference)
        self._nodes = NodeFaults(
            self.faults, self.truth, self._queue, self._jobs, self._rng, self.down, lambda: self.now, self._interrupt
        )
        self._nodes.begin()
        names = {what: what.name.lower() for what in Happening}
        self._handlers = {what: getattr(self._nodes, n, None) or getattr(self, f"_{n}") for what, n in names.items()}
        self._suspended = SuspendedRuns(self._jobs, self.suspension)
        self._outbox += self._suspended.abilities(self.now)
        self._arrived = len(self.standings)
        self._jobs.runs += [JobRun.of(standing, self.now) for standing in self.standings]
        for job, standing in enumerate(self.standings):
            self._resume(job, self._jobs.runs[job], standing)
        if any(spec.conditions is not None for spec in self.specs) or any(s.on_hold for s in self.standings):
            self._waits = SimulatedWaits(self.specs, self._jobs.runs)
            for job, standing in enumerate(self.standings):
                if standing.state.live:
                    self._waits.resume(job, standing)

    def _resume(self, job: int, run: JobRun, standing: JobStart) -> None:
        """Continue a job from the state it is in when the simulation begins."""
        if run.finished:
            self._unfinished -= 1
            return
        run.script_at = sum(1 for at, _ in self.truth.jobs[job].batch_schedule if at <= run.done)
        if standing.report is not None and run.placement is not None:
            self._adaptive.adapt(job, run, self.specs[job])
            if run.adapts:
                self._adaptive.allocate(run)
        if standing.state is JobState.HELD:
            if standing.since < inf:
                self._hold_back(job, max(standing.since, self.now))
        elif standing.state is JobState.STOPPING:
            self._outbox.append(JobStopped(self.now, job, run.incarnation, run.done))
        elif standing.state is JobState.STARTING:
            self._begin_training(job, run, standing.since + self._start_cost(job, run.incarnation - 1))
        elif standing.state is JobState.RUNNING:
            self._jobs.seated.add(job)
            self._jobs.rerate(job, self.now)
            self._await_tick(job, run)
            self._await_save(job, run)
            self._await_limit(job, run, standing.since)

    @property
    def completed(self) -> int:
        """Number of jobs that ended."""
        return len(self.specs) - self._unfinished

    # ── the backend's two methods ─────────────────────────────────────────────────────────────────────────────

    def wait(self, until: Seconds) -> EventBatch:
        """Jump to the next event that calls for a decision, and no further than ``until``."""
        events = self._outbox  # handlers and their side effects append to it: one moment is one batch
        if self._is_over():
            return EventBatch(self.now, tuple(events), over=True)
        heap, specs, handlers, waits = self._queue.heap, self.specs, self._handlers, self._waits is not None
        decision_due = (waits and self._release_waiting()) or True in [event.urgent for event in events]
        while not decision_due:
            arrival = specs[self._arrived].submitted if self._arrived < len(specs) else inf
            at = heap[0][0] if heap and heap[0][0] < arrival else arrival
            if at > until or at == inf:
                self.now = max(self.now, until) if until < inf else self.now
                break
            self.now = at
            while heap and heap[0][0] == at:
                _, what, _, a, b = heappop(heap)
                decision_due = handlers[what](a, b, events) or decision_due
            if arrival == at:
                self._admit_arrived(at, events)
                decision_due = True
            decision_due = (waits and self._release_waiting()) or decision_due
        self._woken = decision_due
        batch = EventBatch(self.now, tuple(events), over=until == inf and not events and not decision_due)
        events.clear()
        return batch

    def _admit_arrived(self, at: Seconds, events: list[Event]) -> None:
        """Report the submission of the jobs that arrive at this moment."""
        while self._arrived < len(self.specs) and (spec := self.specs[self._arrived]).submitted == at:
            events.append(JobSubmitted(at, spec))
            self._jobs.runs.append(JobRun(batch_size=spec.batch_size))
            if self._waits is not None and (begin := self._waits.arrive(self._arrived)) < inf:
                self._hold_back(self._arrived, max(begin, at))
            self._arrived += 1

    def _release_waiting(self) -> bool:
        """Release jobs whose conditions hold now, cancel those that can never start; return whether there are any."""
        assert self._waits is not None
        due = self._waits.due(self.now)
        self._unfinished -= sum(isinstance(event, JobCancelled) for event in due)
        self._outbox += due
        return bool(due)

    def _ended(self, job: int, state: JobState) -> None:
        """Note for the jobs that wait for it that a job has ended."""
        if self._waits is not None:
            self._waits.ended(job, state)

    def _is_over(self) -> bool:
        """Whether every job has ended, or nothing ran or arrived during more than `_IDLE_REVIEWS` reviews in a row.

        Reviews while a node is down do not count, since it will return.
        """
        if not self._unfinished:
            return True
        if self._jobs.seated or self._held_back or self._arrived < len(self.specs):
            self._idle = 0
        elif self._woken or not self._nodes.lost:
            self._idle += 1
        return self._idle > _IDLE_REVIEWS

    def send(self, commands: Sequence[Command]) -> None:
        """Carry out commands at once; a command for another incarnation than expected is ignored."""
        for command in commands:
            run = self._jobs.runs[command.job]
            current = run.incarnation == command.incarnation
            if type(command) is Start or type(command) is Resize:
                if not run.finished and command.incarnation > run.incarnation:
                    self._begin(command, run)
            elif type(command) is Stop:
                if run.placement is not None and current:
                    lost = self._jobs.stop(command.job, self.now)
                    self._outbox.append(JobStopped(self.now, command.job, command.incarnation, run.done, lost))
            elif type(command) is Suspend:
                self._outbox += self._suspended.leave(command, run, self.now)
            elif type(command) is Resume and current and run.bound is not None and not run.finished:
                self._begin_training(command.job, run, self._suspended.resume(command, run, self.now))

    # ── changes from outside, at once; the caller reports the returned events ─────────────────────────────────

    def submit(self, spec: JobSpec, job: Job, speed: float, *, resumes: bool = False) -> JobSubmitted:
        """Admit a job now; one that ``resumes`` from a checkpoint pays the restart cost at its first start as well."""
        at = self._arrived
        self.specs = [*self.specs[:at], spec, *self.specs[at:]]
        self.truth.admit(at, job, speed)
        self._jobs.runs.append(JobRun(batch_size=spec.batch_size, resumes=resumes))
        self._arrived += 1
        self._unfinished += 1
        return JobSubmitted(self.now, spec)

    def cancel(self, job: int) -> JobCancelled:
        """Withdraw a job that has not ended."""
        run = self._jobs.runs[job]
        if run.placement is not None:
            self._jobs.leave(job, self.now)
        run.finished = True
        self._unfinished -= 1
        self._ended(job, JobState.CANCELLED)
        return JobCancelled(self.now, job)

    def vacate(self, node: int, cause: str) -> list[Event]:
        """Interrupt the jobs on a node, after those that save when they are stopped have saved all their progress."""
        left: list[Event] = []
        for job in self._jobs.on(node):
            run = self._jobs.runs[job]
            run.saved = kept_at_stop(self.truth.jobs[job], run, self.now)
            left.append(self._interrupt(job, cause))
        return left

    def _interrupt(self, job: int, cause: str) -> JobCrashed:
        return self._crash(job, self._jobs.runs[job], blamed=False, cause=cause)

    def busy(self) -> dict[int, int]:
        """GPUs in use, by node; those that two jobs share count twice."""
        return self._jobs.busy()

    # ── start and crash of a job ──────────────────────────────────────────────────────────────────────────────

    def _begin(self, order: Start | Resize, run: JobRun) -> None:
        if run.placement is not None:
            self._jobs.stop(order.job, self.now)
        cost = self._start_cost(order.job, run.incarnation)
        run.incarnation = order.incarnation
        run.placement = order.placement
        run.partner = order.partner
        if order.batch == ADAPTIVE:
            self._adaptive.adapt(order.job, run, self.specs[order.job])
        elif order.batch is not None or run.adapts:
            run.batch_size = self.specs[order.job].batch_size if order.batch is None else order.batch.size
            run.adapts = False
        if run.adapts:
            self._adaptive.allocate(run)
        run.saved = run.done
        if order.partner is not None:
            self._jobs.pair(order.job, order.partner, self.now)
        self._begin_training(order.job, run, self.now + cost)
        self._jobs.interfere(order.placement, self.now)
        if self.faults.gpu_mtbf is not None:
            wait = self._rng.exponential(self.faults.gpu_mtbf / order.placement.gpus)
            self._queue.push(self.now + wait, Happening.CRASHED, order.job, run.incarnation)

    def _start_cost(self, job: int, incarnation: int) -> Seconds:
        """Return the seconds that a start costs a job after this many incarnations; resuming costs a restart."""
        again = incarnation > 0 or self._jobs.runs[job].resumes
        return self.restart_cost.of(self.truth.jobs[job]) if again else self.restart_cost.first

    def _begin_training(self, job: int, run: JobRun, at: Seconds) -> None:
        """Begin to train, at ``at``, on the seats just taken."""
        run.began = run.since = max(self._suspended.ready(run.placement, at), self.now)
        self._jobs.seated.add(job)
        self._jobs.set_rate(job)
        if run.rate <= 0.0:
            # Of two jobs that do not fit together each could run alone: then neither is blamed.
            alone = self._jobs.rate(job, None) <= 0.0
            cause = "it cannot run on these GPUs" if alone else "it cannot share these GPUs"
            self._outbox.append(self._crash(job, run, blamed=alone, cause=cause))
            return
        if run.since > self.now:
            self._queue.push(run.since, Happening.STARTED, job, run.incarnation)
        else:
            self._report_start(job, run, self._outbox)
        if run.adapts:
            self._await_tick(job, run)
        self._await_save(job, run)

    def _await_save(self, job: int, run: JobRun) -> None:
        at = next_save(self.truth.jobs[job], run, self.now)
        if at is not None:
            self._queue.push(at, Happening.SAVED, job, run.incarnation)
        self._await_limit(job, run, run.since)

    def _report_start(self, job: int, run: JobRun, events: list[Event]) -> None:
        kind, run.bound = JobStarted if run.bound is None else JobResumed, None
        events.append(kind(self.now, job, run.incarnation, run.rate, run.done))
        if self._waits is not None:
            self._waits.started(job)

    def _await_limit(self, job: int, run: JobRun, since: Seconds) -> None:
        if (limit := self.specs[job].time) is not None:
            self._queue.push(max(since + limit, self.now), Happening.TIME_LIMIT, job, run.incarnation)

    def _await_tick(self, job: int, run: JobRun) -> None:
        if run.adapts:
            self._queue.push(max(run.since, self.now) + TICK, Happening.TICKED, job, run.incarnation)

    def _crash(self, job: int, run: JobRun, *, blamed: bool, cause: str) -> JobCrashed:
        """End an incarnation and lose the progress since the last checkpoint. The job may be held back a while."""
        now, truth, ran = self.now, self.truth.jobs[job], max(0.0, self.now - run.began)
        kept = run.saved if run.bound else kept_at_crash(truth, run, now, self.faults.checkpoint_every)
        run.bound = None
        self._jobs.leave(job, now)
        set_back(truth, run, kept)
        run.crashes, failed, retry_in = run.crashes.after(kept, blamed=blamed, ran=ran)
        if failed:
            self._ended(job, JobState.FAILED)
        if retry_in:
            self._hold_back(job, now + retry_in)
        return JobCrashed(now, job, run.incarnation, kept, blamed, cause, retry_in, ran, failed=failed)

    def _hold_back(self, job: int, until: Seconds) -> None:
        self._held_back += 1
        self._queue.push(until, Happening.RELEASED, job)

    # ── handlers of jobs' happenings; one with an outdated stamp or incarnation does nothing ──────────────────

    def _started(self, job: int, incarnation: int, events: list[Event]) -> bool:
        run = self._jobs.runs[job]
        if run.placement is not None and run.incarnation == incarnation:
            self._report_start(job, run, events)
        return False

    def _time_limit(self, job: int, incarnation: int, events: list[Event]) -> bool:
        run, limit = self._jobs.runs[job], self.specs[job].time
        if run.placement is None or run.incarnation != incarnation or limit is None:
            return False
        self._jobs.leave(job, self.now)
        run.finished = True
        self._unfinished -= 1
        self._ended(job, JobState.FAILED)
        events += [TimeLimitReached(self.now, job, limit, self.now), JobCancelled(self.now, job, failed=True)]
        return True

    def _completed(self, job: int, stamp: int, events: list[Event]) -> bool:
        run = self._jobs.runs[job]
        if run.stamp != stamp:
            return False
        self._jobs.leave(job, self.now)
        run.done = self.truth.jobs[job].work
        run.finished = True
        self._unfinished -= 1
        self._ended(job, JobState.COMPLETED)
        events.append(JobCompleted(self.now, job, run.incarnation, run.done))
        return True

    def _batch_changed(self, job: int, stamp: int, events: list[Event]) -> bool:
        run = self._jobs.runs[job]
        if run.stamp != stamp:
            return False
        self._continue_from(job, self.truth.jobs[job].batch_schedule[run.script_at][0])
        events.append(BatchChanged(self.now, job, run.incarnation, run.rate, run.done, run.batch_size or 0))
        if run.rate <= 0.0:  # its progress is saved, and a policy that knows the new batch size can seat it elsewhere
            run.saved = run.done
            events.append(self._crash(job, run, blamed=False, cause="it cannot run with this batch size"))
        return True

    def _marked(self, job: int, stamp: int, events: list[Event]) -> bool:
        run = self._jobs.runs[job]
        if run.stamp != stamp:
            return False
        run.marks_at += 1
        self._continue_from(job, self.marks[self.truth.jobs[job].id][run.marks_at - 1])
        events.append(JobMeasured(self.now, job, run.incarnation, run.rate, run.done))
        return True  # needs no decision, but the search that set the mark waits for it

    def _ticked(self, job: int, incarnation: int, events: list[Event]) -> bool:
        run = self._jobs.runs[job]
        if run.placement is None or run.incarnation != incarnation:
            return False
        result = self._adaptive.tick(job, run, self._jobs.partner(job), self.now)
        if result is not TickResult.NONE:
            self._continue_from(job, run.progress(self.now))
        self._await_tick(job, run)
        if result is TickResult.NONE or result is TickResult.RATE or run.tuner is None:
            return False
        decision_due = result is TickResult.DECIDE
        events.append(JobProfiled(self.now, job, incarnation, run.rate, run.done, run.tuner.report(), decision_due))
        return decision_due

    def _saved(self, job: int, incarnation: int, events: list[Event]) -> bool:
        run = self._jobs.runs[job]
        if run.placement is None or run.incarnation != incarnation:
            return False
        self._continue_from(job, run.progress(self.now))
        run.saved = run.done
        events.append(JobSaved(self.now, job, incarnation, run.done))
        self._await_save(job, run)
        return True  # calls for a decision only if another job waits for it

    def _continue_from(self, job: int, done: float) -> None:
        """Set a job's progress to ``done`` now, and its rate to the present one."""
        run = self._jobs.runs[job]
        run.done, run.since = done, self.now
        self._jobs.set_rate(job)

    def _crashed(self, job: int, incarnation: int, events: list[Event]) -> bool:
        run = self._jobs.runs[job]
        if run.placement is None or run.incarnation != incarnation:
            return False
        events.append(self._crash(job, run, blamed=True, cause="it crashed"))
        return True

    def _crash_scripted(self, index: int, _: int, events: list[Event]) -> bool:
        fault = self.faults.script[index]
        if not isinstance(fault, JobFault) or fault.job >= len(self._jobs.runs):
            return False
        return self._crashed(fault.job, self._jobs.runs[fault.job].incarnation, events)

    def _released(self, job: int, _: int, events: list[Event]) -> bool:
        self._held_back -= 1
        if self._waits is None or not self._waits.timer_ended(job):
            events.append(JobReleased(self.now, job))
        return True
