"""The volatile Fisher market: equilibria known by hand, theorem C.1's properties on any market, and bad input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.arrays import Floats
from shoal.core.errors import InputError
from shoal.solve.market import Equilibrium, leontief, linear

EXACT = 1e-6


@st.composite
def markets(draw: st.DrawFn, equal: bool = False) -> tuple[Floats, Floats]:
    """What goods are worth to a few buyers in a few rounds, with ties and zeros, and what they have to spend."""
    shape = draw(st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 4)))
    chance = np.random.default_rng(draw(st.integers(0, 2**31)))
    table = chance.choice([0.0, 0.5, 1.0, 1.0, 2.0, 3.7], shape) * chance.choice([1.0, chance.uniform(0.1, 2.0)], shape)
    table[:, 0, 0] = np.maximum(table[:, 0, 0], 0.5)
    budgets = np.ones(shape[0]) if equal else chance.uniform(0.2, 4.0, shape[0])
    return table, budgets


def holds(found: Equilibrium) -> None:
    """Every property that makes it an equilibrium, and the welfare that goes with it."""
    assert found.residuals.worst <= EXACT, found.residuals
    assert -1e-12 <= found.gap <= EXACT
    assert (found.allocation >= 0.0).all()
    assert (found.prices >= 0.0).all()


@settings(max_examples=60, deadline=None)
@given(markets())
def test_theorem_c1_holds_for_linear_utilities(market: tuple[Floats, Floats]) -> None:
    found = linear(*market)
    holds(found)
    assert found.utilities == pytest.approx((market[0] * found.allocation).sum(axis=(1, 2)))


@settings(max_examples=60, deadline=None)
@given(markets())
def test_theorem_c1_holds_for_leontief_utilities(market: tuple[Floats, Floats]) -> None:
    holds(leontief(*market))


@settings(max_examples=40, deadline=None)
@given(markets(equal=True), st.sampled_from([linear, leontief]))
def test_with_equal_budgets_nobody_finishes_later_than_with_its_equal_share(
    market: tuple[Floats, Floats], utility: object
) -> None:
    found = linear(*market) if utility is linear else leontief(*market)
    assert (found.finish_time_fairness <= 1.0 + EXACT).all()


@settings(max_examples=40, deadline=None)
@given(markets(), st.integers(0, 2**31))
def test_no_other_division_has_more_welfare(market: tuple[Floats, Floats], seed: int) -> None:
    found = linear(*market)
    parts = np.random.default_rng(seed).dirichlet(np.ones(len(market[1])), market[0].shape[1:])
    other = (market[0] * np.moveaxis(parts, -1, 0)).sum(axis=(1, 2))
    assert float(market[1] @ np.log(np.maximum(other, 1e-300))) <= found.bound + EXACT


def test_a_job_that_will_double_its_pace_buys_later_rounds() -> None:
    # One GPU, two rounds. The first gains 1 and then 2, the second 1 and 1: each buys the round it prefers, and each
    # is as well off as with half of both: ρ = 1.5 / 2 and 1 / 1.
    found = linear(np.array([[[1.0, 2.0]], [[1.0, 1.0]]]), np.ones(2))
    holds(found)
    # The second is indifferent at these prices, and an interior point nears such corners slowly.
    assert found.allocation[:, 0] == pytest.approx(np.array([[0.0, 1.0], [1.0, 0.0]]), abs=1e-4)
    assert found.finish_time_fairness == pytest.approx([0.75, 1.0], abs=1e-4)


def test_equal_buyers_of_one_good_split_it_by_budget() -> None:
    found = linear(np.ones((3, 1, 2)), np.array([1.0, 2.0, 3.0]))
    holds(found)
    assert found.utilities == pytest.approx([1 / 3, 2 / 3, 1.0], abs=EXACT)
    assert found.prices == pytest.approx(np.full((1, 2), 3.0), abs=EXACT)


def test_in_one_round_leontief_is_the_nash_point_of_drf_s_example() -> None:
    # DRF's users on 9 CPUs and 18 GB need <1, 4> and <3, 1> a task. Money is shared 1 : 1. Memory binds neither alone:
    # tasks a + 3 b ≤ 9 and 4 a + b ≤ 18; the product a · b is largest on both, where a = 45/11, b = 18/11.
    needs = np.array([[[1 / 9], [4 / 18]], [[3 / 9], [1 / 18]]])
    found = leontief(needs, np.ones(2))
    holds(found)
    assert found.utilities == pytest.approx([45 / 11, 18 / 11], abs=1e-5)


def test_a_good_nobody_can_use_is_free() -> None:
    worth = np.zeros((2, 2, 1))
    worth[:, 0] = 1.0
    found = linear(worth, np.ones(2))
    holds(found)
    assert found.prices[1, 0] == 0.0


@pytest.mark.parametrize(
    ("table", "budgets", "field"),
    [
        (np.ones((2, 1)), np.ones(2), "worth"),
        (np.ones((2, 1, 1)), np.ones(3), "worth"),
        (-np.ones((1, 1, 1)), np.ones(1), "worth"),
        (np.zeros((1, 1, 1)), np.ones(1), "worth"),
        (np.ones((1, 1, 1)), np.zeros(1), "budgets"),
    ],
)
def test_markets_that_make_no_sense_are_refused(table: Floats, budgets: Floats, field: str) -> None:
    with pytest.raises(InputError) as refused:
        linear(table, budgets)
    assert refused.value.field == field
