"""Themis's testbed figures: placement scores, and verdicts that follow from the figures both ways."""

from dataclasses import replace

import pytest

from shoal.core.topology import parse_cluster
from shoal.report.history import read_history
from shoal.research.repro.context import ReproContext
from shoal.research.repro.table import REPRODUCES
from shoal.research.repro.themis_testbed import (
    BASELINES,
    POLICIES,
    THEMIS,
    Found,
    TestbedResult,
    contention_table,
    fairness_table,
    gpu_time_table,
    long_and_short_table,
    measure,
    placement_scores,
    results,
    score_table,
)
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.testing.builders import job
from shoal.workload.schema import Workload

PLAIN = TestbedResult((0.5, 0.8), (10.0, 100.0), 1000.0, 1.0, 1.0, (1.0,) * 9)


def made(**of: TestbedResult) -> Found:
    """Two equal seeds of every policy: ``PLAIN`` unless given."""
    return {name: (of.get(name, PLAIN),) * 2 for name in POLICIES}


def worse(factor: float) -> TestbedResult:
    return replace(PLAIN, rho=tuple(rho * factor for rho in PLAIN.rho))


def test_a_job_across_machines_has_the_score_of_its_slowdown_and_others_have_1() -> None:
    """Two jobs of three GPUs leave one GPU on each machine for the third."""
    jobs = tuple(
        job(name, gpus=gpus, work=90_000.0, model="VGG16", batch_size=32)
        for name, gpus in (("a", 3), ("b", 3), ("split", 2))
    )
    done = run(Scenario(parse_cluster("p100:2x4"), "fifo"), Workload("three", jobs))
    assert done.journal is not None
    scores, weights = placement_scores(read_history(done.journal.raw()))
    assert scores[:2].tolist() == [1.0, 1.0]
    assert 0.5 < scores[2] < 0.9
    assert (weights > 0).all()


def test_a_gang_wider_than_any_machine_is_compared_with_as_few_machines_as_possible() -> None:
    wide = (job("wide", gpus=4, work=50_000.0, model="VGG16", batch_size=32),)
    done = run(Scenario(parse_cluster("p100:2x3"), "fifo"), Workload("wide", wide))
    assert done.journal is not None
    assert placement_scores(read_history(done.journal.raw()))[0].tolist() == [1.0]


def test_a_gain_below_the_papers_differs_and_one_above_reproduces() -> None:
    fair = made(**{name: worse(2.5) for name in BASELINES})
    assert fairness_table(fair, "9", 1).verdict == REPRODUCES
    one = {**fair, "srtf": (worse(1.5),) * 2}
    assert fairness_table(one, "9", 1).verdict == "differs: worst ρ over Themis's less than 2.2: srtf 1.50 (1.50–1.50)"


def test_gpu_times_are_compared_with_the_papers_two_numbers() -> None:
    assert gpu_time_table(made(), "11", 1).verdict == REPRODUCES
    wasteful = made(slaq=replace(PLAIN, gpu_seconds=3500.0), gandiva=replace(PLAIN, gpu_seconds=1048.0))
    assert gpu_time_table(wasteful, "12", 2).verdict == REPRODUCES
    assert gpu_time_table(wasteful, "11", 1).verdict.startswith("differs: outside 0.95 to 1.05: slaq")
    assert gpu_time_table(made(), "12", 2).verdict.startswith("differs: does not hold: gandiva takes more")


def test_the_best_placement_scores_are_named() -> None:
    lower = made(**{name: replace(PLAIN, score=0.9) for name in BASELINES})
    assert score_table(made(), lower).verdict == REPRODUCES
    higher = made(**{THEMIS: replace(PLAIN, score=0.95)})
    assert "tiresias has better scores than Themis" in score_table(made(), higher).verdict
    assert "srtf is below 0.98 in workload 1" in score_table(lower, lower).verdict
    assert score_table(made(), made()).verdict.startswith("cannot be told: Themis is level with tiresias")


@pytest.mark.parametrize(
    ("themis", "others", "verdict"),
    [
        (1.0, 2.0, REPRODUCES),
        (1.0, 1.0, "differs: max ρ at 4X is at most 1 also"),
        (2.0, 3.0, "differs: max ρ at 4X is above 1"),
    ],
)
def test_only_themis_may_keep_the_sharing_incentive_at_four_times_the_contention(
    themis: float, others: float, verdict: str
) -> None:
    found = made(**{THEMIS: worse(themis)}, **{name: worse(others) for name in BASELINES})
    assert contention_table({1: made(), 2: made(), 4: found}).verdict.startswith(verdict)


def test_thirds_are_taken_by_the_work_of_apps() -> None:
    short_suffers = replace(PLAIN, rho=(1.9, 0.7))
    assert long_and_short_table(made(tiresias=short_suffers)).verdict == REPRODUCES
    assert "short apps do worse" in long_and_short_table(made(tiresias=replace(PLAIN, rho=(0.4, 0.7)))).verdict


def test_a_small_run_gives_every_figure_and_is_stored() -> None:
    small = measure("themis", 2, 4, 0, trials=30)
    assert len(small.rho) == len(small.work) > 1
    assert 0.0 < small.score <= 1.0
    assert list(small.scores) == sorted(small.scores)
    announced: list[str] = []
    context = ReproContext(None, quick=True, announce=announced.append)
    first = results(context, 1, 4, ("srsf",))
    assert results(context, 1, 4, ("srsf",)) == first
    assert len(announced) == len(first["srsf"]) == 2
