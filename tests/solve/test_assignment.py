"""Matching and the least total completion time."""

import itertools
from math import inf, isfinite

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.arrays import Floats
from shoal.solve.assignment import Matching, least_total_completion, match

lengths = st.integers(1, 20).map(float)
maybe = st.one_of(lengths, lengths, st.just(inf))


def duality_gap(costs: Floats, matching: Matching) -> float:
    """How far the matching's cost lies above a bound that no matching of the same rows can go below.

    The bound comes from prices of the columns (0 for those left free) that the matching's own exchanges imply: it is
    0 up to rounding exactly when no exchange of partners, in pairs or in longer rings, would be cheaper.
    """
    rows = np.flatnonzero(matching.columns >= 0)
    if not len(rows):
        return 0.0
    chosen, sub = matching.columns[rows], costs[rows]
    extra = sub - sub[np.arange(len(rows)), chosen][:, None]
    price = np.zeros(costs.shape[1])
    for _ in range(len(rows) + 1):
        cheaper = np.minimum(price, (price[chosen][:, None] + extra).min(axis=0))
        if np.array_equal(cheaper, price):
            break
        price = cheaper
    bound = float((sub - price).min(axis=1).sum() + np.minimum(price, 0.0).sum())
    return matching.objective - bound


def test_shortest_first_on_one_machine() -> None:
    # 1, then 2, then 3: done at 1, 3 and 6.
    queued = least_total_completion(np.array([[3.0], [1.0], [2.0]]), [np.array([0.0])])
    assert queued.total == 10
    assert queued.starts.tolist() == [3, 0, 1]
    assert queued.ready[0].tolist() == [6]


def test_a_task_waits_for_a_better_machine_when_that_ends_sooner() -> None:
    # Here at once it takes 10; there it takes 2 after a wait of 5.
    queued = least_total_completion(np.array([[10.0, 2.0]]), [np.array([0.0]), np.array([5.0])])
    assert (queued.kinds.tolist(), queued.starts.tolist(), queued.total) == ([1], [5], 7)


def test_a_task_that_no_machine_can_run_is_left_out() -> None:
    queued = least_total_completion(np.array([[inf], [4.0]]), [np.array([0.0])])
    assert queued.kinds.tolist() == [-1, 0]
    assert queued.total == 4
    assert least_total_completion(np.array([[1.0]]), [np.zeros(0)]).kinds.tolist() == [-1]


@given(st.data(), st.integers(1, 5), st.integers(1, 3))
def test_no_way_of_dealing_out_the_tasks_is_better(data: st.DataObject, count: int, kinds: int) -> None:
    table = np.array([[data.draw(maybe) for _ in range(kinds)] for _ in range(count)])
    table[~np.isfinite(table).any(axis=1), 0] = 7.0
    ready = [np.array(data.draw(st.lists(st.integers(0, 9).map(float), min_size=1, max_size=2))) for _ in range(kinds)]
    machines = [(k, when) for k, times in enumerate(ready) for when in times.tolist()]
    best = inf
    for where in itertools.product(range(len(machines)), repeat=count):
        total = 0.0
        for m, (k, when) in enumerate(machines):
            clock = when
            for length in sorted(table[i, k] for i in range(count) if where[i] == m):
                clock += length
                total += clock
        best = min(best, total)
    queued = least_total_completion(table, ready)
    assert queued.total == pytest.approx(best)
    ends = queued.starts + table[np.arange(count), queued.kinds]
    assert ends.sum() == pytest.approx(best)


@given(st.data(), st.integers(1, 6), st.integers(0, 3))
def test_matching_equals_brute_force_and_proves_it(data: st.DataObject, rows: int, more: int) -> None:
    costs = np.array([[data.draw(lengths) for _ in range(rows + more)] for _ in range(rows)])
    found = match(costs)
    best = min(sum(costs[i, c] for i, c in enumerate(p)) for p in itertools.permutations(range(rows + more), rows))
    assert found.objective == pytest.approx(best)
    assert duality_gap(costs, found) == pytest.approx(0.0, abs=1e-9)


def test_the_certificate_distinguishes_a_worse_matching_from_the_best() -> None:
    costs = np.array([[1.0, 2.0], [2.0, 1.0]])
    assert duality_gap(costs, Matching(np.array([1, 0]), 4.0)) > 0.5
    assert isfinite(duality_gap(costs, match(costs)))


@given(st.data(), st.integers(1, 8), st.integers(1, 3), st.one_of(st.none(), st.integers(0, 3)))
def test_places_that_no_optimum_needs_may_be_left_out(
    data: st.DataObject, count: int, kinds: int, spare: int | None
) -> None:
    table = np.array([[data.draw(maybe) for _ in range(kinds)] for _ in range(count)])
    ready = [np.array(data.draw(st.lists(st.integers(0, 9).map(float), max_size=9))) for _ in range(kinds)]
    every = least_total_completion(table, ready, spare)
    useful = least_total_completion(table, ready, spare, useful=True)
    assert useful.total == every.total
    assert (useful.kinds >= 0).sum() == (every.kinds >= 0).sum()
