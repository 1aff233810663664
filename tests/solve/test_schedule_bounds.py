"""Lower bounds on all schedules: exact where the best one is known, valid for any prices, never above a schedule."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.solve.schedule_bounds import LeastTimes, SlotPrices, completion_bound, makespan_bound, priced_bound, srpt

ROUNDING = 1.0 + 1e-9
SECONDS = st.floats(1.0, 1e4)


def on_one_kind(release: list[float], seconds: list[float], gangs: list[int], gpus: int) -> LeastTimes:
    """Rigid gangs on GPUs of one kind."""
    length, wide = np.array(seconds)[:, None], np.array(gangs, dtype=np.float64)[:, None]
    return LeastTimes(np.array(release), length, length * wide, np.array([float(gpus)]))


def one_gpu(jobs: list[tuple[float, float]]) -> LeastTimes:
    return on_one_kind([r for r, _ in jobs], [s for _, s in jobs], [1] * len(jobs), 1)


def packed(gangs: list[tuple[float, int]], gpus: int) -> float:
    """The lowest mean completion time of rigid gangs released at 0 that are never stopped: by trying all orders."""
    best = np.inf
    for order in permutations(gangs):
        free, total = [0.0] * gpus, 0.0
        for seconds, wide in order:
            free.sort()
            end = free[wide - 1] + seconds
            free[:wide] = [end] * wide
            total += end
        best = min(best, total / len(gangs))
    return float(best)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 1e4), SECONDS), min_size=1, max_size=8))
def test_on_one_gpu_the_bound_is_reached_by_serving_the_job_with_the_least_left(
    jobs: list[tuple[float, float]],
) -> None:
    needs = one_gpu(jobs)
    ends = srpt(needs.release, needs.seconds[:, 0])
    assert completion_bound(needs).mean == pytest.approx(float((ends - needs.release).mean()))
    assert makespan_bound(needs).seconds == pytest.approx(float(ends.max() - needs.release.min()))


def test_the_least_left_is_served_first_also_when_a_shorter_job_arrives() -> None:
    assert srpt(np.array([0.0, 2.0, 20.0]), np.array([10.0, 3.0, 1.0])).tolist() == [13.0, 5.0, 21.0]


def test_jobs_that_do_not_meet_are_bounded_by_their_own_least_times() -> None:
    needs = on_one_kind([0.0, 100.0], [50.0, 60.0], [2, 1], 4)
    bound = completion_bound(needs)
    assert bound.mean == bound.alone == 55.0
    assert makespan_bound(needs).seconds == 160.0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(SECONDS, st.integers(1, 3)), min_size=1, max_size=5))
def test_no_order_of_gangs_is_below_the_bound(gangs: list[tuple[float, int]]) -> None:
    needs = on_one_kind([0.0] * len(gangs), [s for s, _ in gangs], [g for _, g in gangs], 3)
    assert completion_bound(needs).mean <= packed(gangs, 3) * ROUNDING
    assert makespan_bound(needs).seconds >= sum(s * g for s, g in gangs) / 3 / ROUNDING


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.0, 1e3), SECONDS), min_size=1, max_size=6),
    st.lists(st.tuples(st.floats(1.0, 1e4), st.floats(0.0, 20.0)), min_size=1, max_size=5),
    st.lists(st.floats(-1e4, 1e5), min_size=6, max_size=6),
)
def test_any_prices_and_times_prove_a_bound(
    jobs: list[tuple[float, float]], slots: list[tuple[float, float]], times: list[float]
) -> None:
    needs = one_gpu(jobs)
    begin = float(needs.release.min())
    prices = SlotPrices(begin, begin + np.cumsum([s for s, _ in slots]), np.array([[p for _, p in slots]]))
    least = float((srpt(needs.release, needs.seconds[:, 0]) - needs.release).mean())
    assert priced_bound(needs, prices, np.array(times[: len(jobs)])) <= least + 1e-6 * max(least, 1e5)


def test_the_proof_gives_the_bound_again() -> None:
    rng = np.random.default_rng(1)
    seconds = rng.lognormal(6.0, 1.0, (40, 2))
    needs = LeastTimes(
        rng.uniform(0.0, 3000.0, 40), seconds, seconds * rng.integers(1, 4, (40, 1)), np.array([4.0, 8.0])
    )
    bound = completion_bound(needs)
    assert bound.priced == priced_bound(needs, bound.slots, bound.times)
    assert bound.priced > bound.alone
    assert (bound.slots.prices >= 0.0).all()


def test_a_job_counts_on_the_kinds_it_can_use_alone() -> None:
    needs = LeastTimes(
        np.zeros(2), np.array([[10.0, np.inf], [np.inf, 40.0]]), np.array([[10.0, np.inf], [np.inf, 40.0]]), np.ones(2)
    )
    assert completion_bound(needs).mean == pytest.approx(25.0)
    assert makespan_bound(needs).seconds == pytest.approx(40.0)


def test_the_makespan_is_bounded_by_the_work_released_late() -> None:
    needs = on_one_kind([0.0, 1000.0, 1000.0, 1000.0], [10.0, 100.0, 100.0, 100.0], [1, 1, 1, 1], 1)
    bound = makespan_bound(needs)
    assert (bound.seconds, bound.since) == (1300.0, 1000.0)


def test_kinds_are_priced_so_that_the_makespan_bound_is_the_balanced_one() -> None:
    # Four equal jobs, kind 0 twice as fast: in the best division kind 0 does 8/3 of them and kind 1 4/3.
    seconds = np.tile([10.0, 20.0], (4, 1))
    needs = LeastTimes(np.zeros(4), seconds, seconds, np.ones(2))
    assert makespan_bound(needs).seconds == pytest.approx(80.0 / 3.0, rel=0.01)
