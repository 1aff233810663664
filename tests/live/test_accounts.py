"""The accounts of jobs: what each used, lost and went through, from events and commands alone."""

from collections.abc import Iterable
from copy import copy
from math import inf

import pytest

from shoal.core.commands import Command, Decided, Resize, Resume, Start, Stop, Suspend
from shoal.core.events import (
    BatchChanged,
    Event,
    EventBatch,
    JobCancelled,
    JobCompleted,
    JobCrashed,
    JobMeasured,
    JobReleased,
    JobReshaped,
    JobResumed,
    JobStarted,
    JobStopped,
    JobSubmitted,
    JobSuspended,
)
from shoal.core.job import JobSpec, Launch
from shoal.core.lifecycle import JobState
from shoal.core.retry import OLD_RETRIES
from shoal.core.topology import Node, Placement
from shoal.live.accounts import Account, Accounts
from shoal.live.live_image import encode_live, restore_live
from shoal.store.codec import Header

_OLD_CRASHES = OLD_RETRIES + 1
"""Crashes that fail a job in a journal whose events do not say so."""

NODES = (Node("n0", "gpu", 2), Node("n1", "gpu", 2))
THREE_GPUS = Placement(((0, 2), (1, 1)))
TWO_GPUS = Placement(((0, 2),))


def submitted(at: float = 0.0, id: str = "job", tenant: str = "ann", **launch: object) -> JobSubmitted:
    spec = JobSpec(id, at, 3, 100.0, 1, 4, tenant=tenant)
    return JobSubmitted(at, spec, Launch("job", ("train",), **launch))  # type: ignore[arg-type]


def start(incarnation: int = 1, placement: Placement = THREE_GPUS, job: int = 0) -> Start:
    return Start(job, incarnation, placement)


def accounts(*records: tuple[float, Iterable[Event], Iterable[Command]]) -> Accounts:
    """Accounts after these cycles: time, events, commands."""
    found = Accounts(NODES)
    for now, events, commands in records:
        found.fold(EventBatch(now, tuple(events)))
        found.fold(Decided(0, inf, tuple(commands)))
    return found


def running(at: float = 10.0, rate: float = 2.0) -> Accounts:
    """One job on three GPUs since time 5 that has trained at this rate since ``at``."""
    return accounts((0.0, [submitted()], []), (5.0, [], [start()]), (at, [JobStarted(at, 0, 1, rate, 0.0)], []))


def only(found: Accounts) -> Account:
    (account,) = found.accounts.values()
    return account


def test_a_job_that_waits_holds_nothing_and_has_done_nothing() -> None:
    account = only(accounts((3.0, [submitted(3.0)], [])))
    assert (account.state, account.submitted, account.started, account.ended) == (JobState.PENDING, 3.0, None, None)
    assert (account.used(50.0), account.progress(50.0), account.starts) == (0.0, 0.0, 0)
    assert account.history == [(3.0, "submitted by ann")]


def test_gpu_seconds_are_gpus_times_seconds_from_the_command_to_the_end() -> None:
    found = running()
    account = only(found)
    assert (account.started, account.used(20.0), account.gpu_seconds) == (5.0, 3 * 15.0, 0.0)
    found.fold(EventBatch(25.0, (JobCompleted(25.0, 0, 1, 100.0),)))
    assert (account.used(90.0), account.gpu_seconds, found.ended_gpu_seconds) == (60.0, 60.0, {"ann": 60.0})
    assert (account.state, account.ended, account.done, account.rate) == (JobState.COMPLETED, 25.0, 100.0, 0.0)
    assert (found.completed, found.live, account.placement) == (1, {}, None)


def test_the_time_in_which_the_control_plane_was_away_is_charged_to_no_job_and_left_out_once() -> None:
    found = running()
    back = Header({"away": (10.0, 3610.0)})
    for _ in range(2):  # a segment repeats the header
        found.fold(back)
        assert only(found).used(3612.0) == 3 * (12.0 - 5.0)
    found.fold(EventBatch(3615.0, (JobCompleted(3615.0, 0, 1, 100.0),)))
    assert only(found).gpu_seconds == 3 * (15.0 - 5.0)


