"""What agents and the arbiter say to each other: report, offer, bid, award.

An auction is one exchange. Every agent *reports* how its app fares. The arbiter makes the same *offer* to those that
fare worst; nothing is anybody's yet. Each of them answers with one *bid*, a table of what it would make of how much.
Every agent then gets its *award*. All are values, and mean the same in one process as over a wire; those that are made
by the thousand in every auction are tuples.

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
    """How an app fares: ρ as it is now, from its latest valuation, and the further GPUs it could use, ascending."""

    app: int
    rho: float
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class GpuOffer:
    """GPUs of one kind that are nobody's: how many are free on which node of which rack, leased until when if won."""

    kind: int
    free: tuple[tuple[int, str, int], ...]
    until: Seconds

    @cached_property
    def gpus(self) -> int:
        """How many there are."""
        return sum(gpus for _, _, gpus in self.free)

    @cached_property
    def block(self) -> int:
        """The most that are on one machine."""
        return max((gpus for _, _, gpus in self.free), default=0)

    @cached_property
    def rack(self) -> int:
        """The most that are in one rack."""
        racks: dict[str, int] = {}
        for _, rack, gpus in self.free:
            racks[rack] = racks.get(rack, 0) + gpus
        return max(racks.values(), default=0)


class Row(NamedTuple):
    """A line of a bid: the ρ an app would have with so many GPUs more, seated like this.

    ``seats`` are empty unless machines are named; the first row of a bid asks for nothing.
    """

    gpus: int
    level: Level
    rho: float
    seats: Seats = ()


@dataclass(frozen=True, slots=True)
class Bid:
    """What an app would make of an offer; ``sizes`` are the numbers of GPUs it can use at all, ascending from 0."""

    app: int
    rows: tuple[Row, ...]
    sizes: tuple[int, ...]


class Award(NamedTuple):
    """What an app was given of an offer, and how that came about.

    ``won`` GPUs were its part of the best product of values, of which it keeps the fraction ``kept`` (1 − its hidden
    payment), rounded; ``gpus`` is what it has in the end, ``extra`` of them handed out when nobody bid for them.
    """

    app: int
    gpus: int
    bidder: bool
    won: int = 0
    kept: float = 1.0
    extra: int = 0
    level: Level = Level.CLUSTER
    seats: Seats = ()
