"""The cluster's side of the auction: invites apps, finds the winners, takes payments, hands out the rest."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np

from shoal.core.arrays import Floats, Indices, Int64s
from shoal.core.topology import Placement
from shoal.policy.themis.bundle_seats import joined, take_seats
from shoal.policy.themis.protocol import AppReport, Award, Bid, GpuOffer, Row, Seats
from shoal.solve.auction import (
    AuctionOutcome,
    Bundle,
    CountBid,
    MachineBid,
    auction_counts,
    auction_machines,
    rounded,
    with_finite_worth,
)


@dataclass(frozen=True, slots=True)
class Settlement:
    """All awards of an auction, by app, and the outcome they follow from."""

    awards: Mapping[int, Award]
    outcome: AuctionOutcome


_NEVER = np.iinfo(np.int64).max
"""More GPUs than any offer has."""


class Takers(NamedTuple):
    """Apps that may take what is left over, the fewest GPUs each could take, and all the numbers it could use."""

    apps: Sequence[int]
    fewest: Int64s
    sizes: Callable[[int], Sequence[int]]

    @classmethod
    def of(cls, sizes: Mapping[int, Sequence[int]]) -> "Takers":
        """The apps that could use these numbers of GPUs, ascending, of which the bidders' begin with 0."""
        numbers = list(sizes.values())
        return cls(
            list(sizes), np.array([of[0] if of else _NEVER for of in numbers], dtype=np.int64), numbers.__getitem__
        )


class Field(NamedTuple):
    """For bids of some bidders only: their places among all bidders, and all bidders and other apps as takers."""

    places: Indices
    bidders: Takers
    others: Takers


@dataclass(frozen=True, slots=True)
class Arbiter:
    """Offers nothing to the fraction ``f`` of apps with the lowest ρ; ``rounding`` is ``random`` or ``floor``."""

    f: float
    rounding: str

    def invited(self, reports: Sequence[AppReport], live: int) -> frozenset[int]:
        """Return the bidders: of apps that could use more GPUs those of highest ρ, 1 − f of ``live``, at least 1."""
        worst = self.worst(np.array([report.rho for report in reports]), live)
        return frozenset(reports[place].app for place in worst.tolist())

    def worst(self, rhos: Floats, live: int) -> Indices:
        """Return the places of the bidders among the reported ρ, ascending; of apps with equal ρ the first ones bid."""
        count = max(1, ceil((1.0 - self.f) * live - 1e-9))
        return np.sort(np.argsort(-rhos, kind="stable")[:count])

    def settle(
        self,
        offer: GpuOffer,
        bids: Sequence[Bid],
        others: Sequence[AppReport],
        rng: np.random.Generator,
        field: Field | None = None,
    ) -> Settlement:
        """Make the awards to the bidders; what their payments leave goes at random to ``others``, then to the bidders.

        So no GPU is idle that some app can use. With a ``field``, ``bids`` and ``others`` are those with messages of
        their own, and the awards are theirs and those of apps that get something.
        """
        if field is None:
            bidders, rest = ({one.app: one.sizes for one in some} for some in (bids, others))
            field = Field(np.arange(len(bids)), Takers.of(bidders), Takers.of(rest))
        outcome = auction(offer, bids)
        draws = rng.random(len(field.bidders.apps))[field.places].tolist()
        awards: dict[int, Award] = {}
        for i, bid in enumerate(bids):
            row, kept = bid.rows[outcome.chosen[i]], float(outcome.kept[i])
            draw = None if self.rounding == "floor" else draws[i]
            gpus = rounded(kept * row.gpus, _within(bid, row.gpus), draw) if row.gpus else 0
            seats = _trimmed(row.seats, gpus)
            awards[bid.app] = Award(bid.app, gpus, True, row.gpus, kept, 0, row.level, seats)
        for other in others:
            awards[other.app] = Award(other.app, 0, False)
        left = offer.gpus - sum(award.gpus for award in awards.values())
        left = _hand_out(awards, field.others, False, left, rng)
        field.bidders.fewest[field.places] = 0  # a winner may take fewer further GPUs than it could begin with
        _hand_out(awards, field.bidders, True, left, rng)
        return Settlement(_seated(offer, awards) if _name_machines(bids) else awards, outcome)


def auction(offer: GpuOffer, bids: Sequence[Bid]) -> AuctionOutcome:
    """Return the rows of the bids with the largest product of 1/ρ, and the fraction that each bidder keeps."""
    return _by_machines(offer, bids) if _name_machines(bids) else _by_counts(offer, bids)


def _name_machines(bids: Sequence[Bid]) -> bool:
    return any(bid.rows[-1].seats for bid in bids)


def _by_counts(offer: GpuOffer, bids: Sequence[Bid]) -> AuctionOutcome:
    units = (np.array([row.gpus for row in bid.rows]) for bid in bids)
    return auction_counts(list(map(CountBid, units, _worths(bids))), offer.gpus)


def _by_machines(offer: GpuOffer, bids: Sequence[Bid]) -> AuctionOutcome:
    at = {node: m for m, (node, _, _) in enumerate(offer.free)}

    def bundles(rows: Sequence[Row]) -> tuple[Bundle, ...]:
        return tuple(tuple((at[node], n) for node, n in row.seats) for row in rows)

    named = [bundles(bid.rows) for bid in bids]
    return auction_machines(list(map(MachineBid, named, _worths(bids))), [gpus for _, _, gpus in offer.free])


def _worths(bids: Sequence[Bid]) -> list[Floats]:
    """Return, by bid, the logarithm of 1/ρ of each row; finite even if ρ without GPUs is infinite."""
    return with_finite_worth([-np.log([row.rho for row in bid.rows]) for bid in bids])


def _within(bid: Bid, gpus: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(bid.sizes[: bisect_right(bid.sizes, gpus)], dtype=np.int64)


def _hand_out(awards: dict[int, Award], takers: Takers, bid: bool, left: int, rng: np.random.Generator) -> int:
    """Give each app, in random order, as many of the GPUs left as it can use; return how many are still left."""
    if not left or not len(takers.apps):
        return left
    order = rng.permutation(len(takers.apps))
    for at in order[takers.fewest[order] <= left].tolist():
        if not left:
            break
        app, sizes = takers.apps[at], takers.sizes(at)
        had = awards.get(app) or Award(app, 0, bid)
        within = bisect_right(sizes, had.gpus + left)
        extra = sizes[within - 1] - had.gpus if within else 0
        if extra > 0:
            awards[app] = had._replace(gpus=had.gpus + extra, extra=extra)
            left -= extra
    return left


def _trimmed(seats: Seats, gpus: int) -> Seats:
    """Return this many of the seats; machines with the fewest seats give up theirs first."""
    kept: list[tuple[int, int]] = []
    for node, count in sorted(seats, key=lambda seat: (-seat[1], seat[0])):
        take = min(count, gpus)
        gpus -= take
        if take:
            kept.append((node, take))
    return tuple(sorted(kept))


def _seated(offer: GpuOffer, awards: Mapping[int, Award]) -> dict[int, Award]:
    """The awards with seats for the GPUs that were handed out, on as few machines as possible."""
    free = {node: gpus for node, _, gpus in offer.free}
    for award in awards.values():
        for node, count in award.seats:
            free[node] -= count
    done: dict[int, Award] = {}
    for app, award in sorted(awards.items(), key=lambda item: -item[1].extra):
        more = take_seats(free, award.extra)
        done[app] = award._replace(seats=joined(Placement(award.seats), more).seats)
    return done
