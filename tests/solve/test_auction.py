"""Partial allocation auctions: winners and payments beside brute force, the papers' examples, and what is promised."""

import itertools
from math import exp, log, prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.solve.auction import (
    Bundle,
    CountBid,
    MachineBid,
    auction_counts,
    auction_machines,
    contenders,
    rounded,
    with_finite_worth,
)
from shoal.solve.auction.bid_table import BidTable
from shoal.solve.auction.prices import by_price

NOTHING = 1e-6


def linear(slope: float, most: int) -> CountBid:
    """A bidder to whom every unit up to its most is worth the same."""
    values = [NOTHING, *(slope * n for n in range(1, most + 1))]
    return CountBid(np.arange(most + 1), np.log(values))


def best_product(bids: list[CountBid], units: int) -> float:
    """By trying everything."""
    fitting = (
        choice for choice in itertools.product(*(range(len(b.units)) for b in bids))
        if sum(b.units[o] for b, o in zip(bids, choice, strict=True)) <= units
    )  # fmt: skip
    return max((sum(b.worth[o] for b, o in zip(bids, c, strict=True)) for c in fitting), default=0.0)


def random_bid(chance: np.random.Generator, units: int) -> CountBid:
    bundles = np.append(0, chance.integers(0, units + 2, chance.integers(0, 6)))
    return CountBid(bundles, chance.normal(0, 1.5, len(bundles)))


def test_winners_and_payments_are_those_of_brute_force_on_500_random_instances() -> None:
    chance = np.random.default_rng(5)
    for _ in range(500):
        units = int(chance.integers(0, 7))
        bids = [random_bid(chance, units) for _ in range(int(chance.integers(1, 5)))]
        found = auction_counts(bids, units)
        assert found.objective == pytest.approx(best_product(bids, units), abs=1e-12)
        assert found.gap <= 1e-12
        assert sum(int(b.units[o]) for b, o in zip(bids, found.chosen, strict=True)) <= units
        for i, bid in enumerate(bids):
            others = found.objective - bid.worth[found.chosen[i]]
            without = best_product(bids[:i] + bids[i + 1 :], units)
            assert found.kept[i] == pytest.approx(exp(others - without), rel=1e-9)
            assert 0.0 < found.kept[i] <= 1.0


def test_prices_bound_the_best_winners_and_ask_no_less_than_the_payments() -> None:
    chance = np.random.default_rng(6)
    for _ in range(300):
        units = int(chance.integers(0, 12))
        bids = [random_bid(chance, units) for _ in range(int(chance.integers(1, 6)))]
        exact, found = auction_counts(bids, units), by_price(BidTable.of(bids, units), units)
        assert sum(int(b.units[o]) for b, o in zip(bids, found.chosen, strict=True)) <= units
        assert found.objective == pytest.approx(sum(b.worth[o] for b, o in zip(bids, found.chosen, strict=True)))
        assert found.objective <= exact.objective + 1e-9 <= found.bound + 2e-9
        assert found.gap == pytest.approx(1.0 - exp(found.objective - found.bound), abs=1e-9)
        assert (found.others_without >= exact.others_without - 1e-9).all()


def test_prices_find_the_best_winners_where_every_unit_is_worth_less_than_the_one_before() -> None:
    chance = np.random.default_rng(7)
    for _ in range(100):
        bids = [CountBid(np.arange(6), np.cumsum([0.0, *-np.sort(-chance.random(5))])) for _ in range(8)]
        assert by_price(BidTable.of(bids, 17), 17).objective == pytest.approx(auction_counts(bids, 17).objective)


def random_named(chance: np.random.Generator, free: list[int]) -> MachineBid:
    bundles: list[Bundle] = [()]
    for _ in range(int(chance.integers(0, 5))):
        machines = sorted(chance.choice(len(free), int(chance.integers(1, len(free) + 1)), replace=False).tolist())
        bundles.append(tuple((m, int(chance.integers(1, free[m] + 2))) for m in machines))
    return MachineBid(tuple(bundles), chance.normal(0, 1.5, len(bundles)))