def test_gpu_seconds_of_a_tenants_ended_jobs_add_up() -> None:
    found = accounts((0.0, [submitted(), submitted(id="b"), submitted(id="c", tenant="bob")], []))
    for number in range(3):
        found.fold(Decided(0, inf, (start(job=number, placement=TWO_GPUS),)))
        found.fold(EventBatch(found.now + 10.0, (JobCancelled(found.now + 10.0, number),)))
    assert found.ended_gpu_seconds == {"ann": 40.0, "bob": 20.0}


def test_progress_goes_on_at_the_last_rate_and_never_back() -> None:
    account = only(running(at=10.0, rate=2.0))
    assert [account.progress(at) for at in (0.0, 10.0, 13.0)] == [0.0, 0.0, 6.0]


@pytest.mark.parametrize("event", [JobMeasured(12.0, 0, 1, 5.0, 7.0), BatchChanged(12.0, 0, 1, 5.0, 7.0, 64)])
def test_a_measurement_sets_rate_and_progress_and_leaves_the_state(event: Event) -> None:
    found = running()
    found.apply_events([event])
    account = only(found)
    assert (account.rate, account.done, account.done_at, account.state) == (5.0, 7.0, 12.0, JobState.RUNNING)


LOST = {
    "all since the last checkpoint, on every GPU": (JobCrashed(20.0, 0, 1, 4.0, False, "x"), 3 * 8.0),
    "nothing where all is saved": (JobCrashed(20.0, 0, 1, 20.0, False, "x"), 0.0),
    "nothing where more is saved than was known": (JobCrashed(20.0, 0, 1, 30.0, False, "x"), 0.0),
    "never more than the seats were held": (JobCrashed(20.0, 0, 1, -100.0, False, "x"), 3 * 15.0),
}


@pytest.mark.parametrize(("crash", "lost"), LOST.values(), ids=LOST.keys())
def test_what_a_crash_loses_in_gpu_seconds(crash: JobCrashed, lost: float) -> None:
    found = running(at=10.0, rate=2.0)
    found.apply_events([crash])
    assert (found.lost_gpu_seconds, found.crashes) == (lost, 1)


def test_losses_of_several_crashes_add_up_and_one_before_any_measurement_loses_nothing() -> None:
    found = running()
    found.apply_events([JobCrashed(20.0, 0, 1, 4.0, False, "x")])
    found.apply_commands(30.0, [start(2, TWO_GPUS)])
    found.apply_events([JobCrashed(35.0, 0, 2, 4.0, False, "x")])
    assert (found.lost_gpu_seconds, found.crashes) == (24.0, 2)
    found.apply_commands(40.0, [start(3, TWO_GPUS)])
    found.apply_events([JobStarted(40.0, 0, 3, 1.0, 4.0), JobCrashed(45.0, 0, 3, 4.0, False, "x")])
    assert (found.lost_gpu_seconds, found.crashes) == (34.0, 3)


def test_a_job_is_held_after_a_crash_of_its_own_and_not_after_one_of_its_node() -> None:
    found = running()
    found.apply_events([JobCrashed(20.0, 0, 1, 4.0, False, "node n0 was lost")])
    account = only(found)
    assert (account.state, account.held_until, account.crashes.in_a_row) == (JobState.PENDING, inf, 0)
    assert account.history[-1] == (20.0, "crashed: node n0 was lost; the last 8 s of its run are lost")
    assert (account.done, account.done_at, account.rate, account.placement) == (4.0, 20.0, 0.0, None)
    found.apply_commands(30.0, [start(2)])
    found.apply_events([JobCrashed(31.0, 0, 2, 4.0, True, "rank 0 died", retry_in=10.0)])
    assert (account.state, account.held_until, account.crashes.in_a_row) == (JobState.HELD, 41.0, 1)
    assert account.history[-1] == (31.0, "crashed: rank 0 died; to be tried again in 10 s")
    found.apply_events([JobReleased(41.0, 0)])
    assert (account.state, account.held_until) == (JobState.PENDING, inf)
    assert account.history[-1] == (41.0, "may be tried again")


