"""The registry of runs by itself: commands and reports in, events and orders out; no clock, no lock, no process."""

import gc
from math import inf
from typing import Any

import pytest

from shoal.core.commands import Resize, Start, Stop
from shoal.core.events import (
    CancelRequested,
    Event,
    JobCancelled,
    JobCompleted,
    JobCrashed,
    JobReleased,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeLost,
)
from shoal.core.job import BatchSetting, JobSpec, Launch
from shoal.core.topology import Node, Placement
from shoal.live.agent_waits import Timers
from shoal.live.gang import Gang
from shoal.live.live_job import LiveJob
from shoal.live.recovery import RecoveredRuns, UnfinishedRun
from shoal.live.resumption import resume
from shoal.live.runs import RunRegistry
from shoal.wire.messages import RankExit, RunOrder, RunReport

NODES = (Node("n0", "gpu", 2), Node("n1", "gpu", 2))
ONE, BOTH = Placement(((0, 2),)), Placement(((0, 2), (1, 1)))


def registry(
    *, work: float | None = 100.0, in_place: bool = False, retries: int | None = 3, preemptible: str = "yes"
) -> RunRegistry:
    """Two nodes that have answered, and one job at a rate of a GPU-second per second."""
    it = RunRegistry(NODES, lambda spec, placement: float(placement.gpus), first_retry=10.0)
    for index, agent in enumerate(it.agents):
        agent.up, it.agents.nodes[index].up, agent.address = True, True, f"10.0.0.{index}"
        it.report(index, [], 0.0)
    launch = Launch("job", ("python",), grace=1.0, in_place=in_place, retries=retries)
    it.submit(JobSpec("job", 0.0, 2, work, 1, 4, preemptible=preemptible), launch, 0.0)
    return it


def events(it: RunRegistry) -> list[Event]:
    found, it.events = it.events, []
    return found


def run(
    phase: str, *statuses: int, incarnation: int = 1, job: int = 0, warned: bool = False, **more: object
) -> RunReport:
    exits = [RankExit(rank, status, warned) for rank, status in enumerate(statuses)]
    return RunReport(job=job, incarnation=incarnation, phase=phase, exits=exits, **more)  # type: ignore[arg-type]


def phases(it: RunRegistry, node: int = 0) -> dict[int, str]:
    """The phase of each incarnation's order on a node."""
    return {order.incarnation: order.phase for order in it.orders(node)}


def settle(it: RunRegistry, now: float) -> None:
    """What ended is durable."""
    ended, it.ending = it.ending, []
    it.confirm_ends(ended, now)


def running(placement: Placement = ONE, **options: object) -> RunRegistry:
    it = registry(**options)  # type: ignore[arg-type]
    it.carry_out(Start(0, 1, placement), 1.0)
    for phase in ("ready", "running"):
        for node in placement.nodes:
            it.report(node, [run(phase)], 2.0)
    events(it)
    return it


def test_a_gang_on_two_nodes_goes_when_both_are_ready_and_has_started_when_both_run_it() -> None:
    it = registry()
    assert [type(event) for event in events(it)] == [JobSubmitted]
    it.carry_out(Start(0, 1, BOTH), 1.0)
    it.report(0, [run("ready", port=99)], 2.0)
    assert (phases(it, 0), phases(it, 1)) == ({1: "prepare"}, {1: "prepare"})
    it.report(1, [run("ready")], 3.0)
    (order,) = it.orders(1)
    assert (order.phase, order.master, order.port) == ("go", "10.0.0.0", 99)
    it.report(0, [run("running")], 4.0)
    assert events(it) == []
    it.report(1, [run("running")], 5.0)
    assert events(it) == [JobStarted(5.0, 0, 1, 3.0, 0.0)]


def test_each_change_of_a_nodes_orders_counts_its_generation_up_and_no_other_does() -> None:
    it = registry()
    before = [agent.generation for agent in it.agents]
    it.carry_out(Start(0, 1, ONE), 1.0)
    after = [agent.generation for agent in it.agents]
    assert (after[0] > before[0], after[1] == before[1]) == (True, True)
    it.report(0, [run("running")], 2.0)
    it.report(0, [run("running")], 3.0)
    assert it.agents[0].generation == after[0]
    it.carry_out(Stop(0, 1), 4.0)
    stopped = it.agents[0].generation
    assert (stopped > after[0], phases(it)) == (True, {1: "stop"})
    it.carry_out(Stop(0, 1), 5.0)
    assert it.agents[0].generation == stopped, "the same command again changes nothing"


