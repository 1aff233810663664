"""Auctions of equal units among very many bidders: winners by the price of a unit, with a bound.

Each bidder's bundles are replaced by the concave majorant of their worth. Steps of the majorants are taken in order of
worth per unit while they fit. If only the last does not fit, the loss against the optimum is at most what a part of
that step would be worth, which is what the linear relaxation adds. O(n log n) in the number of bundles, where the
dynamic program takes bidders × units.

Without a bidder the others share its units by the same steps. The relaxation bounds what they could reach, so a payment
is never too low, and too high by no more than the worth of one step.
"""

import numpy as np

from shoal.core.arrays import Floats, Int64s
from shoal.solve.auction.bid_table import BidTable
from shoal.solve.auction.outcome import AuctionOutcome, judged


def by_price(table: BidTable, units: int) -> AuctionOutcome:
    """Take steps by worth per unit; the outcome's ``gap`` bounds how far the winners' product is below the best."""
    owner, end, step, gain = _steps(table)
    order = np.lexsort((end, owner, -gain / step))
    owner, end, step, gain = owner[order], end[order], step[order], gain[order]
    total = np.cumsum(step)
    cut = int(np.searchsorted(total, units, side="right"))
    taken = np.zeros(len(table.first), dtype=np.int64)
    np.maximum.at(taken, owner[:cut], end[:cut])
    left, passed = units - (int(total[cut - 1]) if cut else 0), set[int]()
    for at in range(cut, len(step)):  # smaller steps of others may still fit
        if not left:
            break
        bidder, wanted = int(owner[at]), int(step[at])
        if wanted > left or bidder in passed:
            passed.add(bidder)
            continue
        taken[bidder], left = end[at], left - wanted
    worth = np.full(len(taken), -np.inf)
    same = table.units == taken[table.owner]
    np.maximum.at(worth, table.owner[same], table.values[same])
    nothing = np.full(len(taken), -np.inf)
    np.maximum.at(nothing, table.owner[table.units == 0], table.values[table.units == 0])
    # The worth of any number of units by the relaxation: linear between the ends of the steps.
    ends, reached = np.append(0, total), np.append(0.0, np.cumsum(gain))
    bound = float(nothing.sum() + np.interp(units, ends, reached))
    more = np.interp(units + taken, ends, reached) - np.interp(units, ends, reached)
    without = worth.sum() - worth + np.maximum(bound - worth.sum(), 0.0) + more
    return judged(table.bundles(taken, worth), worth, max(bound, float(worth.sum())), without, np.zeros(len(taken)))


def _steps(table: BidTable) -> tuple[Int64s, Int64s, Int64s, Floats]:
    """The steps of all bidders' concave majorants: bidder, units at the end of the step, its units and its gain.

    Bundles below a majorant are dropped, in as many passes as the deepest chain of them.
    """
    order = np.lexsort((-table.values, table.units, table.owner))
    owner, end, value = table.owner[order], table.units[order], table.values[order]
    while True:
        same = owner[1:] == owner[:-1]
        rise, run = np.diff(value), np.diff(end)
        kept = np.ones(len(owner), dtype=bool)
        kept[1:] = ~same | ((run > 0) & (rise > 0))
        slope = np.where(same & (run > 0), rise / np.maximum(run, 1), -np.inf)
        dented = same[:-1] & same[1:] & (slope[:-1] < slope[1:])  # a point below the line between its neighbours
        if kept.all():
            kept[1:-1] = ~dented
            if kept.all():
                return owner[1:][same], end[1:][same], run[same], rise[same]
        owner, end, value = owner[kept], end[kept], value[kept]