def best_named(bids: list[MachineBid], free: list[int]) -> float:
    def fits(choice: tuple[int, ...]) -> bool:
        used = [0] * len(free)
        for bid, o in zip(bids, choice, strict=True):
            for machine, units in bid.bundles[o]:
                used[machine] += units
        return all(u <= f for u, f in zip(used, free, strict=True))

    every = itertools.product(*(range(len(b.bundles)) for b in bids))
    return max((sum(b.worth[o] for b, o in zip(bids, c, strict=True)) for c in every if fits(c)), default=0.0)


def test_named_machines_have_the_winners_and_payments_of_brute_force() -> None:
    chance = np.random.default_rng(6)
    for _ in range(150):
        free = chance.integers(1, 4, int(chance.integers(1, 4))).tolist()
        bids = [random_named(chance, free) for _ in range(int(chance.integers(1, 5)))]
        found = auction_machines(bids, free)
        assert found.objective == pytest.approx(best_named(bids, free), abs=1e-9)
        assert found.gap <= 1e-7
        for i, bid in enumerate(bids):
            others = found.objective - bid.worth[found.chosen[i]]
            assert found.kept[i] == pytest.approx(exp(others - best_named(bids[:i] + bids[i + 1 :], free)), rel=1e-7)
            assert 0.0 < found.kept[i] <= 1.0


def test_on_machines_of_one_gpu_names_and_counts_are_the_same_auction() -> None:
    chance = np.random.default_rng(7)
    for _ in range(20):
        counted = [linear(float(chance.uniform(1, 9)), int(chance.integers(1, 4))) for _ in range(3)]
        named = []
        for bid in counted:
            bundles = [tuple((m, 1) for m in s) for n in bid.units for s in itertools.combinations(range(4), int(n))]
            named.append(MachineBid(tuple(bundles), np.array([bid.worth[len(b)] for b in bundles])))
        a, b = auction_counts(counted, 4), auction_machines(named, [1, 1, 1, 1])
        assert a.objective == pytest.approx(b.objective, abs=1e-9)
        assert b.gap <= 1e-7


def test_two_linear_apps_on_four_gpus_keep_half_each_and_leave_two() -> None:
    """Themis §3.3.1 with line 8 the right way up: each won 2, and without it the other would have had 4."""
    found = auction_counts([linear(1.0, 4), linear(3.0, 4)], 4)
    assert found.chosen.tolist() == [2, 2]
    assert found.kept == pytest.approx([0.5, 0.5])
    assert 4 - sum(found.kept * found.chosen) == pytest.approx(2.0)


def test_a_capped_bidder_that_costs_no_other_bidder_gpus_pays_nothing() -> None:
    # The first can use one GPU of four and the second three: both have all they want whoever else is there.
    found = auction_counts([linear(5.0, 1), linear(1.0, 3)], 4)
    assert found.chosen.tolist() == [1, 3]
    assert found.kept.tolist() == [1.0, 1.0]


def test_a_bidder_alone_pays_nothing() -> None:
    found = auction_counts([linear(2.0, 8)], 4)
    assert (found.chosen.tolist(), found.kept.tolist()) == ([4], [1.0])


