"""Suspension in the simulated ring: when jobs are suspended, what it costs, where they return, what is lost."""

from dataclasses import dataclass

import pytest

from shoal.core.commands import Resume, Start, Suspend
from shoal.core.decision import Decision, Grant, Refusal, Verdict
from shoal.core.events import (
    HoldLifted,
    JobCompleted,
    JobCrashed,
    JobHeld,
    JobRequeued,
    JobResumed,
    JobStarted,
    JobSubmitted,
    JobSuspended,
    PriorityChanged,
    SuspensionReported,
)
from shoal.core.lifecycle import JobState
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement, parse_cluster
from shoal.engine.loop import judge
from shoal.engine.moves import StopStartPlanner
from shoal.engine.state import State
from shoal.engine.state_image import decode_image, encode_image, image_of, restore
from shoal.perf.catalog import catalog
from shoal.perf.model import ProfiledModel
from shoal.placement.packed import PackedPlacer
from shoal.policy.classic.fifo import Fifo
from shoal.policy.classic.las import Las
from shoal.policy.registry import POLICIES, parse_policy
from shoal.report.history import read_history
from shoal.report.job_story import stories
from shoal.report.metrics import job_table
from shoal.sim.faults import NO_FAULTS, Faults, NodeFault
from shoal.sim.suspension import SuspensionCost
from shoal.testing.builders import SimulationLog, job, simulate

COST = SuspensionCost(bytes_per_gpu=19_000_000_000, memory=40_000_000_000)
"""10 s to leave a GPU and 3.8 s to return to it."""


@dataclass(frozen=True)
class Turns:
    """A policy that runs the named jobs of the present turn, each on its GPUs; a turn takes 100 s."""

    turns: tuple[tuple[str, ...], ...]

    def decide(self, snapshot: Snapshot) -> Decision:
        at = int(snapshot.now // 100)
        chosen = self.turns[min(at, len(self.turns) - 1)]
        verdicts: dict[str, Verdict] = {
            view.id: Grant(view.gpus) if view.id in chosen else Refusal() for view in snapshot.jobs.values()
        }
        return Decision(verdicts, review_at=100.0 * (at + 1))


def turns(*chosen: str, cluster: str = "gpu:1x1", faults: Faults = NO_FAULTS, **cost: int) -> SimulationLog:
    """Jobs a, b and c of 150 s each under these turns, such as ``"a"``, ``"bc"``."""
    price = SuspensionCost(**{"bytes_per_gpu": 0, **cost})
    jobs = [job(name, 0, 1, 150, preemptible="auto") for name in "abc"]
    return simulate(Turns(tuple(tuple(turn) for turn in chosen)), jobs, cluster, suspension=price, faults=faults)


def words(run: SimulationLog) -> list[str]:
    """The commands: time, what, which job."""
    return [f"{at:g} {type(command).__name__} {run.jobs[command.job].id}" for at, command in run.commands]


def test_a_job_that_leaves_its_gpus_is_suspended_and_goes_on_where_it_was() -> None:
    run = turns("a", "b", "a", "b", "c")
    expected = ["0 Start a", "100 Suspend a", "100 Start b", "200 Suspend b", "200 Resume a"]
    assert words(run)[:5] == expected
    assert run.completed == {"a": 250.0, "b": 350.0, "c": 550.0}
    assert set(run.starts.values()) == {1}


def test_leaving_and_returning_take_bytes_divided_by_bandwidth() -> None:
    run = turns("a", "b", "a", "b", "c", bytes_per_gpu=19_000_000_000)
    # b starts at 110, when a has left; a, at 200, waits 10 s for b to leave, which covers its own 3.8 s.
    assert [event.at for event in run.events if isinstance(event, JobStarted)][:2] == [0.0, 110.0]
    assert next(event.at for event in run.events if isinstance(event, JobResumed)) == 210.0
    first = next(event for event in run.events if isinstance(event, JobSuspended))
    assert (first.bytes, first.seconds) == (19_000_000_000, 10.0)
    assert run.completed["a"] == 260.0


def test_suspended_time_is_not_charged() -> None:
    run = turns("a", "b", "a", "b", "c")
    at = next(cycle.snapshot for cycle in run.cycles if cycle.now == 200.0)
    assert (at.jobs["a"].attained, at.jobs["b"].attained) == (100.0, 100.0)


def test_without_host_memory_a_job_keeps_its_gpus() -> None:
    run = turns("a", "b", "c", "abc", bytes_per_gpu=60, memory=50)
    # What a holds is known once it is suspended: then there is no memory for b, which keeps its GPU beyond its turn.
    assert words(run) == ["0 Start a", "100 Suspend a", "100 Start b", "250 Start c", "400 Resume a"]
    assert len(run.completed) == 3


def test_a_suspended_job_waits_for_its_own_node() -> None:
    run = turns("ab", "bc", "ac", "abc", cluster="gpu:2x1")
    assert words(run)[:4] == ["0 Start a", "0 Start b", "100 Suspend a", "100 Start c"]
    waits = [sentence for _, sentence in run.story("a") if "suspended on" in sentence]
    assert waits == [
        "waits: it is suspended on gpu-0 and can be resumed only there; it needs 1 GPU there and 0 are free"
    ]
    assert run.completed.keys() == {"a", "b", "c"}
    returned = [command.placement for _, command in run.commands if isinstance(command, Resume)]
    first = next(command.placement for _, command in run.commands if isinstance(command, Start))
    assert returned[0] in (first, Placement(((1, 1),)))


def test_a_suspended_run_ends_with_its_node() -> None:
    run = turns("a", "b", "c", "abc", faults=Faults(script=(NodeFault(150.0, 0, 10.0),)))
    lost = {run.jobs[event.job].id: event for event in run.events if isinstance(event, JobCrashed)}
    assert lost.keys() == {"a", "b"}
    assert not lost["a"].blamed
    assert lost["a"].done == 0.0  # it had never saved
    assert run.completed.keys() == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("preemptible", "suspension", "ends"),
    [
        ("yes", COST, ["Stop"]),  # it saves when it is stopped
        ("no", COST, []),
        ("auto", None, []),
        ("auto", COST, ["Suspend", "Resume"]),
    ],
)
def test_only_jobs_that_would_lose_work_are_suspended_where_nodes_can(
    preemptible: str, suspension: SuspensionCost | None, ends: list[str]
) -> None:
    jobs = [job(name, 0, 1, 150, preemptible=preemptible) for name in "ab"]
    run = simulate(Las(quantum=50.0), jobs, "gpu:1x1", suspension=suspension)
    found = dict.fromkeys(type(command).__name__ for _, command in run.commands)
    assert [name for name in found if name != "Start"] == ends
    assert len(run.completed) == 2