def test_a_stop_of_another_incarnation_stops_nothing() -> None:
    it = running()
    it.carry_out(Stop(0, 2), 3.0)
    assert phases(it) == {1: "go"}


def test_a_run_is_stopped_and_forgotten_once_its_end_is_durable() -> None:
    it = running()
    it.carry_out(Stop(0, 1), 5.0)
    it.report(0, [run("ended", -15, done=7.0, saved=6.0)], 8.0)
    assert (events(it), phases(it)) == ([JobStopped(8.0, 0, 1, 6.0, lost=1.0)], {1: "stop"})
    settle(it, 9.0)
    assert (phases(it), it.agents[0].gangs) == ({}, {})


PROGRESS = {
    "what is saved counts": ({"done": 50.0, "saved": 40.0}, (0, 0), 40.0, 10.0),
    "else what is done": ({"done": 50.0}, (0, 0), 50.0, 0.0),
    "but not where a rank was killed that saves nothing": ({"done": 50.0}, (0, -15), 0.0, 50.0),
    "else what it has had time for since it started": ({}, (0, 0), 2.0 * 8.0, 0.0),
    "but not where a rank was killed": ({}, (0, -15), 0.0, 2.0 * 8.0),
}


@pytest.mark.parametrize(("reported", "statuses", "saved", "lost"), PROGRESS.values(), ids=PROGRESS.keys())
def test_the_progress_of_a_run_that_stopped_and_what_is_lost(
    reported: dict[str, Any], statuses: tuple[int, int], saved: float, lost: float
) -> None:
    it = running(preemptible="auto")
    it.carry_out(Stop(0, 1), 5.0)
    it.report(0, [run("ended", *statuses, warned=True, **reported)], 10.0)
    assert events(it) == [JobStopped(10.0, 0, 1, saved, lost)]


def test_progress_by_time_is_never_more_than_the_work_unless_it_completed() -> None:
    it = running()
    it.carry_out(Stop(0, 1), 5.0)
    it.report(0, [run("ended", 0, 0, warned=True)], 500.0)
    assert events(it) == [JobStopped(500.0, 0, 1, 100.0)]
    it = running()
    it.report(0, [run("ended", 0, 0)], 500.0)
    assert events(it) == [JobCompleted(500.0, 0, 1, 996.0)]
    it = running(work=None)
    it.carry_out(Stop(0, 1), 5.0)
    it.report(0, [run("ended", 0, 0, warned=True)], 500.0)
    assert events(it) == [JobStopped(500.0, 0, 1, 996.0)]


def test_ranks_that_ended_before_their_agent_did_are_not_started_again_by_the_next_agent() -> None:
    it = running(BOTH)
    it.report(0, [run("ended", 0, 0)], 8.0)
    assert phases(it, 0) == {1: "go"}  # an agent keeps its report until the job's end is durable
    it.reboot(0, 9.0)
    assert (phases(it, 0), phases(it, 1)) == ({}, {1: "go"})


def test_a_stopped_job_that_did_all_its_work_and_left_with_status_0_has_completed() -> None:
    for status, done, event in ((0, 100.0, JobCompleted), (0, 99.0, JobStopped), (-15, 100.0, JobStopped)):
        it = running()
        it.carry_out(Stop(0, 1), 5.0)
        it.report(0, [run("ended", status, 0, done=done, warned=True)], 8.0)
        assert events(it) == [event(8.0, 0, 1, done)]
        assert it.over(0) is (event is JobCompleted)


