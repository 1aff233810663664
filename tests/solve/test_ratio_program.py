"""The most throughput for the money, against an independent solver and by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.sparse import csr_array

from shoal.core.arrays import Flags, Floats
from shoal.core.errors import InputError
from shoal.solve.linear_objectives import TimeShares, maximise_throughput
from shoal.solve.linear_program import LpSession
from shoal.solve.ratio_program import cheapest

Problem = tuple[Floats, Floats, Floats]


def random_problem(chance: np.random.Generator, most: int = 80) -> Problem:
    jobs, types = int(chance.integers(1, most + 1)), int(chance.integers(1, 7))
    speed = 10.0 ** chance.uniform(-1, 2, (jobs, 1)) * chance.uniform(0.1, 1.0, (jobs, types))
    speed *= chance.random((jobs, types)) > 0.1
    gangs = chance.choice([1.0, 1.0, 2.0, 4.0, 8.0] if chance.random() < 0.5 else np.arange(1.0, 9.0), jobs)
    return speed, gangs, chance.integers(0, 4 + jobs // 2, types).astype(float)


def usable(problem: Problem) -> Flags:
    speed, gangs, capacity = problem
    can: Flags = (speed > 0) & (gangs[:, None] <= capacity)
    return can


def most(problem: Problem, gain: Floats, floors: Floats) -> float:
    """max Σ gain · X with throughput ≥ floors, over the usable (job, type) only."""
    speed, gangs, capacity = problem
    job, kind = np.nonzero(usable(problem))
    column = np.arange(len(job))
    rows = np.concatenate([job, len(speed) + kind, len(speed) + len(capacity) + job])
    values = np.concatenate([np.ones(len(job)), gangs[job], -speed[job, kind]])
    shape = (2 * len(speed) + len(capacity), len(job))
    matrix = csr_array((values, (rows, np.tile(column, 3))), shape=shape)
    right = np.concatenate([np.ones(len(speed)), capacity, -floors * (1 - 1e-9)])
    found = linprog(-gain[job, kind], A_ub=matrix, b_ub=right)  # type: ignore[call-overload]
    assert found.status == 0, found.message
    return float(-found.fun)


def is_best_ratio(problem: Problem, ratio: float, gain: Floats, cost: Floats, floors: Floats) -> None:
    """The last step of a bisection: max of gain − r · cost is above 0 just below the best ratio, below 0 just above."""
    scale = float(gain.max())
    assert most(problem, gain - ratio * (1 - 1e-6) * cost, floors) >= -1e-12 * scale
    assert most(problem, gain - ratio * (1 + 1e-6) * cost, floors) <= 1e-12 * scale


def spent(answer: TimeShares, problem: Problem, prices: Floats) -> float:
    return float((problem[1] @ answer.shares) @ prices)


def obeys(answer: TimeShares, problem: Problem, prices: Floats, weights: Floats) -> None:
    _, gangs, capacity = problem
    assert answer.status == "optimal"
    assert answer.gap <= 1e-7
    assert answer.residual <= 1e-7
    assert (answer.shares.sum(axis=1) <= 1 + 1e-9).all()
    assert (gangs @ answer.shares <= capacity * (1 + 1e-9)).all()
    assert not answer.shares[~usable(problem)].any()
    paid = spent(answer, problem, prices)
    if paid:
        assert answer.objective == pytest.approx(float(weights @ answer.throughput) / paid)


def test_the_best_ratio_without_floors_and_the_most_throughput_at_it() -> None:
    chance = np.random.default_rng(1)
    for case in range(300):
        problem = random_problem(chance)
        prices = chance.uniform(0.2, 4.0, len(problem[2]))
        speed, gangs, _ = problem
        rate = np.where(usable(problem), speed / (gangs[:, None] * prices), 0.0)
        # Half the time each job counts in its own cheapest step, so that many are tied at a ratio of 1.
        weights = 1.0 / np.maximum(rate.max(axis=1), 1e-9) if case % 2 else np.ones(len(speed))
        answer = cheapest(*problem, prices, weights)
        obeys(answer, problem, prices, weights)
        best = float((weights[:, None] * rate).max(initial=0.0))
        assert answer.objective == pytest.approx(best, rel=1e-6)
        tied = weights[:, None] * rate >= best * (1 - 1e-9)
        if best:
            gain = np.where(tied, weights[:, None] * speed, -1.0)
            assert weights @ answer.throughput == pytest.approx(most(problem, gain, np.zeros(len(speed))), rel=1e-6)


def test_the_best_ratio_with_floors() -> None:
    chance = np.random.default_rng(2)
    conflicts = bought = 0
    for case in range(300):
        problem = random_problem(chance)
        speed, gangs, _ = problem
        top = np.where(usable(problem), speed, 0.0).max(axis=1)
        floors = np.where(chance.random(len(top)) < 0.4, chance.uniform(0.05, 1.1, len(top)) * top, 0.0)
        prices = chance.uniform(0.2, 4.0, len(problem[2]))
        weights = chance.uniform(0.5, 2.0, len(speed)) / np.maximum(top, 1e-9) if case % 2 else np.ones(len(speed))
        answer = cheapest(*problem, prices, weights, floors)
        obeys(answer, problem, prices, weights)
        kept = np.where(answer.unattainable, 0.0, floors - np.where(answer.unattainable, 0.0, answer.shortfall))
        assert (answer.throughput >= kept - 1e-7 * top).all()
        # What is given up when floors conflict is the same as for the sum of throughputs, and checked there.
        alike = maximise_throughput(*problem, floors=floors)
        assert np.array_equal(answer.unattainable, alike.unattainable)
        rest = ~answer.unattainable
        assert answer.shortfall[rest] == pytest.approx(alike.shortfall[rest], abs=1e-7)
        if usable(problem).any():
            is_best_ratio(problem, answer.objective, weights[:, None] * speed, gangs[:, None] * prices, kept)
            bought += bool(kept.any())
        conflicts += bool((answer.shortfall[rest] > 0).any())
    assert conflicts > 20
    assert bought > 100


TWO = (np.array([[4.0, 1.0], [3.0, 2.0]]), np.ones(2), np.ones(2))
PRICES = np.array([2.0, 1.0])


def test_two_jobs_on_two_types_by_hand() -> None:
    # Steps for the money: job 0 has 4/2 and 1/1, job 1 has 3/2 and 2/1. Both best are 2, and both run: 6 for 3.
    answer = cheapest(*TWO, PRICES)
    assert answer.shares.tolist() == [[1, 0], [0, 1]]
    assert (answer.objective, answer.bound) == (2, 2)


def test_a_deadline_by_hand() -> None:
    # Job 1 must make 2.5: half its time on type 0 (2.5 for 1.5). Job 0 takes the other half of type 0 (2 for 1), but
    # not of type 1, where it would get 0.5 for 0.5: 4.5 for 2.5 is better than 5 for 3.
    answer = cheapest(*TWO, PRICES, floors=np.array([0.0, 2.5]))
    assert answer.objective == pytest.approx(1.8)
    assert answer.shares == pytest.approx(np.array([[0.5, 0.0], [0.5, 0.5]]))


def test_a_deadline_that_costs_nothing_leaves_no_gpu_idle() -> None:
    # Four equal jobs and four GPUs: however much runs, a step costs the same, so all run, floor or not.
    answer = cheapest(np.ones((4, 1)), np.ones(4), np.array([4.0]), np.ones(1), floors=np.array([0.5, 0.0, 0.0, 0.0]))
    assert answer.objective == pytest.approx(1.0)
    assert answer.throughput == pytest.approx(np.ones(4))


def test_a_deadline_already_past_is_named_and_leaves_the_rest_alone() -> None:
    answer = cheapest(*TWO, PRICES, floors=np.array([np.inf, 2.5]))
    assert answer.unattainable.tolist() == [True, False]
    assert answer.shortfall.tolist() == [np.inf, 0]
    assert answer.objective == pytest.approx(1.8)


def test_a_wide_job_pays_for_all_its_gpus() -> None:
    # 5 steps on 4 GPUs are dearer than 2 on one.
    answer = cheapest(np.array([[5.0], [2.0]]), np.array([4.0, 1.0]), np.array([4.0]), np.ones(1))
    assert answer.throughput.tolist() == [0, 2]


def test_nothing_that_can_run_costs_nothing() -> None:
    answer = cheapest(np.zeros((1, 1)), np.ones(1), np.ones(1), np.ones(1), floors=np.ones(1))
    assert (answer.status, answer.objective, answer.unattainable.tolist()) == ("optimal", 0, [True])


@pytest.mark.parametrize(
    ("prices", "field"),
    [(np.array([1.0, 0.0]), "prices[1]"), (np.ones(3), "prices"), (np.array([np.nan, 1.0]), "prices[0]")],
)
def test_a_price_must_be_positive_and_one_per_type(prices: Floats, field: str) -> None:
    with pytest.raises(InputError) as refusal:
        cheapest(*TWO, prices)
    assert refusal.value.field == field


@pytest.mark.parametrize("floors", [None, np.array([1.0, 1.0])], ids=["without floors", "with floors"])
def test_a_solver_that_gives_up_is_reported_not_raised(monkeypatch: pytest.MonkeyPatch, floors: Floats | None) -> None:
    monkeypatch.setattr(LpSession, "_run", lambda *_: False)
    answer = cheapest(*TWO, PRICES, floors=floors)
    assert answer.status == "unsolved"
    assert not answer.shares.any()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_no_single_type_is_cheaper_and_deadlines_only_cost(seed: int) -> None:
    chance = np.random.default_rng(seed)
    problem = random_problem(chance, 20)
    speed, gangs, capacity = problem
    prices = chance.uniform(0.2, 4.0, len(capacity))
    free = cheapest(*problem, prices)
    top = np.where(usable(problem), speed, 0.0).max(axis=1)
    floors = chance.uniform(0.0, 1.05, len(top)) * top
    bound = cheapest(*problem, prices, floors=floors)
    for answer in (free, bound):
        obeys(answer, problem, prices, np.ones(len(speed)))
    assert bound.objective <= free.objective * (1 + 1e-9)
    for j in range(len(capacity)):
        only = np.zeros_like(speed)
        only[:, j] = np.where(usable(problem)[:, j], chance.random(len(speed)), 0.0)
        paid = float((gangs @ only) @ prices)
        if paid:
            assert free.objective >= (speed * only).sum() / paid * (1 - 1e-9)