def test_a_job_that_crashes_too_often_has_failed() -> None:
    found = accounts((0.0, [submitted()], []))
    account = only(found)
    for n in range(1, _OLD_CRASHES + 1):
        assert account.live
        found.apply_commands(float(n), [start(n)])
        found.apply_events([JobCrashed(n + 0.5, 0, n, 0.0, True, "it died")])
    assert (account.state, account.ended, found.live) == (JobState.FAILED, _OLD_CRASHES + 0.5, {})
    last = "not tried again, since it crashed 5 times in a row and has 3 retries"
    assert account.history[-1][1] == f"crashed: it died; {last}"
    assert (account.starts, found.restarts, account.cause) == (_OLD_CRASHES, _OLD_CRASHES - 1, "it died")


def test_a_stop_ends_the_placement_and_stopped_the_run() -> None:
    found = running(at=10.0, rate=2.0)
    found.apply_commands(20.0, [Stop(0, 1)])
    account = only(found)
    assert (account.state, account.placement, account.gpu_seconds) == (JobState.STOPPING, None, 45.0)
    assert (account.done, account.done_at, account.rate) == (20.0, 20.0, 0.0)
    found.apply_events([JobStopped(22.0, 0, 1, 21.0)])
    assert (account.state, account.done, account.done_at, account.rate) == (JobState.PENDING, 21.0, 22.0, 0.0)
    assert [what for _, what in account.history] == [
        "submitted by ann",
        "seated on n0 (2 GPUs), n1 (1 GPU) as run 1",
        "all ranks are up",
        "warned to save and stop",
        "stopped; 21 done and saved",
    ]


def test_a_job_that_ends_while_it_stops_has_no_rate_left() -> None:
    for end in (JobCompleted(24.0, 0, 1, 50.0), JobCrashed(24.0, 0, 1, 50.0, False, "x")):
        found = running()
        found.apply_commands(20.0, [Stop(0, 1)])
        found.apply_events([JobMeasured(22.0, 0, 1, 3.0, 40.0), end])
        assert (only(found).rate, only(found).progress(99.0), only(found).used(99.0)) == (0.0, 50.0, 45.0)


@pytest.mark.parametrize(
    ("in_place", "starts", "story"),
    [(True, 1, "resized in place, on n0 (2 GPUs) as run 2"), (False, 2, "seated on n0 (2 GPUs) as run 2")],
)
def test_a_resize_is_a_restart_unless_it_is_in_place(in_place: bool, starts: int, story: str) -> None:
    found = accounts((0.0, [submitted(in_place=in_place)], []), (5.0, [], [start()]))
    found.apply_commands(15.0, [Resize(0, 2, TWO_GPUS)])
    account = only(found)
    assert (account.starts, found.restarts, account.history[-1][1]) == (starts, starts - 1, story)
    assert (account.incarnation, account.gpu_seconds, account.used(20.0)) == (2, 30.0, 40.0)
    assert (account.placements, account.started) == ({1: THREE_GPUS, 2: TWO_GPUS}, 5.0)


def test_an_event_of_an_earlier_incarnation_or_of_a_job_that_is_over_changes_nothing() -> None:
    found = running()
    found.apply_commands(15.0, [Resize(0, 2, TWO_GPUS)])
    found.apply_events([JobCompleted(16.0, 0, 1, 100.0), JobMeasured(16.0, 0, 1, 9.0, 90.0)])
    account = only(found)
    assert (account.state, account.rate, found.completed) == (JobState.STARTING, 0.0, 0)
    found.apply_events([JobCancelled(20.0, 0), JobCompleted(21.0, 0, 2, 100.0), JobReleased(22.0, 0)])
    assert (account.state, account.cause, found.completed) == (JobState.CANCELLED, "cancelled", 0)
    assert account.history[-1] == (20.0, "cancelled")


