"""One stage: the largest τ whose levels fit, with prices that prove nothing larger does.

Levels u fit if and only if no prices p ≥ 0 make the cheapest ways to u cost more than the capacities are worth:
D(p) = Σ cost(u, p) − c·p ≤ 0. With q = c·p a response to q is a column g = usage/c − 1, and D(q) = g·q. Responses
are collected in a game whose value bounds D from above; once some q shows a D close to that bound, τ falls to where
everyone fits at that q: never below the answer, whatever the shape of the path.
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
"""Relative to capacity: what one stage may overdraw. Each is granted that much more than the last one left behind, or
it would begin infeasible."""
_CLOSE = 0.9
"""τ falls when the best D found is this close to the game's bound: before that, better prices would tell more."""
_REACH = 4.0
"""How far the prices of closed types may go at first, in units of all open ones; enlarged when they bind."""
_FAR = 1e9
_TURNS = 500
_ULP = 2e-16
_PART = 1e-6
"""The first step down where no root can be told, relative to τ and as a part of one such step."""
_NEAR = 1e-3
"""How close to its root D is brought in one fall, relative to where it was: the next prices ask for more anyway."""


@dataclass(frozen=True, slots=True)
class RemainingSupply:
    """What there is, and what is held by rows whose level is settled.

    The prices of the ``open`` types sum to one. The other types are exhausted: they matter only where rows on the menu
    could still trade them for open ones.
    """

    capacity: Floats
    open: Flags
    held: Floats
    menu: TiedMixes

    def column(self, crowd: MarketRows, q: Floats) -> Floats:
        """How far everyone's cheapest answer to q overdraws each type, as a fraction of it."""
        p = q / self.capacity
        used = self.held + self.menu.usage(p)
        used[self.open] += crowd.usage(p[self.open])
        column: Floats = used / self.capacity - 1.0
        return column

    def overdraft(self) -> float:
        """By how much, at the least, frozen rows overdraw a closed type: what rounding left of earlier stages."""
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
    """Where a search came to rest: the levels, the prices that brought it there, and responses whose mix fits.

    Nothing above ``tau`` fits and the path at ``below`` does; they are one but where two levels that matter have no τ
    between them. ``overdrawn`` is how far the mix overdraws each type, negative where some of it stays idle, and
    ``unproven`` how much of everything the prices leave unaccounted for: above 0 they prove less than they should.
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
    """The straight line from one level of a path to the next that a float can name: a part of it, from 0 to 1."""

    lower: Floats
    upper: Floats

    def at(self, part: float) -> Floats:
        return np.minimum(self.lower + part * (self.upper - self.lower), self.upper)


class _Descent:
    """A place on the path that only ever moves down, between two neighbouring floats where there is need."""

    __slots__ = ("_climb", "_fine", "_floor", "_nudge", "_part", "_step", "below", "tau")

    def __init__(self, climb: BoundedPath, floor: float) -> None:
        self._climb, self._floor, self._nudge = climb, floor, _ULP
        self.tau = self.below = climb.top
        self._fine: _Between | None = None
        self._part, self._step = 1.0, _PART

    def levels(self) -> Floats:
        return self._climb.at(self.tau) if self._fine is None else self._fine.at(self._part)

    def blur(self) -> float:
        """By how much levels may be off because the path bends, at a row's stop, where the straight line does not."""
        if self._fine is None:
            return 0.0
        stop, rise = self._climb.at(self._climb.top), self._fine.upper - self._fine.lower
        bends = (rise > 0) & (self._fine.upper >= stop)
        return float((rise[bends] / stop[bends]).max(initial=0.0))

    def fall(self, overdrawn: Callable[[Floats], float], excess: float) -> None:
        """Down to where next to nothing is overdrawn; some way down in any case."""
        if self._fine is not None:
            self._fall_between(self._fine, overdrawn, excess)
            return
        tau = root_from_above(lambda at: overdrawn(self._climb.at(at)), self._floor, self.tau, excess)
        if tau < self.tau:
            self.tau = self.below = tau
            self._nudge = _ULP
            return
        # Where a sum mixes levels of very unlike size, τ is too coarse to tell which of them still fit.
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
    """One market, the rows that still rise in it, and the way they rise."""

    market: RemainingSupply
    climb: BoundedPath
    crowd: MarketRows
    active: Indices
    floor: float

    def run(self) -> Rest:
        """Down from the top until the responses fit."""
        turn, reach = 0, _REACH
        place = _Descent(self.climb, self.floor)
        points = [self.market.open / self.market.open.sum()]
        while True:
            levels = place.levels()
            self.crowd.stand(levels[self.active])
            cuts = _Cuts(self.market, self.crowd, reach, points)
            while True:
                answer = cuts.game.solve()
                # Where rounding keeps the game from closing, after many turns a little more will do.
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
                # Between the best and the model's own choice cuts tell most; every so often only its own will do.
                cuts.add(answer.prices if turn % 4 == 0 else 0.5 * (answer.prices + cuts.best))
            place.fall(self._overdrawn(cuts.best), cuts.most)
            turn += 1
            used = [q for q, x in zip(cuts.points, answer.mix.tolist(), strict=True) if x > 0 and q is not cuts.best]
            points, reach = [*used, cuts.best], cuts.reach

    def _overdrawn(self, q: Floats) -> Callable[[Floats], float]:
        """D at these prices as a function of all levels."""
        p = q / self.market.capacity
        hull = self.crowd.hull(p[self.market.open])
        spare = float(q.sum() - (self.market.held + self.market.menu.usage(p)) @ p)
        return lambda levels: float(self.crowd.gangs @ hull.cost(levels[self.active])) - spare


def root_from_above(rising: Callable[[float], float], low: float, high: float, at_high: float) -> float:
    """The end of a bracket of the root where the function is not negative, and small beside what it was at the start.

    False position; an end that stays twice is given half its weight (Illinois).
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
    """The responses collected at one τ, the game they make, and the point with the greatest D among them."""

    __slots__ = ("_crowd", "_market", "best", "columns", "game", "most", "points", "reach")

    def __init__(self, market: RemainingSupply, crowd: MarketRows, reach: float, points: list[Floats]) -> None:
        self._market, self._crowd, self.reach = market, crowd, reach
        self.game = Game(market.open, reach)
        self.points: list[Floats] = []
        self.columns: list[Floats] = []
        self.best, self.most = points[0], -np.inf
        for q in points:
            self.add(q)

    def add(self, q: Floats) -> None:
        column = self._market.column(self._crowd, q)
        self.game.add(column)
        self.points.append(q)
        self.columns.append(column)
        found = float(column @ q)
        if found > self.most:
            self.best, self.most = q, found

    def extend(self) -> None:
        self.reach *= 8.0
        self.game.extend(self.reach)