def test_a_crash_holds_the_job_back_and_a_lost_node_does_not() -> None:
    it = running()
    it.report(0, [run("ended", 0, 3, saved=5.0)], 8.0)
    assert events(it) == [
        JobCrashed(8.0, 0, 1, 5.0, True, "rank 1 on n0 exited with status 3", 10.0, 6.0, None, False, 3)
    ]
    assert it.held.releases == {0: 18.0}
    it.release(17.9)
    assert events(it) == []
    it.release(18.0)
    assert (events(it), it.held.releases) == ([JobReleased(18.0, 0)], {})
    it = running(BOTH)
    it.lose(1, 9.0)
    assert events(it) == [
        NodeLost(9.0, 1),
        JobCrashed(9.0, 0, 1, 0.0, False, "node n1 was lost", 0.0, 7.0, None, False),
    ]
    assert (it.held.releases, it.agents[1].up, phases(it, 0), phases(it, 1)) == ({}, False, {1: "stop"}, {})


def test_the_crash_after_the_last_retry_ends_the_job() -> None:
    it = registry()
    events(it)
    for n in range(1, 5):
        assert not it.over(0)
        it.carry_out(Start(0, n, ONE), 100.0 * n)
        it.report(0, [run("ended", 1, incarnation=n)], 100.0 * n + 1)
        settle(it, 100.0 * n + 2)
    retries = [event.retry_in for event in events(it) if isinstance(event, JobCrashed)]
    assert (retries, it.over(0)) == ([10.0, 20.0, 40.0, 0.0], True)


@pytest.mark.parametrize(("ended_at", "failed"), [(30.0, True), (35.0, False)])
def test_a_job_that_fails_within_half_a_minute_of_its_start_has_failed_unless_it_asks_for_retries(
    ended_at: float, failed: bool
) -> None:
    it = running(retries=None)  # since 2.0
    it.report(0, [run("ended", 1)], ended_at)
    assert it.over(0) is failed
    it = running()
    it.report(0, [run("ended", 1)], ended_at)
    assert not it.over(0)


def test_a_run_that_resumed_saved_progress_is_tried_again_however_fast_it_fails() -> None:
    it = running(retries=None)
    it.report(0, [run("running", saved=5.0, done=5.0)], 40.0)
    it.carry_out(Stop(0, 1), 41.0)
    it.report(0, [run("ended", 0, 0, warned=True, saved=5.0, done=5.0)], 42.0)
    settle(it, 42.0)
    it.carry_out(Start(0, 2, ONE), 50.0)
    for phase in ("ready", "running"):
        it.report(0, [run(phase, incarnation=2)], 51.0)
    it.report(0, [run("ended", 1, incarnation=2)], 52.0)
    assert not it.over(0)


def test_a_start_that_a_node_refuses_where_another_job_runs_fails_the_job_at_once() -> None:
    for other, failed in ((True, True), (False, False)):
        it = registry()
        it.submit(JobSpec("other", 0.0, 1, None, 1, 1), Launch("job", ("python",)), 0.0)
        if other:
            it.carry_out(Start(1, 1, ONE), 1.0)
            for phase in ("ready", "running"):
                it.report(0, [run(phase, job=1)], 2.0)
        it.carry_out(Start(0, 1, ONE), 3.0)
        runs = [run("running", job=1)] if other else []
        it.report(0, [*runs, run("ended", cause="no such program", unstarted=True)], 4.0)
        assert it.over(0) is failed


def test_a_start_clears_the_release_of_the_incarnation_before() -> None:
    it = running()
    it.report(0, [run("ended", 1)], 8.0)
    it.carry_out(Start(0, 2, ONE), 9.0)
    assert it.held.releases == {}


def test_the_time_limit_of_a_job_that_has_ended_ends_with_it() -> None:
    it = registry()
    it.submit(JobSpec("timed", 0.0, 1, None, 1, 1, time=50.0), Launch("job", ("python",)), 0.0)
    it.carry_out(Start(1, 1, ONE), 1.0)
    for phase in ("ready", "running"):
        it.report(0, [run(phase, job=1)], 2.0)
    it.report(0, [run("ended", 0, 0, job=1)], 5.0)
    settle(it, 6.0)
    it.forget([1])
    events(it)
    it.release(60.0)
    assert events(it) == []


