"""One stage: the largest τ whose levels fit, with prices that prove that no larger one does.

Levels u fit if and only if no prices p ≥ 0 make the cheapest mixes that reach u cost more than the capacities are
worth: D(p) = Σ cost(u, p) − c·p ≤ 0. With q = c·p, the response to q is a column g = usage/c − 1, and D(q) = g·q.
Responses are collected in a game whose value bounds D from above. Once some q shows a D close to that bound, τ falls to
the root of D at that q, which is never below the answer, whatever the shape of the path.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices
from shoal.solve.prices.game import Game
from shoal.solve.prices.oracle import MarketRows
from shoal.solve.prices.paths import BoundedPath
from shoal.solve.prices.ties import TiedMixes

STEP = 1e-12
"""Fraction of capacity that one stage may overdraw beyond the stages before it: else it would start infeasible."""
_CLOSE = 0.9
"""τ falls when the best D found is this fraction of the game's bound; before that, better prices are sought."""
_REACH = 4.0
"""The first limit on prices of closed types, in units of all open ones; enlarged when it binds."""
_FAR = 1e9
_TURNS = 500
_ULP = 2e-16
_PART = 1e-6
"""The first step down where no root can be resolved, as a fraction of the segment between two floats τ."""
_NEAR = 1e-3
"""How far D is reduced in one fall, relative to its start: the next prices change it anyway."""


@dataclass(frozen=True, slots=True)
class RemainingSupply:
    """Capacity, and the part of it that rows with a settled level hold.

    The prices of the ``open`` types sum to one. The other types are exhausted; they count only where rows on the menu
    could trade them for open ones.
    """

    capacity: Floats
    open: Flags
    held: Floats
    menu: TiedMixes

    def column(self, oracle: MarketRows, q: Floats) -> Floats:
        """The response g to q: how far the cheapest mixes overdraw each type, as a fraction of its capacity."""
        p = q / self.capacity
        used = self.held + self.menu.usage(p)
        used[self.open] += oracle.usage(p[self.open])
        column: Floats = used / self.capacity - 1.0
        return column

    def overdraft(self) -> float:
        """The least possible overdraft of a closed type by frozen rows, left by rounding in earlier stages."""
        closed = ~self.open
        if not closed.any():
            return 0.0
        capacity, menu = self.capacity[closed], self.menu.over(np.flatnonzero(closed))
        game, q = Game(np.ones(len(capacity), dtype=bool), 0.0), np.full(len(capacity), 1.0 / len(capacity))
        shown = -np.inf
        for _ in range(_TURNS):
            column = (self.held[closed] + menu.usage(q / capacity)) / capacity - 1.0
            game.add(column)
            answer, shown = game.solve(), max(shown, float(column @ q))
            if answer.value <= max(shown, 0.0) + 1e-15:
                break
            q = answer.prices
        return max(answer.value, 0.0)


@dataclass(frozen=True, slots=True)
class Rest:
    """The end of a search: levels, the prices that prove them, and responses whose mix fits.

    Nothing above ``tau`` fits and the path at ``below`` does; they differ only where no float lies between two levels
    that matter. ``overdrawn`` is how far the mix overdraws each type, negative where capacity is idle, and ``unproven``
    the fraction of capacity that the prices leave unaccounted for.
    """

    tau: float
    below: float
    levels: Floats
    unproven: float
    prices: Floats
    points: list[Floats]
    mix: Floats
    overdrawn: Floats


@dataclass(frozen=True, slots=True)
class _Between:
    """The segment between the levels at two neighbouring floats τ, by a part from 0 to 1."""

    lower: Floats
    upper: Floats

    def at(self, part: float) -> Floats:
        return np.minimum(self.lower + part * (self.upper - self.lower), self.upper)


class _Descent:
    """A position on the path that only moves down, between two neighbouring floats where needed."""

    __slots__ = ("_climb", "_fine", "_floor", "_nudge", "_part", "_step", "below", "tau")

    def __init__(self, climb: BoundedPath, floor: float) -> None:
        self._climb, self._floor, self._nudge = climb, floor, _ULP
        self.tau = self.below = climb.top
        self._fine: _Between | None = None
        self._part, self._step = 1.0, _PART

    def levels(self) -> Floats:
        return self._climb.at(self.tau) if self._fine is None else self._fine.at(self._part)

    def blur(self) -> float:
        """Return the largest relative error of levels interpolated on a straight segment across a bend of the path."""
        if self._fine is None:
            return 0.0
        stop, rise = self._climb.at(self._climb.top), self._fine.upper - self._fine.lower
        bends = (rise > 0) & (self._fine.upper >= stop)
        return float((rise[bends] / stop[bends]).max(initial=0.0))

    def fall(self, overdrawn: Callable[[Floats], float], excess: float) -> None:
        """Move down to where D is nearly 0, and by some step in any case."""
        if self._fine is not None:
            self._fall_between(self._fine, overdrawn, excess)
            return
        tau = root_from_above(lambda at: overdrawn(self._climb.at(at)), self._floor, self.tau, excess)
        if tau < self.tau:
            self.tau = self.below = tau
            self._nudge = _ULP
            return
        # Where a sum mixes levels of very different size, τ is too coarse to tell which of them still fit.
        self.below = self.tau * (1.0 - self._nudge)
        self._fine = _Between(self._climb.at(self.below), self._climb.at(self.tau))
        self._part, self._step, self._nudge = 1.0, _PART, 2 * self._nudge

    def _fall_between(self, fine: _Between, overdrawn: Callable[[Floats], float], excess: float) -> None:
        part = root_from_above(lambda at: overdrawn(fine.at(at)), 0.0, self._part, excess)
        if part < self._part:
            self._part = part
        elif part > 0.0:
            # Where two speeds are all but equal, a cost can jump within one ulp of a level.
            self._part, self._step = max(part - self._step, 0.0), 2 * self._step
        else:
            self.tau, self._fine = self.below, None


