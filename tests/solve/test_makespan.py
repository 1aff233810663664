"""Gangs on identical GPUs, finished as early as possible."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.solve.makespan import GangSchedule, longest_first, lower_bound, shortest_makespan


def brute(seconds: list[float], gpus: list[int], capacity: int) -> float:
    """The best over all orders, each task at its earliest start not before the one before it."""
    best = float("inf")
    for order in itertools.permutations(range(len(seconds))):
        now, runs = 0.0, list[tuple[float, int]]()
        for i in order:
            while capacity - sum(g for end, g in runs if end > now) < gpus[i]:
                now = min(end for end, _ in runs if end > now)
            runs.append((now + seconds[i], gpus[i]))
        best = min(best, max(end for end, _ in runs))
    return best


def most_at_once(schedule: GangSchedule, seconds: list[float], gpus: list[int]) -> int:
    spans = list(zip(schedule.starts, seconds, gpus, strict=True))
    return max(sum(g for s, t, g in spans if s <= at < s + t) for at in schedule.starts)


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[float], list[int], int]:
    capacity = draw(st.integers(1, 5))
    tasks = draw(st.lists(st.tuples(st.integers(1, 9), st.integers(1, capacity)), min_size=1, max_size=6))
    return [float(t) for t, _ in tasks], [g for _, g in tasks], capacity


def test_longest_first_can_be_beaten_and_the_search_does_it() -> None:
    # Graham's example on two machines: 3 3 2 2 2. Longest first ends 3 + 2 + 2 = 7; 3 + 3 and 2 + 2 + 2 end at 6.
    seconds, ones = [3.0, 3.0, 2.0, 2.0, 2.0], [1] * 5
    assert longest_first(seconds, ones, 2).makespan == 7
    best = shortest_makespan(seconds, ones, 2)
    assert (best.makespan, best.bound, best.gap) == (6, 6, 0)


@pytest.mark.parametrize(
    ("seconds", "gpus", "bound"),
    [
        ([5.0, 1.0], [1, 1], 5),  # the longest
        ([4.0, 4.0, 4.0], [2, 2, 2], 6),  # the area on 4 GPUs
        ([2.0, 2.0, 2.0], [3, 3, 1], 4),  # two of which no pair fits
        ([3.0, 2.0, 2.0], [3, 2, 2], 5),  # one alone, and halves two by two
        ([], [], 0),
    ],
)
def test_bounds_by_hand(seconds: list[float], gpus: list[int], bound: float) -> None:
    assert lower_bound(seconds, gpus, 4) == bound


@given(problems())
def test_the_search_equals_brute_force_and_proves_it(problem: tuple[list[float], list[int], int]) -> None:
    seconds, gpus, capacity = problem
    found = shortest_makespan(seconds, gpus, capacity, nodes=100_000)
    best = brute(seconds, gpus, capacity)
    assert found.makespan == pytest.approx(best)
    assert found.gap == pytest.approx(0.0)
    assert most_at_once(found, seconds, gpus) <= capacity


@given(problems())
def test_a_list_schedule_is_feasible_and_not_below_its_bound(problem: tuple[list[float], list[int], int]) -> None:
    seconds, gpus, capacity = problem
    found = longest_first(seconds, gpus, capacity)
    assert most_at_once(found, seconds, gpus) <= capacity
    assert found.makespan >= found.bound - 1e-9
    assert found.bound <= brute(seconds, gpus, capacity) + 1e-9


@given(problems())
def test_what_runs_goes_on(problem: tuple[list[float], list[int], int]) -> None:
    seconds, gpus, capacity = problem
    found = shortest_makespan(seconds, gpus, capacity, running=[len(seconds) - 1], nodes=100_000)
    assert found.starts[-1] == 0
    assert most_at_once(found, seconds, gpus) <= capacity
    assert found.makespan >= brute(seconds, gpus, capacity) - 1e-9


def test_a_search_cut_short_says_how_far_it_may_be() -> None:
    seconds = [float(t) for t in (31, 29, 23, 19, 17, 13, 11, 7, 5, 3)]
    cut = shortest_makespan(seconds, [3, 2, 3, 1, 2, 3, 1, 2, 3, 1], 4, nodes=3)
    assert cut.bound <= cut.makespan
    assert cut.gap == pytest.approx(cut.makespan / cut.bound - 1)