@pytest.mark.parametrize("name", POLICIES)
def test_with_every_policy_all_jobs_end_though_they_are_bound_to_nodes(name: str) -> None:
    jobs = [job(f"j{i}", 40 * i, 1 + i % 2, 300 + 70 * (i % 3), preemptible="auto") for i in range(8)]
    run = simulate(parse_policy(name), jobs, "gpu:2x2", suspension=COST, until=200_000.0)
    assert len(run.completed) == len(jobs)
    for cycle in run.cycles:
        for number, bound in cycle.snapshot.suspensions.runs.items():
            view = cycle.snapshot.jobs[cycle.snapshot.register.ids[number]]
            assert (view.state, view.held, view.bound_to) == (JobState.SUSPENDED, 0, bound.placement)


# ── the fold ──────────────────────────────────────────────────────────────────────────────────────────────────────

ONE = Placement(((0, 1),))


def suspended_state() -> State:
    """A state in which job 0 was to be suspended at t = 10 and job 1 has got its GPU."""
    cluster = parse_cluster("gpu:1x1")
    state = State(cluster, ProfiledModel(cluster, catalog()))
    specs = [job(name, 0, 1, 100).spec() for name in "ab"]
    state.apply_events(0.0, [SuspensionReported(0.0, 0, "signals", 100), *(JobSubmitted(0.0, spec) for spec in specs)])
    state.apply_commands([Start(0, 1, ONE)])
    state.apply_events(10.0, [JobStarted(0.0, 0, 1, 1.0, 0.0)])
    state.apply_commands([Suspend(0, 1), Start(1, 1, ONE)])
    return state


def test_a_refused_suspension_gives_the_job_its_seats_back_and_is_not_tried_again() -> None:
    state = suspended_state()
    state.apply_events(
        11.0,
        [JobCrashed(11.0, 1, 1, 0.0, False, "not free"), JobResumed(11.0, 0, 1, 1.0, 10.0, cause="the driver refuses")],
    )
    view = state.freeze().jobs["a"]
    assert (view.state, view.held, view.done) == (JobState.RUNNING, 1, 10.0)
    assert not state.suspensions.accepts(0, ONE)


