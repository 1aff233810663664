"""Auctions of equal units: winners and payments by one dynamic program from both ends.

    maximise Σ_i worth_i(n_i)  subject to Σ_i n_i ≤ units.

``before[i]`` is the best sum of logarithms of the first i bidders by number of units, ``after[i]`` that of the others.
Winners are read off ``after``; the best without bidder i is the best split of the units between ``before[i]`` and
``after[i + 1]``, so all payments together cost as much as the winners: O(bidders · units · largest bundle).
"""

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from shoal.core.arrays import Floats, Int64s
from shoal.solve.auction.bid_table import BidTable, CountBid
from shoal.solve.auction.outcome import AuctionOutcome, judged
from shoal.solve.auction.prices import by_price


def auction_counts(bids: Sequence[CountBid], units: int) -> AuctionOutcome:
    """The bundles with the largest product of values within ``units``, and the part of its own each bidder keeps.

    Of bundles worth the same the one with the fewest units is won; of tied bidders the first in order win. Where the
    units suffice for the largest bundles of all, each bidder wins its best and pays nothing. An auction too large for
    the dynamic program is settled by prices: see `by_price`.
    """
    table = BidTable.of(bids, units)
    if int(table.widest.sum()) <= units:
        return _uncontended(table)
    if len(bids) * (units + 1) * (int(table.widest.max()) + 1) > _LARGEST:
        return by_price(table, units)
    scales = table.scales
    before, after = _reached(scales, units), _reached(scales[::-1], units)[::-1]
    taken = _taken(scales, after, units)
    worth = np.array([scale[n] for scale, n in zip(scales, taken.tolist(), strict=True)])
    without = (before[:-1] + after[1:, ::-1]).max(axis=1)
    # The same optimum reached from both ends: where they differ, by rounding, the higher is the bound.
    bound = max(float(before[-1, -1]), float(after[0, -1]))
    return judged(table.bundles(taken, worth), worth, bound, without, np.zeros(len(bids)))


def _uncontended(table: BidTable) -> AuctionOutcome:
    """Each bidder's best bundle, computed by the same sums as in the dynamic program."""
    best = table.best
    before, after = np.cumsum([0.0, *best]), np.cumsum([0.0, *best[::-1]])[::-1]
    reached = table.values + after[1:][table.owner]
    highest = best + after[1:]
    tied = reached >= (highest - _TIED * (1.0 + np.abs(highest)))[table.owner]
    taken = np.full(len(best), np.iinfo(np.int64).max)
    np.minimum.at(taken, table.owner[tied], table.units[tied])
    worth = np.full(len(best), -np.inf)
    same = table.units == taken[table.owner]
    np.maximum.at(worth, table.owner[same], table.values[same])
    bound = max(float(before[-1]), float(after[0]))
    return judged(table.bundles(taken, worth), worth, bound, before[:-1] + after[1:], np.zeros(len(best)))


_LARGEST = 3e7
"""Bidders × units × largest bundle up to which the dynamic program is solved: a third of a second, 250 MB."""

_TIED = 1e-12
"""Relative: sums of logarithms closer than this are equal."""


def _first_best(reached: Floats) -> int:
    """Return the place of the first best sum, which has the fewest units, where sums differ by rounding only."""
    best = float(reached.max())
    return int(np.argmax(reached >= best - _TIED * (1.0 + abs(best))))


def _reached(scales: Sequence[Floats], units: int) -> Floats:
    """Return the best sum of the first i bidders, i from 0 (rows), by number of units (columns)."""
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
    """Return the units each bidder takes, in order, given the best sums that later bidders reach with the rest."""
    taken, left = np.zeros(len(scales), dtype=np.int64), units
    for i, scale in enumerate(scales):
        if not left:
            break
        few = scale[: left + 1]
        rest = after[i + 1, left - len(few) + 1 : left + 1][::-1]
        taken[i] = _first_best(few + rest)
        left -= int(taken[i])
    return taken
