"""Few options are chosen in plain numbers, and as by arrays, to the last bit."""

from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.arrays import Floats, Indices
from shoal.solve import multiple_choice
from shoal.solve.few_choices import FewChoices
from shoal.solve.multiple_choice import best_choices


@st.composite
def problems(draw: st.DrawFn) -> tuple[Floats, Indices, Indices, list[int], float]:
    """Up to 24 rows with concave, odd or equal worths on one to three pools."""
    rows, columns, pools = draw(st.integers(1, 24)), draw(st.integers(1, 8)), draw(st.integers(1, 3))
    chance = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    units = chance.integers(1, 9, (rows, columns)).astype(np.intp)
    if draw(st.booleans()):
        worth = (chance.uniform(0.5, 4.0, (rows, 1)) * units ** chance.uniform(0.3, 1.0, (rows, 1))).astype(np.float64)
    else:
        worth = chance.integers(-1, 6, (rows, columns)).astype(np.float64) * draw(st.sampled_from([1.0, 0.37]))
    worth = np.where(chance.random(units.shape) < 0.2, -np.inf, worth)
    capacity = [int(units) for units in chance.integers(0, 40, pools)]
    return worth, units, chance.integers(0, pools, units.shape), capacity, draw(st.sampled_from([0.0, 0.005]))


@settings(max_examples=400, deadline=None)
@given(problems())
def test_plain_numbers_give_the_answer_of_arrays(problem: tuple[Floats, Indices, Indices, list[int], float]) -> None:
    with patch.object(multiple_choice, "FEW", 10_000):
        plain = best_choices(*problem)
    with patch.object(multiple_choice, "FEW", -1):
        arrays = best_choices(*problem)
    assert plain.picks.tolist() == arrays.picks.tolist()
    assert (plain.value, plain.exact) == (arrays.value, arrays.exact)
    assert plain.prices.tolist() == arrays.prices.tolist()
    assert plain.bound == arrays.bound


@settings(max_examples=300, deadline=None)
@given(problems())
def test_both_repair_choices_that_ask_for_far_too_much_alike(
    problem: tuple[Floats, Indices, Indices, list[int], float],
) -> None:
    worth, units, pools, capacity, _ = problem
    worth = np.where((worth > 0) & (units <= np.array(capacity)[pools]), worth, -np.inf)
    rows = [
        [
            (worth.item(i, c), units.item(i, c), pools.item(i, c), c)
            for c in np.flatnonzero(np.isfinite(worth[i])).tolist()
        ]
        for i in range(len(worth))
    ]
    few = FewChoices(rows, capacity)
    plain = few.repaired(few.at_prices([0.0] * len(capacity)))
    options = multiple_choice.ChoiceTable(worth, units, pools, np.array(capacity, dtype=np.intp))
    most = multiple_choice._at_prices(options, np.zeros(len(capacity)))
    assert multiple_choice._repaired(options, most).tolist() == [-1 if pick is None else pick[3] for pick in plain]
