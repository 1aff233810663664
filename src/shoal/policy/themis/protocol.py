"""The messages between agents and the arbiter: report, offer, bid, award.

An auction is one exchange. Every agent *reports* the ρ of its app. The arbiter makes the same *offer* to those with the
highest. Each of them answers with one *bid*, a table of ρ by GPUs. Every agent then gets its *award*. All are values;
those made by the thousand in every auction are tuples.

References: Themis (NSDI '20) §4.2.2, figure 6.
"""

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple, TypeAlias

from shoal.core.units import Seconds

Seats: TypeAlias = tuple[tuple[int, int], ...]
"""GPUs on nodes: (node, GPUs), nodes ascending."""


class Level(IntEnum):
    """How far apart the GPUs of a job are: a single one, on one machine, in one rack, across racks."""

    SLOT = 0
    MACHINE = 1
    RACK = 2
    CLUSTER = 3


class AppReport(NamedTuple):
    """An app's ρ now, from its latest valuation, and the numbers of further GPUs it could use, ascending."""

    app: int
    rho: float
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class GpuOffer:
    """Free GPUs of one kind: (node, rack, GPUs) of each node that has any, and the end of a lease on them."""

    kind: int
    free: tuple[tuple[int, str, int], ...]
    until: Seconds

    @cached_property
    def gpus(self) -> int:
        """The GPUs on offer."""
        return sum(gpus for _, _, gpus in self.free)

    @cached_property
    def block(self) -> int:
        """The most GPUs on one machine."""
        return max((gpus for _, _, gpus in self.free), default=0)

    @cached_property
    def rack(self) -> int:
        """The most GPUs in one rack."""
        racks: dict[str, int] = {}
        for _, rack, gpus in self.free:
            racks[rack] = racks.get(rack, 0) + gpus
        return max(racks.values(), default=0)


class Row(NamedTuple):
    """A row of a bid: the ρ an app would have with this many GPUs more, at this level.

    ``seats`` are empty unless machines are named; the first row of a bid asks for nothing.
    """

    gpus: int
    level: Level
    rho: float
    seats: Seats = ()


@dataclass(frozen=True, slots=True)
class Bid:
    """An app's bid for an offer; ``sizes`` are the numbers of GPUs it can use at all, ascending from 0."""

    app: int
    rows: tuple[Row, ...]
    sizes: tuple[int, ...]


class Award(NamedTuple):
    """The GPUs that an app gets of an offer.

    ``won`` GPUs were its part of the best product of values, of which it keeps the fraction ``kept`` (1 − its hidden
    payment), rounded; ``gpus`` is the result, ``extra`` of them handed out after the auction.
    """

    app: int
    gpus: int
    bidder: bool
    won: int = 0
    kept: float = 1.0
    extra: int = 0
    level: Level = Level.CLUSTER
    seats: Seats = ()
