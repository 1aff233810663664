"""Choices that can be seated: near the bound, never worth less than leaving everyone alone or than an evolved one."""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

from shoal.core.arrays import Flags
from shoal.solve import allotment, multiple_choice
from shoal.solve.allotment import STAY, Allotment, AllotmentOptions, allot
from shoal.solve.genetic_search import evolve
from shoal.solve.node_packing import Seats


def world(jobs: int, nodes: int, seed: int, *, held: bool = True) -> tuple[AllotmentOptions, Flags]:
    """Gangs of power-law speed-ups on nodes of four, of which most hold what was best before values changed."""
    chance = np.random.default_rng(seed)
    sizes = np.array([1, 2, 3, *range(4, 4 * nodes + 1, 4)])
    worth = chance.uniform(0.5, 4.0, (jobs, 1)) * sizes ** chance.uniform(0.3, 1.0, (jobs, 1))
    worth[sizes > 2 ** chance.integers(0, 6, (jobs, 1))] = -np.inf
    worth = np.concatenate([np.full((jobs, 1), -np.inf), worth], axis=1)
    units = np.tile([1, *sizes], (jobs, 1))
    pools = np.zeros(units.shape, dtype=np.intp)
    seats: list[Seats | None] = [None] * jobs
    node_units = [dict.fromkeys(range(nodes), 4)]
    spread = np.concatenate([[False], sizes > 4])
    if held:
        before = allot(AllotmentOptions(worth, units, pools, seats, node_units))
        worth = worth * 0.8
        for gang, at in before.seats.items():
            if chance.random() < 0.8:
                pick = before.picks[gang]
                seats[gang], units[gang, STAY], worth[gang, STAY] = at, units[gang, pick], worth[gang, pick] / 0.8
        worth *= chance.uniform(0.7, 1.4, (jobs, 1))
    return AllotmentOptions(worth, units, pools, seats, node_units), spread


def checked(menu: AllotmentOptions, found: Allotment) -> Allotment:
    """The allotment, after seeing that it is whole, seated where it says, and worth what it says."""
    served = np.flatnonzero(found.picks >= 0)
    assert set(found.seats) == set(served.tolist())
    taken: dict[int, int] = {}
    for gang, seats in found.seats.items():
        assert sum(n for _, n in seats) == menu.units[gang, found.picks[gang]]
        if found.picks[gang] == STAY:
            assert seats == menu.seats[gang]
        for node, n in seats:
            taken[node] = taken.get(node, 0) + n
    for nodes in menu.node_units:
        assert all(taken.get(node, 0) <= n for node, n in nodes.items())
    assert found.value == pytest.approx(menu.worth[served, found.picks[served]].sum())
    assert found.bound >= found.value
    return found


@pytest.mark.parametrize("jobs", [3, 20, 80])
def test_the_gap_to_the_bound_is_small(jobs: int) -> None:
    gaps = [checked(menu := world(jobs, 16, seed)[0], allot(menu)).gap for seed in range(6)]
    assert max(gaps) < 0.02
    assert np.mean(gaps) < 0.005


@pytest.mark.parametrize("seed", range(3))
def test_it_is_never_worth_less_than_what_a_population_comes_to(seed: int) -> None:
    menu, spread = world(12, 6, seed)
    evolved = checked(menu, evolve(menu, spread, seed, generations=100))
    assert checked(menu, allot(menu)).value >= evolved.value
    assert evolve(menu, spread, seed, generations=100).value == evolved.value, "the same seed gives the same answer"


def test_a_population_gets_better_with_generations() -> None:
    menu, spread = world(12, 6, 5, held=False)
    values = [evolve(menu, spread, 5, generations=n).value for n in (0, 10, 100)]
    assert values[0] < values[1] < values[2] <= allot(menu).bound


def test_gangs_that_span_nodes_share_them_only_where_they_may() -> None:
    worth, units = np.array([[-np.inf, 1.0], [-np.inf, 1.0]]), np.array([[1, 5], [1, 5]])
    menu = AllotmentOptions(worth, units, np.zeros((2, 2), dtype=np.intp), [None, None], [dict.fromkeys(range(3), 4)])
    spread = np.array([False, True])
    assert checked(menu, evolve(menu, spread, 0)).value == 1.0, "5 and 5 units on nodes of 4 must meet on one of three"
    assert checked(menu, evolve(menu, spread, 0, apart=False)).value == 2.0


def test_nobody_moves_for_nothing() -> None:
    menu, _ = world(10, 4, 1)
    found = allot(menu)
    seats = [found.seats.get(i) for i in range(10)]
    best = menu.worth.max(axis=1)
    stays = np.where([s is not None for s in seats], best, -np.inf)
    worth = menu.worth.copy()
    units = menu.units.copy()
    worth[:, STAY] = stays
    units[:, STAY] = [sum(n for _, n in s) if s else 1 for s in seats]
    again = allot(AllotmentOptions(worth, units, menu.pools, seats, menu.node_units))
    assert {i: again.seats[i] for i, s in enumerate(seats) if s} == {i: s for i, s in enumerate(seats) if s}


def test_a_gang_for_which_no_wide_node_is_left_takes_a_narrower_one_whole() -> None:
    # Five gangs of up to eight units on nodes of 8, 8, 8, 4, 4 and single units: 8, 7, 6 and 5 fail one by one.
    sizes = np.arange(9)
    worth = np.tile(np.where(sizes > 0, sizes**0.8, -np.inf), (5, 1))
    units, pools = np.tile(np.maximum(sizes, 1), (5, 1)), np.zeros((5, 9), dtype=np.intp)
    menu = AllotmentOptions(
        worth, units, pools, [None] * 5, [{0: 8, 1: 8, 2: 8, 3: 4, 4: 4} | dict.fromkeys(range(5, 13), 1)]
    )
    found = allot(menu)
    assert sorted(found.seats.values()) == [((0, 8),), ((1, 8),), ((2, 8),), ((3, 4),), ((4, 4),)]
    with patch("shoal.solve.allotment.FEW", 0):
        assert allot(menu).seats == found.seats


def test_with_nobody_or_nothing_there_is_nothing_to_allot() -> None:
    none = np.zeros((0, 3))
    assert allot(AllotmentOptions(none, none.astype(np.intp), none.astype(np.intp), [], [{0: 4}])).seats == {}
    one = np.array([[-np.inf, 1.0]])
    units = np.ones(one.shape, dtype=np.intp)
    found = allot(AllotmentOptions(one, units, units * 0, [None], [{}]))
    assert found.picks.tolist() == [-1]


@pytest.mark.parametrize("jobs", [1, 4, 20])
@pytest.mark.parametrize("seed", range(12))
def test_few_options_are_allotted_in_plain_numbers_as_by_arrays(jobs: int, seed: int) -> None:
    menu = world(jobs, 5, seed, held=seed % 3 > 0)[0]
    chance = np.random.default_rng(seed)
    if seed % 2:  # two pools, of which each gang's options are on either
        pools = chance.integers(0, 2, menu.units.shape)
        pools[:, STAY] = 0
        menu = replace(menu, pools=pools, node_units=[menu.node_units[0], dict.fromkeys(range(5, 8), 4)])
    found = []
    for few in (10_000, -1):
        with patch.object(allotment, "FEW", few), patch.object(multiple_choice, "FEW", few):
            found.append(checked(menu, allot(menu)))
    plain, arrays = found
    assert plain.picks.tolist() == arrays.picks.tolist()
    assert plain.seats == arrays.seats
    assert (plain.value, plain.bound) == (arrays.value, arrays.bound)
    assert plain.prices.tolist() == arrays.prices.tolist()
