"""Units to the bidder that gains most from the next one: the greedy auction, without a loop over units.

Giving each unit to the highest bid for a next unit takes a bidder's units in the order of the lowest bid passed on the
way to each. The greedy answer is therefore the best ``budget`` of these running minima, for any bids; where bids fall
with every unit (diminishing returns) it maximises the sum. O(n) in the number of bids.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices, Int64s


@dataclass(frozen=True, slots=True)
class Bought:
    """Units by bidder, the worth of each bidder's last unit, and the best bid refused; 0 where there is none."""

    counts: Int64s
    last: Floats
    refused: float


def best_units(bids: Callable[[Indices, int], Floats], most: Int64s, budget: int) -> Bought:
    """The units each bidder gets when up to ``budget`` go, one by one, to the highest bid above 0 for a next unit.

    ``bids(bidders, count)`` is by bidder what it gains by each of its first ``count`` units; it may have any values
    beyond the ``most`` units of a bidder. Of equal bids the first in order is served first. A few units of each bidder
    are evaluated first, and more only of those that got all of them: no other bidder can get more.
    """
    counts, last = np.zeros(len(most), dtype=np.int64), np.zeros(len(most))
    open_to, first = np.flatnonzero(most > 0), _FIRST
    owner, worth = open_to[:0], last[:0]
    while len(open_to):
        offered = np.minimum.accumulate(bids(open_to, first), axis=1)
        able = (offered > 0) & (np.arange(first) < most[open_to, None])
        kept = np.isin(owner, open_to, invert=True)
        owner = np.concatenate([owner[kept], np.repeat(open_to, able.sum(axis=1))])
        worth = np.concatenate([worth[kept], offered[able]])
        order = np.argsort(owner, kind="stable")
        owner, worth = owner[order], worth[order]
        taken = _highest(worth, max(budget, 0))
        counts = np.bincount(owner[taken], minlength=len(most))
        open_to, first = np.flatnonzero((counts == first) & (most > first)), 8 * first
    if not len(owner):
        return Bought(counts, last, 0.0)
    np.copyto(last, np.inf)
    np.minimum.at(last, owner[taken], worth[taken])
    last[counts == 0] = 0.0
    refused = float(worth[~taken].max()) if not taken.all() else 0.0
    return Bought(counts, last, refused)


_FIRST = 4
"""Units of each bidder that are evaluated first."""


def _highest(worth: Floats, count: int) -> Flags:
    """Return a mask of the ``count`` highest values; of equal ones at the threshold, the first."""
    taken: Flags = np.ones(len(worth), dtype=bool)
    if count >= len(worth):
        return taken
    if count == 0:
        return np.zeros(len(worth), dtype=bool)
    edge = np.partition(worth, len(worth) - count)[len(worth) - count]
    taken = worth > edge
    taken[np.flatnonzero(worth == edge)[: count - int(taken.sum())]] = True
    return taken
