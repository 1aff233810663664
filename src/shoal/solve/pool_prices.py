"""Prices of pools at which demand fits: each row asks for its option of most worth less the price of its units.

Coordinate descent: one pool after the other gets the lowest price at which the units that rows ask of it fit, the
other prices fixed. That price is found by bisection; rows that ask for as many units at both ends of the bracket are
set aside, so that a step soon evaluates few rows only.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import eq

import numpy as np

from shoal.core.arrays import Floats, Indices

_HALVINGS = 50
_CYCLES, _CYCLES_NEAR = 3, 1
"""Turns of all pools, and turns near a guess."""
_BELOW, _ABOVE = (0.8, 0.4), (1.25, 2.5)
"""Multiples of a guessed price between which the price is searched first."""
_FEW = 96
"""Options up to which a loop is faster than array operations."""


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """Options of one pool in order of their rows: row, worth (above 0) and units (at least 1, as floats)."""

    row: Indices
    worth: Floats
    units: Floats

    def best(self, price: float, rows: int) -> Floats:
        """The most worth less price by row; −inf for a row without an option."""
        top = np.full(rows, -np.inf)
        if len(self.row):
            starts = _starts(self.row)
            top[self.row[starts]] = np.maximum.reduceat(self.worth - price * self.units, starts)
        return top


def clearing_prices(
    options: Sequence[PoolOptions],
    rows: int,
    capacity: Sequence[float],
    highest: float,
    tolerance: float,
    guess: Floats | None = None,
) -> Floats:
    """Return the price of a unit in each pool; at ``highest`` no row asks for any. ``options`` are by pool.

    The descent begins at the prices ``guess``, or at none; near a good guess less demand is computed.
    """
    prices = np.zeros(len(options)) if guess is None else guess.copy()
    if highest <= 0.0:
        return np.zeros(len(options))
    if _apart(options, rows):  # no price changes what is asked of another pool
        nowhere = np.zeros(rows)
        for k, pool in enumerate(options):
            near = 0.0 if guess is None else float(guess[k])
            prices[k] = _clearing_price(pool, nowhere, capacity[k], highest, tolerance, near)
        return prices
    tops = [pool.best(float(price), rows) for pool, price in zip(options, prices, strict=True)]
    for _ in range(_CYCLES if guess is None else _CYCLES_NEAR):
        before = prices.copy()
        for k, pool in enumerate(options):
            elsewhere = np.zeros(rows)
            for other, top in enumerate(tops):
                if other != k:
                    np.maximum(elsewhere, top, out=elsewhere)
            near = 0.0 if guess is None else float(prices[k])
            prices[k] = _clearing_price(pool, elsewhere, capacity[k], highest, tolerance, near)
            tops[k] = pool.best(float(prices[k]), rows)
        if (np.abs(before - prices) <= max(1e-9, tolerance) * np.abs(prices)).all():
            break
    return prices


def _apart(options: Sequence[PoolOptions], rows: int) -> bool:
    """Whether no row has options of two pools."""
    seen = np.zeros(rows, dtype=bool)
    for pool in options:
        if seen[pool.row].any():
            return False
        seen[pool.row] = True
    return True


def _clearing_price(
    pool: PoolOptions, elsewhere: Floats, capacity: float, highest: float, tolerance: float, guess: float
) -> float:
    """Return the lowest price at which the demand of one pool fits; ``elsewhere`` is what rows have without the pool.

    With a ``guess`` above 0 only the options that are worth their price near it are tried first, which are fewer.
    """
    others = elsewhere[pool.row]
    for part in _BELOW if guess > 0.0 else ():
        low = part * guess
        able = (pool.worth - low * pool.units > others).nonzero()[0]
        if len(able):
            near = _Demand(pool.row[able], pool.worth[able], pool.units[able], others[able], capacity)
            if not near.fits(low):
                high = next((part * guess for part in _ABOVE if near.fits(part * guess)), highest)
                return _between(near, low, high, tolerance)
    better = (pool.worth > others).nonzero()[0]
    if not len(better):
        return 0.0
    columns = pool.row[better], pool.worth[better], pool.units[better], others[better]
    demand = _RigidDemand.of(*columns, capacity, highest) or _Demand(*columns, capacity)
    return bisected(demand, highest, tolerance)


def bisected(demand: "_RigidDemand | _Demand | FewRows", highest: float, tolerance: float) -> float:
    """The lowest price at which a demand fits, from above; at ``highest`` nothing is asked."""
    return 0.0 if demand.fits(0.0) else _between(demand, 0.0, highest, tolerance)


def _between(demand: "_RigidDemand | _Demand | FewRows", low: float, high: float, tolerance: float) -> float:
    """The lowest price at which a demand fits, from above: it does not fit at ``low``, but at ``high``."""
    near = max(1e-12, 0.1 * tolerance)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if demand.fits(middle):
            high = middle
        else:
            low = middle
        if high - low <= near * high:
            break
    return high


class _RigidDemand:
    """The demand where all options of a row have equally many units: it asks for them up to its threshold price.

    Comparisons at a price within ``margin`` of a threshold are those of `_Demand`, to the last bit.
    """

    def __init__(self, rows: list[tuple[float, float, float, float]], capacity: float, margin: float) -> None:
        self._rows, self._capacity, self._margin = rows, capacity, margin
        self._thresholds = [row[0] for row in rows]
        left = np.array([units for _, _, units, _ in reversed(rows)]).cumsum()[::-1].tolist()
        self._asked_from: list[float] = [*left, 0.0]
        """Units of the rows from each one on, in ascending order of their thresholds."""

    @classmethod
    def of(
        cls, row: Indices, worth: Floats, units: Floats, others: Floats, capacity: float, highest: float
    ) -> "_RigidDemand | None":
        """Return the demand; None where a row has options of different numbers of units."""
        starts = _starts(row)
        if len(starts) < len(row):
            if (units != np.repeat(units[starts], np.diff(starts, append=len(row)))).any():
                return None
            worth, units, others = np.maximum.reduceat(worth, starts), units[starts], others[starts]
        thresholds = (worth - others) / units
        order = thresholds.argsort()
        columns = (thresholds[order], worth[order], units[order], others[order])
        return cls(list(zip(*(column.tolist() for column in columns), strict=True)), capacity, 1e-13 * highest)

    def fits(self, price: float) -> bool:
        """Whether demand at this price is within the capacity."""
        first = bisect_left(self._thresholds, price - self._margin)
        last = bisect_right(self._thresholds, price + self._margin, first)
        asked = self._asked_from[last]
        for _, worth, units, others in self._rows[first:last]:
            if worth - price * units > others:
                asked += units
        return asked <= self._capacity


class _Demand:
    """The units of one pool that rows ask for by price, which fall with the price."""

    def __init__(self, row: Indices, worth: Floats, units: Floats, others: Floats, capacity: float) -> None:
        number = np.zeros(len(row), dtype=np.intp)
        np.cumsum(row[1:] != row[:-1], out=number[1:])
        self._row, self._worth, self._units, self._others = number, worth, units, others
        self._capacity = capacity
        self._low = np.zeros(int(number[-1]) + 1)
        self._high = np.zeros(len(self._low))
        """Units asked at the highest price that was too low, and at the lowest one at which demand fits."""
        self._few: FewRows | None = None

    def fits(self, price: float) -> bool:
        """Whether demand at this price is within the capacity; rows whose demand is then certain are set aside."""
        if self._few is not None:
            return self._few.fits(price)
        asked = self._asked(price)
        fits = bool(asked.sum() <= self._capacity)
        if fits:
            self._high = asked
        else:
            self._low = asked
        unsure = self._low != self._high
        count = int(np.count_nonzero(unsure))
        if 0 < count < 0.7 * len(asked):
            self._capacity -= int(asked.sum() - asked[unsure].sum())
            kept = unsure[self._row]
            self._row = (np.cumsum(unsure) - 1)[self._row[kept]]
            self._worth, self._units, self._others = self._worth[kept], self._units[kept], self._others[kept]
            self._low, self._high = self._low[unsure], self._high[unsure]
        if len(self._row) <= _FEW:
            self._few = FewRows(self._by_row(), self._low.tolist(), self._high.tolist(), self._capacity)
        return fits

    def _asked(self, price: float) -> Floats:
        """Return, by row, the units of its first best option at this price; 0 if another pool offers as much."""
        asked = np.zeros(len(self._low))
        net = self._worth - price * self._units
        able = (net > self._others).nonzero()[0]
        if not len(able):
            return asked
        net, row = net[able], self._row[able]
        starts = _starts(row)
        if len(starts) < len(row):
            top = np.maximum.reduceat(net, starts)
            best = (net == np.repeat(top, np.diff(starts, append=len(row)))).nonzero()[0]
            able, row = able[best[::-1]], row[best[::-1]]  # of several values for a row the last is kept
        asked[row] = self._units[able]
        return asked

    def _by_row(self) -> list[tuple[float, list[tuple[float, float]]]]:
        found: list[tuple[float, list[tuple[float, float]]]] = [(0.0, []) for _ in self._low]
        columns = (self._row, self._others, self._worth, self._units)
        for row, others, worth, units in zip(*(column.tolist() for column in columns), strict=True):
            options = found[row][1]
            options.append((worth, units))
            found[row] = others, options
        return found


class FewRows:
    """The demand of few rows in plain numbers: by row its worth elsewhere, and worth and units of its options."""

    def __init__(
        self,
        rows: list[tuple[float, list[tuple[float, float]]]],
        low: list[float],
        high: list[float],
        capacity: float,
    ) -> None:
        self._rows, self._low, self._high, self._capacity = rows, low, high, float(capacity)

    def fits(self, price: float) -> bool:
        """Whether demand at this price is within the capacity; rows whose demand is then certain are set aside."""
        if len(self._rows) == 1:  # most steps of a bisection
            (elsewhere, options), wanted = self._rows[0], 0.0
            for worth, units in options:
                net = worth - price * units
                if net > elsewhere:
                    elsewhere, wanted = net, units
            return wanted <= self._capacity
        asked: list[float] = []
        for elsewhere, options in self._rows:
            best, wanted = elsewhere, 0.0
            for worth, units in options:
                net = worth - price * units
                if net > best:
                    best, wanted = net, units
            asked.append(wanted)
        fits = sum(asked) <= self._capacity
        other = self._low if fits else self._high
        if fits:
            self._high = asked
        else:
            self._low = asked
        if any(map(eq, asked, other)):
            self._set_aside(asked)
        return fits

    def _set_aside(self, asked: list[float]) -> None:
        unsure = [i for i, (low, high) in enumerate(zip(self._low, self._high, strict=True)) if low != high]
        if unsure:
            self._capacity -= sum(asked) - sum(asked[i] for i in unsure)
            self._rows = [self._rows[i] for i in unsure]
            self._low, self._high = [self._low[i] for i in unsure], [self._high[i] for i in unsure]


def _starts(row: Indices) -> Indices:
    """Where the options of each row begin."""
    first = np.empty(len(row), dtype=bool)
    first[0] = True
    np.not_equal(row[1:], row[:-1], out=first[1:])
    return first.nonzero()[0]
