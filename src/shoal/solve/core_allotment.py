"""Units, pool and nodes for thousands of gangs: only the gangs that can matter are allotted anew.

Near the prices at which demand fits, most gangs make the same choice: to stay, or to take nothing. With prices λ and a
margin m, option c of gang i can be its best at some prices between (1 − m) λ and (1 + m) λ only if

    worth_ic − (1 − m) λ_k units_ic  ≥  max(0, max_d worth_id − (1 + m) λ_l units_id),   k, l the pools of c, d.

A gang without such an option takes nothing. A gang whose only such option is its present seats stays; one that spans
nodes stays only while these are full. The gangs that stay on a node count as one gang of their total worth. All other
gangs are the core, with those on the nodes whose gangs are worth least, which may move for others. `allotment` decides
on the core. Units that the core leaves free go to gangs outside it.

The bound is that of all gangs at the prices λ, whatever the core is. As long as the answer is worth less than the
bound by more than the tolerance, the core is widened, in the end to all gangs.

Reference: Pisinger (1995) for the core.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices
from shoal.solve.allotment import Allotment, AllotmentOptions, allot
from shoal.solve.listed_options import ListedOptions
from shoal.solve.node_packing import Packer, Seats
from shoal.solve.price_box import BOX, cleared

_MARGINS = (0.01, BOX, np.inf)
_SPARE_NODES = 8
"""Nodes of each pool, besides one for each newcomer, whose gangs may move."""
_LENIENT = 10.0
"""The largest factor on the tolerance in the core, whose bound is smaller than that of all gangs."""
_OFFERS = 8
"""Options tried for each unit that the core leaves free."""


@dataclass(frozen=True, slots=True, eq=False)
class HeldSeats:
    """By gang the node on which it holds all its units, −1 if there is none; ``of`` returns the seats of a gang.

    ``wide`` are the seats of gangs that span nodes (seats × gang, node, units), if any of these may be settled.
    """

    node: Indices
    of: Callable[[int], Seats | None]
    wide: Indices = field(default_factory=lambda: np.empty((0, 3), dtype=np.intp))


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """By node its units, and its pool."""

    units: Indices
    pool: Indices


@dataclass(frozen=True, slots=True, eq=False)
class CoreAllotment:
    """By gang the number of the option chosen, −1 for none; the total worth, and a bound on the best total worth.

    ``seats`` are those of the gangs served that are in the core; the others stay on their seats.
    """

    picks: Indices
    seats: Mapping[int, Seats]
    value: float
    bound: float
    prices: Floats
    core: int
    """The number of gangs in the core."""

    @property
    def gap(self) -> float:
        """How far the value may be below the best, as a fraction of the bound; never below 0."""
        return max(self.bound - self.value, 0.0) / self.bound if self.bound > 0 else 0.0


def allot_core(options: ListedOptions, held: HeldSeats, nodes: Nodes, pools: int, tolerance: float) -> CoreAllotment:
    """The best allotment found; the search ends as soon as it is within ``tolerance`` of the bound, as a fraction."""
    capacity = np.bincount(nodes.pool, weights=nodes.units, minlength=pools).astype(np.intp)
    near = cleared(options, capacity, tolerance)
    prices, bound = near.prices, near.bound
    best: CoreAllotment | None = None
    for margin in _MARGINS:
        settled = near.settled.copy()
        if margin < BOX:
            within = near.part.settled(prices, margin)
            first = options.begin[near.unsure] - near.part.begin[:-1]
            settled[near.unsure] = np.where(within >= 0, first + within, within)
        elif margin > BOX:
            settled = options.settled(prices, margin)
        core = AllotmentCore(options, held, nodes, pools, settled, _members(options, held, nodes, pools, settled))
        allowed = tolerance * min(bound / max(bound - core.closed_worth, 1e-300), _LENIENT)
        found = core.filled(core.allotted(allowed))
        if best is None or found.value > best.value:
            value = found.value
            best = CoreAllotment(found.picks, found.seats, value, max(bound, value), prices, len(core.members))
        if best.value >= (1.0 - tolerance) * bound:
            break
    assert best is not None
    return best


def _members(options: ListedOptions, held: HeldSeats, nodes: Nodes, pools: int, settled: Indices) -> Flags:
    """By gang whether it is in the core."""
    sure = (settled >= 0).nonzero()[0]
    stays = options.stays[settled[sure]]
    core: Flags = settled != -1
    core[sure[stays]] = False
    staying = sure[stays & (held.node[sure] >= 0)]
    newcomers = np.bincount(options.pool[settled[sure[~stays]]], minlength=pools)
    at_stake = np.bincount(held.node[staying], weights=options.worth[settled[staying]], minlength=len(nodes.units))
    gives_way = np.zeros(len(nodes.units), dtype=bool)
    for pool, coming in enumerate(newcomers.tolist()):
        there = ((nodes.pool == pool) & (at_stake > 0)).nonzero()[0]
        spare = _SPARE_NODES + coming
        gives_way[there if len(there) <= spare else there[np.argsort(at_stake[there], kind="stable")[:spare]]] = True
    core[staying[gives_way[held.node[staying]]]] = True
    # A gang that spans nodes stays only if these are full and none of them gives way: no other comes beside it.
    gang, node, units = held.wide[(~core & (settled >= 0))[held.wide[:, 0]]].T
    narrow = np.bincount(held.node[staying], weights=options.units[settled[staying]], minlength=len(nodes.units))
    taken = narrow + np.bincount(node, weights=units, minlength=len(nodes.units))
    core[gang[gives_way[node] | (taken[node] < nodes.units[node])]] = True
    return core


@dataclass(frozen=True, slots=True, eq=False)
class CoreAnswer:
    """By gang the number of its option, −1 for none; the seats of gangs in the core; units free by node."""

    picks: Indices
    seats: Mapping[int, Seats]
    value: float
    free: Indices


class AllotmentCore:
    """A core, and beside it the gangs that stay: those on the same node are one gang, whose only option is to stay."""

    def __init__(
        self, options: ListedOptions, held: HeldSeats, nodes: Nodes, pools: int, settled: Indices, core: Flags
    ) -> None:
        self.options, self.held, self.nodes, self.pools = options, held, nodes, pools
        self._settled, self._core = settled, core
        self.members = core.nonzero()[0]
        staying = ~core & (settled >= 0)
        narrow = (staying & (held.node >= 0)).nonzero()[0]
        wide, wide_node, wide_units = held.wide[staying[held.wide[:, 0]]].T
        self._gang, self._node = np.concatenate([narrow, wide]), np.concatenate([held.node[narrow], wide_node])
        """Seats of the gangs that stay."""
        pick = settled[self._gang]
        units = np.concatenate([options.units[settled[narrow]], wide_units])
        worth = options.worth[pick] * units / options.units[pick]
        self._stay_units = np.bincount(self._node, weights=units, minlength=len(nodes.units)).astype(np.intp)
        self._stay_worth = np.bincount(self._node, weights=worth, minlength=len(nodes.units))

    @property
    def closed_worth(self) -> float:
        """The worth of the gangs that fill their nodes."""
        return float(self._stay_worth[self._stay_units >= self.nodes.units].sum())

    def with_others(self, others: Indices) -> "AllotmentCore":
        """Return the core with these gangs added."""
        core = self._core.copy()
        core[others] = True
        return AllotmentCore(self.options, self.held, self.nodes, self.pools, self._settled, core)

    def allotted(self, tolerance: float, prices: Floats | None = None) -> CoreAnswer:
        """Return the core's allotment beside the gangs that stay, at these ``prices`` of the pools if given."""
        options, members = self.options, self.members
        open_nodes = self._open_nodes()
        shared = open_nodes[self._stay_units[open_nodes] > 0]
        begin = options.begin[members]
        begin_stays = np.zeros(len(members), dtype=np.intp)
        able = options.begin[members + 1] > begin
        begin_stays[able] = options.stays[begin[able]]
        found = self._allot(open_nodes, shared, begin - 1 + begin_stays, tolerance, prices)
        picks = self._settled.copy()
        picks[members] = -1
        served = (found.picks[: len(members)] >= 0).nonzero()[0]
        picks[members[served]] = (begin - 1 + begin_stays)[served] + found.picks[served]
        lost = np.zeros(len(self.nodes.units), dtype=bool)
        lost[shared[found.picks[len(members) :] < 0]] = True
        picks[self._gang[lost[self._node]]] = -1
        numbers = members.tolist()
        seats = {numbers[at]: there for at, there in found.seats.items() if at < len(numbers)}
        free = self.nodes.units - np.where(lost, 0, self._stay_units)
        taken = [seat for there in seats.values() for seat in there]
        if taken:
            node, units = np.array(taken).T
            np.subtract.at(free, node, units)
        return CoreAnswer(picks, seats, float(options.worth[picks[picks >= 0]].sum()), free)

    def _open_nodes(self) -> Indices:
        """Return the nodes that staying gangs do not fill, and one of the largest nodes of each pool."""
        units, pool = self.nodes.units, self.nodes.pool
        is_open = units > self._stay_units
        for k in range(self.pools):
            there = (pool == k).nonzero()[0]
            if len(there):
                is_open[there[units[there].argmax()]] = units[there].max() > 0
        return is_open.nonzero()[0]

    def _allot(
        self, open_nodes: Indices, shared: Indices, origin: Indices, tolerance: float, prices: Floats | None
    ) -> Allotment:
        """The allotment of the core; column c of a member is option ``origin`` + c, column 0 its present seats."""
        options, members = self.options, self.members
        listed = options.of_rows(members)
        count = options.begin[members + 1] - options.begin[members]
        at = np.repeat(np.arange(len(members)), count)
        column = listed - origin[at]
        shape = len(members) + len(shared), int(column.max(initial=0)) + 1
        worth, units, pools = np.full(shape, -np.inf), np.ones(shape, dtype=np.intp), np.zeros(shape, dtype=np.intp)
        worth[at, column], units[at, column] = options.worth[listed], options.units[listed]
        pools[at, column] = options.pool[listed]
        beside = np.arange(len(members), shape[0])
        worth[beside, 0], units[beside, 0] = self._stay_worth[shared], self._stay_units[shared]
        pools[beside, 0] = self.nodes.pool[shared]
        stays = np.isfinite(worth[: len(members), 0]).tolist()
        seats = [self.held.of(gang) if stay else None for gang, stay in zip(members.tolist(), stays, strict=True)]
        seats += [(seat,) for seat in zip(shared.tolist(), self._stay_units[shared].tolist(), strict=True)]
        node_units: list[dict[int, int]] = [{} for _ in range(self.pools)]
        sizes, pool = self.nodes.units[open_nodes].tolist(), self.nodes.pool[open_nodes].tolist()
        for node, size, k in zip(open_nodes.tolist(), sizes, pool, strict=True):
            node_units[k][node] = size
        return allot(AllotmentOptions(worth, units, pools, seats, node_units), tolerance, prices)

    def filled(self, found: CoreAnswer) -> CoreAnswer:
        """Return the answer with free units given to gangs that have none, the most worth per unit first."""
        options, nodes = self.options, self.nodes
        hole = np.zeros(self.pools)
        np.maximum.at(hole, nodes.pool, found.free)
        if not hole.any():
            return found
        waiting = found.picks[options.row] < 0
        listed = (waiting & ~options.stays & (options.units <= hole[options.pool])).nonzero()[0]
        listed = listed[np.argsort(-(options.worth[listed] / options.units[listed]), kind="stable")]
        left = np.bincount(nodes.pool, weights=found.free, minlength=self.pools).astype(np.intp).tolist()
        pool = options.pool[listed]
        best = np.concatenate([listed[pool == k][: _OFFERS * units] for k, units in enumerate(left)])
        free = [dict[int, int]() for _ in range(self.pools)]
        for node in found.free.nonzero()[0].tolist():
            free[nodes.pool.item(node)][node] = found.free.item(node)
        packers = [Packer(units, {}, {}) for units in free]
        picks, added = found.picks.copy(), dict[int, Seats]()
        columns = (options.row[best], options.units[best], options.pool[best])
        for at, gang, units, pool in zip(best.tolist(), *(of.tolist() for of in columns), strict=True):
            packer = packers[pool]
            if gang not in added and units <= packer.widest_hole and (seats := packer.find(int(units))) is not None:
                packer.take(gang, seats)
                picks[gang], added[gang] = at, seats
        value = found.value + float(options.worth[picks[list(added)]].sum())
        return CoreAnswer(picks, {**found.seats, **added}, value, found.free)

    def others_that_gain(self, found: CoreAnswer) -> Indices:
        """Return gangs outside the core that would gain by free units: those with the most gain per unit."""
        options, nodes = self.options, self.nodes
        free = np.bincount(nodes.pool, weights=found.free, minlength=self.pools)
        if not free.any():
            return self.members[:0]
        hole = np.zeros(self.pools)
        np.maximum.at(hole, nodes.pool, np.where(found.free == nodes.units, free[nodes.pool], found.free))
        has = np.where(found.picks >= 0, options.worth[found.picks], 0.0)
        has[self._core] = np.inf
        listed = (options.worth > has[options.row]).nonzero()[0]
        listed = listed[hole[options.pool[listed]] > 0]
        row = options.row[listed]
        pick = found.picks[row]
        gain = options.worth[listed] - has[row]
        same = (pick >= 0) & (options.pool[pick] == options.pool[listed])
        more = options.units[listed] - np.where(same, options.units[pick], 0.0)
        fits = ((gain > 0) & (more <= hole[options.pool[listed]])).nonzero()[0]
        density = gain[fits] / np.maximum(more[fits], 0.5)
        order = np.argsort(-density, kind="stable")[: 8 * int(free.sum())]
        return np.unique(row[fits[order]])
