"""Water filling: raise everyone along a path, freeze who cannot rise, go on with the others; at most one stage a type.

At the largest τ there are prices at which everyone's cheapest ways cost exactly what the priced types are worth. From
then on those types are exhausted and closed to all who may still rise, and a row whose fastest open type is no faster
than its level can never rise again: no linear program per row is needed to know whom to freeze. A frozen row can only
ever use its cheapest ways at those prices; where there are several it stays free among them.
"""

from dataclasses import dataclass, replace

import numpy as np

from shoal.core.arrays import Floats, Indices
from shoal.solve.prices.oracle import MarketRows
from shoal.solve.prices.paths import Path
from shoal.solve.prices.stage import STEP, RemainingSupply, Rest, StageSearch
from shoal.solve.prices.ties import TiedMixes

_PRICED = 1e-7
"""A type with more than this of all prices is closed; one left open in doubt is closed by the next stage."""
_FAINTLY = 1e-11
"""And one with more than this if none of it is idle: beside prices that much higher it would spoil the next stage."""
_STOPPED = 1e-9
_SAME = 1e-9


@dataclass(frozen=True, slots=True)
class StageCertificate:
    """A certificate: with these prices per unit of capacity, nothing above τ can be paid for by all there is.

    ``prices`` times capacity sums to one over the types that were open; ``frozen`` are the rows that stopped here.
    """

    tau: float
    prices: Floats
    frozen: Indices


@dataclass(frozen=True, slots=True)
class Filled:
    """Shares that reach the levels, up to rounding within capacity; on request, every other way to the same levels.

    ``unproven`` is the most that a stage's prices leave unaccounted for, as a fraction of all that was open.
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
    """Water fill along the path, or only its first ``most`` stages.

    ``speeds`` is rows × types with 0 where a row cannot go, every row with a way to go. Ways that cost within ``tie``
    of the cheapest, relative to the highest price, count as equal.
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
    """The state between stages: who still rises, which types are open, and what the frozen hold."""

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
        """Whether anyone is left who could still rise on a type that is open."""
        return bool((self._open & (self._speeds[self.active] > 0).any(axis=0)).any())

    def search(self) -> tuple[StageSearch, Indices]:
        """The next stage, and the types it is about: the open ones, and those the menu could still trade."""
        self._slack += STEP
        self._open &= (self._speeds[self.active] > 0).any(axis=0)
        traded = np.ptp(self._menu.shares, axis=0) > 0 if len(self._menu) else np.zeros_like(self._open)
        types = np.flatnonzero(self._open | traded)
        market = RemainingSupply(self._capacity[types], self._open[types], self._held[types], self._menu.over(types))
        slack = np.where(market.open, self._slack, max(self._slack, market.overdraft() + STEP))
        market = replace(market, capacity=market.capacity * (1.0 + slack))
        crowd = MarketRows(np.ascontiguousarray(self._speeds[self.active][:, self._open].T), self._gangs[self.active])
        return StageSearch(market, self._path.climb(self._stop), crowd, self.active, self._tau), types

    def shares(self, search: StageSearch, rest: Rest) -> Floats:
        """The mix of responses at which a stage came to rest, as time fractions of all rows."""
        shares = self._fixed.copy()
        search.crowd.stand(rest.levels[self.active])
        market, reached = search.market, np.ix_(self.active, self._open)
        for q, x in zip(rest.points, rest.mix.tolist(), strict=True):
            if x > 0:
                p = q / market.capacity
                shares[reached] += x * search.crowd.shares(p[market.open])
                # The very menu that answered in the game: costs summed over other types might break ties otherwise.
                way = market.menu.choose(p)
                shares[self._menu.owner[way]] += x * self._menu.shares[way]
        return shares

    def close(self, search: StageSearch, types: Indices, rest: Rest, *, final: bool) -> StageCertificate:
        """Close the types that carry a price and freeze whoever has nothing faster left; in the end everyone."""
        p = np.zeros(len(self._open))
        p[types] = rest.prices / search.market.capacity
        q, idle = rest.prices[search.market.open], rest.overdrawn[search.market.open] < -10 * STEP
        still_open = self._open.copy()
        still_open[self._open] = (q < min(_PRICED, float(q.max()))) & (idle | (q < _FAINTLY))
        self._reached = rest.levels
        levels = rest.levels[self.active]
        fastest = np.where(still_open, self._speeds[self.active], 0.0).max(axis=1, initial=0.0)
        stuck = final | (levels >= fastest * (1.0 - _STOPPED))
        self._freeze(search.crowd, p, np.flatnonzero(stuck), np.inf if final else self._tie * float(p.max()))
        frozen = self.active[stuck]
        self._stop[self.active] = np.where(stuck, levels, fastest)
        self._slack += max(STEP, float(rest.overdrawn.max()))
        self._open, self._tau, self.active = still_open, rest.below, self.active[~stuck]
        return StageCertificate(rest.tau, p, frozen)

    def _freeze(self, crowd: MarketRows, p: Floats, stuck: Indices, tolerance: float) -> None:
        """Rows with one cheapest way take it for good; the others keep what ties, as do those already on the menu."""
        if len(self._menu) and np.isfinite(tolerance):
            self._menu = self._menu.only(self._menu.within(p, tolerance))
        self._menu = self._menu.joined(self._ways(crowd, p, stuck, tolerance))
        ways, one = self._menu.decided(_SAME)
        self._fixed[self._menu.owner[one]] = self._menu.shares[one]
        self._held += self._menu.gangs[one] @ self._menu.shares[one]
        self._menu = self._menu.only(~ways)

    def _ways(self, crowd: MarketRows, p: Floats, rows: Indices, tolerance: float) -> TiedMixes:
        owner, ways = crowd.cheapest_face(p[self._open], rows, tolerance)
        shares = np.zeros((len(owner), len(p)))
        shares[:, self._open] = ways
        rows = self.active[rows][owner]
        return TiedMixes(rows, shares, self._gangs[rows])

    def every_way(self) -> TiedMixes:
        """All that rows could do without a change of level: the one way of who is fixed, the menu of who is not."""
        single = np.setdiff1d(np.arange(len(self._stop)), np.concatenate([self._menu.owner, self.active]))
        menu = self._menu.joined(TiedMixes(single, self._fixed[single], self._gangs[single]))
        if len(self.active):
            crowd = MarketRows(
                np.ascontiguousarray(self._speeds[self.active][:, self._open].T), self._gangs[self.active]
            )
            crowd.stand(self._reached[self.active])
            menu = menu.joined(self._ways(crowd, np.zeros(len(self._open)), np.arange(len(self.active)), np.inf))
        return menu