def test_many_equal_bidders_keep_about_one_over_e() -> None:
    # ((n − 1)/n)^(n − 1) for n linear bidders, as in the analysis of Cole, Gkatzelis and Goel.
    found = auction_counts([linear(1.0, 100)] * 10, 90)
    assert found.kept == pytest.approx([0.9**9] * 10)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_truth_is_a_best_response_where_values_are_homogeneous(seed: int) -> None:
    """What is kept, cᵢ of a bundle, is worth cᵢ times its value: nobody gains by another bid, whatever the others."""
    chance = np.random.default_rng(seed)
    units, count = int(chance.integers(1, 9)), int(chance.integers(2, 5))
    bids = [linear(float(chance.uniform(0.5, 5)), int(chance.integers(1, units + 1))) for _ in range(count)]
    honest = auction_counts(bids, units)
    true = honest.kept[0] * exp(bids[0].worth[honest.chosen[0]])
    for _ in range(8):
        lie = CountBid(bids[0].units, bids[0].worth + chance.normal(0, 1.0, len(bids[0].units)))
        lied = auction_counts([lie, *bids[1:]], units)
        assert lied.kept[0] * exp(bids[0].worth[lied.chosen[0]]) <= true * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_winners_are_pareto_efficient_and_envy_free_but_for_one_gpu(seed: int) -> None:
    chance = np.random.default_rng(seed)
    units, count = int(chance.integers(1, 8)), int(chance.integers(2, 4))
    bids = [linear(float(chance.uniform(0.5, 5)), int(chance.integers(1, units + 1))) for _ in range(count)]
    won = auction_counts(bids, units).chosen.tolist()
    mine = [bid.worth[n] for bid, n in zip(bids, won, strict=True)]
    for other in itertools.product(*(range(len(b.units)) for b in bids)):
        if sum(other) <= units:
            theirs = [bid.worth[n] for bid, n in zip(bids, other, strict=True)]
            better = [t > m + 1e-12 for t, m in zip(theirs, mine, strict=True)]
            worse = [t < m - 1e-12 for t, m in zip(theirs, mine, strict=True)]
            assert any(worse) or not any(better), f"{other} is better for somebody than {won} and worse for nobody"
    for i, j in itertools.permutations(range(count), 2):
        envied = min(won[j] - 1, len(bids[i].units) - 1)
        assert won[i] >= envied, f"{won}: {i} would rather have one GPU less than {j} has"


def test_equal_shares_are_free_of_envy() -> None:
    found = auction_counts([linear(s, 12) for s in (1.0, 2.0, 7.0)], 12)
    assert found.chosen.tolist() == [4, 4, 4]


def test_a_bundle_that_adds_nothing_is_not_won() -> None:
    bid = CountBid(np.array([0, 1, 2, 3]), np.log([0.1, 1.0, 1.0, 1.0]))
    assert auction_counts([bid], 3).chosen.tolist() == [1]


@pytest.mark.parametrize(
    ("units", "worth"),
    [([1], [0.0]), ([0, 1], [0.0]), ([0, -1], [0.0, 1.0]), ([0, 1], [-np.inf, 0.0]), ([], [])],
    ids=["no bundle of nothing", "a worth missing", "fewer than none", "worth nothing at all", "empty"],
)
def test_a_bid_that_makes_no_sense_is_refused(units: list[int], worth: list[float]) -> None:
    with pytest.raises(ValueError, match=r"bid|logarithm"):
        CountBid(np.array(units, dtype=np.int64), np.array(worth))


def test_a_machine_bid_begins_with_nothing() -> None:
    with pytest.raises(ValueError, match="nothing"):
        MachineBid((((0, 1),),), np.array([0.0]))
    with pytest.raises(ValueError, match="finite"):
        MachineBid(((),), np.array([-np.inf]))


def test_an_auction_without_bidders_or_units_is_over_at_once() -> None:
    assert auction_counts([], 4).chosen.tolist() == []
    assert auction_machines([], [4]).chosen.tolist() == []
    assert auction_counts([linear(1.0, 3)], 0).chosen.tolist() == [0]
    assert auction_machines([MachineBid(((), ((0, 1),)), np.array([0.0, 1.0]))], [0]).chosen.tolist() == [0]


