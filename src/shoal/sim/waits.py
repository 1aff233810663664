"""Conditions of simulated jobs: which jobs may start, or never can, after others have started or ended."""

from collections.abc import Sequence
from math import inf

from shoal.core.events import Event, JobCancelled, JobReleased
from shoal.core.job import JobSpec
from shoal.core.lifecycle import JobState
from shoal.core.units import Seconds
from shoal.core.waiting import WaitingJobs
from shoal.sim.job_run import JobRun, JobStart


class SimulatedWaits:
    """The jobs of a simulation that wait for conditions; ``specs`` and ``runs`` are the backend's, by number."""

    def __init__(self, specs: Sequence[JobSpec], runs: Sequence[JobRun]) -> None:
        self._specs, self._runs = specs, runs
        self._numbers = {spec.id: number for number, spec in enumerate(specs)}
        self._ends: dict[int, JobState] = {}
        self._waiting = WaitingJobs()

    def arrive(self, job: int) -> Seconds:
        """Add a job that was submitted; return its earliest start, infinity if it has none."""
        spec = self._specs[job]
        if spec.conditions is None or not spec.waits:
            return inf
        begin, hold = spec.conditions.begin, spec.conditions.hold
        self._waiting.add(job, spec, self._state, timer=begin is not None, hold=hold)
        return inf if begin is None else begin

    def resume(self, job: int, standing: JobStart) -> None:
        """Restore a job's conditions when the simulation begins; call it when all standings are known."""
        spec, timer = self._specs[job], standing.since < inf
        if standing.state is JobState.HELD and spec.waits and not standing.incarnation:
            self._waiting.add(job, spec, self._state, timer=timer, hold=standing.on_hold, again=True)
            return
        self._waiting.occupy(job, spec)
        if standing.on_hold:
            seated = standing.placement is not None
            self._waiting.hold(job, spec, seated=seated, timer=timer and standing.state is JobState.HELD)

    def timer_ended(self, job: int) -> bool:
        """Note that a job's earliest start has come; return false if it waits for no condition."""
        self._waiting.set_timer(job, running=False)
        return job in self._waiting

    def started(self, job: int) -> None:
        """Note that a job has started."""
        self._waiting.started(self._specs[job].id)

    def ended(self, job: int, state: JobState) -> None:
        """Note that a job has ended in this state."""
        self._ends[job] = state
        self._waiting.ended(job, self._specs[job], state)

    def due(self, now: Seconds) -> list[Event]:
        """Return the releases and cancellations that follow from the starts and ends noted."""
        events: list[Event] = []
        for job, cause in self._waiting.due():
            if cause:
                self._runs[job].finished = True
                self.ended(job, JobState.CANCELLED)
                events.append(JobCancelled(now, job, cause))
            else:
                events.append(JobReleased(now, job))
        return events

    def _state(self, id: str) -> JobState | None:
        """Return the state of a job that others may depend on; None if it had ended before the simulation."""
        job = self._numbers.get(id, -1)
        if not 0 <= job < len(self._runs):
            return None
        run = self._runs[job]
        if run.finished:
            return self._ends.get(job)
        return self._ends.get(job) or (JobState.RUNNING if run.incarnation else JobState.PENDING)
