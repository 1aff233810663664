"""The whole events that runs and requests become, and what the backend answers about agents, code and logs."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.live.test_backend_requests import backend, start, sync
from tests.live.test_native_runs import N0, Native
from tests.live.test_runs import BOTH, NODES, ONE, events, phases, registry, run, running, settle
from tests.refusals import refusal

from shoal.core.commands import Resize, Start, Stop
from shoal.core.events import (
    CancelRequested,
    JobCancelled,
    JobCrashed,
    JobHeld,
    JobReleased,
    JobRequeued,
    JobSaved,
    JobStarted,
    JobStopped,
    NodeDrained,
    NodeResumed,
    TimeLimitReached,
)
from shoal.core.job import Conditions, JobSpec, Launch
from shoal.core.topology import Node, Placement
from shoal.live.live_job import LiveJob
from shoal.wire.messages import PROTOCOL, AgentReport, Hello, LogRead, Roster, SessionReport

LAUNCH = Launch("job", ("python",), grace=1.0)


def other(name: str = "other", **more: object) -> JobSpec:
    return JobSpec(name, 0.0, 1, None, 1, 1, **more)  # type: ignore[arg-type]


def test_a_job_that_waits_for_one_that_failed_is_cancelled_with_that_cause() -> None:
    it = running()
    it.submit(other(conditions=Conditions((("job", "ok"),))), LAUNCH, 3.0)
    it.submit(other("later", conditions=Conditions((("job", "any"),))), LAUNCH, 3.0)
    events(it)
    it.cancel(0, 5.0)
    assert events(it) == [CancelRequested(5.0, 0, 6.0)]
    it.report(0, [run("ended", -15, -15, warned=True)], 6.0)
    cause = "job was cancelled, and this job was to start only if it completed"
    assert events(it) == [JobCancelled(6.0, 0), JobCancelled(6.0, 1, cause), JobReleased(6.0, 2)]


def test_a_run_that_reaches_its_time_limit_is_reported_once_with_the_limit_and_its_end() -> None:
    it = registry()
    it.submit(other(time=60.0), replace(LAUNCH, grace=5.0), 0.0)
    it.carry_out(Start(1, 1, Placement(((1, 1),))), 1.0)
    it.report(1, [run("running", job=1)], 2.0)
    events(it)
    it.release(61.9)
    assert events(it) == []
    it.release(62.0)
    assert events(it) == [TimeLimitReached(62.0, 1, 60.0, 67.0)]
    assert [(order.job, order.phase) for order in it.orders(1)] == [(1, "stop")]
    it.report(1, [run("ended", 0, job=1, warned=True)], 64.0)
    assert events(it) == [JobCancelled(64.0, 1, "", True)]


def test_a_running_job_is_put_back_into_the_queue_once_and_others_are_not() -> None:
    it = registry()
    events(it)
    assert not it.requeue(0, 1.0, "ann")
    assert not it.requeue(7, 1.0, "ann")
    assert it.latest_gang(0) is None
    it = running(BOTH)
    assert it.requeue(0, 5.0, "ann")
    assert events(it) == [JobRequeued(5.0, 0, 1, "ann")]
    assert (phases(it, 0), phases(it, 1)) == ({1: "stop"}, {1: "stop"})
    assert not it.requeue(0, 6.0, "ann")
    for node in (0, 1):
        it.report(node, [run("ended", 0, 0, warned=True, done=4.0)], 7.0)
    assert events(it) == [JobStopped(7.0, 0, 1, 4.0)]
    it.carry_out(Start(0, 2, ONE), 8.0)
    gang = it.latest_gang(0)
    assert gang is not None
    assert gang.incarnation == 2


def test_a_resize_that_the_registry_has_already_done_or_that_comes_after_the_end_changes_nothing() -> None:
    it = running(ONE, in_place=True)
    it.carry_out(Resize(0, 1, BOTH), 3.0)
    assert (phases(it, 0), phases(it, 1)) == ({1: "stop"}, {})
    it = running(ONE, in_place=True)
    it.report(0, [run("ended", 0, 0)], 4.0)
    events(it)
    it.carry_out(Resize(0, 2, BOTH), 5.0)
    assert [type(event).__name__ for event in events(it)] == ["JobCompleted"]
    assert phases(it, 1) == {}


def test_a_held_job_is_held_once_and_only_while_it_lives() -> None:
    it = registry()
    assert it.held.hold(0, 1.0, "root") == [JobHeld(1.0, 0, "root")]
    assert it.held.hold(0, 2.0, "root") == []
    assert it.held.hold(9, 2.0, "root") == it.held.lift(9, 2.0, "root") == []
    it.cancel(0, 3.0)
    assert it.held.lift(0, 4.0, "root") == it.held.hold(0, 4.0, "root") == []


SAVES = {
    "the first save at once": ([(10.0, 5.0)], [JobSaved(10.0, 0, 1, 5.0)]),
    "the next after a minute, with its age": (
        [(10.0, 5.0), (30.0, 8.0), (69.0, 8.0), (70.0, 8.0)],
        [JobSaved(10.0, 0, 1, 5.0), JobSaved(70.0, 0, 1, 8.0, 40.0)],
    ),
    "nothing new is no event": ([(10.0, 5.0), (80.0, 5.0)], [JobSaved(10.0, 0, 1, 5.0)]),
}


@pytest.mark.parametrize(("reports", "found"), SAVES.values(), ids=SAVES.keys())
def test_saves_of_a_job_that_may_not_be_stopped_without_them(
    reports: list[tuple[float, float]], found: list[JobSaved]
) -> None:
    it = running(preemptible="auto")
    for at, saved in reports:
        it.report(0, [run("running", saved=saved)], at)
    assert [event for event in events(it) if isinstance(event, JobSaved)] == found
    it = running(preemptible="yes")
    for at, saved in reports:
        it.report(0, [run("running", saved=saved)], at)
    assert not [event for event in events(it) if isinstance(event, JobSaved)]


def test_a_job_that_saves_when_it_is_warned_says_so_once_in_each_run() -> None:
    it = running(preemptible="auto")
    for at in (10.0, 100.0):
        it.report(0, [run("running", saved=0.0, session=SessionReport(saves=True))], at)
    assert events(it) == [JobSaved(10.0, 0, 1, 0.0, 10.0, True)]


def test_the_expected_rate_follows_the_last_measurement_and_the_kinds_decide_where_a_job_can_start() -> None:
    def speed(spec: JobSpec, placement: Placement) -> float:
        return float(spec.gpus * placement.gpus)

    made = LiveJob(other(kinds=("big",)), LAUNCH)
    assert made.expected_rate(BOTH, speed) == 3.0
    made.measured = 1.5, ONE
    assert made.expected_rate(BOTH, speed) == 3.0 * 1.5 / 2.0
    nodes = {0: Node("a", "gpu", 4), 1: Node("b", "big", 1), 2: Node("c", "big", 2)}
    assert made.can_start_on(nodes)
    made.spec = replace(made.spec, gpus=4, min_gpus=3, max_gpus=4)
    assert made.can_start_on(nodes)
    made.failed_on = {1}
    assert not made.can_start_on(nodes)
    made.spec = replace(made.spec, kinds=None, min_gpus=6)
    assert made.can_start_on(nodes)
    made.failed_on = {0}
    assert not made.can_start_on(nodes)


def test_the_last_worker_of_a_job_resized_in_place_ends_it_with_its_status() -> None:
    it = running(ONE, in_place=True)
    it.report(0, [run("running", 3)], 4.0)
    assert events(it) == []
    it.report(0, [run("ended", 3, 5)], 9.0)
    (crash,) = events(it)
    assert isinstance(crash, JobCrashed)
    assert (crash.cause, crash.status, crash.blamed, crash.ran) == ("rank 1 on n0 exited with status 5", 5, True, 7.0)


def test_the_ranks_of_a_job_resized_in_place_are_found_where_they_were_started() -> None:
    it = running(ONE, in_place=True)
    it.carry_out(Resize(0, 2, BOTH), 3.0)
    assert it.place(0, 2, 0) is None, "not before it has started"
    it.report(1, [run("running", incarnation=2, roster=Roster(origin=1))], 4.0)
    assert events(it) == [JobStarted(4.0, 0, 2, 3.0, 2.0)]
    assert [it.place(0, 2, rank) for rank in range(4)] == [(0, 1, 0), (0, 1, 1), (1, 2, 2), None]
    assert it.place(9, 1, 0) is None


def test_a_stopped_run_lets_the_next_one_start_and_counts_what_it_left() -> None:
    it = running()
    it.carry_out(Stop(0, 1), 5.0)
    it.report(0, [run("ended", 0, 0, warned=True, done=9.0, saved=8.0)], 6.0)
    assert events(it) == [JobStopped(6.0, 0, 1, 8.0, 1.0)]
    settle(it, 6.0)
    it.carry_out(Start(0, 2, ONE), 7.0)
    for phase in ("ready", "running"):
        it.report(0, [run(phase, incarnation=2)], 8.0)
    assert events(it) == [JobStarted(8.0, 0, 2, 2.0, 8.0)]


# ── the backend ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_operators_drain_and_its_end_name_the_node_the_reason_and_who_asked() -> None:
    it, clock = backend()
    clock.time = 4.0
    it.drain("gpu-1", "a fan", "root")
    assert it.wait(4.0).events == (NodeDrained(4.0, 1, "a fan", "root"),)
    it.resume_node("gpu-1")
    it.resume_node("gpu-1")
    assert it.wait(4.0).events == (NodeResumed(4.0, 1),)


def test_a_change_that_a_look_makes_wakes_the_loop_and_one_that_changes_nothing_does_not() -> None:
    it, _ = backend()
    told: list[int] = []
    it.on_change = lambda: told.append(1)
    assert it.look(lambda runs, now: (len(runs.nodes), now)) == (2, 0.0)
    assert told == []
    it.look(lambda runs, now: runs.lose(1, now))
    assert len(told) == 1
    assert it.pending
    it.wait(0.0)
    assert not it.pending


def test_acknowledgements_of_two_waits_are_given_together_once_both_are_durable() -> None:
    it, _ = backend()
    first = it.submit([(other("a"), LAUNCH)], "a")
    it.wait(0.0)
    second = it.submit([(other("b"), LAUNCH)], "b")
    it.wait(0.0)
    assert (it.awaited, first.done(), second.done()) == (True, False, False)
    it.confirm()
    assert (it.awaited, first.result(0), second.result(0)) == (False, "a", "b")


def test_a_report_of_a_session_that_is_over_is_refused_until_the_agent_registers() -> None:
    it, _ = backend()
    session = sync(it).session
    it.hello(Hello(PROTOCOL, "gpu-0", "boot", "gpu", 2, "here"))
    with refusal(f"session: {session!r}: is over: register first"):
        it.sync(AgentReport(protocol=PROTOCOL, node="gpu-0", boot="boot", known=0, runs=[], session=session))


def test_agents_whose_orders_changed_are_named_once_by_node_or_allocation() -> None:
    it, _ = backend()
    it.touched()
    start(it, grace=1.0)
    assert (it.touched(), it.touched()) == (["gpu-0"], [])
    native = Native.made()
    native.backend.send([Start(0, 1, Placement(((0, 2),)))])
    assert native.backend.touched() == [f"a.1.{N0}"]
    assert native.backend.agent_of_run(0, 0, 1) == (f"a.1.{N0}", f"a.1.{N0}")
    assert native.backend.agent_of_run(0, 1, 1) == (0, N0)
    assert it.agent_of_run(0, 0, 1) == (0, "gpu-0")


def test_code_belongs_to_the_tenant_whose_job_an_agent_has_a_run_of() -> None:
    it, _ = backend()
    it.submit([(other(tenant="ann"), replace(LAUNCH, code="c" * 64))], None)
    it.wait(0.0)
    it.send([Start(0, 1, Placement(((0, 1),)))])
    assert it.owner_of_code("gpu-0", 0, "c" * 64) == "ann"
    assert it.owner_of_code("gpu-0", 0, "d" * 64) is None
    assert it.owner_of_code("gpu-0", 1, "c" * 64) is None
    assert it.owner_of_code("gpu-1", 0, "c" * 64) is None
    native = Native.made(jobs=0)
    native.backend.submit([(other("a", tenant="bob"), replace(LAUNCH, code="e" * 64))], None)
    native.backend.send([Start(0, 1, Placement(((0, 1),)))])
    assert native.backend.owner_of_code(f"a.1.{N0}", 0, "e" * 64) == "bob"


def test_in_native_mode_the_log_of_a_run_that_has_ended_is_read_in_the_home(tmp_path: Path) -> None:
    native = Native.made()
    native.backend.home = tmp_path
    answer = native.backend.read_log(0, LogRead(7, "a", 1, 0, 0, 100)).result(0)
    assert (answer.read, answer.data) == (7, b"")


def test_when_agents_last_reported_is_known_by_node_and_by_allocation() -> None:
    it, clock = backend()
    clock.time = 3.0
    sync(it)
    assert it.heard() == {"gpu-0": 3.0}
    native = Native.made()
    native.backend.send([Start(0, 1, Placement(((0, 2),)))])
    native.hello(f"a.1.{N0}")
    native.clock.time = 2.0
    native.report(f"a.1.{N0}")
    assert native.backend.heard() == {f"a.1.{N0}": 2.0}
    assert NODES[0].name == "n0"
