"""Prices of pools at which the demand of many rows fits, found from the rows whose choice depends on them.

The prices of a sample are the middle of a box. Within it most rows make one choice (`ListedOptions.settled`); the
prices are those at which the demand of the other rows fits into what these leave. Prices at a side of the box at which
demand does not fill the pools are the middle of the next box. The bound is that of all rows at the prices found.
"""

from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Floats, Indices
from shoal.solve.listed_options import UNSETTLED, ListedOptions

BOX = 0.08
"""Half the width of the box, as a fraction of the prices."""
_BOXES = 3
_ROUGH = 0.01
"""The least tolerance of prices in a box: an error in a price changes the bound by its product with the free units."""


@dataclass(frozen=True, slots=True, eq=False)
class Cleared:
    """Prices by pool, a bound on the total worth, and by row the option it chooses at all prices in the box.

    The option is −1 for none, and `UNSETTLED` for the rows ``unsure``, whose options are ``part``.
    """

    prices: Floats
    bound: float
    settled: Indices
    unsure: Indices
    part: ListedOptions


def cleared(options: ListedOptions, capacity: Indices, tolerance: float) -> Cleared:
    """Prices at which the demand for the pools is within ``tolerance`` of their capacity, wherever there are any."""
    guess = options.sampled_prices(capacity, tolerance)
    for _ in range(_BOXES):
        box = _Box(options, capacity, guess)
        wanted = box.part.clearing_prices(np.maximum(box.left, 0.0), max(tolerance, _ROUGH), guess)
        prices = np.clip(wanted, (1.0 - BOX) * guess, (1.0 + BOX) * guess)
        if np.allclose(prices, wanted, rtol=tolerance, atol=0.0) or box.filled(prices, tolerance):
            return box.cleared(prices)
        guess = np.where(guess > 0.0, prices, wanted)
    prices = options.clearing_prices(capacity.astype(np.float64), tolerance)
    return _Box(options, capacity, prices).cleared(prices)


class _Box:
    """The rows unsettled at the prices near ``middle``, and the units that the others leave."""

    def __init__(self, options: ListedOptions, capacity: Indices, middle: Floats) -> None:
        self._options, self._capacity = options, capacity
        self.settled = options.settled(middle, BOX)
        self.unsure = (self.settled == UNSETTLED).nonzero()[0]
        self.part = options.among(self.unsure)
        self._sure = self.settled[self.settled >= 0]
        weights = options.units[self._sure]
        taken = np.bincount(options.pool[self._sure], weights, len(capacity))
        self.left: Floats = capacity.astype(np.float64) - taken

    def filled(self, prices: Floats, tolerance: float) -> bool:
        """Whether the demand at these prices is about the capacity, or less at a price of 0."""
        part = self.part
        net = part.worth - prices[part.pool] * part.units
        top = part.top(net)
        best = part.first_at(net, top)[top > 0.0]
        spare = self.left - np.bincount(part.pool[best], part.units[best], len(prices))
        near = np.maximum(tolerance * self._capacity, 1.0)
        return bool(((np.abs(spare) <= near) | ((prices == 0.0) & (spare >= 0.0))).all())

    def cleared(self, prices: Floats) -> Cleared:
        """Return these prices with their bound; at all prices in the box settled rows make the same choice."""
        options, sure = self._options, self._sure
        net = options.worth[sure] - prices[options.pool[sure]] * options.units[sure]
        bound = float(net.sum()) + self.part.bound(prices, self._capacity)
        return Cleared(prices, bound, self.settled, self.unsure, self.part)
