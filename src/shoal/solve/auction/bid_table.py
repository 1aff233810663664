"""Bids for equal units, and all bids of an auction as arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Floats, Int64s


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


@dataclass(frozen=True, slots=True, eq=False)
class BidTable:
    """All bundles within the units on offer, bidder after bidder; ``first`` is where the bids of each bidder begin.

    ``number`` is a bundle's place in its own bid; the bundle without units is always there.
    """

    owner: Int64s
    units: Int64s
    values: Floats
    number: Int64s
    first: Int64s

    @classmethod
    def of(cls, bids: Sequence[CountBid], units: int) -> "BidTable":
        """The table of these bids."""
        lengths = np.array([len(bid.units) for bid in bids], dtype=np.int64)
        owner, starts = np.repeat(np.arange(len(bids)), lengths), np.cumsum(lengths) - lengths
        bundles = np.concatenate([bid.units for bid in bids]) if len(bids) else np.zeros(0, dtype=np.int64)
        values = np.concatenate([bid.worth for bid in bids]) if len(bids) else np.zeros(0)
        number = np.arange(len(owner)) - starts[owner]
        able = bundles <= units
        owner = owner[able]
        return cls(owner, bundles[able], values[able], number[able], np.searchsorted(owner, np.arange(len(bids))))

    @property
    def best(self) -> Floats:
        """By bidder the worth of its best bundle."""
        return np.maximum.reduceat(self.values, self.first) if len(self.first) else np.zeros(0)

    @property
    def widest(self) -> Int64s:
        """By bidder the units of its largest bundle."""
        return np.maximum.reduceat(self.units, self.first) if len(self.first) else np.zeros(0, dtype=np.int64)

    @property
    def scales(self) -> list[Floats]:
        """By bidder the worth of every number of units up to its largest bundle, −inf where none is bid."""
        widths = self.widest + 1
        begins = np.cumsum(widths) - widths
        worth = np.full(int(widths.sum()), -np.inf)
        np.maximum.at(worth, begins[self.owner] + self.units, self.values)
        return np.split(worth, begins[1:]) if len(widths) else []

    def bundles(self, taken: Int64s, worth: Floats) -> Int64s:
        """By bidder the first of its bundles with these units and this worth."""
        matching = np.flatnonzero((self.units == taken[self.owner]) & (self.values == worth[self.owner]))
        _, at = np.unique(self.owner[matching], return_index=True)
        chosen: Int64s = self.number[matching[at]]
        return chosen


_PAYS_ALL = 40.0
"""Logarithm of a factor so large that a bidder who displaces another keeps 1e-17 of its bundle."""


def with_finite_worth(worths: Sequence[Floats]) -> list[Floats]:
    """Return finite worths: −∞, of an empty bundle, becomes so low that serving one bidder more outweighs all else.

    This is the limit of ever lower worths: most bidders are served, then the product of the values of those served is
    largest, and a bidder in whose place another could be served pays all it won.
    """
    spread = 0.0
    for worth in worths:
        finite = worth[np.isfinite(worth)]
        spread += float(finite.max() - finite.min()) if len(finite) else 0.0

    def finite_worth(worth: Floats) -> Floats:
        given = worth[np.isfinite(worth)]
        least = float(given.min()) if len(given) else 0.0
        found: Floats = np.where(np.isneginf(worth), least - spread - _PAYS_ALL, worth)
        return found

    return [finite_worth(worth) for worth in worths]
