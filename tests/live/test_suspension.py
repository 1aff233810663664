"""Suspension in the registry of runs: commands become numbered orders, results become events, once each."""

from collections.abc import Callable
from functools import partial

import pytest
from tests.live.test_runs import NODES, events, registry, run, running

from shoal.core.commands import Decided, Resize, Resume, Start, Stop, Suspend
from shoal.core.events import (
    EventBatch,
    JobCrashed,
    JobResumed,
    JobStarted,
    JobSubmitted,
    JobSuspended,
    SuspensionReported,
)
from shoal.core.job import JobSpec, Launch
from shoal.core.topology import Placement
from shoal.live.accounts import Accounts
from shoal.live.live_image import encode_live, restore_live
from shoal.live.live_job import LiveJob
from shoal.live.recovery import RecoveredRuns, UnfinishedRun
from shoal.live.resumption import resume
from shoal.live.runs import RunRegistry
from shoal.live.suspension import ability_event, answer_in_place
from shoal.wire.messages import RunReport, SuspensionAbility, SuspensionReport

HALF = Placement(((0, 2),))


def turn(it: RunRegistry, job: int = 0) -> int:
    return next(order.turn for order in it.orders(0) if order.job == job)


def result(turn: int, suspended: bool, cause: str = "", **more: object) -> RunReport:
    report = SuspensionReport(turn=turn, suspended=suspended, cause=cause, **more)  # type: ignore[arg-type]
    return run("running", suspension=report)


def test_a_suspension_and_its_end_are_reported_once_each_and_no_time_passes_for_the_job() -> None:
    it = running()
    it.carry_out(Suspend(0, 1), 12.0)
    assert turn(it) == 1
    for _ in range(2):
        it.report(0, [result(1, True, bytes=500, seconds=2.0)], 14.0)
    # It ran for 10 s on two GPUs, from 2 to 12.
    assert events(it) == [JobSuspended(14.0, 0, 1, 20.0, 500, 2.0)]
    it.carry_out(Resume(0, 1, HALF), 40.0)
    assert turn(it) == 2
    it.report(0, [result(1, True)], 40.5)  # a late report of the turn before
    for _ in range(2):
        it.report(0, [result(2, False, seconds=0.5)], 41.0)
    assert events(it) == [JobResumed(41.0, 0, 1, 2.0, 20.0, 0.5)]
    it.report(0, [run("ended", 0, 0)], 46.0)
    assert [event.done for event in events(it)] == [30.0]  # type: ignore[union-attr]


def test_a_suspended_run_does_not_use_up_its_time_limit() -> None:
    it = running()
    it.held.limits[0] = 62.0  # 60 s from its start
    it.carry_out(Suspend(0, 1), 12.0)
    it.report(0, [result(1, True)], 12.0)
    assert it.held.limits == {}
    it.carry_out(Resume(0, 1, HALF), 1000.0)
    it.report(0, [result(2, False)], 1000.0)
    assert it.held.limits == {0: 1050.0}


def test_nothing_is_measured_of_a_run_that_is_suspended_or_being_resumed() -> None:
    it = running()
    for turn, command in ((1, Suspend(0, 1)), (2, Resume(0, 1, HALF))):
        it.carry_out(command, 10.0 * turn)
        it.report(0, [run("running", done=50.0 * turn)], 10.0 * turn + 5)
        assert events(it) == []
        it.report(0, [result(turn, turn == 1)], 10.0 * turn + 6)
        events(it)


def test_a_refused_suspension_takes_the_seats_back_from_the_run_that_waits_for_them() -> None:
    it = running()
    it.submit(JobSpec("other", 0.0, 2, 100.0, 2, 2), Launch("other", ("python",)), 3.0)
    events(it)
    it.carry_out(Suspend(0, 1), 12.0)
    it.carry_out(Start(1, 1, HALF), 12.0)
    it.report(0, [result(1, False, "the driver refuses")], 13.0)
    crashed, resumed = events(it)
    assert isinstance(crashed, JobCrashed)
    assert (crashed.job, crashed.blamed) == (1, False)
    assert "job job could not be suspended (the driver refuses)" in crashed.cause
    assert resumed == JobResumed(13.0, 0, 1, 2.0, 22.0, 0.0, "the driver refuses")
    assert turn(it) == 2  # the order says what is: it runs
    it.carry_out(Suspend(0, 1), 20.0)
    assert turn(it) == 3


