"""One stage: the largest τ whose levels fit, with prices that prove nothing larger does.

Levels u fit if and only if no prices p ≥ 0 make the cheapest ways to u cost more than the capacities are worth:
D(p) = Σ cost(u, p) − c·p ≤ 0. With q = c·p a response to q is a column g = usage/c − 1, and D(q) = g·q. Responses
are collected in a game whose value bounds D from above; once some q shows a D close to that bound, τ falls to where
everyone fits at that q: never below the answer, whatever the shape of the path.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shoal.solve.prices.game import Game
from shoal.solve.prices.menu import Menu
from shoal.solve.prices.oracle import Crowd, Floats, Ints
from shoal.solve.prices.paths import Climb

STEP = 1e-12
"""Relative to capacity: what one stage may overdraw. Each is granted that much more than the last one left behind, or
it would begin infeasible."""
_CLOSE = 0.9
"""τ falls when the best D found is this close to the game's bound: before that, better prices would tell more."""
_REACH = 4.0
"""How far the prices of closed types may go at first, in units of all open ones; enlarged when they bind."""
_FAR = 1e9
_TURNS = 500
_NEAR = 1e-3
"""How close to its root D is brought in one fall, relative to where it was: the next prices ask for more anyway."""


@dataclass(frozen=True, slots=True)
class Market:
    """What there is, and what is held by rows whose level is settled.

    The prices of the ``open`` types sum to one. The other types are exhausted: they matter only where rows on the menu
    could still trade them for open ones.
    """

    capacity: Floats
    open: NDArray[np.bool_]
    held: Floats
    menu: Menu

    def column(self, crowd: Crowd, q: Floats) -> Floats:
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
    """Where a search came to rest: τ, the prices that brought it there, and responses whose mix fits at τ.

    ``overdrawn`` is how far the mix overdraws each type, negative where some of it stays idle.
    """

    tau: float
    prices: Floats
    points: list[Floats]
    mix: Floats
    overdrawn: Floats


@dataclass(frozen=True, slots=True)
class Search:
    """One market, the rows that still rise in it, and the way they rise."""

    market: Market
    climb: Climb
    crowd: Crowd
    active: Ints
    floor: float

    def stand(self, tau: float) -> None:
        """Put the crowd where the path is at τ."""
        self.crowd.stand(self.climb.at(tau)[self.active])

    def run(self) -> Rest:
        """Down from the top until the responses fit."""
        tau, turn, reach, nudge = self.climb.top, 0, _REACH, 2e-16
        points = [self.market.open / self.market.open.sum()]
        while True:
            self.stand(tau)
            cuts = _Cuts(self.market, self.crowd, reach, points)
            while True:
                answer = cuts.game.solve()
                # Where rounding keeps the game from closing, after many turns a little more will do.
                fits = answer.value <= STEP * 2.0 ** max(0, turn // 25 - 4)
                if fits and answer.unmet > STEP and cuts.reach < _FAR:
                    cuts.extend()
                    continue
                if fits or turn >= _TURNS:
                    return Rest(tau, cuts.best, cuts.points, answer.mix, answer.mix @ np.array(cuts.columns))
                if cuts.most > _CLOSE * answer.value:
                    break
                turn += 1
                # Between the best and the model's own choice cuts tell most; every so often only its own will do.
                cuts.add(answer.prices if turn % 4 == 0 else 0.5 * (answer.prices + cuts.best))
            lower = self._fall(cuts.best, tau, cuts.most)
            turn += 1
            # Where two speeds are all but equal, a cost can jump within one ulp of τ.
            nudge = 2e-16 if lower < tau else 2 * nudge
            tau = lower if lower < tau else tau * (1.0 - nudge)
            used = [q for q, x in zip(cuts.points, answer.mix.tolist(), strict=True) if x > 0 and q is not cuts.best]
            points, reach = [*used, cuts.best], cuts.reach

    def _fall(self, q: Floats, tau: float, excess: float) -> float:
        """From where D is ``excess`` at q down to where it is next to nothing, never to where it is below nothing."""
        p = q / self.market.capacity
        hull = self.crowd.hull(p[self.market.open])
        spare = float(q.sum() - (self.market.held + self.market.menu.usage(p)) @ p)

        def overdrawn(at: float) -> float:
            return float(self.crowd.gangs @ hull.cost(self.climb.at(at)[self.active])) - spare

        return root_from_above(overdrawn, self.floor, tau, excess)


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

    def __init__(self, market: Market, crowd: Crowd, reach: float, points: list[Floats]) -> None:
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
