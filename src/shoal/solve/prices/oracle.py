"""The cheapest mix of types that reaches a level, for every row at once, at any prices.

A row with speeds T and price p_j per unit of time on type j reaches level u at least cost on the lower hull of the
points (0, 0) and (T_j, p_j): on one type for part of the time, or on two types that straddle u for all of it. With
idling as one more type of speed 0 and price 0, both are a *pair* (j, k) with x_j = (u − T_k)/(T_j − T_k) in [0, 1] and
x_k = 1 − x_j. One evaluation costs rows × types² / 2.
"""

from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Floats, Indices


@dataclass(frozen=True, slots=True)
class Hull:
    """The least cost of each row as a function of its level at fixed prices: convex, the maximum of a few lines."""

    slopes: Floats
    intercepts: Floats

    def cost(self, levels: Floats) -> Floats:
        """The least costs of these levels."""
        highest: Floats = (self.slopes * levels + self.intercepts).max(axis=0)
        return highest


class MarketRows:
    """The pairs of all rows. ``speeds`` is types × rows, 0 for a type that a row cannot use."""

    __slots__ = (
        "_all", "_at", "_below", "_costs", "_gap", "_high", "_low", "_mask", "_penalty", "_rank",
        "gangs", "levels", "speeds",
    )  # fmt: skip

    def __init__(self, speeds: Floats, gangs: Floats) -> None:
        types, rows = speeds.shape
        pairs = [(j, types) for j in range(types)] + [(j, k) for j in range(types) for k in range(j + 1, types)]
        self._high, self._low = (np.array(side, dtype=np.intp) for side in zip(*pairs, strict=True))
        self.speeds, self.gangs, self.levels = speeds, gangs, np.zeros(rows)
        usable = np.vstack([np.where(speeds > 0, speeds, np.nan), np.zeros(rows)])
        self._below = usable[self._low]
        self._gap = usable[self._high] - self._below
        # No level lies between the members of such a pair; the quotient must still be a number.
        never = np.isnan(self._gap) | (self._gap == 0.0)
        self._below[never], self._gap[never] = -1.0, 1e-9
        self._at, self._penalty, self._costs = (np.empty_like(self._gap) for _ in range(3))
        self._mask = np.empty(self._gap.shape, dtype=bool)
        self._all = np.arange(rows)
        self._rank = np.arange(len(pairs), 0, -1, dtype=np.uint8 if len(pairs) < 256 else np.uint16)[:, None]

    def set_levels(self, levels: Floats) -> None:
        """Set the levels to reach; none may exceed the row's fastest type."""
        self.levels = levels
        types = len(self.speeds)
        at, mask, penalty = self._at, self._mask, self._penalty
        np.subtract(levels, self._below, out=at)
        np.divide(at, self._gap, out=at)
        off_centre = np.abs(np.subtract(at, 0.5, out=penalty), out=penalty)
        # A level that equals a speed belongs to that type alone: mixed pairs only strictly between.
        np.less_equal(off_centre[:types], 0.5, out=mask[:types])
        np.less(off_centre[types:], 0.5, out=mask[types:])
        penalty.fill(np.inf)
        np.copyto(penalty, 0.0, where=mask)

    def _cost_table(self, prices: Floats) -> Floats:
        """The cost of every pair in every row, infinite where the pair cannot reach the level."""
        price = np.append(prices, 0.0)
        high, low = price[self._high], price[self._low]
        costs: Floats = np.multiply(self._at, (high - low)[:, None], out=self._costs)
        costs += low[:, None]
        costs += self._penalty
        return costs

    def choose(self, prices: Floats) -> tuple[Indices, Floats]:
        """The cheapest pair of each row, the first of equals, and its cost per GPU of the gang."""
        costs = self._cost_table(prices)
        least = costs.min(axis=0)
        np.equal(costs, least, out=self._mask)
        # The first that holds, as a maximum of ranks: along this axis an order faster than argmax.
        first = np.multiply(self._mask, self._rank).max(axis=0)
        return len(costs) - first.astype(np.intp), least

    def usage(self, prices: Floats) -> Floats:
        """Units of each type that all rows use together at these prices."""
        pair, _ = self.choose(prices)
        types = len(self.speeds)
        at = self._at[pair, self._all]
        used = np.zeros(types + 1)
        used += np.bincount(self._high[pair], self.gangs * at, types + 1)
        used += np.bincount(self._low[pair], self.gangs * (1.0 - at), types + 1)
        return used[:types]

    def shares(self, prices: Floats) -> Floats:
        """Time fractions, rows × types."""
        pair, _ = self.choose(prices)
        return self.mixed(pair, self._all)

    def mixed(self, pair: Indices, rows: Indices) -> Floats:
        """The time fractions of these rows on these pairs."""
        x = np.zeros((len(rows), len(self.speeds) + 1))
        at, line = self._at[pair, rows], np.arange(len(rows))
        x[line, self._low[pair]] = 1.0 - at
        x[line, self._high[pair]] = at
        return x[:, :-1]

    def hull(self, prices: Floats) -> Hull:
        """The lower hulls, built from idling upwards: from each vertex to where the cost rises least per level."""
        rows = self.speeds.shape[1]
        speed, price = np.zeros(rows), np.zeros(rows)
        slopes: list[Floats] = []
        intercepts: list[Floats] = []
        while True:
            ahead = self.speeds > speed
            if not ahead.any():
                return Hull(np.array(slopes), np.array(intercepts))
            rise = np.full(self.speeds.shape, np.inf)
            np.divide(prices[:, None] - price, self.speeds - speed, out=rise, where=ahead)
            slope = rise.min(axis=0)
            continues = slope < np.inf
            slopes.append(np.where(continues, slope, 0.0))
            intercepts.append(np.where(continues, price - slopes[-1] * speed, 0.0))
            # Of equal rises the farthest: the vertices between lie on the same line.
            speed = np.where(rise == slope, self.speeds, speed).max(axis=0)
            price = np.where(continues, intercepts[-1] + slopes[-1] * speed, price)

    def cheapest_face(self, prices: Floats, rows: Indices, tolerance: float) -> tuple[Indices, Floats]:
        """All pairs of these rows that cost within ``tolerance`` of the least: rows in order, and time fractions."""
        costs = self._cost_table(prices)[:, rows]
        owner, pair = np.nonzero(((costs <= costs.min(axis=0) + tolerance) & (costs < np.inf)).T)
        return owner, self.mixed(pair, rows[owner])
