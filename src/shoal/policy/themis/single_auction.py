"""The apps of one job in the auction of a kind: what they keep, whether they could use more, and their bids."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices, Int64s
from shoal.policy.themis.agent import best_levels
from shoal.policy.themis.protocol import Award, Bid, GpuOffer, Level, Row
from shoal.policy.themis.rates import spread
from shoal.policy.themis.singles import Singles
from shoal.solve.auction import contenders

_LEVELS = tuple(Level)

_MANY = 400
"""Bidders from which on those that cannot win are left out; with fewer, sums are added up over all of them."""


@dataclass(slots=True, eq=False)
class SingleSide:
    """By app of one job: the fewest and the most GPUs it can use of a kind, and the GPUs of it under lease.

    ``open``: whether its job can run there and has no GPUs of another kind. ``here`` are the GPUs it holds of this
    kind, ``kept`` those it keeps, ``bidder`` whether it bids (1), only takes part (0), or neither (−1). ``awards`` are
    those of apps that bid or got something, by place; all others got nothing, and paid nothing.
    """

    singles: Singles
    kind: int
    least: Int64s
    most: Int64s
    open: Flags
    leased: Int64s
    here: Int64s
    kept: Int64s
    bidder: Int64s
    awards: dict[int, Award] = field(default_factory=dict)

    @classmethod
    def of(cls, singles: Singles, kind: int, free: Flags, leased: Int64s, here: Int64s) -> "SingleSide":
        """The side of the apps whose job is ``free`` to run on this kind; ``leased`` and ``here`` by app."""
        of = singles.records.of[:, kind]
        least, most = singles.rates.least[of], singles.rates.most[of]
        able, kept = free & (least > 0), np.zeros(len(singles), dtype=np.int64)
        return cls(singles, kind, least, most, able, leased, here, kept, kept - 1)

    def keep(self, which: Indices, gpus: Int64s) -> None:
        """Let these apps keep as many of these GPUs as their job can use."""
        self.kept[which] = self.used(which, gpus)

    def used(self, which: Indices, gpus: Int64s) -> Int64s:
        """Return how many of these numbers of ``gpus`` the apps' jobs use, by app of ``which``."""
        return self.singles.rates.used(self.singles.records.of[which, self.kind], gpus)

    @property
    def first(self) -> Int64s:
        """By app the fewest further GPUs that it can use; 0 if it can use no more."""
        more = np.where(self.kept > 0, np.where(self.kept < self.most, 1, 0), self.least)
        first: Int64s = np.where(self.open, more, 0)
        return first

    def sizes(self, n: int) -> range:
        """The numbers of further GPUs that an app can use."""
        kept, most = self.kept.item(n), self.most.item(n)
        return range(1, most - kept + 1) if kept else range(self.least.item(n), most + 1)

    def bids(self, which: Indices, offer: GpuOffer, node: int, nothing: float) -> "SingleBids":
        """The bids of these apps for an offer, as near together as it allows; ``node`` is the GPUs of a machine."""
        kept = self.kept[which]
        least, most = kept + self.first[which], np.minimum(self.most[which], kept + offer.gpus)
        owner, gpus = spread(least, most)
        bidders, slowdown = which[owner], self.singles.records.slowdown
        levels = best_levels(gpus, offer.block, offer.rack)
        expected = best_levels(gpus, node, rack=int(gpus.max(initial=0)))
        slower = slowdown[bidders, levels] / slowdown[bidders, expected]
        rhos = self.singles.rho_on(bidders, gpus, slower)
        fewest = np.where(kept > 0, kept, self.least[which])
        idle = self.singles.rho_on(which, fewest, np.ones(len(which)))
        idle = np.where(kept > 0, idle, nothing * idle)
        return SingleBids(self.singles.records.app[which], idle, owner, gpus - kept[owner], levels, rhos)


@dataclass(frozen=True, slots=True, eq=False)
class SingleBids:
    """Bids in columns: by bidder its app and ρ without more GPUs; by row its bidder, further GPUs, level and ρ."""

    app: Int64s
    idle: Floats
    owner: Int64s
    more: Int64s
    levels: Int64s
    rhos: Floats

    def contenders(self, offer: GpuOffer) -> Flags:
        """By bidder whether it could win anything, or decide another's payment."""
        if len(self.app) < _MANY or not np.isfinite(self.idle).all():
            return np.ones(len(self.app), dtype=np.bool_)
        with np.errstate(divide="ignore"):
            gain = np.log(self.idle)[self.owner] - np.log(self.rhos)
        return contenders(self.owner, self.more, gain, len(self.app), offer.gpus)

    def made(self, which: Sequence[int]) -> list[Bid]:
        """The bids of these bidders as messages."""
        ends = np.searchsorted(self.owner, np.arange(len(self.app) + 1))
        columns: tuple[list[Any], ...] = (self.more.tolist(), self.levels.tolist(), self.rhos.tolist())
        apps, idle, begins = self.app.tolist(), self.idle.tolist(), ends.tolist()
        bids = []
        for n in which:
            more, levels, rhos = (column[begins[n] : begins[n + 1]] for column in columns)
            rows = map(Row, more, map(_LEVELS.__getitem__, levels), rhos)
            bids.append(Bid(apps[n], (Row(0, Level.SLOT, idle[n]), *rows), (0, *more)))
        return bids