def test_a_run_that_was_resized_in_place_is_not_suspended_and_the_run_that_was_to_get_its_seats_gives_way() -> None:
    it = running(in_place=True)
    it.submit(JobSpec("other", 0.0, 2, 100.0, 2, 2), Launch("other", ("python",)), 3.0)
    it.carry_out(Resize(0, 2, Placement(((0, 1),))), 5.0)  # no agent has a run of incarnation 2
    events(it)
    it.carry_out(Suspend(0, 2), 12.0)
    it.carry_out(Start(1, 1, HALF), 12.0)
    answer_in_place(it, [0], 12.0)
    crashed, resumed = events(it)
    assert isinstance(crashed, JobCrashed)
    assert (crashed.job, crashed.blamed) == (1, False)
    assert isinstance(resumed, JobResumed)
    assert (resumed.incarnation, resumed.cause) == (2, "a job that is resized in place is not suspended")
    it.carry_out(Resume(0, 2, Placement(((0, 1),))), 13.0)  # the ring had given the seats away
    answer_in_place(it, [0], 13.0)
    assert [type(event) for event in events(it)] == [JobResumed]


def test_a_restarted_control_plane_answers_for_a_run_that_is_resized_in_place() -> None:
    past = RecoveredRuns(submitted=1, up={0: True, 1: True})
    spec, launch = JobSpec("a", 0.0, 1, 9.0, 1, 2), Launch("job", ("train",), in_place=True)
    past.jobs[0] = LiveJob(spec, launch, incarnation=2)
    past.runs[0] = UnfinishedRun(Resize(0, 2, Placement(((0, 1),))), started=True, turn=1)
    it = RunRegistry(NODES, lambda *_: 1.0)
    resume(it, past, frozenset(), 100.0)
    assert [type(event) for event in events(it)] == [JobResumed]


def test_a_run_that_cannot_be_resumed_yet_stays_suspended() -> None:
    it = running()
    it.carry_out(Suspend(0, 1), 12.0)
    it.report(0, [result(1, True)], 12.0)
    it.carry_out(Resume(0, 1, HALF), 20.0)
    events(it)
    it.report(0, [result(2, True, "its GPU is in use")], 21.0)
    assert events(it) == [JobSuspended(21.0, 0, 1, 20.0, cause="its GPU is in use")]
    assert turn(it) == 3


def test_a_suspended_run_whose_agent_is_replaced_is_lost_without_blame() -> None:
    it = running()
    it.carry_out(Suspend(0, 1), 12.0)
    it.report(0, [result(1, True)], 12.0)
    events(it)
    it.reboot(0, 30.0)
    (crash,) = events(it)
    assert isinstance(crash, JobCrashed)
    assert (crash.blamed, crash.done, crash.ran) == (False, 0.0, 10.0)


@pytest.mark.parametrize("through_image", [False, True])
def test_a_restarted_control_plane_keeps_the_position_of_a_suspended_run(through_image: bool) -> None:
    it = registry()
    accounts = Accounts(it.nodes)
    launch = Launch("job", ("python",))
    for record in (
        EventBatch(0.0, (JobSubmitted(0.0, JobSpec("job", 0.0, 2, 100.0, 1, 4), launch),)),
        Decided(0, 1.0, (Start(0, 1, HALF),)),
        EventBatch(2.0, (JobStarted(2.0, 0, 1, 2.0, 0.0),)),
        Decided(0, 12.0, (Suspend(0, 1),)),
        EventBatch(13.0, (JobSuspended(13.0, 0, 1, 20.0),)),
        Decided(0, 20.0, (Resume(0, 1, HALF),)),
        EventBatch(21.0, (JobSuspended(21.0, 0, 1, 20.0, cause="in use"),)),
    ):
        accounts.fold(record)
    recovered: RecoveredRuns = accounts.runs
    if through_image:
        again = Accounts(it.nodes)
        restore_live(again, encode_live(accounts))
        recovered = again.runs
    new = RunRegistry(it.nodes, it.speed)
    resume(new, recovered, frozenset(), 100.0)
    assert turn(new) == 3
    new.carry_out(Resume(0, 1, HALF), 101.0)
    assert turn(new) == 4


def test_accounts_charge_no_suspended_time() -> None:
    accounts = Accounts(registry().nodes)
    accounts.fold(EventBatch(0.0, (JobSubmitted(0.0, JobSpec("job", 0.0, 2, 100.0, 1, 4)),)))
    accounts.fold(Decided(0, 1.0, (Start(0, 1, HALF),)))
    accounts.fold(EventBatch(10.0, (JobStarted(2.0, 0, 1, 2.0, 0.0),)))
    accounts.fold(Decided(0, 12.0, (Suspend(0, 1),)))
    accounts.fold(EventBatch(50.0, (JobSuspended(11.0, 0, 1, 16.0, 10**9, 1.0),)))
    account = accounts.accounts[0]
    assert (account.state.name, account.used(50.0), account.progress(50.0)) == ("SUSPENDED", 20.0, 16.0)
    assert account.history[-1][1] == "suspended in 1.0 s; holds 1.0 GB of host memory"
    accounts.fold(Decided(0, 60.0, (Resume(0, 1, HALF),)))
    accounts.fold(EventBatch(55.0, (JobResumed(55.0, 0, 1, 2.0, 16.0, 0.5),)))
    assert (account.state.name, account.used(60.0), account.bound) == ("RUNNING", 40.0, None)


