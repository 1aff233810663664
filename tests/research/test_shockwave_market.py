"""Shockwave's table 1, appendix F, and its figures 3, 7, 8, 11 and 14: searches, programs and verdicts both ways."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from shoal.research.repro.context import ReproContext
from shoal.research.repro.registry import chosen
from shoal.research.repro.shockwave import contended
from shoal.research.repro.shockwave_adaptive import (
    ScaledTraining,
    beside_pollux,
    beside_verdict,
    ncf_verdict,
    resnet_verdict,
)
from shoal.research.repro.shockwave_look import look_verdict
from shoal.research.repro.shockwave_shipped import (
    FIDELITY,
    POLICIES,
    factors,
    factors_verdict,
    fidelity_verdict,
    shipped_pair,
)
from shoal.research.repro.shockwave_stochastic import (
    ChangingJob,
    best_corner,
    drawn_market,
    equilibrium,
    market_verdict,
    planned_once,
)
from shoal.research.repro.shockwave_toy import (
    SCHEDULES,
    best_outcomes,
    completions,
    faults,
    figure_verdict,
    filtered,
    outcome,
    table_verdict,
)
from shoal.research.repro.table import REPRODUCES
from shoal.workload.schema import Job, Workload

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
THERE = pytest.mark.skipif(not (DATA / "shockwave").is_dir(), reason="the public files are not here")
POLLUX = pytest.mark.skipif(not (DATA / "pollux").is_dir(), reason="the public files are not here")


# ── table 1 ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_schedule_of_the_example_is_fairer_or_faster_than_the_adaptive_filter() -> None:
    adaptive = outcome(completions(SCHEDULES["adaptive"]))
    assert adaptive == pytest.approx((5 / 6, 5.0, 7.0))
    assert best_outcomes(lambda found: found) == pytest.approx(adaptive)
    assert best_outcomes(lambda found: (found[1], found[0])) == pytest.approx(adaptive)


def test_schedules_that_break_the_example_are_named() -> None:
    assert figure_verdict(SCHEDULES) == REPRODUCES
    assert faults(["AAAAB"])[:2] == ["round 0 has 5 GPUs", "A has more GPUs than it asks for"]
    assert figure_verdict({"x": SCHEDULES["1"][:-1]}) == "differs: filter x: A does not end"
    assert not faults(filtered(2 / 3))


def test_another_outcome_than_the_printed_one_differs() -> None:
    found = {name: outcome(completions(schedule)) for name, schedule in SCHEDULES.items()}
    assert table_verdict(found) == REPRODUCES
    assert table_verdict({**found, "1": (1.3, 6.0, 7.0)}) == "differs: filter 1: 1.30 instead of 1.1"


# ── appendix F ────────────────────────────────────────────────────────────────────────────────────────────────────


def occupancy_program(market: tuple[ChangingJob, ...], rounds: int, weights: list[float]) -> float:
    """The optimum of the linear program (6) for one GPU: how often each (round, paces, job that runs) occurs."""
    paces = list(product((False, True), repeat=len(market)))
    cells = [(t, pace, i) for t in range(rounds) for pace in paces for i in range(len(market))]
    at = {cell: n for n, cell in enumerate(cells)}
    flow, begin = np.zeros((rounds * len(paces), len(cells))), np.zeros(rounds * len(paces))
    begin[0] = 1.0
    for (t, pace, i), n in at.items():
        flow[t * len(paces) + paces.index(pace), n] += 1.0
        if t + 1 == rounds:
            continue
        change = 0.0 if pace[i] else market[i].change
        changed = tuple(p or (j == i) for j, p in enumerate(pace))
        flow[(t + 1) * len(paces) + paces.index(changed), n] -= change
        flow[(t + 1) * len(paces) + paces.index(pace), n] -= 1.0 - change
    worth = [-weights[i] * market[i].pace(pace[i]) for _, pace, i in cells]
    answer = linprog(worth, A_eq=flow, b_eq=begin)
    assert answer.fun is not None
    return -float(answer.fun)


@pytest.mark.parametrize("seed", range(3))
def test_corners_found_backwards_are_those_of_the_linear_program(seed: int) -> None:
    market = drawn_market(3, seed)
    weights = np.random.default_rng(seed).uniform(0.1, 1.0, 3)
    corner = best_corner(market, 1, 3, weights)
    assert float(weights @ corner) == pytest.approx(occupancy_program(market, 3, weights.tolist()))


def test_a_market_of_three_jobs_beats_a_plan_made_once_and_leaves_no_job_below_a_third() -> None:
    market = drawn_market(3, 0)
    had, gap, _ = equilibrium(market, 1, 4)
    assert gap < 1e-4
    assert float(np.log(had).sum()) > float(np.log(planned_once(market, 1, 4)).sum())
    assert all(epochs >= job.blind(4) / 3 * (1 - 1e-4) for epochs, job in zip(had, market, strict=True))


def test_a_market_that_is_not_solved_or_leaves_a_job_below_its_part_differs() -> None:
    good = {"gap": 1e-6, "welfare": 2.0, "once": 1.0, "least": 1.1}
    assert market_verdict([good]) == REPRODUCES
    assert "gap is above" in market_verdict([{**good, "gap": 1e-2}])
    assert "a plan made once" in market_verdict([{**good, "once": 3.0}])
    assert market_verdict([good, {**good, "least": 0.9}]) == "differs: 1 of 2 markets leave a job below its part"


# ── figure 7 and table 3 ──────────────────────────────────────────────────────────────────────────────────────────


def test_factors_are_compared_with_the_stated_ones() -> None:
    figures = {name: {"makespan": 130.0, "worst ρ": 3.0} for name in POLICIES}
    ours = factors({**figures, "Shockwave": {"makespan": 100.0, "worst ρ": 1.0}})
    assert ours == pytest.approx({"makespan": 1.3, "worst ρ": 3.0})
    assert factors_verdict([ours]) == REPRODUCES
    assert "makespan 1.00" in factors_verdict([{**ours, "makespan": 1.0}])


def test_another_fidelity_than_the_stated_differs() -> None:
    assert fidelity_verdict(FIDELITY) == REPRODUCES
    assert fidelity_verdict({**FIDELITY, "JCT": 0.09}) == "differs: JCT 9.0% instead of 4.6%"


@THERE
def test_shipped_results_have_the_worst_rho_that_the_paper_prints() -> None:
    physical, _ = shipped_pair(DATA, "shockwave")
    assert physical["worst ρ"] == pytest.approx(1.82, abs=0.005)
    physical, _ = shipped_pair(DATA, "min_total_duration")
    assert physical["worst ρ"] == pytest.approx(5.79, abs=0.005)


# ── figures 3, 8, 11 and 14 ───────────────────────────────────────────────────────────────────────────────────────


def looked(makespan: float, unfair: float, small: float) -> dict[str, Any]:
    return {"makespan": makespan, "unfair": unfair, "ends": {"XSmall": small}}


def test_a_batch_is_judged_by_makespan_late_jobs_and_small_jobs() -> None:
    found = {
        "shockwave": [looked(100, 0.05, 10)] * 3,
        "allox": [looked(130, 0.2, 8)] * 3,
        "gavel.max-min": [looked(140, 0.3, 30)] * 3,
        "ossp": [looked(99, 0.7, 90)] * 3,
    }
    assert look_verdict(found) == REPRODUCES
    assert look_verdict({**found, "allox": [looked(90, 0.2, 8)] * 3}) == "differs: does not hold: sooner than allox"
    mixed = [looked(130, 0.2, 8), looked(90, 0.2, 8), looked(110, 0.2, 8)]
    assert look_verdict({**found, "allox": mixed}).startswith("cannot be told: the interval holds 0: sooner than allox")


def test_shockwave_beside_pollux_needs_the_stated_factors() -> None:
    stated = {"JCT": (1.0, 3.0), "makespan": (10.0, 10.5), "GPU-seconds": (1.0, 2.4), "worst ρ": (3.0, 1.2)}
    found = {
        f"{name} {of}": v for of, pair in stated.items() for name, v in zip(("pollux", "shockwave"), pair, strict=True)
    }
    assert beside_verdict([found]) == REPRODUCES
    assert "JCT 1.50" in beside_verdict([{**found, "shockwave JCT": 1.5}])
    assert "makespan +50%" in beside_verdict([{**found, "shockwave makespan": 15.0}])
    assert "worst ρ is lower" in beside_verdict([{**found, "pollux worst ρ": 1.0}])


def test_accuracy_has_a_verdict_only_where_trainings_show_it() -> None:
    training = ScaledTraining((128, 200, 400), (0.5, 0.95, 0.97), 2.0, ((128, 0.94), (4096, 0.935)))
    assert resnet_verdict(training).startswith("cannot be told")
    assert resnet_verdict(replace(training, metrics=((128, 0.94), (4096, 0.91)))) == REPRODUCES
    assert resnet_verdict(replace(training, batches=(128, 200, 200))).startswith("differs")
    scaled = replace(training, batches=(256, 4096, 4096))
    assert ncf_verdict(scaled) == REPRODUCES
    assert "at epoch 1" in ncf_verdict(training)
    assert "no lower" in ncf_verdict(replace(scaled, metrics=((256, 0.7), (4096, 0.7))))


@POLLUX
def test_pollux_and_shockwave_run_the_same_jobs() -> None:
    found = beside_pollux(DATA, 1, 6)
    assert found["pollux JCT"] > 0
    assert found["shockwave JCT"] > 0


@POLLUX
def test_figure_14_has_the_papers_batches_beside_ours() -> None:
    (one,) = chosen(["shockwave-14"])
    (made,) = one.tables(ReproContext(DATA))
    assert list(made.charts[0].theirs[0].points[-1]) == [1, 32768]
    assert made.verdict


def test_a_contention_factor_counts_jobs_per_gpu_whatever_they_want() -> None:
    jobs = tuple(Job(id=str(i), submitted=60.0 * i, gpus=1 + i % 4, work=1.0) for i in range(10))
    taken = contended(Workload("x", jobs), 4, 1.5).jobs
    assert [job.id for job in taken] == ["0", "1", "2", "3", "4", "5"]
    assert {job.submitted for job in taken} == {0.0}
