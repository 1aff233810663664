"""Options of many rows one after the other, for tables in which rows have very different numbers of options."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices
from shoal.solve.pool_prices import PoolOptions, clearing_prices

_SAMPLES = (200, 2_500)
"""Rows of the samples from which prices are found."""
_ROUGH = 0.02
"""The least tolerance of the samples' prices."""
UNSETTLED = -2
"""The choice of a row that depends on the exact prices."""


def first_options(rows: int, row: Indices) -> Indices:
    """Return, by row, the number of its first option, and at the end the number of options; ``row`` is by option."""
    begin = np.zeros(rows + 1, dtype=np.intp)
    np.cumsum(np.bincount(row, minlength=rows), out=begin[1:])
    return begin


def highest(values: Floats, begin: Indices, none: float) -> Floats:
    """Return, by row, the highest value of its options; ``none`` without an option."""
    able = (begin[1:] > begin[:-1]).nonzero()[0]
    found = np.full(len(begin) - 1, none)
    if len(able):
        found[able] = np.maximum.reduceat(values, begin[able])
    return found


@dataclass(frozen=True, slots=True, eq=False)
class ListedOptions:
    """Options in order of their rows: row, worth over none (above 0), units (at least 1), pool.

    ``begin`` is by row the number of its first option, and at its end the number of options. ``stays`` are options that
    keep the present seats; such an option is the first of its row.
    """

    row: Indices
    worth: Floats
    units: Floats
    pool: Indices
    stays: Flags
    begin: Indices

    @classmethod
    def of(cls, rows: int, row: Indices, worth: Floats, units: Floats, pool: Indices, stays: Flags) -> "ListedOptions":
        """Return the options of this number of rows; arguments are by option, in order of rows."""
        return cls(row, worth, units, pool, stays, first_options(rows, row))

    @property
    def rows(self) -> int:
        """The number of rows, including those without an option."""
        return len(self.begin) - 1

    def top(self, values: Floats) -> Floats:
        """By row the most of these values, which are by option; −inf without an option."""
        return highest(values, self.begin, -np.inf)

    def first_at(self, values: Floats, top: Floats) -> Indices:
        """By row the number of its first option with the value ``top``; −1 without an option."""
        found = np.full(self.rows, -1, dtype=np.intp)
        at = (values == top[self.row]).nonzero()[0][::-1]
        found[self.row[at]] = at  # of several values for a row the last is kept
        return found

    def among(self, rows: Indices) -> "ListedOptions":
        """The options of these rows, which are numbered from 0."""
        at = self.of_rows(rows)
        count = self.begin[rows + 1] - self.begin[rows]
        begin = np.zeros(len(rows) + 1, dtype=np.intp)
        np.cumsum(count, out=begin[1:])
        row = np.repeat(np.arange(len(rows)), count)
        return ListedOptions(row, self.worth[at], self.units[at], self.pool[at], self.stays[at], begin)

    def of_rows(self, rows: Indices) -> Indices:
        """The numbers of all options of these rows, ascending."""
        count = self.begin[rows + 1] - self.begin[rows]
        offset = self.begin[rows] - np.cumsum(count) + count
        numbers: Indices = np.arange(int(count.sum())) + np.repeat(offset, count)
        return numbers

    # ── prices ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def sampled_prices(self, capacity: Indices, tolerance: float) -> Floats:
        """Return, by pool, about the price at which demand fits: that of a sample, found near a smaller sample's."""
        guess: Floats | None = None
        for rows in _SAMPLES:
            every = max(self.rows // rows, 1)
            sample = self if every == 1 else self.among(np.arange(0, self.rows, every))
            guess = sample.clearing_prices(capacity / every, max(tolerance, _ROUGH), guess)
        assert guess is not None
        return guess

    def clearing_prices(self, capacity: Floats, tolerance: float, guess: Floats | None = None) -> Floats:
        """By pool the price of a unit at which demand fits (`pool_prices`), looked for near a ``guess`` first."""
        pools = range(len(capacity))
        of_pool = [(self.pool == k).nonzero()[0] for k in pools] if len(capacity) > 1 else [slice(None)]
        by_pool = [PoolOptions(self.row[own], self.worth[own], self.units[own]) for own in of_pool]
        highest = float(np.max(self.worth / self.units, initial=0.0))
        return clearing_prices(by_pool, self.rows, capacity.tolist(), highest, tolerance, guess)

    def bound(self, prices: Floats, capacity: Sequence[int] | Indices) -> float:
        """A bound on the most total worth of one option, or none, for each row within the capacity of the pools."""
        net = self.top(self.worth - prices[self.pool] * self.units)
        return float(np.maximum(net, 0.0).sum() + prices @ np.asarray(capacity, dtype=np.float64))

    def settled(self, prices: Floats, margin: float) -> Indices:
        """Return, by row, the option of most worth less price at all prices within ``margin``, a fraction of them.

        −1 where that is no option, `UNSETTLED` where the option depends on the prices.
        """
        if not np.isfinite(margin):
            return np.where(self.begin[1:] > self.begin[:-1], UNSETTLED, -1)
        cost = prices[self.pool] * self.units
        least = np.maximum(self.top(self.worth - (1.0 + margin) * cost), 0.0)
        possible = (self.worth - (1.0 - margin) * cost >= least[self.row]).nonzero()[0]
        row = self.row[possible]
        choices = np.bincount(row, minlength=self.rows) + (least == 0.0)
        found = np.full(self.rows, -1, dtype=np.intp)
        found[row] = possible
        found[choices > 1] = UNSETTLED
        return found
