"""Which waiting jobs may start, and which never can, as jobs start and end."""

from shoal.core.job import Conditions, JobSpec
from shoal.core.lifecycle import JobState
from shoal.core.waiting import WaitingJobs


def spec(id: str, **conditions: object) -> JobSpec:
    return JobSpec(id, 0.0, 1, None, 1, 1, conditions=Conditions(**conditions))  # type: ignore[arg-type]


def pending(_: str) -> JobState:
    return JobState.PENDING


def test_a_hold_and_a_timer_are_waited_for_beside_dependencies() -> None:
    waiting = WaitingJobs()
    job = spec("b", after=(("a", "any"),), hold=True)
    waiting.add(1, job, pending, timer=True, hold=True)
    waiting.ended(0, spec("a"), JobState.FAILED)
    assert list(waiting.due()) == []
    waiting.set_timer(1, running=False)
    assert list(waiting.due()) == []
    waiting.lift(1)
    assert list(waiting.due()) == [(1, "")]
    assert 1 not in waiting


def test_a_job_that_ended_and_is_no_longer_known_is_enough_only_where_its_end_does_not_matter() -> None:
    for when, due in (("any", ""), ("start", ""), ("ok", "a ended too long ago"), ("notok", "a ended too long ago")):
        waiting = WaitingJobs()
        waiting.add(1, spec("b", after=(("a", when),)), lambda _: None, timer=False, hold=False)
        [(job, cause)] = waiting.due()
        assert (job, cause[: len(due)]) == (1, due), when
        waiting = WaitingJobs()
        waiting.add(1, spec("b", after=(("a", when),)), lambda _: None, timer=False, hold=False, again=True)
        assert list(waiting.due()) == [(1, "")], "it ended as required, else this job would not wait any more"


def test_a_held_job_gives_its_place_in_the_array_to_the_next_and_gets_one_back_later() -> None:
    waiting = WaitingJobs()
    jobs = [spec(f"t{i}", array="s", most_at_once=1) for i in range(3)]
    for number, job in enumerate(jobs):
        waiting.add(number, job, pending, timer=False, hold=False)
    assert list(waiting.due()) == [(0, "")]
    waiting.hold(0, jobs[0], seated=False, timer=False)
    assert list(waiting.due()) == [(1, "")]
    waiting.lift(0)
    assert list(waiting.due()) == []
    waiting.ended(1, jobs[1], JobState.COMPLETED)
    assert list(waiting.due()) == [(0, "")], "the first in order of admission"
    waiting.hold(0, jobs[0], seated=True, timer=False)
    assert list(waiting.due()) == [], "a running job that is held keeps its place"


def test_arrays_of_two_tenants_with_one_name_do_not_limit_each_other() -> None:
    waiting = WaitingJobs()
    for number, tenant in enumerate("ab"):
        job = JobSpec(f"j{number}", 0.0, 1, None, 1, 1, tenant, conditions=Conditions(array="s", most_at_once=1))
        waiting.add(number, job, pending, timer=False, hold=False)
    assert list(waiting.due()) == [(0, ""), (1, "")]


def test_a_dependency_that_can_never_be_met_says_how_the_other_job_ended() -> None:
    for when, state, cause in (
        ("ok", JobState.FAILED, "a failed, and this job was to start only if it completed"),
        ("ok", JobState.CANCELLED, "a was cancelled, and this job was to start only if it completed"),
        ("notok", JobState.COMPLETED, "a completed, and this job was to start only if it failed"),
    ):
        before, after = WaitingJobs(), WaitingJobs()
        before.add(1, spec("b", after=(("a", when),)), {"a": state}.get, timer=False, hold=False)
        after.add(1, spec("b", after=(("a", when),)), pending, timer=False, hold=False)
        assert list(after.due()) == []
        after.ended(0, spec("a"), state)
        assert list(before.due()) == list(after.due()) == [(1, cause)]


def test_a_job_that_was_let_start_before_a_restart_holds_its_place_in_the_array_until_it_ends() -> None:
    waiting = WaitingJobs()
    first, second = (spec(f"t{i}", array="s", most_at_once=1) for i in range(2))
    waiting.occupy(0, first)
    waiting.occupy(5, spec("none"))
    waiting.add(1, second, pending, timer=False, hold=False)
    assert list(waiting.due()) == []
    waiting.ended(0, first, JobState.COMPLETED)
    assert list(waiting.due()) == [(1, "")]


def test_an_array_without_waiting_jobs_still_counts_those_that_run() -> None:
    waiting = WaitingJobs()
    jobs = [spec(f"t{i}", array="s", most_at_once=2) for i in range(4)]
    for number in (0, 1):
        waiting.add(number, jobs[number], pending, timer=False, hold=False)
    assert list(waiting.due()) == [(0, ""), (1, "")]
    waiting.ended(0, jobs[0], JobState.COMPLETED)
    for number in (2, 3):
        waiting.add(number, jobs[number], pending, timer=False, hold=False)
    assert list(waiting.due()) == [(2, "")], "job 1 still runs"