def test_the_next_incarnation_starts_when_nothing_of_the_last_is_left_anywhere() -> None:
    it = running(BOTH)
    it.carry_out(Resize(0, 2, ONE), 5.0)
    assert (phases(it, 0), phases(it, 1)) == ({1: "stop", 2: "prepare"}, {1: "stop"})
    it.report(0, [run("ended", 0, 0, saved=30.0), run("ready", incarnation=2)], 6.0)
    assert phases(it, 0) == {1: "stop", 2: "prepare"}
    it.report(1, [run("ended", 0)], 7.0)
    assert (phases(it, 0), phases(it, 1)) == ({2: "go"}, {})
    assert events(it) == [], "the ring counts with the next incarnation already"
    it.report(0, [run("running", incarnation=2)], 8.0)
    assert events(it) == [JobStarted(8.0, 0, 2, 2.0, 30.0)]


def test_a_job_with_strays_on_a_node_does_not_start_before_they_are_gone() -> None:
    it = running()
    it.report(0, [run("ended", 0, 1)], 5.0)
    settle(it, 5.0)
    it.report(1, [run("running", incarnation=1), run("running", job=9), run("ended", incarnation=4)], 6.0)
    assert it.agents[1].strays == {0}
    it.carry_out(Start(0, 2, ONE), 7.0)
    assert phases(it) == {2: "prepare"}
    it.report(1, [], 8.0)
    assert (phases(it), it.agents[1].strays) == ({2: "go"}, frozenset())


def test_a_job_does_not_start_again_before_every_node_that_is_up_has_reported() -> None:
    for up, phase in ((True, "prepare"), (False, "go")):
        it = running()
        it.report(0, [run("ended", 0, 1)], 5.0)
        settle(it, 5.0)
        it.reboot(1, 6.0)
        it.agents[1].up = up
        it.carry_out(Start(0, 2, ONE), 7.0)
        assert phases(it) == {2: phase}
        it.report(1, [], 8.0)
        assert phases(it) == {2: "go"}


def test_a_cancelled_job_is_stopped_and_reported_once() -> None:
    it = running()
    it.cancel(0, 5.0)
    it.cancel(0, 6.0)
    assert (events(it), phases(it), it.over(0)) == ([CancelRequested(5.0, 0, 6.0)], {1: "stop"}, True)
    it.report(0, [run("ended", -15, 0)], 7.0)
    it.report(0, [run("ended", -15, 0)], 7.5)
    assert (events(it), phases(it)) == ([JobCancelled(7.0, 0)], {1: "stop"})
    settle(it, 8.0)
    assert phases(it) == {}


def test_a_cancelled_job_is_over_when_every_node_of_it_has_ended_or_is_lost() -> None:
    it = running(BOTH)
    it.cancel(0, 5.0)
    it.report(0, [run("ended", -15, 0)], 6.0)
    assert [type(event) for event in events(it)] == [CancelRequested]
    it.lose(1, 9.0)
    assert events(it) == [NodeLost(9.0, 1), JobCancelled(9.0, 0)]


def test_a_job_that_shares_its_gpus_is_over_as_soon_as_it_is_cancelled() -> None:
    for cancelled in (0, 1):
        it = running()
        it.submit(JobSpec("other", 0.0, 2, 100.0, 2, 2), Launch("other", ("python",)), 3.0)
        it.carry_out(Start(1, 1, ONE, partner=0), 4.0)
        events(it)
        it.cancel(cancelled, 5.0)
        assert events(it) == [JobCancelled(5.0, cancelled)]


def test_a_cancelled_job_without_a_run_in_the_journal_is_over_after_a_restart() -> None:
    it, left = registry(), RecoveredRuns()
    left.apply_events([*events(it), CancelRequested(3.0, 0, 4.0)])
    resume(it, left, frozenset({0, 1}), 9.0)
    assert events(it) == [JobCancelled(9.0, 0)]


def test_a_forced_cancel_stops_without_grace_also_a_job_that_was_cancelled_before() -> None:
    it = running()
    it.cancel(0, 5.0)
    assert [order.grace for order in it.orders(0)] == [1.0]
    generation = it.agents[0].generation
    it.cancel(0, 6.0, force=True)
    assert [order.grace for order in it.orders(0)] == [0.0]
    assert it.agents[0].generation > generation
    assert events(it) == [CancelRequested(5.0, 0, 6.0), CancelRequested(6.0, 0, 6.0)]


