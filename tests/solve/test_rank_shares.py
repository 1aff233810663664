"""Rank's weights and division: heSRPT's shares where speed-ups are k^a, greedy everywhere."""

from itertools import accumulate
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.solve.rank_shares import by_weighted_speedup, rank_weights


def test_with_the_defaults_a_weight_is_the_root_of_twice_the_rank_and_nine() -> None:
    ranks = [1, 2, 10, 1000]
    assert rank_weights(np.array(ranks)).tolist() == pytest.approx([sqrt(2 * rank + 9) for rank in ranks])


def test_without_ranks_ahead_shares_are_hesrpts() -> None:
    # With speed-ups √k, job i of m, the largest first, gets (i/m)² − ((i − 1)/m)² there: a ninth, three and five of it.
    room = 900
    root = [sqrt(k) for k in range(room + 1)]
    weights = rank_weights(np.array([1, 2, 3]), 0.5, 0.0).tolist()
    shares = by_weighted_speedup([root] * 3, weights, [1] * 3, room)
    assert shares == pytest.approx([100, 300, 500], abs=2)


def test_with_linear_speedups_the_shortest_has_everything_it_can_use() -> None:
    linear = [float(k) for k in range(9)]
    weights = rank_weights(np.array([1, 2, 3])).tolist()
    assert by_weighted_speedup([linear] * 3, weights, [1] * 3, 12) == [0, 4, 8]


def test_a_gang_comes_whole_or_not_at_all() -> None:
    linear = [float(k) for k in range(9)]
    assert by_weighted_speedup([linear, linear], [2.0, 1.0], [3, 2], 4) == [4, 0]
    assert by_weighted_speedup([linear[:4], linear], [2.0, 1.0], [3, 2], 4) == [3, 0]
    assert by_weighted_speedup([linear[:4], linear], [2.0, 1.0], [3, 1], 4) == [3, 1]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6), st.floats(1.0, 5.0)), min_size=1, max_size=5
    ),
    st.integers(0, 20),
)
def test_every_gpu_goes_to_the_highest_bid(jobs: list[tuple[list[float], float]], room: int) -> None:
    speedups = [[0.0, 1.0, *(1.0 + sum(steps[: k + 1]) for k in range(len(steps)))] for steps, _ in jobs]
    weights, counts = [w for _, w in jobs], [0] * len(jobs)

    def bid(i: int) -> float:
        k, s = counts[i], speedups[i]
        return weights[i] * (s[k + 1] - s[k]) if k + 1 < len(s) else 0.0

    for _ in range(room):
        top = max(range(len(jobs)), key=lambda i: (bid(i), -i))
        counts[top] += bid(top) > 0
    assert by_weighted_speedup(speedups, weights, [1] * len(jobs), room) == counts


@given(
    st.lists(st.lists(st.floats(-0.1, 1.0), min_size=3, max_size=7), min_size=1, max_size=2),
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from([0.3, 1.0, 2.0, 3.0])), min_size=8, max_size=20),
    st.integers(1, 3),
    st.integers(0, 60),
)
def test_jobs_that_share_a_curve_get_what_they_would_get_with_equal_ones(
    steps: list[list[float]], jobs: list[tuple[int, float]], fewest: int, budget: int
) -> None:
    curves = [list(accumulate(row, initial=0.0)) for row in steps]
    of, weights, few = [c % len(curves) for c, _ in jobs], [w for _, w in jobs], [fewest] * len(jobs)
    shared = by_weighted_speedup([curves[c] for c in of], weights, few, budget)
    assert shared == by_weighted_speedup([[*curves[c]] for c in of], weights, few, budget)
