"""Units to the bidder that gains most from the next one: the greedy auction, without a loop over units.

Giving each unit to the highest bid for a next unit takes a bidder's units in the order of the lowest bid passed on the
way to each. The greedy answer is therefore the best ``budget`` of these running minima, for any bids; where bids fall
with every unit (diminishing returns) it maximises the sum. O(n) in the number of bids.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Flags, Floats, Int64s


@dataclass(frozen=True, slots=True)
class Bought:
    """Units by bidder, the worth of each bidder's last unit, and the best bid refused; 0 where there is none."""

    counts: Int64s
    last: Floats
    refused: float


def best_units(bids: Sequence[Floats], budget: int) -> Bought:
    """The units each bidder gets when up to ``budget`` go, one by one, to the highest bid above 0 for a next unit.

    ``bids[b][s]`` is what bidder b gains by its unit number s. Of equal bids the first in order is served first.
    """
    counts = np.zeros(len(bids), dtype=np.int64)
    last = np.zeros(len(bids))
    sizes = np.array([len(b) for b in bids], dtype=np.int64)
    if not sizes.sum():
        return Bought(counts, last, 0.0)
    worth = np.concatenate([np.minimum.accumulate(b) for b in bids if len(b)])
    owner = np.repeat(np.arange(len(bids)), sizes)
    gain = worth > 0
    worth, owner = worth[gain], owner[gain]
    taken = _highest(worth, max(budget, 0))
    counts = np.bincount(owner[taken], minlength=len(bids))
    np.copyto(last, np.inf)
    np.minimum.at(last, owner[taken], worth[taken])
    last[counts == 0] = 0.0
    refused = float(worth[~taken].max()) if not taken.all() else 0.0
    return Bought(counts, last, refused)


def _highest(worth: Floats, count: int) -> Flags:
    """Whether each is among the ``count`` highest; of equals at the threshold, the first."""
    taken: Flags = np.ones(len(worth), dtype=bool)
    if count >= len(worth):
        return taken
    if count == 0:
        return np.zeros(len(worth), dtype=bool)
    edge = np.partition(worth, len(worth) - count)[len(worth) - count]
    taken = worth > edge
    taken[np.flatnonzero(worth == edge)[: count - int(taken.sum())]] = True
    return taken
