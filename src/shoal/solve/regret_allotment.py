"""Units, pool and nodes for thousands of gangs, many alike: only gangs that regret what they have are allotted anew.

At prices λ of a unit by pool, a gang that has option c regrets

    r_ic = max(0, max_d worth_id − λ_l units_id) − (worth_ic − λ_k units_ic)  ≥  0,   k, l the pools of c, d,

and by Lagrangian duality an allotment misses the best total worth by at most Σ_i r_i + Σ_k λ_k · free units of k. So
only gangs that regret staying, or waiting, need another choice. These gangs are the core, with the gangs on the nodes
that cost least to clear; all others stay or wait, and units that are still free are offered to those that gain most.
`core_allotment` does not serve here: it counts all of many equal gangs as undecided, and where gangs can use any pool
its prices begin at 0, at which no single pool has a price.

Prices begin at the price of a unit of all pools together. The bound is that of all gangs at these prices.

References: Fisher (1981) for the bound; Pisinger (1995) for the core.
"""

from dataclasses import replace

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices
from shoal.solve.core_allotment import AllotmentCore, CoreAllotment, HeldSeats, Nodes
from shoal.solve.listed_options import ListedOptions
from shoal.solve.pool_prices import PoolOptions, clearing_prices

_NEAR = 5e-3
"""Regret, as a fraction of the price of the units that a gang would rather have, below which it keeps its choice."""
_PRECISE = 1e-6
"""Relative error of the prices."""
_SAMPLE = 1000
"""Gangs whose prices are tried first."""
_ENOUGH = 5e-4
"""Part of the bound that an allotment at these prices may miss."""
_MANY_REGRET = 300
"""Gangs that may regret staying at these prices."""
_LARGE = 2000
"""Gangs in a core that is allotted twice at most."""
_SPARE_NODES = 8
"""Nodes of each pool, besides one for each newcomer, whose gangs may move."""
_FILLS = 3
"""Times that free units are offered to gangs outside the core."""


