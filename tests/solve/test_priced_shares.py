"""Shares of many jobs by prices: as good as one linear program over all of them, however few are in doubt."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.arrays import Floats
from shoal.solve import priced_shares
from shoal.solve.consolidation import (
    Localities,
    first_come,
    most_per_cost,
    most_throughput,
    shortest_first,
    water_filled,
)
from shoal.solve.linear_objectives import TimeShares, alone, fifo, maximise_throughput, shortest_job_first
from shoal.solve.linear_program import LpSession, Program
from shoal.solve.priced_shares import MANY, most_gain
from shoal.solve.prices.paths import Proportional
from shoal.solve.ratio_program import cheapest

Problem = tuple[Floats, Floats, Floats]


def drawn(seed: int, jobs: int = 40) -> Problem:
    """Speeds, gangs and capacities of up to so many jobs of a few models on up to 4 types; many jobs are equal."""
    chance = np.random.default_rng(seed)
    jobs, types = int(chance.integers(1, jobs)), int(chance.integers(1, 5))
    models = int(chance.integers(1, 12))
    speed = chance.uniform(0.1, 9.0, (models, types)) * (chance.random((models, types)) < 0.8)
    speed[:, 0] += 0.1
    gangs = chance.choice([1.0, 1.0, 2.0, 4.0, 8.0], models)
    of = chance.integers(models, size=jobs)
    return speed[of], gangs[of], chance.integers(8, 40, types).astype(np.float64)


def on_nodes(problem: Problem, seed: int) -> Localities:
    """The same jobs with gangs that are slower across nodes of four or eight GPUs."""
    speed, gangs, capacity = problem
    nodes = [[8] * int(gpus // 8) + [4] * (int(gpus) % 8 // 4) + [1] * (int(gpus) % 4) for gpus in capacity]
    slower = np.random.default_rng(seed).uniform(0.3, 1.0, (len(speed), 1))
    return Localities(speed, np.where(gangs[:, None] > 1, speed * slower, speed), gangs, capacity, nodes)


def compared(monkeypatch: pytest.MonkeyPatch, solve: Callable[[], TimeShares]) -> tuple[TimeShares, TimeShares]:
    """The answer by prices, with at least two groups in doubt, and that of one program."""
    answers = []
    for many in (0, 10**9):
        monkeypatch.setattr(priced_shares, "MANY", many)
        monkeypatch.setattr(priced_shares, "_DOUBTFUL", 2)
        answers.append(solve())
    for answer in answers:
        assert answer.status == "optimal"
    return answers[0], answers[1]


@pytest.mark.parametrize("seed", range(60))
def test_every_rule_gains_as_much_by_prices_as_by_one_program(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance, problem = np.random.default_rng(seed), drawn(seed)
    jobs, prices = len(problem[0]), chance.uniform(0.5, 3.0, len(problem[2]))
    weights, line, steps = chance.uniform(0.5, 2.0, jobs), chance.permutation(jobs), chance.uniform(1.0, 99.0, jobs)
    some = np.where(chance.random(jobs) < 0.3, chance.random(jobs) * problem[0].max(axis=1), 0.0)
    near = on_nodes(problem, seed)
    rules: list[Callable[[], TimeShares]] = [
        lambda: maximise_throughput(*problem),
        lambda: maximise_throughput(*problem, weights),
        lambda: fifo(*problem, line),
        lambda: shortest_job_first(*problem, steps),
        lambda: cheapest(*problem, prices, 1.0 / problem[0].max(axis=1)),
        lambda: cheapest(*problem, prices, None, some),
        lambda: most_throughput(near, weights),
        lambda: first_come(near, line),
        lambda: shortest_first(near, steps),
        lambda: most_per_cost(near, prices, np.ones(jobs), some),
    ]
    for rule in rules:
        found, exact = compared(monkeypatch, rule)
        assert found.objective == pytest.approx(exact.objective, rel=1e-7)


@pytest.mark.parametrize("seed", range(20))
def test_equal_jobs_rise_together_where_nodes_are_scarce(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance, problem = np.random.default_rng(seed), drawn(seed)
    near, path = on_nodes(problem, seed), Proportional(chance.choice([1.0, 2.0], len(problem[0])))
    found, exact = compared(monkeypatch, lambda: water_filled(near, path))
    assert found.objective == pytest.approx(exact.objective, rel=1e-7)
    assert found.throughput == pytest.approx(exact.throughput, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 100_000))
def test_amounts_keep_every_limit_and_the_bound_is_reached(seed: int) -> None:
    chance, (speed, gangs, capacity) = np.random.default_rng(seed), drawn(seed)
    activities = alone(speed, gangs, capacity)
    weights = chance.choice([1.0, 2.0, 3.0], len(gangs))
    found = most_gain(activities, activities.gain(weights))
    assert found.gap <= priced_shares.GOAL
    assert (found.x >= 0).all()
    assert (np.bincount(activities.first, found.x) <= 1.0 + 1e-12).all()
    used = np.bincount(activities.types, activities.width * found.x, len(capacity))
    assert (used <= capacity * (1.0 + 1e-12)).all()
    assert (found.prices >= 0).all()


def test_of_equal_jobs_the_first_run_and_the_last_wait() -> None:
    many = np.ones((MANY + 500, 1))
    shares = maximise_throughput(many, np.full(len(many), 2.0), np.array([401.0])).shares[:, 0]
    assert shares[:200] == pytest.approx(np.ones(200))
    assert shares[200] == pytest.approx(0.5)
    assert not shares[201:].any()


def test_the_shortest_of_many_jobs_has_its_fastest_type_though_others_gain_more() -> None:
    jobs = MANY + 500
    speed, gangs = np.tile([2.0, 1.0], (jobs, 1)), np.ones(jobs)
    speed[7], gangs[7] = (2.0, 1.9), 8.0
    steps = np.full(jobs, 100.0)
    steps[7] = 1.0
    answer = shortest_job_first(speed, gangs, np.array([8.0, 8.0]), steps)
    assert answer.status == "optimal"
    assert answer.objective == pytest.approx(0.5)
    assert answer.shares[7] == pytest.approx([1.0, 0.0])
    assert answer.shares[:, 0].sum() == pytest.approx(1.0)


@pytest.mark.parametrize("speeds", ["drawn", "equal", "restricted", "one type"])
def test_many_different_jobs_are_served_by_small_programs(speeds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chance, jobs = np.random.default_rng(4), 10 * MANY
    gangs, types = chance.choice([1.0, 2.0, 4.0, 8.0], jobs), 1 if speeds == "one type" else 3
    per_gpu = chance.uniform(0.5, 4.0, (jobs, types)) if speeds == "drawn" else np.ones((jobs, types))
    if speeds == "restricted":
        per_gpu[:, 1:] *= chance.random((jobs, 2)) < 0.6
    rows, loaded = [], LpSession.__init__

    def counted(session: LpSession, program: Program) -> None:
        rows.append(len(program.lower))
        loaded(session, program)

    monkeypatch.setattr(LpSession, "__init__", counted)
    answer = fifo(per_gpu * gangs[:, None], gangs, np.full(types, jobs / 2.0), np.arange(jobs))
    assert answer.status == "optimal"
    assert answer.gap <= priced_shares.GOAL
    assert ((answer.shares > 1e-9) & (answer.shares < 1 - 1e-9)).sum() <= 2 * types
    assert sum(rows) < jobs / 4
