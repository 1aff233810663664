"""The greedy auction of units."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.arrays import Floats, Indices
from shoal.solve.marginal_gain import Bought, best_units

bids = st.lists(st.lists(st.integers(-3, 20).map(float), max_size=12), min_size=1, max_size=4)


def bought_by(rows: list[list[float]], budget: int) -> Bought:
    def offered(some: Indices, count: int) -> Floats:
        return np.array([[*rows[b], *[99.0] * count][:count] for b in some.tolist()])

    return best_units(offered, np.array([len(row) for row in rows], dtype=np.int64), budget)


def test_the_next_bid_stands_behind_the_one_before_it() -> None:
    # The second bidder's 9 is behind its 2: served in turn are 5, 4, then 2 and, once reached, 9.
    bought = bought_by([[5, 4, 1], [2, 9]], 3)
    assert bought.counts.tolist() == [2, 1]
    assert bought.last.tolist() == [4, 2]
    assert bought.refused == 2


def test_a_unit_that_gains_nothing_is_not_given() -> None:
    assert bought_by([[1, 0, 5], [-1]], 10).counts.tolist() == [1, 0]
    assert bought_by([], 3).counts.tolist() == []


@given(bids, st.integers(0, 12))
def test_equals_serving_the_highest_next_bid_again_and_again(rows: list[list[float]], budget: int) -> None:
    expected = [0] * len(rows)
    for _ in range(budget):
        open_bids = {b: rows[b][expected[b]] for b in range(len(rows)) if expected[b] < len(rows[b])}
        # What has been reached past a lower bid is worth that lower bid: the order among equals is by bidder.
        floor = {b: min(rows[b][: expected[b] + 1]) for b in open_bids}
        best = max(floor, key=lambda b: (floor[b], -b), default=None)
        if best is None or floor[best] <= 0:
            break
        expected[best] += 1
    assert bought_by(rows, budget).counts.tolist() == expected


@given(bids, st.integers(0, 12))
def test_with_diminishing_returns_no_other_division_is_worth_more(rows: list[list[float]], budget: int) -> None:
    falling = [sorted(row, reverse=True) for row in rows]

    def worth(counts: tuple[int, ...]) -> float:
        return sum(sum(row[:n]) for row, n in zip(falling, counts, strict=True))

    divisions = itertools.product(*(range(len(row) + 1) for row in falling))
    best = max(worth(d) for d in divisions if sum(d) <= budget)
    assert worth(tuple(bought_by(falling, budget).counts.tolist())) == best
