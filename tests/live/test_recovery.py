"""What a journal leaves unfinished: jobs as far as they came, runs that have not ended, held jobs and live nodes."""

from collections.abc import Sequence
from math import inf

import pytest

from shoal.core.commands import Command, Decided, Resize, Start, Stop
from shoal.core.events import (
    AppBid,
    BatchChanged,
    CancelRequested,
    Event,
    EventBatch,
    JobCancelled,
    JobCompleted,
    JobCrashed,
    JobMeasured,
    JobReleased,
    JobReshaped,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeLost,
    NodeResumed,
    NodeReturned,
)
from shoal.core.job import JobSpec, Launch
from shoal.core.retry import OLD_RETRIES
from shoal.core.topology import Placement
from shoal.live.accounts import Accounts
from shoal.live.live_image import encode_live, restore_live
from shoal.live.live_job import LiveJob
from shoal.live.recovery import RecoveredRuns, UnfinishedRun

SEATS, OTHER = Placement(((0, 2),)), Placement(((1, 1),))
_OLD_CRASHES = OLD_RETRIES + 1
"""Crashes that fail a job in a journal whose events do not say so."""

SUBMITTED = JobSubmitted(0.0, JobSpec("job", 0.0, 2, 100.0, 1, 2, batch_size=32), Launch("job", ("train",)))
START, AGAIN, RESIZE = Start(0, 1, SEATS), Start(0, 2, OTHER), Resize(0, 2, OTHER)


def recovered(*steps: Event | Command) -> RecoveredRuns:
    """The fold of a job's submission and these events and commands."""
    found = RecoveredRuns()
    for step in (SUBMITTED, *steps):
        is_command = isinstance(step, Start | Stop | Resize)
        found.fold(Decided(0, inf, (step,)) if is_command else EventBatch(0.0, (step,)))  # type: ignore[arg-type]
    return found


def crash(incarnation: int, done: float = 5.0, *, blamed: bool = True, retry_in: float = 10.0) -> JobCrashed:
    return JobCrashed(30.0, 0, incarnation, done, blamed, "it died", retry_in)


RUNS: dict[str, tuple[Sequence[Event | Command], UnfinishedRun | None]] = {
    "a job that never started has none": ([], None),
    "one that was ordered": ([START], UnfinishedRun(START)),
    "one whose ranks are up": ([START, JobStarted(1.0, 0, 1, 1.0, 0.0)], UnfinishedRun(START, started=True)),
    "one that was told to stop": ([START, Stop(0, 1)], UnfinishedRun(START, stopping=True)),
    "one that came up while it was told to stop": (
        [START, Stop(0, 1), JobStarted(1.0, 0, 1, 1.0, 0.0)],
        UnfinishedRun(START, started=True, stopping=True),
    ),
    "the next one after a resize": (
        [START, JobStarted(1.0, 0, 1, 1.0, 0.0), Stop(0, 1), RESIZE],
        UnfinishedRun(RESIZE),
    ),
    "word of an earlier one says nothing of the next": (
        [START, RESIZE, JobStarted(1.0, 0, 1, 1.0, 0.0), JobStopped(2.0, 0, 1, 7.0)],
        UnfinishedRun(RESIZE),
    ),
    "none after it stopped": ([START, Stop(0, 1), JobStopped(2.0, 0, 1, 7.0)], None),
    "none after it crashed": ([START, crash(1)], None),
    "one that was cancelled": ([START, CancelRequested(2.0, 0, 3.0)], UnfinishedRun(START, stopping=True)),
    "none after it was cancelled and ended": ([START, CancelRequested(2.0, 0, 3.0), JobCancelled(2.0, 0)], None),
    "none after it was cancelled": ([START, JobCancelled(2.0, 0)], None),
    "none after it completed": ([START, JobCompleted(2.0, 0, 1, 100.0)], None),
    "a stop that comes when nothing runs is forgotten": ([Stop(0, 1), START], UnfinishedRun(START)),
}