def test_a_suspended_run_that_the_next_agent_took_over_goes_on() -> None:
    it = running()
    it.carry_out(Suspend(0, 1), 12.0)
    it.report(0, [result(1, True)], 12.0)
    events(it)
    it.reboot(0, 30.0, [(0, 1)])
    assert events(it) == []
    assert turn(it) == 1
    it.report(0, [result(1, True)], 31.0)
    it.carry_out(Resume(0, 1, HALF), 40.0)
    it.report(0, [result(2, False)], 41.0)
    (resumed,) = events(it)
    assert isinstance(resumed, JobResumed)


ONE_GPU = Placement(((0, 1),))


def beside(*others: str, gpus: int = 2) -> RunRegistry:
    """A job on ``gpus`` of the node's two GPUs, told to suspend, and others that were given one of its GPUs each.

    One that is called "runs" runs there, one that is "suspended" ran, was suspended and is being resumed, and one that
    "starts" has not begun.
    """
    it = registry()
    for name in others:
        it.submit(JobSpec(name, 0.0, 1, 100.0, 1, 1), Launch(name, ("python",)), 0.0)
    for number, name in enumerate(others, 1):
        if name != "starts":
            it.carry_out(Start(number, 1, ONE_GPU), 1.0)
            it.report(0, [run("running", job=number)], 2.0)
        if name == "suspended":
            it.carry_out(Suspend(number, 1), 3.0)
            suspended = SuspensionReport(turn=1, suspended=True)
            it.report(0, [run("running", job=number, suspension=suspended)], 4.0)
    it.carry_out(Start(0, 1, Placement(((0, gpus),))), 5.0)
    it.report(0, [run("running", job=number) for number in range(len(others) + 1)], 6.0)
    it.carry_out(Suspend(0, 1), 10.0)
    for number, name in enumerate(others, 1):
        if name == "suspended":
            it.carry_out(Resume(number, 1, ONE_GPU), 10.0)
        if name == "starts":
            it.carry_out(Start(number, 1, ONE_GPU), 10.0)
    events(it)
    return it


WHY = "the GPUs it was to get are still in use: job job could not be suspended (no memory)"
ROOM = {
    "one that had not begun is ended": (partial(beside, "starts"), [(1, "JobCrashed")]),
    "two that had not begun are ended, the last first": (
        partial(beside, "starts", "starts"), [(2, "JobCrashed"), (1, "JobCrashed")]
    ),
    "the last is enough where it held only one of two GPUs": (
        partial(beside, "starts", "starts", gpus=1), [(2, "JobCrashed")]
    ),
    "none, where another still has room": (partial(beside, "starts", gpus=1), []),
    "one that was to be resumed stays suspended": (partial(beside, "suspended"), [(1, "JobSuspended")]),
    "one of both kinds": (partial(beside, "suspended", "starts"), [(2, "JobCrashed"), (1, "JobSuspended")]),
    "one that runs beside it is left alone": (partial(beside, "runs", "starts", gpus=1), [(2, "JobCrashed")]),
}  # fmt: skip


@pytest.mark.parametrize(("make", "ended"), ROOM.values(), ids=ROOM.keys())
def test_who_gives_way_to_a_run_that_could_not_be_suspended(
    make: Callable[[], RunRegistry], ended: list[tuple[int, str]]
) -> None:
    it = make()
    it.report(0, [result(1, False, "no memory")], 13.0)
    *given_way, resumed = events(it)
    assert isinstance(resumed, JobResumed)
    assert (resumed.job, resumed.cause) == (0, "no memory")
    assert [(event.job, type(event).__name__) for event in given_way] == ended  # type: ignore[union-attr]
    for event in given_way:
        assert isinstance(event, JobCrashed | JobSuspended)
        assert (event.at, event.cause) == (13.0, WHY)
        if isinstance(event, JobSuspended):
            assert (event.incarnation, event.bytes, event.seconds) == (1, 0, 0.0)
            assert turn(it, event.job) == 3
            it.carry_out(Resume(event.job, 1, ONE_GPU), 20.0)
            assert turn(it, event.job) == 4


def test_a_result_that_comes_after_the_run_was_stopped_or_has_ended_is_no_event() -> None:
    for stop in (True, False):
        it = running()
        it.carry_out(Suspend(0, 1), 12.0)
        if stop:
            it.carry_out(Stop(0, 1), 12.0)
        else:
            it.report(0, [run("ended", 0, 1)], 12.5)
        events(it)
        it.report(0, [result(1, True)], 13.0)
        assert events(it) == []


def test_a_node_reports_what_it_can_suspend() -> None:
    it = registry()
    ability = SuspensionAbility(how="cuda", memory=1000, most_gpus=2, why_not="")
    assert ability_event(1, ability, 5.0) == SuspensionReported(5.0, 1, "cuda", 1000, 2, "")
    assert it.agents[1].suspension is None
