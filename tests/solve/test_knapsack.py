"""Packing rows into kinds of seats: as heavy as a general solver finds, and never lighter than where it began."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from shoal.core.arrays import Floats, Indices
from shoal.solve.knapsack import NONE, best_options, best_options_apart, heaviest


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
