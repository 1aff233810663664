"""Time shares that maximise a sum, against an independent solver and by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.sparse import csr_array, eye_array, hstack, vstack

from shoal.core.arrays import Floats, Indices
from shoal.core.errors import InputError
from shoal.solve.linear_objectives import TimeShares, fifo, maximise_throughput, shortest_job_first
from shoal.solve.linear_program import LpSession

Problem = tuple[Floats, Floats, Floats]


def random_problem(chance: np.random.Generator, most: int = 80) -> Problem:
    """1 to 80 jobs of very unlike speeds, some with a type they cannot use, some too wide for any; 1 to 6 types."""
    jobs, types = int(chance.integers(1, most + 1)), int(chance.integers(1, 7))
    speed = 10.0 ** chance.uniform(-1, 2, (jobs, 1)) * chance.uniform(0.1, 1.0, (jobs, types))
    speed *= chance.random((jobs, types)) > 0.1
    gangs = chance.choice([1.0, 1.0, 1.0, 2.0, 4.0, 8.0] if chance.random() < 0.5 else np.arange(1.0, 9.0), jobs)
    return speed, gangs, chance.integers(0, 4 + jobs // 2, types).astype(float)


def limits(problem: Problem) -> tuple[csr_array, Floats, Floats]:
    """The constraint set over all jobs × types: A x ≤ b and the largest each x may be."""
    speed, gangs, capacity = problem
    jobs, types = speed.shape
    job, kind = np.indices(speed.shape).reshape(2, -1)
    place = (np.concatenate([job, jobs + kind]), np.tile(np.arange(speed.size), 2))
    rows = csr_array((np.concatenate([np.ones(speed.size), gangs[job]]), place), shape=(jobs + types, speed.size))
    usable = (speed > 0) & (gangs[:, None] <= capacity)
    return rows, np.concatenate([np.ones(jobs), capacity]), usable.astype(float).ravel()


def throughputs(speed: Floats, some: Indices) -> csr_array:
    """Minus the throughput of ``some`` jobs, a row each."""
    types = speed.shape[1]
    columns = (some[:, None] * types + np.arange(types)).ravel()
    place = (np.repeat(np.arange(len(some)), types), columns)
    return csr_array((-speed[some].ravel(), place), shape=(len(some), speed.size))


def best_sum(problem: Problem, gain: Floats, floors: Floats | None = None) -> float:
    rows, right, most = limits(problem)
    if floors is not None:
        some = np.flatnonzero(floors)
        # What was given up is known to rounding only, and an equality the reference cannot move in is no test.
        rows = vstack([rows, throughputs(problem[0], some)], format="csr")
        right = np.append(right, -floors[some] * (1 - 1e-9))
    bounds = np.column_stack([0 * most, most])
    found = linprog(-gain.ravel(), A_ub=rows, b_ub=right, bounds=bounds)  # type: ignore[call-overload]
    assert found.status == 0, found.message
    return float(-found.fun)


def least_given_up(problem: Problem, floors: Floats, top: Floats) -> float:
    """The least Σ shortfall / top speed, with one column of shortfall for each floor."""
    rows, right, most = limits(problem)
    some = np.flatnonzero(floors)
    if not len(some):
        return 0.0
    unit = np.maximum(top, 1e-9)
    kept = hstack([throughputs(problem[0] / unit[:, None], some), -eye_array(len(some))])
    rows = vstack([hstack([rows, csr_array((rows.shape[0], len(some)))]), kept], format="csr")
    gain = np.concatenate([np.zeros(len(most)), np.ones(len(some))])
    box = [(0.0, u) for u in most] + [(0.0, None)] * len(some)
    found = linprog(gain, A_ub=rows, b_ub=np.append(right, -(floors / unit)[some]), bounds=box)
    assert found.status == 0
    assert found.fun is not None
    return float(found.fun)


def top_speed(problem: Problem) -> Floats:
    speed, gangs, capacity = problem
    top: Floats = np.where(gangs[:, None] <= capacity, speed, 0.0).max(axis=1)
    return top


def obeys(answer: TimeShares, problem: Problem) -> None:
    speed, gangs, capacity = problem
    assert answer.status == "optimal"
    assert answer.gap <= 1e-7
    assert answer.residual <= 1e-7
    assert (answer.shares >= 0).all()
    assert (answer.shares.sum(axis=1) <= 1 + 1e-9).all()
    assert (gangs @ answer.shares <= capacity * (1 + 1e-9)).all()
    assert not answer.shares[(speed == 0) | (gangs[:, None] > capacity)].any()
    assert answer.throughput == pytest.approx((speed * answer.shares).sum(axis=1))


def test_throughput_equals_an_independent_solver() -> None:
    chance = np.random.default_rng(1)
    for _ in range(300):
        problem = random_problem(chance)
        weights = chance.choice([0.5, 1.0, 3.0], len(problem[0]))
        answer = maximise_throughput(*problem, weights)
        obeys(answer, problem)
        assert answer.objective == pytest.approx(best_sum(problem, weights[:, None] * problem[0]), rel=1e-6)


def test_with_floors_the_least_is_given_up_and_then_the_most_gained() -> None:
    chance = np.random.default_rng(2)
    conflicts = lost = 0
    for _ in range(300):
        problem = random_problem(chance)
        top = top_speed(problem)
        floors = np.where(chance.random(len(top)) < 0.5, chance.uniform(0.0, 1.1, len(top)) * (top + 0.01), 0.0)
        answer = maximise_throughput(*problem, floors=floors)
        obeys(answer, problem)
        assert (answer.unattainable == (floors > top * (1 + 1e-9))).all()
        met = np.where(answer.unattainable, 0.0, floors)
        given_up = np.where(answer.unattainable, 0.0, answer.shortfall)
        least = least_given_up(problem, met, top)
        assert (given_up / np.maximum(top, 1e-9)).sum() == pytest.approx(least, abs=1e-6)
        assert (answer.throughput >= met - given_up - 1e-7 * top).all()
        assert answer.objective == pytest.approx(best_sum(problem, problem[0], met - given_up), rel=1e-6)
        conflicts += least > 1e-6
        lost += bool(answer.unattainable.any())
    assert conflicts > 30
    assert lost > 30


def test_fifo_equals_an_independent_solver() -> None:
    chance = np.random.default_rng(3)
    for _ in range(300):
        problem = random_problem(chance)
        order = chance.permutation(len(problem[0]))
        top = np.maximum(top_speed(problem), 1e-9)
        gain = (len(order) - np.argsort(order))[:, None] * problem[0] / top[:, None]
        answer = fifo(*problem, order)
        obeys(answer, problem)
        assert answer.objective == pytest.approx(best_sum(problem, gain), rel=1e-6)


def test_the_shortest_job_is_done_as_soon_as_it_could_be_alone() -> None:
    chance = np.random.default_rng(4)
    for _ in range(300):
        problem = random_problem(chance)
        steps = chance.uniform(1, 1000, len(problem[0]))
        top = top_speed(problem)
        answer = shortest_job_first(*problem, steps)
        obeys(answer, problem)
        if top.any():
            duration = np.divide(steps, top, out=np.full(len(top), np.inf), where=top > 0)
            assert answer.objective == pytest.approx(duration.min())
            # The others in line: what is left goes by M − place, each counted in its own top speed.
            place = np.argsort(np.argsort(duration, kind="stable"))
            line = (len(top) - place) / np.maximum(top, 1e-9)
            first = np.where(place == 0, top, 0.0)
            expected = best_sum(problem, line[:, None] * problem[0], first)
            assert line @ answer.throughput == pytest.approx(expected, rel=1e-6)
            running = answer.throughput > 0
            assert (steps[running] / answer.throughput[running]).min() == pytest.approx(answer.objective)


TWO = (np.array([[4.0, 1.0], [3.0, 2.0]]), np.ones(2), np.ones(2))


def test_two_jobs_on_two_types_by_hand() -> None:
    # Straight: 4 + 2; crossed: 1 + 3. One more GPU of type 0 would let job 1 go at 3 instead of 2.
    answer = maximise_throughput(*TWO)
    assert answer.shares.tolist() == [[1, 0], [0, 1]]
    assert (answer.objective, answer.bound, answer.prices.tolist()) == (6, 6, [1, 0])


def test_a_floor_by_hand() -> None:
    # Job 1 needs 3a + 2(1 − a) ≥ 2.5: half its time on type 0. That leaves half of each type to job 0: 2 + 0.5.
    answer = maximise_throughput(*TWO, floors=np.array([0.0, 2.5]))
    assert answer.shares == pytest.approx(np.full((2, 2), 0.5))
    assert not answer.shortfall.any()


def test_floors_that_conflict_give_up_the_least_by_hand() -> None:
    # One GPU, both want all of it (1 and 2 steps/s): a whole top speed must go, and 2 steps/s beat 1.
    answer = maximise_throughput(np.array([[1.0], [2.0]]), np.ones(2), np.ones(1), floors=np.array([1.0, 2.0]))
    assert (answer.shortfall / [1.0, 2.0]).sum() == pytest.approx(1.0)
    assert not answer.unattainable.any()


def test_a_floor_beyond_reach_is_named_and_takes_nothing_from_the_others() -> None:
    answer = maximise_throughput(*TWO, floors=np.array([4.0, np.inf]))
    assert answer.unattainable.tolist() == [False, True]
    assert answer.shortfall.tolist() == [0, np.inf]
    assert answer.throughput.tolist() == [4, 2]


def test_the_first_in_line_has_its_fastest_type_unless_both_do_better() -> None:
    # Job 1 came first. Crossed 2 · 3/3 + 1 · 1/4 = 2.25, straight 2 · 2/3 + 1 · 4/4 = 2.33: the sum prefers straight.
    assert fifo(*TWO, np.array([1, 0])).objective == pytest.approx(7 / 3)
    # Where job 1 loses two thirds on type 1 and job 0 a quarter: crossed 2 + 3/4, straight 2/3 + 1.
    steeper = (np.array([[4.0, 3.0], [3.0, 1.0]]), np.ones(2), np.ones(2))
    assert fifo(*steeper, np.array([1, 0])).shares.tolist() == [[0, 1], [1, 0]]


def test_a_wide_job_that_is_shortest_is_not_outbid_by_narrow_ones() -> None:
    # In line the four count 4, 3, 2, 1; a GPU is worth 4/3 to the wide one, which beats only the last: what that one
    # would hold, a third of the GPUs, lets the wide one run a third of the time.
    speed, gangs, capacity = np.ones((4, 1)), np.array([3.0, 1.0, 1.0, 1.0]), np.array([3.0])
    steps = np.array([1.0, 2.0, 3.0, 4.0])
    assert fifo(speed, gangs, capacity, np.arange(4)).throughput == pytest.approx([1 / 3, 1, 1, 0])
    assert shortest_job_first(speed, gangs, capacity, steps).throughput.tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("speed", "gangs", "capacity"),
    [
        (np.zeros((0, 2)), np.zeros(0), np.ones(2)),
        (np.zeros((1, 2)), np.ones(1), np.ones(2)),
        (np.ones((1, 2)), np.array([4.0]), np.ones(2)),
        (np.ones((1, 0)), np.ones(1), np.zeros(0)),
        (np.ones((2, 1)), np.ones(2), np.zeros(1)),
    ],
    ids=["no job", "no speed", "wider than every type", "no type", "no GPU"],
)
def test_nothing_to_share_out_is_an_answer_too(speed: Floats, gangs: Floats, capacity: Floats) -> None:
    count = len(speed)
    for answer in (
        maximise_throughput(speed, gangs, capacity, floors=np.ones(count)),
        fifo(speed, gangs, capacity, np.arange(count)),
        shortest_job_first(speed, gangs, capacity, np.ones(count)),
    ):
        assert (answer.status, answer.objective, answer.gap) == ("optimal", 0, 0)
        assert answer.shares.shape == speed.shape
        assert not answer.shares.any()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"speed": np.array([[1.0, np.nan], [1.0, 1.0]])}, "speed[0, 1]"),
        ({"speed": np.array([[1.0, 1.0], [-1.0, 1.0]])}, "speed[1, 0]"),
        ({"speed": np.ones((2, 3))}, "speed"),
        ({"speed": np.ones(2)}, "speed"),
        ({"gangs": np.array([1.0, 0.0])}, "gangs[1]"),
        ({"capacity": np.array([1.0, np.inf])}, "capacity[1]"),
        ({"weights": np.array([1.0, 0.0])}, "weights[1]"),
        ({"weights": np.ones(3)}, "weights"),
        ({"floors": np.array([np.nan, 1.0])}, "floors[0]"),
        ({"floors": np.ones(1)}, "floors"),
    ],
)
def test_bad_input_is_named(change: dict[str, Floats], field: str) -> None:
    given = {"speed": np.ones((2, 2)), "gangs": np.ones(2), "capacity": np.ones(2)} | change
    with pytest.raises(InputError) as refusal:
        maximise_throughput(**given)
    assert refusal.value.field == field


def test_an_order_must_name_every_job_once() -> None:
    with pytest.raises(InputError, match="each of the 2 jobs once"):
        fifo(*TWO, np.array([0, 0]))


def test_a_solver_that_gives_up_is_reported_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LpSession, "_run", lambda *_: False)
    for answer in (
        maximise_throughput(*TWO),
        maximise_throughput(*TWO, floors=np.ones(2)),
        shortest_job_first(*TWO, np.ones(2)),
    ):
        assert answer.status == "unsolved"
        assert not answer.shares.any()
        assert answer.gap == np.inf


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_more_gpus_and_lower_floors_never_hurt(seed: int) -> None:
    chance = np.random.default_rng(seed)
    speed, gangs, capacity = problem = random_problem(chance, 20)
    floors = chance.uniform(0, 0.3, len(speed)) * top_speed(problem)
    answer = maximise_throughput(*problem, floors=floors)
    obeys(answer, problem)
    more = maximise_throughput(speed, gangs, capacity + chance.integers(0, 3, len(capacity)))
    assert more.objective >= answer.objective * (1 - 1e-9)
    again = maximise_throughput(*problem, floors=floors)
    assert np.array_equal(again.shares, answer.shares)