def test_a_refused_suspension_whose_seats_are_taken_leaves_the_state_whole() -> None:
    state = suspended_state()
    state.apply_events(11.0, [JobResumed(11.0, 0, 1, 1.0, 10.0, cause="the driver refuses")])
    assert state.freeze().jobs["a"].state is JobState.SUSPENDED


def test_a_job_that_cannot_be_resumed_yet_leaves_its_seats_again() -> None:
    state = suspended_state()
    state.apply_events(20.0, [JobSuspended(11.0, 0, 1, 10.0, 50, 1.0), JobCrashed(20.0, 1, 1, 0.0, False, "x")])
    state.apply_commands([Resume(0, 1, ONE)])
    assert state.free_gpus.free == [0]
    state.apply_events(25.0, [JobSuspended(25.0, 0, 1, 10.0, cause="its GPU is in use")])
    assert state.free_gpus.free == [1]
    assert state.suspensions.runs[0].bytes == 50
    assert JobSuspended(25.0, 0, 1, 10.0, cause="its GPU is in use").urgent, "else no decision may resume it"
    assert not JobSuspended(11.0, 0, 1, 10.0).urgent
    assert state.freeze().jobs["a"].attained == 15.0  # 10 s before, 5 s while it was to be resumed


def test_an_image_keeps_suspended_runs() -> None:
    state = suspended_state()
    state.apply_events(12.0, [JobSuspended(12.0, 0, 1, 10.0, 50, 2.0)])
    cluster = parse_cluster("gpu:1x1")
    again = State(cluster, ProfiledModel(cluster, catalog()))
    restore(again, decode_image(encode_image(image_of(state))))
    assert again.suspensions == state.suspensions
    assert again.freeze().jobs["a"].bound_to == ONE


def test_a_report_counts_suspensions_apart_from_stops_and_restarts() -> None:
    run = turns("a", "b", "a", "b", "c")
    header, *records = run.journal.raw()
    history = read_history([[*header[:2], {"cluster": "gpu:1x1"}], *records])
    first = stories(history, ())[0]
    assert (first.suspensions, first.stops, first.resizes) == (1, 0, 0)
    assert "; suspended and resumed once" in first.lines()[0]
    assert job_table(history).restarts.tolist() == [0, 0, 0]


def test_a_suspended_job_that_is_requeued_is_no_longer_bound_to_its_node() -> None:
    state = suspended_state()
    state.apply_events(12.0, [JobRequeued(12.0, 0, 1, "ann")])
    assert (state.freeze().jobs["a"].state, state.suspensions.runs) == (JobState.STOPPING, {})


@pytest.mark.parametrize("priority", [0, 1])
def test_a_suspended_job_that_is_held_is_not_resumed_until_it_is_released(priority: int) -> None:
    state = suspended_state()
    state.apply_events(12.0, [JobSuspended(12.0, 0, 1, 10.0), JobCompleted(12.0, 1, 1, 100.0)])
    state.apply_events(12.0, [JobHeld(12.0, 0, "ann"), PriorityChanged(12.0, 0, priority, "ann")])
    judged = judge(state.freeze(), Fifo(), PackedPlacer(), StopStartPlanner())
    assert judged.commands == ()
    assert "suspended on gpu-0 and held" in judged.verdicts["a"].reason.sentence()
    state.apply_events(13.0, [HoldLifted(13.0, 0, "ann")])
    judged = judge(state.freeze(), Fifo(), PackedPlacer(), StopStartPlanner())
    assert judged.commands == (Resume(0, 1, ONE),)


def test_a_suspended_job_is_resumed_on_its_node_even_if_that_once_failed_to_start_it() -> None:
    cluster = parse_cluster("gpu:2x1")
    state = State(cluster, ProfiledModel(cluster, catalog()))
    state.apply_events(0.0, [SuspensionReported(0.0, 0, "signals", 100), JobSubmitted(0.0, job("a", 0, 1, 9).spec())])
    state.apply_commands([Start(0, 1, ONE)])
    state.apply_events(1.0, [JobCrashed(1.0, 0, 1, 0.0, False, "no disk", failed_on=0)])
    state.apply_commands([Start(0, 2, ONE)])
    state.apply_events(2.0, [JobStarted(2.0, 0, 2, 1.0, 0.0)])
    state.apply_commands([Suspend(0, 2)])
    state.apply_events(3.0, [JobSuspended(3.0, 0, 2, 1.0)])
    judged = judge(state.freeze(), Fifo(), PackedPlacer(), StopStartPlanner())
    assert judged.commands == (Resume(0, 2, ONE),)
