"""Theorem 3.2 on random auctions: what holds in each, and an auction for each property that does not always hold."""

from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.research.repro.table import REPRODUCES
from shoal.research.repro.themis_properties import (
    KINDS,
    PropertyCounts,
    RandomAuction,
    count_properties,
    judge,
    property_table,
    random_auction,
)


def linear(*slopes: float, units: int, nothing: float = inf) -> RandomAuction:
    return RandomAuction(units, tuple(slope * np.arange(units + 1.0) for slope in slopes), nothing)


def judged(auction: RandomAuction) -> PropertyCounts:
    return judge(auction, np.random.default_rng(0))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_by_equation_1_linear_bidders_gain_nothing_by_lying(seed: int) -> None:
    chance = np.random.default_rng(seed)
    assert judge(random_auction("linear", inf, chance), chance).sp


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(KINDS), st.sampled_from([2.0, inf]), st.integers(0, 2**32 - 1))
def test_the_winners_are_pareto_efficient_whatever_their_values(kind: str, nothing: float, seed: int) -> None:
    chance = np.random.default_rng(seed)
    auction = random_auction(kind, nothing, chance)
    assert judge(auction, chance).pe_won


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_by_equation_1_linear_winners_envy_no_other_beyond_one_gpu(seed: int) -> None:
    chance = np.random.default_rng(seed)
    assert judge(random_auction("linear", inf, chance), chance).ef1_won


def test_whole_gpus_that_do_not_divide_evenly_are_envied() -> None:
    """Three GPUs for two alike: one has two of them."""
    found = judged(linear(1.0, 1.0, units=3))
    assert (found.ef_won, found.ef1_won) == (False, True)
    assert judged(linear(1.0, 1.0, units=4)).ef_won


def test_payments_take_the_sharing_incentive() -> None:
    """Two alike share four GPUs; each keeps one of two."""
    found = judged(linear(1.0, 1.0, units=4))
    assert found.si_won
    assert not found.si_paid


def test_counting_nothing_as_half_of_one_gpu_makes_a_lie_pay() -> None:
    """Three apps alike for two GPUs: by the reading ``2`` a winner keeps half; with a lie it can keep more."""
    auctions = [random_auction("linear", 2.0, np.random.default_rng(seed)) for seed in range(30)]
    counts = [judge(auction, np.random.default_rng(1)) for auction in auctions]
    assert any(not one.sp and one.gain > 0.05 for one in counts)


def test_leftovers_given_to_any_app_can_be_worse_than_another_division() -> None:
    """Handed out at random, a GPU may be given to a bidder that gains nothing by it."""
    found = count_properties("limited", inf, 0, 60)
    assert 0 < found.pe_settled < found.auctions


def test_counts_are_added_and_the_largest_gain_is_kept() -> None:
    one, two = PropertyCounts(1, 1, gain=0.5), PropertyCounts(1, 0, gain=0.2)
    both = one.plus(two)
    assert (both.auctions, both.pe_won, both.gain) == (2, 1, 0.5)
    assert both.share("pe_won") == 0.5


@pytest.mark.parametrize(
    ("sp", "ef", "verdict"), [(10, 10, REPRODUCES), (9, 10, "differs: does not hold: SP"), (10, 5, "EF")]
)
def test_the_theorem_is_judged_on_linear_values(sp: int, ef: int, verdict: str) -> None:
    counts = PropertyCounts(10, 10, 4, 10, 5, ef, 5, sp, 10)
    assert verdict in property_table({("linear", inf): counts}).verdict
