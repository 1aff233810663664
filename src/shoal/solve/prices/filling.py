"""Water filling: raise all rows along a path, freeze those that cannot rise, continue with the others.

At the largest feasible τ there are prices at which the cheapest mixes of all rows cost exactly what the priced types
are worth. These types are then exhausted and closed to rows that may still rise, and a row whose fastest open type is
no faster than its level is frozen: no linear program per row is needed, and there is at most one stage per type. A
frozen row can only use its cheapest mixes at those prices; where there are several it stays free among them.
"""

from dataclasses import dataclass, replace

import numpy as np

from shoal.core.arrays import Floats, Indices
from shoal.solve.prices.oracle import MarketRows
from shoal.solve.prices.paths import Path
from shoal.solve.prices.stage import STEP, RemainingSupply, Rest, StageSearch
from shoal.solve.prices.ties import TiedMixes

_PRICED = 1e-7
"""A type with more than this fraction of all prices is closed; one left open in doubt is closed by the next stage."""
_PRICED_IF_FULL = 1e-11
"""The same threshold for a type without idle capacity, which would be ill-conditioned in the next stage."""
_STOPPED = 1e-9
_SAME = 1e-9


@dataclass(frozen=True, slots=True)
class StageCertificate:
    """A certificate: at these prices per unit of capacity, levels above τ cost more than all capacity is worth.

    ``prices`` times capacity sums to one over the types that were open; ``frozen`` are the rows that stopped here.
    """

    tau: float
    prices: Floats
    frozen: Indices


@dataclass(frozen=True, slots=True)
class Filled:
    """Shares that reach the levels, within capacity up to rounding; on request every mix with these levels (``menu``).

    ``unproven`` is the largest fraction of open capacity that a stage's prices leave unaccounted for.
    """

    shares: Floats
    levels: Floats
    stages: tuple[StageCertificate, ...]
    unproven: float
    menu: TiedMixes | None


def fill(
    speeds: Floats,
    gangs: Floats,
    capacity: Floats,
    path: Path,
    *,
    most: int | None = None,
    tie: float = 1e-9,
    every_way: bool = False,
) -> Filled:
    """The water-filled shares along the path, or those of its first ``most`` stages.

    ``speeds`` is rows × types, 0 where a row cannot run; every row can run somewhere. Mixes that cost within ``tie`` of
    the cheapest, relative to the highest price, count as equal.
    """
    pool = _Pool(speeds, gangs, capacity, path, tie)
    stages: list[StageCertificate] = []
    unproven = 0.0
    while True:
        search, types = pool.search()
        rest = search.run()
        unproven = max(unproven, rest.unproven)
        shares = pool.shares(search, rest)
        arrived = rest.below >= search.climb.top
        stage = pool.close(search, types, rest, final=arrived)
        if not arrived:
            stages.append(stage)
        if not pool.rising or len(stages) == most:
            menu = pool.every_way() if every_way else None
            return Filled(shares, rest.levels, tuple(stages), unproven, menu)


