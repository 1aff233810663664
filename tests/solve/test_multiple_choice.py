"""One choice for each row: the most worth that fits, told from what no choice could pass."""

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.arrays import Floats, Indices
from shoal.solve.multiple_choice import Chosen, best_choices


def by_trying_all(worth: Floats, units: Indices, pools: Indices, capacity: list[int]) -> float:
    best = 0.0
    for picks in product(range(-1, worth.shape[1]), repeat=len(worth)):
        rows = [i for i, c in enumerate(picks) if c >= 0]
        used = np.bincount([pools[i, picks[i]] for i in rows], [units[i, picks[i]] for i in rows], len(capacity))
        if (used <= capacity).all():
            best = max(best, sum(float(worth[i, picks[i]]) for i in rows))
    return best


def checked(worth: Floats, units: Indices, pools: Indices, capacity: list[int], prices: Floats | None = None) -> Chosen:
    """The choices, after seeing that they fit and are worth what is said of them."""
    chosen = best_choices(worth, units, pools, capacity, 0.0, prices)
    rows = np.flatnonzero(chosen.picks >= 0)
    picks = chosen.picks[rows]
    used = np.bincount(pools[rows, picks], units[rows, picks], len(capacity))
    assert (used <= capacity).all()
    assert np.isclose(worth[rows, picks].sum(), chosen.value)
    assert chosen.bound >= chosen.value
    return chosen


@st.composite
def problems(draw: st.DrawFn) -> tuple[Floats, Indices, Indices, list[int]]:
    rows, columns, pools = draw(st.integers(0, 5)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    chance = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    # Few distinct values make ties, which prices alone cannot break.
    worth = chance.integers(-1, 5, (rows, columns)).astype(np.float64) * draw(st.sampled_from([1.0, 0.37]))
    worth[chance.random(worth.shape) < 0.2] = -np.inf
    units = chance.integers(1, 6, (rows, columns))
    capacity = [int(room) for room in chance.integers(0, 10, pools)]
    return worth, units.astype(np.intp), chance.integers(0, pools, (rows, columns)).astype(np.intp), capacity


@settings(max_examples=150, deadline=None)
@given(problems())
def test_nothing_that_fits_is_worth_more(problem: tuple[Floats, Indices, Indices, list[int]]) -> None:
    chosen = checked(*problem)
    assert chosen.exact
    assert np.isclose(chosen.value, by_trying_all(*problem))


def test_prices_alone_are_close_on_many_rows_and_the_search_of_the_core_is_exact() -> None:
    chance = np.random.default_rng(3)
    sizes = np.array([*range(1, 9), *range(16, 129, 8)])
    worth = chance.uniform(0.5, 4.0, (400, 1)) * sizes ** chance.uniform(0.3, 1.0, (400, 1))
    units, pools = np.tile(sizes, (400, 1)), np.zeros(worth.shape, dtype=np.intp)
    chosen = checked(worth, units, pools, [512])
    assert chosen.exact
    assert chosen.gap < 1e-3


def test_where_everything_fits_everybody_has_its_best() -> None:
    worth = np.array([[1.0, 3.0], [2.0, -np.inf], [0.0, -1.0]])
    units, pools = np.array([[1, 2], [1, 1], [1, 1]]), np.array([[0, 1], [0, 0], [0, 1]])
    chosen = checked(worth, units, pools, [1, 2])
    assert chosen.picks.tolist() == [1, 0, -1], "what is worth nothing is not chosen"
    assert chosen.gap == 0.0


@settings(max_examples=200, deadline=None)
@given(problems(), st.lists(st.floats(0.0, 3.0), min_size=3, max_size=3))
def test_choices_at_given_prices_fit_and_carry_the_bound_of_these(
    problem: tuple[Floats, Indices, Indices, list[int]], prices: list[float]
) -> None:
    worth, units, pools, capacity = problem
    given_prices = np.array(prices[: len(capacity)])
    found = checked(worth, units, pools, capacity, given_prices)
    assert found.bound >= best_choices(worth, units, pools, capacity).value * (1 - 1e-9)


def test_rows_that_are_alike_in_all_pools_fill_them_one_after_the_other() -> None:
    """At prices that leave rows indifferent no pool is overfull, and no unit that a row would take is left."""
    worth, units = np.full((30, 3), 19.0), np.ones((30, 3), dtype=np.intp)
    found = best_choices(worth, units, np.tile(np.arange(3), (30, 1)), [8, 9, 10], 0.0, np.full(3, 19.0))
    assert np.bincount(found.picks[found.picks >= 0]).tolist() == [8, 9, 10]
    assert found.gap == 0.0
