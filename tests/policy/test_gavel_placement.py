"""Gavel where one node is faster than several and nodes are scarce: what shares choose, and how it is carried out."""

from typing import Any

import msgspec
import numpy as np
import pytest

from shoal.core.decision import Grant, Verdicts
from shoal.core.snapshot import Snapshot
from shoal.policy.gavel.carry import GavelCarry
from shoal.policy.gavel.fairness import GavelFinishTime, GavelMakespan, GavelMaxMin
from shoal.policy.gavel.problem import ShareProblem
from shoal.policy.gavel.share_update import problem_of
from shoal.policy.one_node import near_and_far
from shoal.policy.registry import POLICIES, parse_policy
from shoal.solve.prices import max_min
from shoal.testing.builders import Knowledge, SimulationLog, job, simulate, snapshot
from shoal.testing.conformance import check_decision
from shoal.workload.generators.registry import generate
from shoal.workload.schema import Job

LONG = 1e9
LM: dict[str, Any] = {"model": "LM", "batch_size": 20}
"""Across nodes at less than a third of its speed on a V100."""
RESNET: dict[str, Any] = {"model": "ResNet-50", "batch_size": 64}
"""Loses nothing."""
TWO_NODES = "v100:2x4"
MIXED = "v100:2x8,v100:8x2"


def gangs(sizes: list[int], work: float = LONG, **model: Any) -> list[Job]:
    return [job(f"{model.get('model', 'none')}{i}", 0.0, size, work=work, **model) for i, size in enumerate(sizes)]


def problem(moment: Snapshot) -> ShareProblem:
    return problem_of(moment, np.arange(len(moment.columns)))


def asked(moment: Snapshot, policy: Any) -> dict[str, bool]:
    verdicts = Verdicts.of(moment, policy.decide(moment).verdicts)
    return {name: v.consolidated for name, v in verdicts.items() if isinstance(v, Grant)}


def test_nodes_are_shared_by_gangs_that_lose_by_distance() -> None:
    # Six gangs of four: the nodes of eight seat four of them, the other two sit on two nodes of two each.
    p = problem(snapshot([*gangs([4] * 6, **LM), *gangs([4] * 2, **RESNET)], MIXED))
    shares = GavelMaxMin().shares(p)
    assert shares.consolidated is not None
    assert shares.alone == pytest.approx(np.ones((8, 1)))
    assert shares.consolidated.ravel() == pytest.approx([2 / 3] * 6 + [0.0] * 2)


def test_gangs_that_lose_by_distance_get_one_node_before_others() -> None:
    # Four fit on nodes and four lose by distance: the shares are as ever, but they must not sit apart by chance.
    moment = snapshot([*gangs([4] * 4, **RESNET), *gangs([4] * 4, **LM)], MIXED)
    assert GavelMaxMin().shares(problem(moment)).consolidated is None
    assert asked(moment, GavelMaxMin()) == {f"ResNet-50{i}": False for i in range(4)} | {
        f"LM{i}": True for i in range(4)
    }
    rows = [*gangs([4] * 4, **RESNET), *gangs([4] * 4, **LM), job("late", 120.0, 1, work=LONG, **RESNET)]
    run = simulate(GavelMaxMin(round=100.0), rows, MIXED, until=150.0)
    seats = {name: view.placement for name, view in run.cycles[-1].snapshot.jobs.items()}
    assert [len(s.seats) for name, s in seats.items() if s is not None and name.startswith("LM")] == [1] * 4


def test_where_nodes_are_not_scarce_shares_are_as_ever() -> None:
    moment = snapshot([*gangs([4, 2, 2, 4], **LM), *gangs([1, 1, 1], **RESNET)], TWO_NODES)
    shares = GavelMaxMin().shares(problem(moment))
    assert shares.consolidated is None
    p = problem(moment)
    demands = p.weight * p.equal_speed / p.gangs
    assert np.array_equal(shares.alone, max_min(p.speeds, p.gangs, p.capacity, demands).X)


def test_gangs_that_lose_nothing_sit_where_they_may() -> None:
    moment = snapshot(gangs([3, 3, 3, 3], **RESNET), TWO_NODES)
    assert GavelMaxMin().shares(problem(moment)).consolidated is None
    assert not any(asked(moment, GavelMaxMin()).values())