class _Pool:
    """The state between stages: rows that still rise, types with free capacity, and what frozen rows hold."""

    def __init__(self, speeds: Floats, gangs: Floats, capacity: Floats, path: Path, tie: float) -> None:
        rows, types = speeds.shape
        self._speeds, self._gangs, self._capacity, self._path, self._tie = speeds, gangs, capacity, path, tie
        self._stop = speeds.max(axis=1, initial=0.0)
        self._open = np.ones(types, dtype=bool)
        self._fixed = np.zeros((rows, types))
        self._held = np.zeros(types)
        self._menu = TiedMixes(np.zeros(0, dtype=np.intp), np.zeros((0, types)), np.zeros(0))
        self._tau, self._slack = 0.0, 0.0
        self._reached = np.zeros(rows)
        self.active: Indices = np.arange(rows)

    @property
    def rising(self) -> bool:
        """Whether some row could still rise on an open type."""
        return bool((self._open & (self._speeds[self.active] > 0).any(axis=0)).any())

    def search(self) -> tuple[StageSearch, Indices]:
        """Return the next stage and its types: the open ones, and closed ones that frozen rows could still trade."""
        self._slack += STEP
        self._open &= (self._speeds[self.active] > 0).any(axis=0)
        traded = np.ptp(self._menu.shares, axis=0) > 0 if len(self._menu) else np.zeros_like(self._open)
        types = np.flatnonzero(self._open | traded)
        market = RemainingSupply(self._capacity[types], self._open[types], self._held[types], self._menu.over(types))
        slack = np.where(market.open, self._slack, max(self._slack, market.overdraft() + STEP))
        market = replace(market, capacity=market.capacity * (1.0 + slack))
        oracle = MarketRows(np.ascontiguousarray(self._speeds[self.active][:, self._open].T), self._gangs[self.active])
        return StageSearch(market, self._path.climb(self._stop), oracle, self.active, self._tau), types

    def shares(self, search: StageSearch, rest: Rest) -> Floats:
        """The mix of responses at which a stage came to rest, as time fractions of all rows."""
        shares = self._fixed.copy()
        search.oracle.set_levels(rest.levels[self.active])
        market, reached = search.market, np.ix_(self.active, self._open)
        for q, x in zip(rest.points, rest.mix.tolist(), strict=True):
            if x > 0:
                p = q / market.capacity
                shares[reached] += x * search.oracle.shares(p[market.open])
                # The same menu as in the game: costs summed over other types might break ties differently.
                way = market.menu.choose(p)
                shares[self._menu.owner[way]] += x * self._menu.shares[way]
        return shares

    def close(self, search: StageSearch, types: Indices, rest: Rest, *, final: bool) -> StageCertificate:
        """Close the types with a price and freeze rows without a faster open type; in the final stage all rows."""
        p = np.zeros(len(self._open))
        p[types] = rest.prices / search.market.capacity
        q, idle = rest.prices[search.market.open], rest.overdrawn[search.market.open] < -10 * STEP
        still_open = self._open.copy()
        still_open[self._open] = (q < min(_PRICED, float(q.max()))) & (idle | (q < _PRICED_IF_FULL))
        self._reached = rest.levels
        levels = rest.levels[self.active]
        fastest = np.where(still_open, self._speeds[self.active], 0.0).max(axis=1, initial=0.0)
        stuck = final | (levels >= fastest * (1.0 - _STOPPED))
        self._freeze(search.oracle, p, np.flatnonzero(stuck), np.inf if final else self._tie * float(p.max()))
        frozen = self.active[stuck]
        self._stop[self.active] = np.where(stuck, levels, fastest)
        self._slack += max(STEP, float(rest.overdrawn.max()))
        self._open, self._tau, self.active = still_open, rest.below, self.active[~stuck]
        return StageCertificate(rest.tau, p, frozen)

    def _freeze(self, oracle: MarketRows, p: Floats, stuck: Indices, tolerance: float) -> None:
        """Fix rows with one cheapest mix; other rows, and rows already on the menu, keep the mixes that tie."""
        if len(self._menu) and np.isfinite(tolerance):
            self._menu = self._menu.only(self._menu.within(p, tolerance))
        self._menu = self._menu.joined(self._ways(oracle, p, stuck, tolerance))
        ways, one = self._menu.decided(_SAME)
        self._fixed[self._menu.owner[one]] = self._menu.shares[one]
        self._held += self._menu.gangs[one] @ self._menu.shares[one]
        self._menu = self._menu.only(~ways)

    def _ways(self, oracle: MarketRows, p: Floats, rows: Indices, tolerance: float) -> TiedMixes:
        owner, ways = oracle.cheapest_face(p[self._open], rows, tolerance)
        shares = np.zeros((len(owner), len(p)))
        shares[:, self._open] = ways
        rows = self.active[rows][owner]
        return TiedMixes(rows, shares, self._gangs[rows])

    def every_way(self) -> TiedMixes:
        """Every mix that leaves all levels unchanged: the one mix of fixed rows, the menu of the others."""
        single = np.setdiff1d(np.arange(len(self._stop)), np.concatenate([self._menu.owner, self.active]))
        menu = self._menu.joined(TiedMixes(single, self._fixed[single], self._gangs[single]))
        if len(self.active):
            oracle = MarketRows(
                np.ascontiguousarray(self._speeds[self.active][:, self._open].T), self._gangs[self.active]
            )
            oracle.set_levels(self._reached[self.active])
            menu = menu.joined(self._ways(oracle, np.zeros(len(self._open)), np.arange(len(self.active)), np.inf))
        return menu
