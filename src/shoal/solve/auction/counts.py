"""Auctions of equal units: winners and payments by one dynamic program from both ends.

``before[i]`` is the best product of the first i bidders by number of units, ``after[i]`` that of the others. A step is
a maximum over sums, one row a number of units. Winners are read off ``after``; and since the best without bidder i is
the best split of the units between ``before[i]`` and ``after[i + 1]``, all payments together cost as much as the
winners did.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from shoal.solve.auction.outcome import Floats, Ints, Outcome, judged


@dataclass(frozen=True, slots=True, eq=False)
class CountBid:
    """Bundles by the units they take and the logarithm of their value; the first takes none.

    Two bundles may take as many units and differ in worth (a placement class each): the better is meant.
    """

    units: Ints
    worth: Floats

    def __post_init__(self) -> None:
        if len(self.units) != len(self.worth) or not len(self.units) or self.units[0] != 0 or (self.units < 0).any():
            raise ValueError("a bid has a worth for every bundle; the first takes no units, and none fewer than 0")
        if not np.isfinite(self.worth).all():
            raise ValueError("the logarithm of a value must be finite: a bidder that gets nothing must be worth some")


def auction_counts(bids: Sequence[CountBid], units: int) -> Outcome:
    """The bundles with the largest product of values within so many units, and what each bidder keeps of its own.

    Of bundles worth the same the one with the fewest units is won; of bidders in a tie those last in order give way.
    """
    scales = [_scale(bid, units) for bid in bids]
    after = [np.zeros(units + 1)]
    for scale in reversed(scales):
        after.append(_added(after[-1], scale))
    after.reverse()
    before = [np.zeros(units + 1)]
    for scale in scales:
        before.append(_added(before[-1], scale))
    taken, left = np.zeros(len(bids), dtype=np.int64), units
    for i, scale in enumerate(scales):
        rest = after[i + 1][left - np.arange(min(left, len(scale) - 1) + 1)]
        reached = scale[: len(rest)] + rest
        taken[i] = _first_best(reached)
        left -= int(taken[i])
    worth = np.array([scale[n] for scale, n in zip(scales, taken.tolist(), strict=True)])
    without = np.array([(before[i] + after[i + 1][::-1]).max() for i in range(len(bids))])
    # The same optimum reached from both ends: where they differ, by rounding, the higher is the bound.
    bound = max(float(before[-1][-1]), float(after[0][-1]))
    chosen = np.array([_bundle(bid, n, w) for bid, n, w in zip(bids, taken.tolist(), worth.tolist(), strict=True)])
    return judged(chosen.astype(np.int64), worth, bound, without, np.zeros(len(bids)))


_TIED = 1e-12
"""Relative: sums of logarithms closer than this are the same product."""


def _first_best(reached: Floats) -> int:
    """The first of the best: of sums that differ by rounding only, that of the fewest units."""
    best = float(reached.max())
    return int(np.argmax(reached >= best - _TIED * (1.0 + abs(best))))


def _scale(bid: CountBid, units: int) -> Floats:
    """The worth of exactly so many units, from none up to the most that are bid for; −inf for a number that is not."""
    able = bid.units <= units
    scale = np.full(int(bid.units[able].max()) + 1, -np.inf)
    np.maximum.at(scale, bid.units[able], bid.worth[able])
    return scale


def _bundle(bid: CountBid, units: int, worth: float) -> int:
    return int(np.flatnonzero((bid.units == units) & (bid.worth == worth))[0])


def _added(best: Floats, scale: Floats) -> Floats:
    """The best by number of units, with one bidder more."""
    most = len(scale) - 1
    padded = np.concatenate([np.full(most, -np.inf), best])
    added: Floats = (sliding_window_view(padded, most + 1) + scale[::-1]).max(axis=1)
    return added