def test_a_held_job_that_is_cancelled_is_not_released() -> None:
    it = running()
    it.report(0, [run("ended", 1)], 8.0)
    it.cancel(0, 9.0)
    it.release(99.0)
    assert [type(event) for event in events(it)] == [JobCrashed, JobCancelled]


def test_a_job_that_was_cancelled_while_it_was_given_seats_is_not_started() -> None:
    it = registry()
    it.cancel(0, 1.0)
    events(it)
    it.carry_out(Start(0, 1, ONE), 2.0)
    assert (events(it), phases(it)) == ([], {})


@pytest.mark.parametrize(
    ("status", "end"),
    [
        (0, JobCompleted(9.0, 0, 2, 12.0)),
        (1, JobCrashed(9.0, 0, 2, 12.0, True, "rank 0 on n0 exited with status 1", 0.0, 6.0, failed=True, status=1)),
    ],
)
def test_the_end_of_a_job_is_reported_again_for_the_incarnation_ordered_meanwhile(status: int, end: Event) -> None:
    it = running()
    if status:
        job = it._jobs[0]
        for _ in range(4):
            job.crashes = job.crashes.after(12.0, blamed=True).crashes
    it.report(0, [run("ended", status, 0, done=12.0)], 8.0)
    events(it)
    it.carry_out(Resize(0, 2, BOTH), 9.0)
    assert (events(it), phases(it, 1)) == ([end], {})


def test_a_rebooted_agent_has_lost_its_runs_and_is_up_again_with_its_next_report() -> None:
    it = running()
    before = it.agents[0].generation
    it.reboot(0, 6.0)
    assert events(it) == [JobCrashed(6.0, 0, 1, 0.0, False, "node n0 was lost", 0.0, 4.0, failed=False)]
    assert (it.agents[0].last_report, it.agents[0].generation > before) == (None, True)


def test_a_report_of_a_lost_part_is_that_of_a_stray() -> None:
    it = running()
    it.reboot(0, 6.0)
    it.report(0, [run("running")], 7.0)
    assert it.agents[0].strays == {0}
    it.lose(0, 9.0)
    assert it.agents[0].strays == frozenset()


def orders(it: RunRegistry) -> dict[int, RunOrder]:
    return {order.incarnation: order for node in (0, 1) for order in it.orders(node)}


def test_a_resize_in_place_keeps_the_workers_that_can_stay() -> None:
    it = running(in_place=True)
    it.report(0, [run("running", done=20.0, saved=10.0)], 4.0)
    it.carry_out(Resize(0, 2, BOTH), 5.0)
    found = orders(it)
    assert {n: (order.phase, order.first_rank, order.local_ranks) for n, order in found.items()} == {
        1: ("go", 0, 2),
        2: ("go", 2, 1),
    }
    it.report(1, [run("running", incarnation=2)], 6.0)
    assert events(it)[-1] == JobStarted(6.0, 0, 2, 3.0, 20.0)
    assert [it.place(0, 2, rank) for rank in range(4)] == [(0, 1, 0), (0, 1, 1), (1, 2, 2), None]
    assert (it.place(0, 1, 0), it.place(0, 9, 0)) == ((0, 1, 0), None)


NOT_IN_PLACE = {
    "another batch size": Resize(0, 2, BOTH, batch=BatchSetting(64)),
    "GPUs that are shared": Resize(0, 2, BOTH, partner=7),
    "seats where no worker is": Resize(0, 2, Placement(((1, 2),))),
}


@pytest.mark.parametrize("command", NOT_IN_PLACE.values(), ids=NOT_IN_PLACE.keys())
def test_what_cannot_be_done_in_place_is_stopped_and_started(command: Resize) -> None:
    it = running(in_place=True)
    it.carry_out(command, 5.0)
    assert phases(it)[1] == "stop"
    it.carry_out(command, 6.0)
    assert len({key for agent in it.agents for key in agent.gangs}) == 2, "the same command again starts nothing"


def test_a_member_that_fails_is_dropped_at_once() -> None:
    it = running(in_place=True)
    it.report(0, [run("running", 0, 1)], 5.0)
    (order,) = it.orders(0)
    assert order.roster is not None
    assert (order.roster.generation, order.roster.members) == (2, [0])


