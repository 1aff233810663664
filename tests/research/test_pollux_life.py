"""Pollux's jobs over time: samples of a run, and the verdicts on figures 5 to 7 and on exploration, both ways."""

from pathlib import Path

import numpy as np
import pytest

from shoal.research.repro.context import ReproContext, ResultCache
from shoal.research.repro.parallel import Task, run_all
from shoal.research.repro.pollux_figures import (
    adaptation_verdict,
    exploration_verdict,
    fairness_verdict,
    trade_off,
    trade_off_verdict,
)
from shoal.research.repro.pollux_life import interval, live_through, phases, ranked_alike
from shoal.research.repro.table import REPRODUCES

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
PHASES = {
    "A": {"gpus": 16.0, "batch": 4000.0, "efficiency": 0.5, "local": 250.0},
    "B": {"gpus": 4.0, "batch": 800.0, "efficiency": 0.9, "local": 200.0},
    "C": {"gpus": 32.0, "batch": 12800.0, "efficiency": 0.8, "local": 400.0},
}


def test_a_job_that_adapts_as_in_the_paper_reproduces_and_one_that_does_not_differs() -> None:
    assert adaptation_verdict([PHASES]) == REPRODUCES
    backwards = {**PHASES, "B": PHASES["C"], "C": PHASES["B"]}
    assert adaptation_verdict([backwards]).startswith("differs: not above 0: GPUs, A over B")
    assert adaptation_verdict([]).startswith("cannot be told")
    assert "the interval holds 0" in adaptation_verdict([PHASES, backwards, PHASES])


def test_phases_are_those_before_during_and_after_contention() -> None:
    job: dict[str, list[float]] = {
        "gpus": [8, 8, 2, 2, 16, 16],
        "batch": [8, 8, 4, 4, 64, 64],
        "efficiency": [0.5, 0.5, 1, 1, 0.7, 0.7],
    }
    found = phases([1, 1, 9, 9, 1, 1], job)
    assert found is not None
    assert [found[name]["gpus"] for name in "ABC"] == [8.0, 2.0, 16.0]
    assert found["C"]["local"] == 4.0
    assert phases([1, 1, 1, 1, 1, 1], job) is None


def test_efficiency_must_rise_with_contention_and_more_than_with_fixed_batches() -> None:
    alike = {"hours": [1, 2, 3, 4], "live": [1, 2, 3, 4], "efficiency": [0.5, 0.6, 0.7, 0.8]}
    assert trade_off(alike) == pytest.approx(1.0)
    assert trade_off_verdict([0.8, 0.9, 0.7], [0.0, 0.1, 0.2]) == REPRODUCES
    assert trade_off_verdict([0.1, -0.2, 0.0], [0.0, 0.0, 0.0]).startswith("differs")
    assert trade_off_verdict([0.8, 0.9, 0.7], [0.9, 0.9, 0.9]).startswith("differs: policies with fixed")
    assert trade_off_verdict([float("nan")], [0.0]).startswith("cannot be told")


def test_the_last_jobs_after_the_arrivals_do_not_count_against_the_trade_off() -> None:
    life = {
        "hours": [1, 2, 3, 4, 9, 12, 15],
        "live": [1, 2, 3, 4, 2, 1, 1],
        "efficiency": [0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97],
    }
    assert trade_off(life) == pytest.approx(1.0)


def test_fairness_needs_99_percent_below_2_and_a_tail_without_fairness() -> None:
    below = {"pollux": 0.994, "pollux:p=1": 0.9, "optimus": 0.95}
    worst = {"pollux": 2.6, "pollux:p=1": 7.0, "optimus": 4.0}
    assert fairness_verdict(below, worst) == REPRODUCES
    assert "98.0% of jobs are below 2" in fairness_verdict({**below, "pollux": 0.98}, worst)
    assert "more are with optimus" in fairness_verdict({**below, "optimus": 0.999}, worst)
    assert "worst ρ with p = 1 is 3.0" in fairness_verdict(below, {**worst, "pollux:p=1": 3.0})


def test_exploration_may_cost_short_jobs_two_to_five_percent_and_long_ones_nothing() -> None:
    stated = {"cifar10": (0.02, 0.04), "imagenet": (-0.01, 0.01), "yolov3": (-0.02, 0.03)}
    assert exploration_verdict(stated) == REPRODUCES
    assert exploration_verdict({**stated, "cifar10": (0.08, 0.1)}) == "differs: cifar10 gains 8.0% to 10.0%"
    assert exploration_verdict({**stated, "imagenet": (0.01, 0.02)}).startswith("differs: imagenet")


def test_intervals_and_rank_correlations() -> None:
    assert interval([3.0]) == (3.0, 3.0)
    low, high = interval([1.0, 2.0, 3.0])
    assert (low, high) == pytest.approx((2.0 - 4.303 / 3**0.5, 2.0 + 4.303 / 3**0.5), rel=1e-3)
    assert ranked_alike(np.array([1.0, 2.0, 9.0]), np.array([3.0, 4.0, 5.0])) == pytest.approx(1.0)
    assert np.isnan(ranked_alike(np.array([1.0, 1.0, 1.0]), np.array([3.0, 4.0, 5.0])))


def test_runs_that_are_stored_are_not_computed_again(tmp_path: Path) -> None:
    tasks = [Task({"n": n}, str(n), abs, (-n,)) for n in range(3)]
    announced: list[str] = []
    for _ in range(2):
        context = ReproContext(None, cache=ResultCache(tmp_path / "out"), announce=announced.append)
        assert run_all(context, tasks) == [0, 1, 2]
    assert announced == ["0", "1", "2"]
    parallel = ReproContext(None, cache=ResultCache(tmp_path / "other"), announce=announced.append, jobs=2)
    assert run_all(parallel, tasks) == [0, 1, 2]
    assert ResultCache(tmp_path / "other").get({"n": 2}, lambda: None) == 2


@pytest.mark.skipif(not (DATA / "pollux").is_dir(), reason="the public files are not here")
def test_samples_of_a_run_show_gpus_batches_and_efficiencies() -> None:
    life = live_through(DATA, 1, "pollux", jobs=13)
    assert len(life["jct"]) == len(life["models"]) == 13
    assert max(life["gpus"]) <= 64
    (followed,) = life["followed"].values()
    trains = np.array(followed["batch"]) > 0
    assert trains.any()
    assert (np.array(followed["efficiency"])[trains] > 0).all()
    assert (np.array(followed["gpus"])[trains] > 0).all()
