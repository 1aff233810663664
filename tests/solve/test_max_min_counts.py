"""Max-min fair whole numbers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.solve.max_min_counts import fair_counts


def counts(budget: int, low: list[int], high: list[int], weight: list[float], held: list[int]) -> list[int]:
    least, most, had = (np.array(x, dtype=np.int32) for x in (low, high, held))
    given_out: list[int] = fair_counts(budget, least, most, np.array(weight), had).tolist()
    return given_out


def test_units_go_to_whoever_has_least() -> None:
    # From (1, 1, 4): units 1 and 2 go to the first two, 3 and 4 again, then all stand at 3, 3, 4 with 1 unit left.
    assert counts(5, [1, 1, 4], [9, 9, 9], [1, 1, 1], [0, 0, 0]) == [4, 3, 4]


def test_of_equals_the_one_who_held_more_keeps_it() -> None:
    assert counts(1, [1, 1], [9, 9], [1, 1], [1, 2]) == [1, 2]


def test_twice_the_weight_is_twice_the_units() -> None:
    assert counts(9, [0, 0], [99, 99], [1, 2], [0, 0]) == [3, 6]


def test_nobody_passes_its_high_and_nothing_is_invented() -> None:
    assert counts(100, [1, 0], [2, 3], [1, 5], [0, 0]) == [2, 3]
    assert counts(0, [1, 2], [5, 5], [1, 1], [0, 0]) == [1, 2]
    assert counts(3, [], [], [], []) == []


one = st.tuples(st.integers(0, 5), st.integers(0, 9), st.sampled_from([0.5, 1.0, 2.0, 3.0]), st.integers(0, 9))


@given(st.lists(one, max_size=8), st.integers(0, 60))
def test_equals_giving_units_out_one_by_one(rows: list[tuple[int, int, float, int]], budget: int) -> None:
    low = [r[0] for r in rows]
    high = [r[0] + r[1] for r in rows]
    weight, held = [r[2] for r in rows], [r[3] for r in rows]
    expected = list(low)
    for _ in range(budget):
        wanting = [i for i in range(len(rows)) if expected[i] < high[i]]
        if not wanting:
            break
        expected[min(wanting, key=lambda i: (expected[i] / weight[i], held[i] <= expected[i], i))] += 1
    assert counts(budget, low, high, weight, held) == expected
