"""Thousands of gangs: the answer fits the nodes, is within its bound, and is as good as that for all gangs at once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.arrays import Floats, Indices
from shoal.solve.allotment import STAY, AllotmentOptions, allot
from shoal.solve.core_allotment import CoreAllotment, HeldSeats, Nodes, allot_core
from shoal.solve.listed_options import UNSETTLED, ListedOptions
from shoal.solve.node_packing import Seats
from shoal.solve.price_box import cleared

SIZES = np.array([1, 2, 4, 8, 16])


class Cluster:
    """Nodes of 8 in pools, gangs of every size, many of them on seats."""

    def __init__(self, seed: int, gangs: int, pools: int, per_pool: int, waiting: float) -> None:
        chance = np.random.default_rng(seed)
        self.nodes = Nodes(np.full(pools * per_pool, 8), np.repeat(np.arange(pools), per_pool))
        free, self.seats = self.nodes.units.copy(), dict[int, Seats]()
        base, power = chance.exponential(1.0, gangs), chance.uniform(0.3, 1.0, gangs)
        rows: list[tuple[int, float, int, int, bool]] = []
        for gang in range(gangs):
            sizes = SIZES[: chance.integers(1, 6)] if chance.random() < 0.5 else chance.choice(SIZES, 1)
            speeds = chance.uniform(0.5, 2.0, pools)
            held = int(chance.choice(sizes[sizes <= 8])) if (sizes <= 8).any() else 0
            node = int(chance.integers(len(free)))
            if held and free[node] >= held and chance.random() > waiting:
                free[node] -= held
                self.seats[gang] = ((node, held),)
                pool = int(self.nodes.pool[node])
                rows.append((gang, base[gang] * held ** power[gang] * speeds[pool], held, pool, True))
            elif 16 in sizes and chance.random() > waiting:
                pool = int(chance.integers(pools))
                empty = np.flatnonzero((free == 8) & (self.nodes.pool == pool))[:2].tolist()
                if len(empty) == 2:
                    free[empty] = 0
                    self.seats[gang] = tuple((node, 8) for node in empty)
                    rows.append((gang, base[gang] * 16 ** power[gang] * speeds[pool], 16, pool, True))
            for pool in range(pools):
                worths = 0.9 * base[gang] * sizes ** power[gang] * speeds[pool]
                rows += [(gang, worth, size, pool, False) for size, worth in zip(sizes, worths, strict=True)]
        of, worth, units, where, stays = (np.array(column) for column in zip(*rows, strict=True))
        self.options = ListedOptions.of(gangs, of, worth, units.astype(np.float64), where, stays)
        node_of = np.full(gangs, -1)
        for held_by, there in self.seats.items():
            node_of[held_by] = there[0][0] if len(there) == 1 else -1
        wide = [(gang, *seat) for gang, there in self.seats.items() if len(there) > 1 for seat in there]
        self.held = HeldSeats(node_of, self.seats.get, np.array(wide, dtype=np.intp).reshape(len(wide), 3))
        self.pools = pools

    def core(self, tolerance: float) -> CoreAllotment:
        return allot_core(self.options, self.held, self.nodes, self.pools, tolerance)

    def at_once(self, tolerance: float) -> float:
        """The worth of the allotment of all gangs at once."""
        options, gangs = self.options, self.options.rows
        begin = options.begin[options.row]
        column = np.arange(len(options.row)) - begin + np.where(options.stays[begin], 0, 1)
        shape = gangs, int(column.max()) + 1
        worth, units, pools = np.full(shape, -np.inf), np.ones(shape, np.intp), np.zeros(shape, np.intp)
        at = options.row, column
        worth[at], units[at], pools[at] = options.worth, options.units, options.pool
        assert (column[options.stays] == STAY).all()
        node_units = [{int(n): 8 for n in np.flatnonzero(self.nodes.pool == pool)} for pool in range(self.pools)]
        seats = [self.seats.get(gang) for gang in range(gangs)]
        return allot(AllotmentOptions(worth, units, pools, seats, node_units), tolerance).value

    def check(self, found: CoreAllotment) -> None:
        """Every gang served has the units and the pool of its option, and no node holds more than it has."""
        options, served = self.options, np.flatnonzero(found.picks >= 0)
        free, spanned = self.nodes.units.copy(), np.zeros(len(self.nodes.units), dtype=int)
        for gang in served.tolist():
            pick = int(found.picks[gang])
            assert options.row[pick] == gang
            seats = found.seats.get(gang, self.seats.get(gang))
            assert seats is not None
            assert options.stays[pick] == (seats == self.seats.get(gang)) or not options.stays[pick]
            assert sum(units for _, units in seats) == options.units[pick]
            for node, units in seats:
                assert self.nodes.pool[node] == options.pool[pick]
                free[node] -= units
                spanned[node] += len(seats) > 1
        assert (free >= 0).all()
        assert (spanned <= 1).all(), "gangs that span nodes do not meet"
        assert found.value == pytest.approx(float(options.worth[found.picks[served]].sum()))
        assert found.value <= found.bound * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 90), st.integers(1, 3), st.integers(1, 6), st.floats(0.0, 1.0))
def test_seats_fit_and_the_bound_holds(seed: int, gangs: int, pools: int, per_pool: int, waiting: float) -> None:
    cluster = Cluster(seed, gangs, pools, per_pool, waiting)
    found = cluster.core(0.005)
    cluster.check(found)
    assert found.bound >= cluster.at_once(0.0) * (1 - 1e-9)


@pytest.mark.parametrize(("seed", "pools", "waiting"), [(1, 1, 0.3), (2, 3, 0.3), (3, 3, 1.0), (4, 2, 0.0)])
def test_a_core_is_worth_as_much_as_all_gangs_at_once(seed: int, pools: int, waiting: float) -> None:
    cluster = Cluster(seed, 2500, pools, 120, waiting)
    found = cluster.core(0.005)
    cluster.check(found)
    assert found.value >= 0.995 * cluster.at_once(0.005)
    assert found.gap <= 0.01


def choice_at(options: ListedOptions, prices: Floats) -> Indices:
    net = options.worth - prices[options.pool] * options.units
    top = options.top(net)
    return np.where(top > 0, options.first_at(net, top), -1)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.001, 0.3))
def test_a_settled_choice_is_the_same_at_all_prices_within_the_margin(seed: int, margin: float) -> None:
    options, chance = Cluster(seed, 60, 3, 4, 0.5).options, np.random.default_rng(seed)
    prices = chance.exponential(0.5, 3)
    settled = options.settled(prices, margin)
    sure = settled != UNSETTLED
    for _ in range(10):
        near = prices * chance.uniform(1 - margin, 1 + margin, 3)
        assert (choice_at(options, near)[sure] == settled[sure]).all()


@pytest.mark.parametrize(("seed", "waiting", "share"), [(6, 0.5, 1.0), (7, 1.0, 1.0), (8, 0.5, 0.02), (9, 0.5, 50.0)])
def test_prices_of_a_box_bound_the_worth_as_those_of_all_rows_do(seed: int, waiting: float, share: float) -> None:
    options = Cluster(seed, 3000, 3, 60, waiting).options
    capacity = np.full(3, int(480 * share))
    found = cleared(options, capacity, 0.005)
    assert found.bound == pytest.approx(options.bound(found.prices, capacity))
    assert found.bound <= 1.002 * options.bound(options.clearing_prices(capacity.astype(np.float64), 0.005), capacity)