@pytest.mark.parametrize("knowledge", ["profiled", "online"])
def test_what_each_gang_loses_by_distance_is_what_the_model_says_of_it(knowledge: Knowledge) -> None:
    drawn = generate("demo", jobs=40, seed=5).jobs
    rows = [msgspec.structs.replace(row, submitted=0.0, work=LONG) for row in drawn]
    run = simulate(GavelMaxMin(), rows, "v100:2x4,p100:2x4,k80:2x4", until=3000.0, knowledge=knowledge)
    moment = run.cycles[-1].snapshot
    assert (moment.columns.measured >= 0).any()
    p = problem(moment)
    apart = p.speeds.copy()
    for row, view in enumerate(moment.jobs.values()):
        for kind in range(3):
            if 1 < view.gpus <= 4 and p.speeds[row, kind] > 0:
                one, two = (moment.perf.rate(view, at).value for at in near_and_far(moment.cluster, kind, view.gpus))
                apart[row, kind] *= min(two / one, 1.0) if one > 0 else 1.0
    assert np.array_equal(p.localities.apart, apart)


def test_a_rule_that_does_not_tell_kinds_apart_does_not_tell_distances_apart() -> None:
    moment = snapshot(gangs([3, 3, 3], **LM), TWO_NODES)
    assert asked(moment, GavelMaxMin(aware=False)) == {"LM0": False, "LM1": False}


@pytest.mark.parametrize("name", [n for n in POLICIES if n.startswith("gavel.")])
def test_every_rule_keeps_its_promises_where_nodes_are_scarce(name: str) -> None:
    policy = parse_policy(name)
    rows = [*gangs([4, 4, 8, 4, 4, 4], **LM), *gangs([1, 1, 1], **RESNET)]
    moment = snapshot(rows, MIXED)
    check_decision(policy, moment)
    shares = policy.shares(problem(moment))  # type: ignore[attr-defined]
    assert shares.trouble == ""
    near = shares.consolidated
    if near is not None:  # the cheapest shares may leave so much idle that nodes are not scarce
        assert near[:6].sum() <= 4 + 1e-7
        assert near[2] <= 2 + 1e-7
        assert near[6:].sum() == 0.0
    else:
        assert name in ("gavel.sjf", "gavel.cost", "gavel.cost-slo")


def rounds_on_one_node(run: SimulationLog) -> tuple[int, int]:
    """How often a job was asked onto one node, and how often it was there afterwards."""
    times = there = 0
    for before, after in zip(run.cycles, run.cycles[1:], strict=False):
        for name, verdict in before.judgement.verdicts.items():
            if isinstance(verdict, Grant) and verdict.consolidated and name in after.snapshot.jobs:
                seats = after.snapshot.jobs[name].placement
                times += 1
                there += seats is not None and len(seats.seats) == 1
    return times, there


def test_shares_on_one_node_are_carried_out() -> None:
    rows = [*gangs([4, 4, 4, 8, 4, 4], **LM), *gangs([1, 1, 1, 1, 2, 2], **RESNET)]
    run = simulate(GavelMaxMin(round=100.0), rows, MIXED, until=12_000.0)
    times, there = rounds_on_one_node(run)
    assert times > 100
    assert there >= 0.95 * times


def test_time_is_booked_where_it_was_spent() -> None:
    run = simulate(GavelMaxMin(round=100.0), gangs([4] * 6, **LM), MIXED, until=12_000.0)
    last = run.cycles[-1].judgement.decision.carry
    assert isinstance(last, GavelCarry)
    had = last.received / (last.at - last.start)
    assert last.cells.share[last.cells.consolidated] == pytest.approx(np.full(6, 2 / 3))
    assert had == pytest.approx(last.cells.share, abs=0.03)
    done = [view.done for view in run.cycles[-1].snapshot.jobs.values()]
    assert max(done) <= 1.05 * min(done)


def test_knowing_of_distance_finishes_earlier() -> None:
    rows = [*gangs([4] * 4, work=3e6, **RESNET), *gangs([4] * 4, work=3e7, **LM)]
    knowing = simulate(GavelMakespan(round=100.0), rows, MIXED).completed
    blind = simulate(GavelMakespan(aware=False, round=100.0), rows, MIXED).completed
    assert max(knowing.values()) <= 0.6 * max(blind.values())


def test_reasons_say_so() -> None:
    run = simulate(GavelFinishTime(round=100.0), gangs([4] * 6, **LM), MIXED, until=500.0)
    begun = [c for c in run.cycles if c.snapshot.now % 100.0 == 0.0][-1]
    told = [begun.sentence(f"LM{i}") for i in range(6)]
    assert sum(s.startswith("runs this round on v100, one node: its share is") for s in told) == 4
    assert sum(s.startswith("runs this round on v100: its share is") for s in told) == 2
    assert all(s.endswith("; nodes are scarce: 67% of its share is on one node") for s in told)
