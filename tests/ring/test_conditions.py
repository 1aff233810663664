"""Jobs that wait for conditions: tables in small simulated worlds, and random graphs that always end and replay."""

import random
from typing import Any

import pytest

from shoal.core.events import JobCancelled, JobReleased, TimeLimitReached
from shoal.core.lifecycle import JobState
from shoal.core.topology import parse_cluster
from shoal.engine.moves import StopStartPlanner
from shoal.engine.replay import Scheduler, replay
from shoal.engine.state import State
from shoal.perf.catalog import catalog
from shoal.perf.model import ProfiledModel
from shoal.placement.packed import PackedPlacer
from shoal.policy.classic.fifo import Fifo
from shoal.policy.registry import POLICIES, parse_policy
from shoal.sim.faults import Faults, JobFault
from shoal.testing.builders import SimulationLog, job, simulate
from shoal.workload.schema import Job

FAILING: dict[str, Any] = {"time": 10.0}  # it would take 100 s


@pytest.mark.parametrize(
    ("when", "first", "start"),
    [
        ("ok", {}, 100.0),
        ("any", {}, 100.0),
        ("start", {}, 0.0),
        ("notok", {}, None),
        ("ok", FAILING, None),
        ("any", FAILING, 10.0),
        ("notok", FAILING, 10.0),
        ("start", FAILING, 0.0),
    ],
)
def test_a_job_starts_when_the_job_it_follows_started_or_ended_as_required(
    when: str, first: dict[str, Any], start: float | None
) -> None:
    run = simulate(Fifo(), [job("a", **first), job("b", after=(f"a:{when}",))])
    assert run.started.get("b") == start
    doomed = [event.cause for event in run.events if isinstance(event, JobCancelled) and event.job == 1]
    assert bool(doomed) == (start is None)
    if doomed:
        assert doomed[0].startswith("a completed," if when == "notok" else "a failed,")


def test_a_job_that_is_cancelled_for_its_dependency_takes_those_that_follow_it_along() -> None:
    chain = [job("j0", **FAILING)] + [job(f"j{i}", after=(f"j{i - 1}",)) for i in range(1, 400)]
    run = simulate(Fifo(), chain)
    ends = [event for event in run.events if isinstance(event, JobCancelled) and not event.failed]
    assert [(event.at, event.job) for event in ends] == [(10.0, i) for i in range(1, 400)]


def test_a_dependency_on_a_job_that_crashed_too_often_never_holds() -> None:
    faults = Faults(script=tuple(JobFault(at, 0) for at in (5.0, 20.0, 45.0, 90.0)))  # waits of 10, 20, 40 s
    run = simulate(Fifo(), [job("a"), job("b", after=("a",)), job("c", after=("a:notok",))], faults=faults)
    assert (run.started.get("b"), run.started["c"]) == (None, 90.0)


def test_a_job_waits_for_every_condition() -> None:
    rows = [job("a", seconds=30), job("b", seconds=50), job("c", after=("a", "b:any"), begin=80.0)]
    assert simulate(Fifo(), rows).started["c"] == 80.0
    rows = [job("a", seconds=30), job("b", seconds=150), job("c", after=("a", "b:any"), begin=80.0)]
    assert simulate(Fifo(), rows).started["c"] == 150.0


def test_a_dependency_that_holds_at_submission_costs_no_wait() -> None:
    run = simulate(Fifo(), [job("a", seconds=30), job("b", 70.0, after=("a",)), job("c", 80.0, begin=20.0)])
    assert (run.started["b"], run.started["c"]) == (70.0, 80.0)


def test_no_more_jobs_of_an_array_run_at_once_than_it_allows() -> None:
    rows = [job(f"t{i}", seconds=10, array="sweep", most_at_once=2) for i in range(6)] + [job("other", seconds=10)]
    run = simulate(Fifo(), rows, "gpu:1x8")
    assert [run.started[f"t{i}"] for i in range(6)] == [0.0, 0.0, 10.0, 10.0, 20.0, 20.0]
    assert run.started["other"] == 0.0


def test_a_job_that_waits_for_a_condition_is_not_seen_by_the_policy() -> None:
    run = simulate(Fifo(), [job("a"), job("b", after=("a",))])
    assert [cycle.snapshot.ids for cycle in run.cycles if cycle.now < 100.0] == [["a"]]


def test_a_run_ends_at_its_time_limit_and_the_job_has_failed() -> None:
    run = simulate(Fifo(), [job("a", time=40.0), job("b", time=100.0), job("c", 0.0, 4)], restart_cost=3.0)
    reached = [event for event in run.events if isinstance(event, TimeLimitReached)]
    assert [(event.at, event.job, event.limit) for event in reached] == [(40.0, 0, 40.0)]
    assert run.completed["b"] == 100.0  # at its limit, but done
    assert run.started["c"] == 100.0
    end = next(event for event in run.events if isinstance(event, JobCancelled))
    assert (end.job, end.failed) == (0, True)


def test_a_restart_begins_the_time_limit_anew() -> None:
    faults = Faults(script=(JobFault(35.0, 0),))
    run = simulate(Fifo(), [job("a", seconds=60, time=40.0)], faults=faults, restart_cost=2.0)
    assert "a" not in run.completed
    assert [event.at for event in run.events if isinstance(event, TimeLimitReached)] == [35.0 + 10.0 + 2.0 + 40.0]


# ── random graphs ─────────────────────────────────────────────────────────────────────────────────────────────────