def test_the_placed_jobs_are_the_live_ones_that_hold_gpus_also_after_a_restart() -> None:
    found = running()
    for number in range(1, 5):
        found.apply_events([submitted(id=f"j{number}")])
        found.apply_commands(20.0, [start(job=number)])
    found.apply_commands(21.0, [Stop(1, 1)])
    found.apply_events([JobCompleted(22.0, 2, 1, 100.0), JobCancelled(23.0, 3)])
    assert list(found.placed) == [n for n, account in found.live.items() if account.placement is not None] == [0, 4]
    restored = Accounts(found.nodes)
    restore_live(restored, encode_live(found))
    assert list(restored.placed) == [0, 4]
    assert copy(found.live[4]) == found.live[4]


def test_a_reshape_changes_what_is_asked_for() -> None:
    found = accounts((0.0, [submitted()], []), (4.0, [JobReshaped(4.0, 0, 2, 1, 8)], []))
    spec = only(found).spec
    assert (spec.gpus, spec.min_gpus, spec.max_gpus) == (2, 1, 8)
    assert only(found).history[-1] == (4.0, "asked to run on 2 GPUs (at least 1, at most 8)")


def test_jobs_are_found_by_identifier_and_by_their_tenants_key() -> None:
    found = accounts((0.0, [submitted(key="k"), submitted(id="b"), submitted(id="c", tenant="bob", key="k")], []))
    assert found.numbers == {"job": 0, "b": 1, "c": 2}
    assert found.keys == {("ann", "k"): "job", ("bob", "k"): "c"}
    assert [account.number for account in found.live.values()] == [0, 1, 2]
    assert only(accounts((0.0, [JobSubmitted(0.0, found.accounts[0].spec)], []))).launch.command == ()


def test_a_suspended_job_is_not_among_those_with_gpus_and_a_resumed_one_is() -> None:
    found = running()
    found.fold(Decided(0, inf, (Suspend(0, 1),)))
    assert not found.placed
    found.fold(EventBatch(20.0, (JobSuspended(20.0, 0, 1, 10.0),)))
    assert not found.placed
    found.fold(Decided(0, inf, (Resume(0, 1, THREE_GPUS),)))
    found.fold(EventBatch(30.0, (JobResumed(30.0, 0, 1, 2.0, 10.0),)))
    assert [account.placement for account in found.placed.values()] == [THREE_GPUS]


def test_a_job_that_could_not_be_suspended_is_among_those_with_gpus() -> None:
    found = running()
    found.fold(Decided(0, inf, (Suspend(0, 1),)))
    found.fold(EventBatch(20.0, (JobResumed(20.0, 0, 1, 2.0, 10.0, cause="the driver refuses"),)))
    assert [account.placement for account in found.placed.values()] == [THREE_GPUS]


def test_a_job_that_could_not_be_suspended_counts_as_suspended_while_others_have_its_seats() -> None:
    found = running()
    found.fold(EventBatch(12.0, (submitted(12.0, "next"),)))
    found.fold(Decided(0, inf, (Suspend(0, 1), start(placement=TWO_GPUS, job=1))))
    found.fold(EventBatch(20.0, (JobResumed(20.0, 0, 1, 2.0, 10.0, cause="the driver refuses"),)))
    assert found.live[0].state is JobState.SUSPENDED
    assert list(found.placed) == [1]


def test_a_job_that_could_not_be_suspended_is_not_charged_for_the_time_away() -> None:
    found = running()
    found.fold(Decided(0, inf, (Suspend(0, 1),)))
    found.leave_out(10.0, 3610.0)
    found.fold(EventBatch(3620.0, (JobResumed(3620.0, 0, 1, 2.0, 10.0, cause="the driver refuses"),)))
    assert found.live[0].used(3620.0) == 3 * (5.0 + 10.0)


def test_past_seats_outlive_a_base_and_the_oldest_of_too_many_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.live.seat_history._MOST_SPANS", 3)
    found = running()
    for turn in range(2, 6):
        found.apply_events([JobStopped(20.0 * turn, 0, turn - 1, 1.0)])
        found.apply_commands(20.0 * turn, [start(turn)])
    assert [(span.run, span.node) for span in found.past_seats] == [(2, 1), (3, 0), (3, 1), (4, 0), (4, 1)]
    restored = Accounts(NODES)
    restore_live(restored, encode_live(found))
    assert restored.past_seats == found.past_seats