@settings(max_examples=100, deadline=None)
@given(st.sets(st.integers(1, 30), max_size=8), st.floats(0, 1))
def test_rounding_has_the_right_expectation_and_only_usable_numbers(sizes: set[int], part: float) -> None:
    usable = np.array(sorted({0, *sizes}), dtype=np.int64)
    expected = part * float(usable[-1])
    draws = (np.arange(2000) + 0.5) / 2000
    got = [rounded(expected, usable, float(draw)) for draw in draws]
    assert set(got) <= set(usable.tolist())
    assert np.mean(got) == pytest.approx(expected, abs=usable[-1] / 1000 + 1e-9)
    assert rounded(expected, usable, None) == max(n for n in usable if n <= expected * (1 + 1e-12))


def test_the_product_is_of_values_and_not_their_sum() -> None:
    # 4 · 1 = 4 for all to the first, 2 · 2 · … for halves: products prefer the even split, sums are indifferent.
    found = auction_counts([linear(1.0, 4), linear(1.0, 4)], 4)
    assert exp(found.objective) == pytest.approx(prod([2.0, 2.0]))
    assert found.objective == pytest.approx(log(4.0))


def test_a_worth_of_nothing_of_minus_infinity_serves_as_many_bidders_as_can_be_served() -> None:
    """With 0 for nothing the product is that of the bidders served; the limit of 10⁻⁶⁰ for nothing has the same."""
    rich = np.array([-np.inf, *np.log([100.0, 900.0, 1000.0])])
    poor = np.array([-np.inf, *np.log([0.1, 0.2, 0.3])])
    finite = with_finite_worth([rich, poor, poor])
    won = auction_counts([CountBid(np.arange(4), worth) for worth in finite], 3)
    assert won.chosen.tolist() == [1, 1, 1]
    assert np.isfinite(finite[0]).all()
    assert [worth[1:].tolist() for worth in finite] == [worth[1:].tolist() for worth in (rich, poor, poor)]


def test_a_bidder_that_takes_anothers_only_unit_pays_all_of_it() -> None:
    worth = np.array([-np.inf, 0.0])
    crowded = auction_counts([CountBid(np.arange(2), w) for w in with_finite_worth([worth] * 3)], 2)
    assert sorted(crowded.chosen.tolist()) == [0, 1, 1]
    assert crowded.kept[crowded.chosen == 1] == pytest.approx([0.0, 0.0], abs=1e-15)
    roomy = auction_counts([CountBid(np.arange(2), w) for w in with_finite_worth([worth] * 2)], 2)
    assert roomy.kept.tolist() == [1.0, 1.0]


def test_finite_worths_stay_as_they_are() -> None:
    worths = [np.array([0.0, 1.0]), np.array([-3.0])]
    assert [worth.tolist() for worth in with_finite_worth(worths)] == [[0.0, 1.0], [-3.0]]


@pytest.mark.parametrize("seed", range(40))
def test_only_contenders_can_win_or_decide_a_payment(seed: int) -> None:
    rng = np.random.default_rng(seed)
    offered, gains = int(rng.integers(1, 7)), []
    for _ in range(40):
        sizes = np.sort(rng.choice(np.arange(1, 9), int(rng.integers(1, 6)), replace=False))
        gains.append((sizes, np.round(np.cumsum(rng.exponential(1.0, len(sizes))), int(rng.integers(0, 3)))))
    owner = np.repeat(np.arange(40), [len(sizes) for sizes, _ in gains])
    units, gain = (np.concatenate(column) for column in zip(*gains, strict=True))
    able = contenders(owner, units, gain, 40, offered)
    assert able.sum() < 40
    bids = [CountBid(np.append(0, sizes), np.append(0.0, worth)) for sizes, worth in gains]
    among_all = auction_counts(bids, offered)
    few = auction_counts([bid for bid, may in zip(bids, able, strict=True) if may], offered)
    assert few.objective == pytest.approx(among_all.objective)
    assert few.chosen.tolist() == among_all.chosen[able].tolist()
    assert few.kept == pytest.approx(among_all.kept[able])
    assert not among_all.chosen[~able].any()
    assert among_all.kept[~able] == pytest.approx(1.0)
