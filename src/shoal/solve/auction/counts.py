"""Auctions of equal units: winners and payments by one dynamic program from both ends.

    maximise Σ_i worth_i(n_i)  subject to Σ_i n_i ≤ units.

``before[i]`` is the best sum of logarithms of the first i bidders by number of units, ``after[i]`` that of the others.
Winners are read off ``after``; the best without bidder i is the best split of the units between ``before[i]`` and
``after[i + 1]``, so all payments together cost as much as the winners: O(bidders · units · largest bundle).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from shoal.core.arrays import Floats, Int64s
from shoal.solve.auction.outcome import AuctionOutcome, judged


@dataclass(frozen=True, slots=True, eq=False)
class CountBid:
    """Bundles by the units they take and the logarithm of their value; the first takes none.

    Of two bundles with equally many units (one per placement class) the better counts.
    """

    units: Int64s
    worth: Floats

    def __post_init__(self) -> None:
        if len(self.units) != len(self.worth) or not len(self.units) or self.units[0] != 0 or self.units.min() < 0:
            raise ValueError("a bid has a worth for every bundle; the first takes no units, and none fewer than 0")
        if not np.isfinite(self.worth).all():
            raise ValueError("the logarithm of a value must be finite: a bidder that gets nothing must be worth some")


def auction_counts(bids: Sequence[CountBid], units: int) -> AuctionOutcome:
    """The bundles with the largest product of values within ``units``, and the part of its own each bidder keeps.

    Of bundles worth the same the one with the fewest units is won; of tied bidders the first in order win.
    """
    table = _BidTable.of(bids, units)
    scales = table.scales
    before, after = _reached(scales, units), _reached(scales[::-1], units)[::-1]
    taken = _taken(scales, after, units)
    worth = table.worth[np.arange(len(bids)), taken]
    without = (before[:-1] + after[1:, ::-1]).max(axis=1)
    # The same optimum reached from both ends: where they differ, by rounding, the higher is the bound.
    bound = max(float(before[-1, -1]), float(after[0, -1]))
    return judged(table.bundles(taken, worth), worth, bound, without, np.zeros(len(bids)))


_TIED = 1e-12
"""Relative: sums of logarithms closer than this are equal."""


def _first_best(reached: Floats) -> int:
    """The place of the best, of sums that differ by rounding only the first: that with the fewest units."""
    best = float(reached.max())
    return int(np.argmax(reached >= best - _TIED * (1.0 + abs(best))))


@dataclass(frozen=True, slots=True, eq=False)
class _BidTable:
    """All bids: ``worth`` by bidder and exact number of units, −inf where none is bid.

    ``owner``, ``units`` and ``values`` are all bundles, concatenated; ``first`` is where each bidder's begin.
    """

    worth: Floats
    owner: Int64s
    units: Int64s
    values: Floats
    first: Int64s

    @classmethod
    def of(cls, bids: Sequence[CountBid], units: int) -> "_BidTable":
        lengths = np.array([len(bid.units) for bid in bids], dtype=np.int64)
        owner = np.repeat(np.arange(len(bids)), lengths)
        bundles = np.concatenate([bid.units for bid in bids]) if len(bids) else np.zeros(0, dtype=np.int64)
        values = np.concatenate([bid.worth for bid in bids]) if len(bids) else np.zeros(0)
        worth = np.full(len(bids) * (units + 1), -np.inf)
        able = bundles <= units
        np.maximum.at(worth, owner[able] * (units + 1) + bundles[able], values[able])
        return cls(worth.reshape(len(bids), units + 1), owner, bundles, values, np.cumsum(lengths) - lengths)

    @property
    def scales(self) -> list[Floats]:
        """By bidder the worth from 0 units up to its largest bundle."""
        widths = self.worth.shape[1] - np.argmax(self.worth[:, ::-1] > -np.inf, axis=1)
        return [row[:width] for row, width in zip(self.worth, widths.tolist(), strict=True)]

    def bundles(self, taken: Int64s, worth: Floats) -> Int64s:
        """By bidder the first of its bundles with these units and this worth."""
        matching = np.flatnonzero((self.units == taken[self.owner]) & (self.values == worth[self.owner]))
        _, at = np.unique(self.owner[matching], return_index=True)
        chosen: Int64s = matching[at] - self.first
        return chosen


def _reached(scales: Sequence[Floats], units: int) -> Floats:
    """The best sum of the first i bidders, i from 0 (rows), by number of units (columns)."""
    most = max((len(scale) for scale in scales), default=1) - 1
    best = np.zeros((len(scales) + 1, units + 1))
    padded = np.full(most + units + 1, -np.inf)
    # By k and n: what was reached with n − k units. A view, so filling ``padded`` updates it.
    without = sliding_window_view(padded, units + 1)[::-1]
    sums = np.empty((most + 1, units + 1))
    for i, scale in enumerate(scales):
        padded[most:] = best[i]
        sums_here = np.add(without[: len(scale)], scale[:, None], out=sums[: len(scale)])
        sums_here.max(axis=0, out=best[i + 1])
    return best


def _taken(scales: Sequence[Floats], after: Floats, units: int) -> Int64s:
    """The units each bidder takes, in order, given what the bidders after it reach with the rest."""
    taken, left = np.zeros(len(scales), dtype=np.int64), units
    for i, scale in enumerate(scales):
        if not left:
            break
        few = scale[: left + 1]
        rest = after[i + 1, left - len(few) + 1 : left + 1][::-1]
        taken[i] = _first_best(few + rest)
        left -= int(taken[i])
    return taken