def allot_regretful(options: ListedOptions, held: HeldSeats, nodes: Nodes, pools: int) -> CoreAllotment:
    """Return the allotment in which only gangs that regret what they have change, and gangs that make room for them.

    Prices are those of a sample of the gangs or, where many then regret staying or the answer misses more than
    `_ENOUGH` of its bound, of all.
    """
    if not len(options.worth):
        return CoreAllotment(np.full(options.rows, -1, dtype=np.intp), {}, 0.0, 0.0, np.zeros(pools), 0)
    capacity = np.bincount(nodes.pool, weights=nodes.units, minlength=pools).astype(np.intp)
    every, found = max(options.rows // _SAMPLE, 1), None
    if every > 1 and options.stays.any():  # else an allotment takes longer than prices
        near = _Standing(options, held, nodes, common_prices(options, capacity, every))
        if near.regretting <= _MANY_REGRET:
            found = near.allotted()
            if found.gap <= _ENOUGH:
                return found
    other = _Standing(options, held, nodes, common_prices(options, capacity)).allotted()
    if found is None:
        return other
    return replace(found if found.value > other.value else other, bound=min(found.bound, other.bound))


class _Standing:
    """What gangs have, which is their seats or nothing, and what they would rather have at given prices."""

    def __init__(self, options: ListedOptions, held: HeldSeats, nodes: Nodes, prices: Floats) -> None:
        self.options, self.held, self.nodes, self.prices = options, held, nodes, prices
        first = options.begin[:-1]
        able = (options.begin[1:] > first).nonzero()[0]
        self._settled = np.full(options.rows, -1, dtype=np.intp)
        """By gang the option that it has, −1 for none."""
        self._settled[able] = np.where(options.stays[first[able]], first[able], -1)
        self._net = options.worth - prices[options.pool] * options.units
        self._top = options.top(self._net)
        self._best = options.first_at(self._net, self._top)
        has, best = self._settled >= 0, self._best
        regret = np.maximum(self._top, 0.0) - np.where(has, self._net[self._settled], 0.0)
        price = np.where(best >= 0, prices[options.pool[best]] * options.units[best], 0.0)
        self._near = _NEAR * np.maximum(price, np.where(has, options.worth[self._settled], 0.0))
        self._regrets: Flags = regret > self._near

    @property
    def regretting(self) -> int:
        """The number of gangs that regret staying."""
        return int(np.count_nonzero(self._regrets & (self._settled >= 0)))

    def allotted(self) -> CoreAllotment:
        """Return the allotment in which only the core and gangs that gain by free units change, with its bound."""
        pools = len(self.prices)
        core = AllotmentCore(self.options, self.held, self.nodes, pools, self._settled, self._members())
        found = core.allotted(0.0, self.prices)
        for _ in range(_FILLS if len(core.members) <= _LARGE else 1):
            others = core.others_that_gain(found)
            if not len(others):
                break
            core = core.with_others(others)
            found = core.allotted(0.0, self.prices)
        bound = float(np.maximum(self._top, 0.0).sum() + self.prices[self.nodes.pool] @ self.nodes.units)
        bound = max(bound, found.value)
        return CoreAllotment(found.picks, found.seats, found.value, bound, self.prices, len(core.members))

    def _members(self) -> Flags:
        """By gang whether it is in the core."""
        has, best, top = self._settled >= 0, self._best, self._top
        core: Flags = self._regrets | (has & (self.held.node < 0))
        core |= self._indifferent((best >= 0) & ~has & ~core & (top >= -self._near), core)
        coming = self.options.pool[best[core & (best >= 0) & (top > 0)]]
        net = np.where(has & ~core, np.maximum(self._net[self._settled], 0.0), np.nan)
        return core | _giving_way(self.held, self.nodes, net, np.bincount(coming, minlength=len(self.prices)))

    def _indifferent(self, among: Flags, core: Flags) -> Flags:
        """Return, by gang, whether it is one of the first of ``among``, as many as fill the units not wanted."""
        units, best = self.options.units, self._best
        wanted = np.where(core, np.where(self._top > 0, best, -1), self._settled)
        left = self.nodes.units.sum() - units[wanted[wanted >= 0]].sum()
        gangs = among.nonzero()[0]
        found: Flags = np.zeros(len(among), dtype=bool)
        found[gangs[np.cumsum(units[best[gangs]]) - units[best[gangs]] < left]] = True
        return found


def common_prices(options: ListedOptions, capacity: Indices, every: int = 1) -> Floats:
    """Return, by pool, the price at which the demand of one gang in ``every`` fits into that part of the units."""
    some = options.of_rows(np.arange(0, options.rows, every)) if every > 1 else slice(None)
    row, worth, units, pool = options.row[some], options.worth[some], options.units[some], options.pool[some]
    part = (capacity / every).tolist()
    highest = float(np.max(worth / units, initial=0.0))
    common = clearing_prices([PoolOptions(row, worth, units)], options.rows, [sum(part)], highest, _PRECISE)
    if len(part) == 1:
        return common
    of_pool = [(pool == k).nonzero()[0] for k in range(len(part))]
    by_pool = [PoolOptions(row[own], worth[own], units[own]) for own in of_pool]
    return clearing_prices(by_pool, options.rows, part, highest, _PRECISE, np.repeat(common, len(part)))


def _giving_way(held: HeldSeats, nodes: Nodes, net: Floats, newcomers: Indices) -> Flags:
    """Return, by gang, whether it is on a node that costs least to clear; ``net`` is NaN for gangs that do not stay."""
    staying = np.isfinite(net).nonzero()[0]
    count = len(nodes.units)
    at_stake = np.bincount(held.node[staying], weights=net[staying], minlength=count)
    taken = np.bincount(held.node[staying], minlength=count) > 0
    cleared = np.zeros(count, dtype=bool)
    for pool, coming in enumerate(newcomers.tolist()):
        there = ((nodes.pool == pool) & taken).nonzero()[0] if coming else staying[:0]
        spare = _SPARE_NODES + coming
        cleared[there if len(there) <= spare else there[np.argsort(at_stake[there], kind="stable")[:spare]]] = True
    found: Flags = np.zeros(len(net), dtype=bool)
    found[staying[cleared[held.node[staying]]]] = True
    return found
