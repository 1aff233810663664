"""Rows whose level is settled and whose way to it is not yet: each keeps a list of ways that all cost it the same.

A row frozen by a price can only ever use what was cheapest at that price. Often that is one way, and the row is done;
where several tie it stays free among them, and later stages may still push it from one to another.
"""

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices


class TiedMixes:
    """Ways side by side for each owner, owners in order: time fractions, and the owner's gang."""

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
        """By way: whether its owner has more than one."""
        many: Flags = np.bincount(self._group)[self._group] > 1
        return many

    def over(self, types: Indices) -> "TiedMixes":
        """The same ways as seen by these types only."""
        return TiedMixes(self.owner, np.ascontiguousarray(self.shares[:, types]), self.gangs)

    def only(self, kept: Flags) -> "TiedMixes":
        """Some of the ways."""
        return TiedMixes(self.owner[kept], self.shares[kept], self.gangs[kept])

    def joined(self, other: "TiedMixes") -> "TiedMixes":
        """The ways of both, which share no owner."""
        owner = np.concatenate([self.owner, other.owner])
        order = np.argsort(owner, kind="stable")
        shares, gangs = np.concatenate([self.shares, other.shares]), np.concatenate([self.gangs, other.gangs])
        return TiedMixes(owner[order], shares[order], gangs[order])

    def choose(self, prices: Floats) -> Indices:
        """Each owner's cheapest way, the first of equals."""
        cheapest = np.flatnonzero(self.within(prices, 0.0)) if len(self) else self._starts
        first = np.ones(len(cheapest), dtype=bool)
        first[1:] = self._group[cheapest[1:]] != self._group[cheapest[:-1]]
        return cheapest[first]

    def within(self, prices: Floats, tolerance: float) -> Flags:
        """Which ways cost their owner no more than ``tolerance`` above its cheapest."""
        costs = self.shares @ prices
        kept: Flags = costs <= np.minimum.reduceat(costs, self._starts)[self._group] + tolerance
        return kept

    def usage(self, prices: Floats) -> Floats:
        """What all owners together use of each type."""
        way = self.choose(prices)
        used: Floats = self.gangs[way] @ self.shares[way]
        return used

    def decided(self, tolerance: float) -> tuple[Flags, Indices]:
        """Which ways belong to owners whose ways are all one, and one way of each of these owners."""
        if not len(self):
            return np.zeros(0, dtype=bool), self._starts
        apart = np.abs(self.shares - self.shares[self._starts][self._group]).max(axis=1) > tolerance
        torn = np.maximum.reduceat(apart, self._starts)
        return ~torn[self._group], self._starts[~torn]
