"""Lower bounds on completion times, against every schedule of tiny instances and sums computed by hand."""

from functools import cache
from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shoal.core.errors import InputError
from shoal.research.repro.completion_bound import Tasks, least_completion, proved_bound

INFEASIBLE = float("inf")


def brute(released: list[int], seconds: list[int], gpus: list[int], due: list[int], capacity: int) -> float:
    """The least sum of completion times over all schedules that pause tasks at whole seconds."""
    everybody = range(len(seconds))

    @cache
    def least(now: int, left: tuple[int, ...]) -> float:
        live = [i for i in everybody if left[i]]
        if not live:
            return 0.0
        if any(now + left[i] > due[i] for i in live):
            return INFEASIBLE
        ready = [i for i in live if released[i] <= now]
        best = INFEASIBLE
        for many in range(len(ready) + 1):
            for runs in combinations(ready, many):
                if sum(gpus[i] for i in runs) <= capacity:
                    after = tuple(left[i] - (i in runs) for i in everybody)
                    done = sum(now + 1 for i in runs if left[i] == 1)
                    best = min(best, done + least(now + 1, after))
        return best

    return least(0, tuple(seconds))


def tasks_of(released: list[int], seconds: list[int], gpus: list[int], due: list[int]) -> Tasks:
    return Tasks(*(np.array(column, dtype=np.float64) for column in (released, seconds, gpus, due)))


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[int], list[int], list[int], list[int], int]:
    capacity = draw(st.integers(1, 3))
    row = st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(1, capacity), st.integers(0, 8))
    rows = draw(st.lists(row, min_size=1, max_size=4))
    released, seconds, gpus, slack = (list(column) for column in zip(*rows, strict=True))
    due = [r + s + more for r, s, more in zip(released, seconds, slack, strict=True)]
    return released, seconds, gpus, due, capacity


@settings(max_examples=60, deadline=None)
@given(problems(), st.lists(st.floats(0.0, 5.0), min_size=6, max_size=6))
def test_whatever_the_prices_no_schedule_is_below_what_they_prove(
    problem: tuple[list[int], list[int], list[int], list[int], int], prices: list[float]
) -> None:
    released, seconds, gpus, due, capacity = problem
    least = brute(released, seconds, gpus, due, capacity)
    assume(least < INFEASIBLE)
    tasks = tasks_of(released, seconds, gpus, due)
    edges = np.linspace(min(released), max(due), 7)
    assert proved_bound(tasks, capacity, edges, np.array(prices)) <= least + 1e-6
    found = least_completion(tasks, capacity, intervals=max(due) - min(released), steps=10)
    assert found.total == proved_bound(tasks, capacity, found.edges, found.prices)
    assert sum(released) + sum(seconds) - 1e-6 <= found.total <= least + 1e-6


def searched(price: list[float], released: float, seconds: float, due: float) -> float:
    """One task's least cost, over completions on a fine grid: its cheapest moments before each."""
    grid = 1 / 64
    moments = np.arange(released, due, grid)
    cost = np.array(price)[moments.astype(int)] * grid
    many = round(seconds / grid)
    ends = range(many, len(moments) + 1)
    return min(float(moments[k - 1]) + grid + float(np.sort(cost[:k])[:many].sum()) for k in ends)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.0, 5.0), min_size=8, max_size=8),
    st.integers(0, 7),
    st.integers(1, 16),
    st.integers(0, 16),
)
def test_a_task_alone_takes_the_seconds_that_cost_it_least(
    price: list[float], released: int, quarters: int, slack: int
) -> None:
    seconds = quarters / 4
    due = released / 2 + seconds + slack / 4
    assume(due <= 8)
    one = Tasks(np.array([released / 2]), np.array([seconds]), np.ones(1), np.array([due]))
    prices = np.array(price)
    # With one GPU its owner is paid for every second there is: what remains is the task's own least cost.
    own = proved_bound(one, 1.0, np.arange(9.0), prices) + prices.sum()
    assert own == pytest.approx(searched(price, released / 2, seconds, due), abs=1e-6)


@pytest.mark.parametrize(
    ("rows", "capacity", "total"),
    [
        ([(5, 3, 1, 20)], 1, 8),  # alone, it runs when it comes
        ([(0, 3, 2, 9), (0, 3, 2, 9)], 4, 6),  # side by side
        ([(0, 2, 1, 9), (0, 2, 1, 9)], 1, 6),  # one after the other
        ([(0, 1, 1, 9), (0, 2, 1, 9)], 1, 4),  # the shorter first
    ],
)
def test_sums_by_hand_are_reached(rows: list[tuple[int, int, int, int]], capacity: int, total: float) -> None:
    released, seconds, gpus, due = (list(column) for column in zip(*rows, strict=True))
    found = least_completion(tasks_of(released, seconds, gpus, due), capacity, intervals=40, steps=200)
    assert found.total == pytest.approx(total, rel=0.03)
    assert found.total <= total + 1e-9


def test_being_done_in_time_costs_completion_time() -> None:
    # Four of 1 s and one of 4 s on two GPUs. Shortest first: 1, 1, 2, 2, 6. All done by 4 s, the long one never waits,
    # and the others are done at 1, 2, 3 and 4 s beside it.
    rows = [1, 1, 1, 1, 4], [1] * 5
    late = least_completion(tasks_of([0] * 5, *rows, [20] * 5), 2, intervals=40, steps=200)
    early = least_completion(tasks_of([0] * 5, *rows, [4] * 5), 2, intervals=40, steps=200)
    assert brute([0] * 5, *rows, [20] * 5, 2) == 12
    assert brute([0] * 5, *rows, [4] * 5, 2) == 14
    assert late.total <= 12
    assert 13.5 < early.total <= 14


@pytest.mark.parametrize(
    ("rows", "field"),
    [
        ([(0, 0, 1, 9)], "seconds"),
        ([(0, 1, 0, 9)], "gpus"),
        ([(0, 1, 3, 9)], "gpus"),
        ([(4, 3, 1, 6)], "due"),
        ([(0, 2, 2, 3), (0, 2, 2, 3)], "due"),
    ],
)
def test_tasks_that_cannot_be_done_are_refused(rows: list[tuple[int, int, int, int]], field: str) -> None:
    released, seconds, gpus, due = (list(column) for column in zip(*rows, strict=True))
    with pytest.raises(InputError, match=field):
        least_completion(tasks_of(released, seconds, gpus, due), 2)


@pytest.mark.parametrize(
    ("edges", "prices", "field"),
    [
        ([0.0, 4.0], [-1.0], "prices"),
        ([0.0, 4.0], [1.0, 1.0], "prices"),
        ([0.0, 4.0, 4.0], [1.0, 1.0], "edges"),
        ([1.5, 4.0], [1.0], "edges"),  # the task may run before
        ([0.0, 3.0], [1.0], "edges"),  # and after
    ],
)
def test_prices_prove_nothing_unless_they_cover_all_the_time_there_is(
    edges: list[float], prices: list[float], field: str
) -> None:
    with pytest.raises(InputError, match=field):
        proved_bound(tasks_of([1], [1], [1], [4]), 1, np.array(edges), np.array(prices))


def test_there_must_be_intervals() -> None:
    with pytest.raises(InputError, match="intervals"):
        least_completion(tasks_of([0], [1], [1], [2]), 1, intervals=0)


def test_no_tasks_take_nothing() -> None:
    assert least_completion(tasks_of([], [], [], []), 4).total == 0.0