def graph(seed: int) -> list[Job]:
    """Jobs that follow earlier ones in every way, some of which fail; ``submitted`` in the order of the names."""
    draw, rows, at = random.Random(seed), list[Job](), 0.0
    for i in range(draw.randint(2, 14)):
        at += draw.choice([0.0, 0.0, 5.0, draw.uniform(0, 60)])
        before = draw.sample(rows, min(len(rows), draw.choice([0, 0, 1, 1, 2, 3])))
        more: dict[str, object] = {"priority": draw.choice([0, 0, 0, 3, -2]), "tenant": draw.choice("ab")}
        if draw.random() < 0.3:
            more["time"] = draw.choice([5.0, 30.0])
        if draw.random() < 0.3:
            more["begin"] = at + draw.uniform(-20, 90) if at > 20 else draw.uniform(0, 90)
        if draw.random() < 0.4:
            more |= {"array": "ab"[i % 2], "most_at_once": 1 + i % 2}
        after = tuple(f"{row.id}:{draw.choice(['ok', 'any', 'notok', 'start'])}" for row in before)
        rows.append(job(f"j{i:02}", at, draw.choice([1, 1, 2, 4]), draw.uniform(1, 60), after=after, **more))
    return rows


def ends(run: SimulationLog) -> dict[str, tuple[float, JobState]]:
    found = {name: (at, JobState.COMPLETED) for name, at in run.completed.items()}
    for event in run.events:
        if isinstance(event, JobCancelled):
            found[run.jobs[event.job].id] = event.at, JobState.FAILED if event.failed else JobState.CANCELLED
    return found


def check(run: SimulationLog, told: str) -> None:
    over = ends(run)
    assert set(over) == {row.id for row in run.jobs}, (
        f"{told}: { ({row.id for row in run.jobs} - set(over)) } never end"
    )
    for row in run.jobs:
        start = run.started.get(row.id)
        if start is None:
            assert over[row.id][1] is JobState.CANCELLED, f"{told}: {row.id} never started"
            continue
        assert start >= max(row.submitted, row.begin or 0.0), f"{told}: {row.id} starts before its time"
        for other, when in row.dependencies:
            at, state = over[other]
            held = {"ok": state is JobState.COMPLETED, "notok": state is not JobState.COMPLETED}.get(when, True)
            since = min(at, run.started.get(other, at)) if when == "start" else at
            assert held, f"{told}: {row.id} starts although {other}:{when} does not hold"
            assert start >= since, f"{told}: {row.id} starts at {start:g}, but {other}:{when} at {since:g}"
    for name in "ab":
        members = [row for row in run.jobs if row.array == name and row.id in run.started]
        for most, tenant in {(row.most_at_once or 0, row.tenant) for row in members}:
            own = [row for row in members if row.tenant == tenant]
            for row in own:
                at = run.started[row.id]
                beside = sum(run.started[other.id] <= at < over[other.id][0] for other in own)
                assert beside <= most, f"{told}: {beside} jobs of array {name} at {at:g}"


def replays(run: SimulationLog, policy: str, cluster: str) -> None:
    world = parse_cluster(cluster)
    state = State(world, ProfiledModel(world, catalog()), 0)
    made = Scheduler(state, parse_policy(policy), PackedPlacer(), StopStartPlanner())
    assert replay(run.journal.read, lambda _: made).decisions == len(run.cycles)


def test_every_random_graph_of_dependencies_ends_in_order_and_replays_exactly() -> None:
    names = [*POLICIES]
    for seed in range(60):
        policy, cluster = names[seed % len(names)], ("gpu:1x4", "gpu:2x4")[seed % 2]
        run = simulate(parse_policy(policy), graph(seed), cluster, restart_cost=2.0, until=1e6)
        check(run, f"seed {seed}, {policy}")
        if seed % 4 == 0:
            replays(run, policy, cluster)


def test_a_released_job_is_released_once() -> None:
    for seed in range(20):
        run = simulate(Fifo(), graph(seed), restart_cost=2.0)
        released = [event.job for event in run.events if isinstance(event, JobReleased)]
        assert len(released) == len(set(released)), f"seed {seed}"


# ── priorities ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", [*POLICIES])
def test_under_every_policy_no_job_starts_before_one_of_its_tenant_with_a_higher_priority(name: str) -> None:
    rows = [job("runs", seconds=50, gpus=2)]
    rows += [job(f"j{i}", 1.0, 2, 50, priority=priority) for i, priority in enumerate([0, 5, -1, 9, 0])]
    run = simulate(parse_policy(name), rows, "gpu:1x2", until=1e5)
    order = sorted((f"j{i}" for i in range(5)), key=lambda id: run.started[id])
    assert order[:2] == ["j3", "j1"], run.started
    assert order[-1] == "j2", run.started


def test_a_priority_does_not_pass_jobs_of_another_tenant() -> None:
    rows = [job("runs", seconds=50, gpus=2), job("his", 1.0, 2, 50, tenant="bo"), job("hers", 2.0, 2, 50, priority=9)]
    run = simulate(Fifo(), rows, "gpu:1x2")
    assert run.started["his"] < run.started["hers"]


def test_the_reason_names_the_job_with_the_higher_priority() -> None:
    rows = [job("runs", seconds=50, gpus=3), job("small", 1.0, 1), job("wide", 1.0, 4, priority=2)]
    run = simulate(Fifo(backfill=True), rows)
    sentence = "waits: its priority is 0; wide of the same tenant, with 2, starts first"
    assert sentence in [text for _, text in run.story("small")]
    assert run.started["small"] >= run.started["wide"]
