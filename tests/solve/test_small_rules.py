"""First fit, random pairs, and moves to faster machines."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.solve.first_fit import first_fit
from shoal.solve.migrations import faster_kinds
from shoal.solve.random_pairs import random_pairs


@given(st.lists(st.integers(1, 9), max_size=20), st.integers(0, 30))
def test_first_fit_equals_taking_them_one_by_one(sizes: list[int], room: int) -> None:
    expected, left = [], room
    for size in sizes:
        expected.append(size <= left)
        left -= size if expected[-1] else 0
    assert first_fit(np.array(sizes, dtype=np.int32), room).tolist() == expected


@given(st.integers(0, 2**32), st.lists(st.integers(1, 3), min_size=2, max_size=12), st.integers(0, 5))
def test_pairs_are_of_one_size_and_nobody_is_in_two(seed: int, sizes: list[int], most: int) -> None:
    half = len(sizes) // 2
    hosts, guests = np.arange(half), np.arange(half, len(sizes))
    barred = {(0, half)}
    size = np.array(sizes, dtype=np.int32)
    pairs = random_pairs(np.random.default_rng(seed), hosts, guests, size, most=most, barred=barred)
    assert len(pairs) <= most
    assert not barred & set(pairs)
    assert all(sizes[i] == sizes[j] and i < half <= j for i, j in pairs)
    assert len({n for pair in pairs for n in pair}) == 2 * len(pairs)


def test_a_task_moves_where_it_is_faster_and_there_is_room() -> None:
    # Room for two units of kind 1. The first task (2 units, twice as fast there) takes it; the second finds none; the
    # third, faster on kind 0, where there was no room at first, and the fourth, which is nowhere, stay as they are.
    speeds = np.array([[1.0, 2.0], [1.0, 9.0], [5.0, 1.0], [1.0, 2.0]])
    size, kinds = np.array([2, 1, 1, 1], dtype=np.int32), np.array([0, 0, 1, -1], dtype=np.int8)
    free, work = np.array([0, 2], dtype=np.int32), np.full(4, 1000.0)
    moved = faster_kinds(speeds, size, kinds, free, work, gain=1.1, saves=60.0)
    assert moved.tolist() == [1, 0, 1, -1]
    assert faster_kinds(speeds, size, kinds, free, np.full(4, 50.0), gain=1.1, saves=60.0).tolist() == kinds.tolist()
    unknown = np.full(4, np.inf)
    assert faster_kinds(speeds, size, kinds, free, unknown, gain=1.1, saves=60.0)[0] == 1
