"""Jobs that wait for conditions; after each event, which of them may start, and which never can.

Both backends keep one `WaitingJobs` and turn its answers into ``JobReleased`` and ``JobCancelled``. Nothing here reads
a clock: the caller says when a job's timer has run out. Jobs without conditions cost nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from shoal.core.job import JobSpec
from shoal.core.lifecycle import JobState
from shoal.core.units import JobId, JobNumber

_ENDS = {JobState.COMPLETED: "completed", JobState.FAILED: "failed", JobState.CANCELLED: "was cancelled"}

UNKNOWN_END = "ended too long ago to know how"


@dataclass(slots=True)
class JobWait:
    """Open conditions of one job: ends or starts of other jobs, a timer, its owner's hold, a place in its array."""

    after: dict[JobId, str] = field(default_factory=dict)
    timer: bool = False
    hold: bool = False
    array: str | None = None
    most_at_once: int = 0
    cause: str = ""
    """Why the job can never start; empty if it can."""

    @property
    def ready(self) -> bool:
        """Whether the job waits for nothing, or only for a place in its array."""
        return not (self.after or self.timer or self.hold)


Status = Callable[[JobId], JobState | None]
"""Returns the state of a job; None if it has ended and is no longer known. A job that ever started is RUNNING."""


class WaitingJobs:
    """The jobs that wait, by admission number."""

    def __init__(self) -> None:
        self.waits: dict[JobNumber, JobWait] = {}
        self._dependents: dict[JobId, list[JobNumber]] = {}
        self._arrays: dict[str, set[JobNumber]] = {}
        """By array with a limit, its jobs that were let start and have not ended."""
        self._queued: dict[str, list[JobNumber]] = {}
        """By array, a heap of its jobs that wait for a place only."""
        self._touched: list[JobNumber] = []

    def __contains__(self, job: JobNumber) -> bool:
        return job in self.waits

    def add(
        self, job: JobNumber, spec: JobSpec, status: Status, *, timer: bool, hold: bool, again: bool = False
    ) -> None:
        """Add a job with conditions; ``timer`` if its earliest start is still to come.

        ``again`` if the job waited before, as after a restart: jobs before it that have ended count as ended as
        required.
        """
        conditions = spec.conditions
        assert conditions is not None
        wait = JobWait(timer=timer, hold=hold)
        if conditions.most_at_once:
            wait.array, wait.most_at_once = _array(spec), conditions.most_at_once
        self.waits[job] = wait
        for id, when in conditions.after:
            state = status(id)
            met = True if again and (state is None or not state.live) else _met(when, state)
            if met is None:
                wait.after[id] = when
                self._dependents.setdefault(id, []).append(job)
            elif not met:
                wait.cause = wait.cause or _never(id, when, state)
        self._touched.append(job)

    def occupy(self, job: JobNumber, spec: JobSpec) -> None:
        """Give a place in its array to a job that was released before and has not ended."""
        if spec.conditions is not None and spec.conditions.most_at_once:
            self._arrays.setdefault(_array(spec), set()).add(job)

    def hold(self, job: JobNumber, spec: JobSpec, *, seated: bool, timer: bool) -> None:
        """Hold a job; one without GPUs gives up its place in its array."""
        wait = self.waits.setdefault(job, JobWait(timer=timer))
        wait.hold = True
        if spec.conditions is not None and spec.conditions.most_at_once and not seated:
            wait.array, wait.most_at_once = _array(spec), spec.conditions.most_at_once
            self._leave(job, wait.array)

    def lift(self, job: JobNumber) -> None:
        """End the hold of a job."""
        if job in self.waits:
            self.waits[job].hold = False
            self._touched.append(job)

    def set_timer(self, job: JobNumber, running: bool) -> None:
        """Note that a job's timer was started or has run out; no effect on a job that waits for nothing else."""
        if job in self.waits:
            self.waits[job].timer = running
            self._touched.append(job)

    def started(self, id: JobId) -> None:
        """Note that a job has started."""
        if id in self._dependents:
            self._changed(id, JobState.RUNNING)

    def ended(self, job: JobNumber, spec: JobSpec, state: JobState) -> None:
        """Note that a job has ended in this state."""
        self.waits.pop(job, None)
        if spec.conditions is not None and spec.conditions.most_at_once:
            self._leave(job, _array(spec))
        if spec.id in self._dependents:
            self._changed(spec.id, state)
            del self._dependents[spec.id]

    def due(self) -> Iterator[tuple[JobNumber, str]]:
        """Yield jobs that may start now, with an empty text, and jobs that never can, with the cause.

        The caller calls ``ended`` for the latter before it asks for the next. Jobs are in order of admission, except
        that a job follows the one whose end lets it start or cancels it.
        """
        while self._touched:
            touched, self._touched = sorted(set(self._touched)), []
            for job in touched:
                wait = self.waits.get(job)
                if wait is not None and wait.cause:
                    yield job, wait.cause
                elif wait is not None and wait.ready and self._admitted(job, wait):
                    del self.waits[job]
                    yield job, ""

    def _admitted(self, job: JobNumber, wait: JobWait) -> bool:
        """Give a job a place in its array if one is free, else queue it."""
        if wait.array is None:
            return True
        places, queued = self._arrays.setdefault(wait.array, set()), self._queued.setdefault(wait.array, [])
        if len(places) < wait.most_at_once:
            places.add(job)
            return True
        if job not in queued:
            heappush(queued, job)
        return False

    def _leave(self, job: JobNumber, array: str) -> None:
        """Free a job's place in its array for the next one that waits for it."""
        places, queued = self._arrays.get(array, set()), self._queued.get(array, [])
        if job in places:
            places.remove(job)
            while queued:
                following = heappop(queued)
                if following in self.waits and self.waits[following].ready:
                    self._touched.append(following)
                    break
        if not places and not queued:
            self._arrays.pop(array, None)
            self._queued.pop(array, None)

    def _changed(self, id: JobId, state: JobState) -> None:
        left = []
        for job in self._dependents[id]:
            wait = self.waits.get(job)
            when = None if wait is None else wait.after.get(id)
            if wait is None or when is None:
                continue
            met = _met(when, state)
            if met is None:
                left.append(job)
                continue
            del wait.after[id]
            if not met:
                wait.cause = wait.cause or _never(id, when, state)
            self._touched.append(job)
        self._dependents[id] = left


def _array(spec: JobSpec) -> str:
    assert spec.conditions is not None
    return f"{spec.tenant}/{spec.conditions.array}"


def _met(when: str, state: JobState | None) -> bool | None:
    """Return whether a dependency holds (true), can never hold (false), or is still open (None)."""
    if when == "start" and state is not JobState.PENDING:
        return True
    if state is not None and state.live:
        return None
    if when == "any" or state is None:
        return when == "any"
    return (state is JobState.COMPLETED) == (when == "ok")


def _never(id: JobId, when: str, state: JobState | None) -> str:
    wanted = "completed" if when == "ok" else "failed"
    return f"{id} {UNKNOWN_END if state is None else _ENDS[state]}, and this job was to start only if it {wanted}"