def test_what_a_journal_left_is_resumed() -> None:
    past = RecoveredRuns(submitted=3, up={0: True, 1: False}, releases={1: 50.0})
    for number, id in enumerate(("a", "b", "c")):
        past.jobs[number] = LiveJob(JobSpec(id, 0.0, 1, 9.0, 1, 1), Launch("job", ("train",)), saved=4.0)
    past.jobs[0].incarnation = past.jobs[2].incarnation = 3
    past.runs[2] = UnfinishedRun(Start(2, 3, Placement(((0, 1),))), started=True)
    past.runs[0] = UnfinishedRun(Start(0, 3, Placement(((0, 1),))), stopping=True)
    it = RunRegistry(NODES, lambda *_: 1.0)
    resume(it, past, frozenset(), 7.0)
    assert (it.events, it.held.releases) == ([NodeLost(7.0, 1)], {1: 50.0})
    assert [agent.last_contact for agent in it.agents] == [7.0, 7.0]
    assert all(agent.generation > 7000 for agent in it.agents)
    assert [(order.id, order.phase) for order in it.orders(0)] == [("a", "stop"), ("c", "prepare")]
    it.report(0, [run("running", job=2, incarnation=3), run("running", job=0, incarnation=3)], 8.0)
    assert len(it.events) == 1, "what had started is not reported again"
    it.report(0, [run("ended", 0, job=2, incarnation=3), run("ended", 1, job=0, incarnation=3)], 9.0)
    assert it.events[1:] == [JobStopped(9.0, 0, 3, 4.0), JobCompleted(9.0, 2, 3, 4.0 + 2.0)]


def test_a_node_that_the_ring_counts_as_down_is_not_lost_again() -> None:
    it = RunRegistry(NODES, lambda *_: 1.0)
    resume(it, RecoveredRuns(), frozenset({0}), 0.0)
    assert it.events == [NodeLost(0.0, 1)]
    assert [agent.up for agent in it.agents] == [False, False]


def test_timers_give_each_entry_once_at_its_last_time_and_do_not_grow_with_changes() -> None:
    timers = Timers({1: 5.0, 2: 3.0})
    for at in range(1000):
        timers[3] = 10.0 + at
    del timers[1]
    assert (timers.next, timers.take_due(4.0), timers.next) == (3.0, [2], 1009.0)
    assert (timers.take_due(1008.0), timers.take_due(1009.0), timers.next) == ([], [3], inf)
    assert len(timers._heap) < 200


def test_a_first_report_advances_only_jobs_that_wait_for_nodes() -> None:
    """With thousands of nodes and jobs, each node that returns must not cost a walk over all jobs."""
    it = running()
    advanced: list[int] = []
    it.report(0, [run("ended", 0, 1)], 5.0)
    settle(it, 5.0)
    it.reboot(0, 6.0)
    it.reboot(1, 6.0)
    it.carry_out(Start(0, 2, ONE), 7.0)
    assert (phases(it), it.waits.blocked) == ({2: "prepare"}, {0: 1.0})
    advance = RunRegistry._advance

    def noted(it: RunRegistry, number: int, now: float) -> None:
        advanced.append(number)
        advance(it, number, now)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunRegistry, "_advance", noted)
        it.report(1, [], 8.0)
        assert (advanced, phases(it)) == ([], {2: "prepare"})
        it.report(0, [], 9.0)
    assert (advanced, phases(it), it.waits.blocked) == ([0], {2: "go"}, {})


def gangs() -> int:
    return sum(type(each) is Gang for each in gc.get_objects())


def test_gangs_whose_end_is_durable_are_freed_without_a_garbage_collection() -> None:
    gc.collect()
    before = gangs()
    gc.disable()
    try:
        it = running()
        assert gangs() == before + 1
        it.report(0, [run("ended", 0, 0)], 5.0)
        settle(it, 6.0)
        assert gangs() == before
        it = running(in_place=True, work=None)
        it.carry_out(Resize(0, 2, Placement(((0, 1),))), 3.0)
        it.carry_out(Resize(0, 3, ONE), 4.0)
        assert len(it._jobs[0].gangs) >= 2
        it.lose(0, 5.0)
        it.settle(0, 99.0)
        settle(it, 100.0)
        assert gangs() == before
    finally:
        gc.enable()