@pytest.mark.parametrize(("steps", "run"), RUNS.values(), ids=RUNS.keys())
def test_the_unfinished_run(steps: Sequence[Event | Command], run: UnfinishedRun | None) -> None:
    assert recovered(*steps).runs == ({} if run is None else {0: run})


def job_after(*steps: Event | Command) -> LiveJob:
    (job,) = recovered(*steps).jobs.values()
    return job


def test_progress_is_what_the_last_run_saved() -> None:
    job = job_after(START, JobMeasured(1.0, 0, 1, 4.0, 3.0))
    assert (job.saved, job.measured, job.incarnation, job.over) == (0.0, (4.0, SEATS), 1, False)
    job = job_after(START, Stop(0, 1), JobStopped(2.0, 0, 1, 7.0), JobStopped(3.0, 0, 1, 9.0), AGAIN)
    assert (job.saved, job.incarnation, job.over) == (7.0, 2, False)


def test_a_job_that_has_ended_is_dropped_and_late_word_of_it_ignored() -> None:
    for end in (JobCompleted(2.0, 0, 1, 100.0), JobCancelled(2.0, 0)):
        found = recovered(START, end, JobStopped(3.0, 0, 1, 9.0), JobCancelled(3.0, 0), AGAIN)
        assert (found.jobs, found.runs, found.submitted) == ({}, {}, 1)


def test_a_rate_is_remembered_with_the_seats_it_was_measured_on() -> None:
    job = job_after(START, BatchChanged(1.0, 0, 1, 4.0, 3.0, 64), RESIZE, JobMeasured(2.0, 0, 1, 9.0, 4.0))
    assert (job.measured, job.batch_size) == ((4.0, SEATS), 64)
    assert job_after(JobReshaped(1.0, 0, 1, 1, 1), AppBid(1.0, "app", (0,), ())).batch_size == 32


def test_a_held_job_is_released_when_it_was_to_be() -> None:
    assert recovered(START, crash(1)).releases == {0: 40.0}
    assert recovered(START, crash(1), JobReleased(40.0, 0)).releases == {}
    assert recovered(START, crash(1), JobCancelled(35.0, 0)).releases == {}
    assert recovered(START, crash(1, blamed=False, retry_in=0.0)).releases == {}
    assert recovered(START, JobReleased(1.0, 0), JobCancelled(2.0, 0)).releases == {}


def test_crashes_are_counted_and_too_many_end_the_job() -> None:
    steps: list[Event | Command] = []
    for n in range(1, _OLD_CRASHES + 1):
        steps += [Start(0, n, SEATS), crash(n, retry_in=0.0 if n == _OLD_CRASHES else 10.0)]
        if n < _OLD_CRASHES:
            job = job_after(*steps)
            assert (job.crashes.in_a_row, job.saved) == (n, 5.0)
    assert recovered(*steps).jobs == {}
    assert job_after(*steps[:-1], crash(_OLD_CRASHES, blamed=False)).crashes.in_a_row == _OLD_CRASHES - 1


def test_failed_starts_count_against_their_node_until_something_starts_there() -> None:
    failed = JobCrashed(30.0, 0, 1, 0.0, False, "no such program", 10.0, failed_on=0)
    elsewhere: list[Event | Command] = [START, failed, AGAIN, JobStarted(50.0, 0, 2, 1.0, 0.0)]
    assert (recovered(START, failed).failures, recovered(START, failed).causes) == ({}, {0: "no such program"})
    assert recovered(*elsewhere).failures == {0: {0}}
    assert recovered(*elsewhere, Resize(0, 3, SEATS), JobStarted(60.0, 0, 3, 1.0, 0.0)).failures == {}
    assert recovered(*elsewhere, NodeResumed(60.0, 0)).failures == {}
    accounts = Accounts([], runs=recovered(*elsewhere))
    restored = Accounts([])
    restore_live(restored, encode_live(accounts))
    assert (restored.runs.failures, restored.runs.causes) == ({0: {0}}, {0: "no such program"})


def test_the_nodes_that_were_up() -> None:
    assert recovered(NodeReturned(0.0, 0), NodeReturned(0.0, 1), NodeLost(1.0, 0)).up == {0: False, 1: True}
