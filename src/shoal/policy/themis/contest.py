"""The apps that could use GPUs of an offer: those invited to the auction, their bids, and those that get what is left.

Apps of one job are columns, the others objects. Both are in order of their numbers, so that ties and random draws come
out the same in either form.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shoal.core.arrays import Floats, Indices, Int64s
from shoal.policy.themis.arbiter import Arbiter, Field, Settlement, Takers
from shoal.policy.themis.protocol import AppReport, Bid, GpuOffer
from shoal.policy.themis.single_auction import SingleBids, SingleSide


@dataclass(eq=False)
class OfferContest:
    """Reports of apps with messages of their own, and those of apps of one job (``singles``, with their ``rhos``)."""

    offer: GpuOffer
    reports: Sequence[AppReport]
    side: SingleSide
    singles: Indices
    rhos: Floats
    arbiter: Arbiter
    live: int

    def __len__(self) -> int:
        return len(self.reports) + len(self.singles)

    @cached_property
    def _apps(self) -> Int64s:
        reported = np.array([report.app for report in self.reports], dtype=np.int64)
        return np.append(reported, self.side.singles.records.app[self.singles])

    @cached_property
    def _all_rhos(self) -> Floats:
        return np.append(np.array([report.rho for report in self.reports]), self.rhos)

    @cached_property
    def _order(self) -> Indices:
        return self._apps.argsort(kind="stable")

    @cached_property
    def _invited(self) -> Indices:
        """The bidders, by number of the app: their places in ``reports`` followed by ``singles``."""
        return self._order[self.arbiter.worst(self._all_rhos[self._order], self.live)]

    @property
    def bidders(self) -> int:
        """The number of bidders."""
        return len(self._invited)

    @property
    def lowest_rho(self) -> float:
        """The lowest ρ of the bidders."""
        return float(self._all_rhos[self._invited].min())

    @property
    def own_bidders(self) -> list[int]:
        """The bidders with messages of their own, by number."""
        return [self.reports[place].app for place in self._invited.tolist() if place < len(self.reports)]

    @cached_property
    def single_bidders(self) -> Indices:
        """The bidders of one job, by number."""
        return self.singles[self._invited[self._invited >= len(self.reports)] - len(self.reports)]

    def settle(self, own: Mapping[int, Bid], columns: SingleBids, rng: np.random.Generator) -> Settlement:
        """The awards for the bids with messages of their own and those in columns."""
        others = np.setdiff1d(self._order, self._invited)
        rest = [self.reports[place] for place in others[others < len(self.reports)].tolist()]
        if not len(self.singles):
            return self.arbiter.settle(self.offer, list(own.values()), rest, rng)
        single = self._invited >= len(self.reports)
        able = np.flatnonzero(columns.contenders(self.offer))
        made = dict(zip(np.flatnonzero(~single).tolist(), own.values(), strict=True))
        made |= dict(zip(np.flatnonzero(single)[able].tolist(), columns.made(able.tolist()), strict=True))
        places = np.array(sorted(made), dtype=np.intp)
        others = others[self._apps[others].argsort(kind="stable")]
        field = Field(places, self._takers(self._invited), self._takers(others))
        return self.arbiter.settle(self.offer, [made[place] for place in places.tolist()], rest, rng, field)

    def _takers(self, places: Indices) -> Takers:
        """Return these apps as takers of the GPUs left over."""
        count, first = len(self.reports), self.side.first[self.singles]
        fewest = np.append(np.array([report.sizes[0] for report in self.reports], dtype=np.int64), first)
        at: list[int] = places.tolist()

        def sizes(taker: int) -> Sequence[int]:
            place = at[taker]
            return self.reports[place].sizes if place < count else self.side.sizes(int(self.singles[place - count]))

        return Takers(self._apps[places].tolist(), fewest[places], sizes)
