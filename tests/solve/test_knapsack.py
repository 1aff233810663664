"""Packing rows into kinds of seats: as heavy as a general solver finds, and never lighter than where it began."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from shoal.core.arrays import Floats, Indices
from shoal.solve.knapsack import (
    MOST_ITEMS,
    NONE,
    best_options,
    best_options_apart,
    heaviest,
    zero_one,
    zero_one_by_core,
)


def drawn(seed: int) -> tuple[Indices, Indices, Indices, Floats, list[int], int]:
    """Up to eight rows with options on up to three kinds, some of them worth nothing."""
    chance = np.random.default_rng(seed)
    rows, kinds = int(chance.integers(1, 9)), int(chance.integers(1, 4))
    row, kind = np.nonzero(chance.random((rows, kinds)) < 0.7)
    width = chance.integers(1, 6, rows)[row]
    return row, kind, width, chance.normal(1.0, 2.0, len(row)), chance.integers(0, 9, kinds).tolist(), rows


def reference(row: Indices, kind: Indices, width: Indices, worth: Floats, capacity: list[int], rows: int) -> float:
    """The heaviest packing as a mixed-integer program."""
    if not len(row):
        return 0.0
    seats = [np.where(kind == k, width, 0) for k in range(len(capacity))]
    once = [(row == r).astype(np.int64) for r in range(rows)]
    limits = LinearConstraint(np.array([*seats, *once]), ub=np.array([*capacity, *[1] * rows]))
    found = milp(-worth, constraints=limits, integrality=np.ones(len(row), dtype=np.intp), bounds=Bounds(0, 1))
    assert found.fun is not None
    return -float(found.fun)


def check_possible(row: Indices, kind: Indices, width: Indices, capacity: list[int], taken: Indices) -> None:
    picked = taken[taken >= 0]
    assert (row[picked] == np.flatnonzero(taken >= 0)).all()
    assert (np.bincount(kind[picked], width[picked], len(capacity)) <= capacity).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 100_000))
def test_no_packing_is_heavier(seed: int) -> None:
    row, kind, width, worth, capacity, rows = drawn(seed)
    found = heaviest(row, kind, width, worth, capacity, np.full(rows, NONE))
    check_possible(row, kind, width, capacity, found.taken)
    assert found.exact
    assert found.worth == pytest.approx(reference(row, kind, width, worth, capacity, rows), abs=1e-6)
    assert found.worth == pytest.approx(worth[found.taken[found.taken >= 0]].sum())


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 100_000))
def test_with_too_many_states_kinds_are_packed_in_turn_and_nothing_is_lost(seed: int) -> None:
    row, kind, width, worth, capacity, rows = drawn(seed)
    begin = heaviest(row, kind, width, worth * (width < 3), capacity, np.full(rows, NONE)).taken
    found = heaviest(row, kind, width, worth, capacity, begin, most_states=0)
    check_possible(row, kind, width, capacity, found.taken)
    assert found.exact == (len(capacity) == 1)
    assert found.worth >= np.maximum(worth[begin[begin >= 0]], 0.0).sum() - 1e-9
    assert found.worth <= reference(row, kind, width, worth, capacity, rows) + 1e-6


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 100_000))
def test_the_core_holds_every_item_that_matters(seed: int) -> None:
    chance = np.random.default_rng(seed)
    items, capacity = int(chance.integers(1, 120)), int(chance.integers(9, 200))
    widths = chance.choice(chance.integers(1, 10, 4), items)
    # Whole values add up without rounding; few different ones make many ties.
    values = np.where(chance.random() < 0.5, chance.integers(1, 9, items), chance.integers(1, 1000, items) * widths)
    found, value = zero_one_by_core(widths, values.astype(np.float64), capacity)
    assert len(np.unique(found)) == len(found)
    assert widths[found].sum() <= capacity
    assert value == values[found].sum() == zero_one(widths.tolist(), values.tolist(), capacity)[1]


def test_fifty_thousand_rows_are_packed_exactly_in_one_kind() -> None:
    chance = np.random.default_rng(3)
    rows = 25 * MOST_ITEMS
    width = chance.choice([1, 2, 4, 8], rows)
    worth = chance.random(rows) * width
    found = heaviest(np.arange(rows), np.zeros_like(width), width, worth, [100_000], np.full(rows, NONE))
    check_possible(np.arange(rows), np.zeros_like(width), width, [100_000], found.taken)
    order = np.argsort(-(worth / width))
    fitting = order[np.cumsum(width[order]) <= 100_000]
    linear = worth[fitting].sum() + (worth / width)[order[len(fitting)]] * (100_000 - width[fitting].sum())
    assert found.exact
    assert worth[fitting].sum() <= found.worth <= linear * (1.0 + 1e-12)


def test_two_narrow_rows_outweigh_a_wide_one_that_alone_weighs_most() -> None:
    zeros = np.zeros(3, dtype=np.intp)
    found = heaviest(np.arange(3), zeros, np.array([2, 1, 1]), np.array([3.0, 2.0, 2.0]), [2], np.array([0, -1, -1]))
    assert found.taken.tolist() == [NONE, 1, 2]
    assert found.worth == 4.0


@pytest.mark.parametrize("seed", range(20))
def test_rows_of_one_kind_each_are_packed_kind_by_kind_as_all_kinds_at_once(seed: int) -> None:
    chance = np.random.default_rng(seed)
    capacity = chance.integers(0, 9, 3).tolist()
    kind = chance.integers(3, size=9).tolist()
    options = [
        [(k, int(width), float(worth)) for width, worth in zip(chance.integers(0, 5, 2), chance.random(2), strict=True)]
        for k in kind
    ]
    every = [True] * len(options)
    assert best_options_apart(options, every, capacity) == best_options(options, every, capacity)