@dataclass(frozen=True, slots=True)
class StageSearch:
    """One stage's supply, the rows that still rise, and their path."""

    market: RemainingSupply
    climb: BoundedPath
    oracle: MarketRows
    active: Indices
    floor: float

    def run(self) -> Rest:
        """Move down from the top of the path until the responses fit."""
        turn, reach = 0, _REACH
        place = _Descent(self.climb, self.floor)
        points = [self.market.open / self.market.open.sum()]
        while True:
            levels = place.levels()
            self.oracle.set_levels(levels[self.active])
            cuts = _Cuts(self.market, self.oracle, reach, points)
            while True:
                answer = cuts.game.solve()
                # Where rounding keeps the game from closing, the tolerance doubles every 25 turns after 100.
                fits = answer.value <= STEP * 2.0 ** max(0, turn // 25 - 4)
                if fits and answer.unmet > STEP and cuts.reach < _FAR:
                    cuts.extend()
                    continue
                if fits or turn >= _TURNS:
                    arrived = place.below >= self.climb.top
                    unproven = 0.0 if arrived else max(-cuts.most, place.blur())
                    overdrawn = answer.mix @ np.array(cuts.columns)
                    return Rest(place.tau, place.below, levels, unproven, cuts.best, cuts.points, answer.mix, overdrawn)
                if cuts.most > _CLOSE * answer.value:
                    break
                turn += 1
                # Cuts midway between the best prices and the game's own help most; every fourth is at the game's own.
                cuts.add(answer.prices if turn % 4 == 0 else 0.5 * (answer.prices + cuts.best))
            place.fall(self._overdrawn(cuts.best), cuts.most)
            turn += 1
            used = [q for q, x in zip(cuts.points, answer.mix.tolist(), strict=True) if x > 0 and q is not cuts.best]
            points, reach = [*used, cuts.best], cuts.reach

    def _overdrawn(self, q: Floats) -> Callable[[Floats], float]:
        """D at these prices as a function of all levels."""
        p = q / self.market.capacity
        hull = self.oracle.hull(p[self.market.open])
        spare = float(q.sum() - (self.market.held + self.market.menu.usage(p)) @ p)
        return lambda levels: float(self.oracle.gangs @ hull.cost(levels[self.active])) - spare


def root_from_above(rising: Callable[[float], float], low: float, high: float, at_high: float) -> float:
    """The upper end of a bracket of the root, where the function is at least 0 and small relative to ``at_high``.

    False position; the value at an end that stays twice is halved (Illinois).
    """
    goal = max(_NEAR * at_high, 1e-16)
    at_low = rising(low)
    if at_low >= 0:
        return low
    stayed = 0
    for _ in range(100):
        middle = high - at_high * (high - low) / (at_high - at_low)
        if not low < middle < high:
            middle = 0.5 * (low + high)
            if middle in (low, high):
                break
        value = rising(middle)
        if value >= 0:
            high, at_high = middle, value
            if value <= goal:
                break
            at_low *= 0.5 if stayed > 0 else 1.0
            stayed = 1
        else:
            low, at_low = middle, value
            at_high *= 0.5 if stayed < 0 else 1.0
            stayed = -1
    return high


class _Cuts:
    """The responses collected at one τ, their game, and the prices with the greatest D among them."""

    __slots__ = ("_market", "_oracle", "best", "columns", "game", "most", "points", "reach")

    def __init__(self, market: RemainingSupply, oracle: MarketRows, reach: float, points: list[Floats]) -> None:
        self._market, self._oracle, self.reach = market, oracle, reach
        self.game = Game(market.open, reach)
        self.points: list[Floats] = []
        self.columns: list[Floats] = []
        self.best, self.most = points[0], -np.inf
        for q in points:
            self.add(q)

    def add(self, q: Floats) -> None:
        column = self._market.column(self._oracle, q)
        self.game.add(column)
        self.points.append(q)
        self.columns.append(column)
        found = float(column @ q)
        if found > self.most:
            self.best, self.most = q, found

    def extend(self) -> None:
        self.reach *= 8.0
        self.game.extend(self.reach)
