"""The jobs of the live backend that may not start yet, and when they may; when running jobs reach time limits."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from shoal.core.events import Event, HoldLifted, JobHeld
from shoal.core.lifecycle import JobState
from shoal.core.units import JobId, JobNumber, Seconds
from shoal.core.waiting import WaitingJobs
from shoal.live.agent_waits import Timers
from shoal.live.live_job import LiveJob


@dataclass(slots=True)
class HeldJobs:
    """Holds, conditions, back-offs and time limits of jobs; ``jobs`` is the table of the run registry."""

    jobs: dict[JobNumber, LiveJob]
    releases: Timers = field(default_factory=Timers)
    """When held jobs may be tried again, and the earliest start of jobs that have one."""
    limits: Timers = field(default_factory=Timers)
    """When running jobs reach their time limit."""
    waiting: WaitingJobs = field(default_factory=WaitingJobs)
    _numbers: dict[JobId, JobNumber] = field(default_factory=dict)

    def submit(self, number: JobNumber, job: LiveJob) -> None:
        """Add a job; one with conditions waits."""
        self._numbers[job.spec.id] = number
        if job.spec.conditions is None or not job.spec.waits:
            return
        job.on_hold, begin = job.spec.conditions.hold, job.spec.conditions.begin
        if begin is not None:
            self.releases[number] = begin
        self.waiting.add(number, job.spec, self._state, timer=begin is not None, hold=job.on_hold)

    def resume(self, releases: dict[JobNumber, Seconds], limits: dict[JobNumber, Seconds]) -> None:
        """Restore the conditions and holds that the jobs of the table had at a journal's end."""
        self.releases, self.limits = Timers(releases), Timers(limits)
        self._numbers = {job.spec.id: number for number, job in self.jobs.items()}
        for number, job in self.jobs.items():
            timer = number in self.releases
            if job.spec.waits and not job.released:
                self.waiting.add(number, job.spec, self._state, timer=timer, hold=job.on_hold, again=True)
                continue
            self.waiting.occupy(number, job.spec)
            if job.on_hold:
                self.waiting.hold(number, job.spec, seated=bool(job.gangs), timer=timer)

    def hold(self, number: JobNumber, now: Seconds, by: str, *, admin: bool = False) -> list[Event]:
        """Keep a job from being started until ``lift``; a running job is not stopped.

        The hold of an administrator takes the place of another's.
        """
        job = self.jobs.get(number)
        if job is None or job.over or (job.on_hold and not admin):
            return []
        if not job.on_hold:
            job.on_hold = True
            self.waiting.hold(number, job.spec, seated=bool(job.gangs), timer=number in self.releases)
        return [JobHeld(now, number, by, admin)]

    def lift(self, number: JobNumber, now: Seconds, by: str) -> list[Event]:
        """End the hold of a job."""
        job = self.jobs.get(number)
        if job is None or job.over or not job.on_hold:
            return []
        job.on_hold = False
        self.waiting.lift(number)
        return [HoldLifted(now, number, by)]

    def back_off(self, number: JobNumber, until: Seconds) -> None:
        """Keep a job that crashed from being tried again before ``until``."""
        self.releases[number] = until
        self.waiting.set_timer(number, running=True)

    def timers(self, now: Seconds) -> list[JobNumber]:
        """End the timers that are due; return the jobs that waited for their timer only."""
        due = self.releases.take_due(now)
        for number in due:
            self.waiting.set_timer(number, running=False)
        return [number for number in due if number not in self.waiting]

    def started(self, number: JobNumber, now: Seconds, *, first: bool) -> None:
        """Note that a job's ranks are up; ``first`` if they start a run rather than join one."""
        spec = self.jobs[number].spec
        if spec.time is not None and (first or number not in self.limits):
            self.limits[number] = now + spec.time
        self.waiting.started(spec.id)

    def overdue(self, now: Seconds) -> list[tuple[JobNumber, Seconds]]:
        """Return the jobs whose run has reached their time limit, each once with the limit.

        A run that is being stopped, or that another has replaced, does not count.
        """
        due = self.limits.take_due(now)
        last = ((number, self.jobs[number].gangs[-1]) for number in due if self.jobs[number].gangs)
        running = (number for number, gang in last if gang.started and not gang.stopping)
        return [(number, limit) for number in running if (limit := self.jobs[number].spec.time) is not None]

    def end_timers(self, number: JobNumber) -> None:
        """Drop the times at which a job may start or must end."""
        self.releases.pop(number, None)
        self.limits.pop(number, None)

    def over(self, number: JobNumber, state: JobState) -> None:
        """Note that a job has ended in this state."""
        job = self.jobs[number]
        job.over, job.ended = True, state
        self.end_timers(number)
        self.waiting.ended(number, job.spec, state)

    def forget(self, ended: Iterable[JobNumber]) -> None:
        """Drop jobs, whose end is durable, unless a process of theirs may be left."""
        for number in ended:
            if number in self.jobs and not self.jobs[number].gangs:
                del self._numbers[self.jobs.pop(number).spec.id]

    def _state(self, id: JobId) -> JobState | None:
        job = self.jobs.get(self._numbers.get(id, -1))
        return None if job is None else job.state
