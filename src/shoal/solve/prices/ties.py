"""Rows with a settled level and several mixes that reach it at the same cost.

A row frozen by a price can only use the mixes that were cheapest at that price. With one, the row is fixed; with
several it stays free among them, and later stages may still move it from one to another.
"""

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices


class TiedMixes:
    """Mixes grouped by owner row, owners in order: time fractions (mixes × types), and the owner's gang."""

    __slots__ = ("_group", "_starts", "gangs", "owner", "shares")

    def __init__(self, owner: Indices, shares: Floats, gangs: Floats) -> None:
        self.owner, self.shares, self.gangs = owner, shares, gangs
        new = np.ones(len(owner), dtype=bool)
        new[1:] = owner[1:] != owner[:-1]
        self._starts, self._group = np.flatnonzero(new), np.cumsum(new) - 1

    def __len__(self) -> int:
        return len(self.owner)

    @property
    def several(self) -> Flags:
        """By mix: whether its owner has more than one."""
        many: Flags = np.bincount(self._group)[self._group] > 1
        return many

    def over(self, types: Indices) -> "TiedMixes":
        """These mixes, restricted to these types."""
        return TiedMixes(self.owner, np.ascontiguousarray(self.shares[:, types]), self.gangs)

    def only(self, kept: Flags) -> "TiedMixes":
        """The mixes marked ``kept``."""
        return TiedMixes(self.owner[kept], self.shares[kept], self.gangs[kept])

    def joined(self, other: "TiedMixes") -> "TiedMixes":
        """The mixes of both, which share no owner."""
        owner = np.concatenate([self.owner, other.owner])
        order = np.argsort(owner, kind="stable")
        shares, gangs = np.concatenate([self.shares, other.shares]), np.concatenate([self.gangs, other.gangs])
        return TiedMixes(owner[order], shares[order], gangs[order])

    def choose(self, prices: Floats) -> Indices:
        """The cheapest mix of each owner, the first of equals."""
        cheapest = np.flatnonzero(self.within(prices, 0.0)) if len(self) else self._starts
        first = np.ones(len(cheapest), dtype=bool)
        first[1:] = self._group[cheapest[1:]] != self._group[cheapest[:-1]]
        return cheapest[first]

    def within(self, prices: Floats, tolerance: float) -> Flags:
        """Return, by mix, whether it costs at most ``tolerance`` more than the cheapest mix of its owner."""
        costs = self.shares @ prices
        kept: Flags = costs <= np.minimum.reduceat(costs, self._starts)[self._group] + tolerance
        return kept

    def usage(self, prices: Floats) -> Floats:
        """Units of each type that all owners use together at these prices."""
        way = self.choose(prices)
        used: Floats = self.gangs[way] @ self.shares[way]
        return used

    def decided(self, tolerance: float) -> tuple[Flags, Indices]:
        """Return whether each mix belongs to an owner whose mixes all agree, and one mix of each such owner."""
        if not len(self):
            return np.zeros(0, dtype=bool), self._starts
        apart = np.abs(self.shares - self.shares[self._starts][self._group]).max(axis=1) > tolerance
        differing = np.maximum.reduceat(apart, self._starts)
        return ~differing[self._group], self._starts[~differing]
