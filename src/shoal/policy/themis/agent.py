"""An app's side of the auction: reports how it fares, bids for what is offered, divides what it is awarded.

An agent is a value: what an app knows of itself at one moment. It says the truth; an experiment may give it a wrong
``slowdown`` or ``works`` and see what becomes of it.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from shoal.core.arrays import Floats, Int64s
from shoal.perf.app_valuation import Use, Work, finish_seconds, phase_seconds, usable
from shoal.policy.themis.carry import Reckoning
from shoal.policy.themis.locality import Slowdown
from shoal.policy.themis.protocol import Bid, GpuOffer, Level, Row, Seats
from shoal.policy.themis.tuning import TUNING
from shoal.solve.max_min_counts import fair_counts

NOTHING = TUNING.nothing
"""How many times later than on its fewest GPUs an app is taken to finish that is left with none.

With an allocation that binds for ever, as equation 1 has it, that would be never, and whoever wins where not all can be
served would pay all it won. At 2 the first GPU of an app that scales linearly is worth as much as its second: nobody
invited is passed over for the sake of somebody's third, and a payment for it is half at most.
"""

_LEVELS = tuple(Level)


@dataclass(frozen=True, eq=False)
class AppAgent:
    """What an app knows of itself, of one kind of GPU: when it began, what is left to do, how it minds distance.

    ``works`` are its jobs in the order in which they are served, ``ahead`` the phases it means to run after them, and
    ``held`` the GPUs it keeps under lease. ``ideal`` is the time of its own share of the cluster, ``node`` how many
    GPUs a machine has: up to so many, jobs are expected to sit on one; ``limit`` is the most GPUs ``works`` can use,
    ``capacity`` the most there are. What the app itself ``said`` of the seconds it
    would take, by number of GPUs, counts instead of what follows from ``works`` and ``ahead``. ``reckoning`` has what
    follows from ``works``, where that is known already.
    """

    app: int
    elapsed: float
    ideal: float
    works: tuple[Work, ...]
    held: int
    node: int
    slowdown: Slowdown
    limit: int
    capacity: int
    ahead: tuple[tuple[Work, ...], ...] = ()
    said: Floats | None = None
    reckoning: Reckoning | None = None

    @cached_property
    def use(self) -> Use:
        """How many of so many GPUs it can use."""
        return usable([(work.least, work.most) for work in self.works], self.limit)

    @cached_property
    def left(self) -> Floats:
        """Seconds until it is done, by number of GPUs, well seated; held for good."""
        if self.said is not None:
            return self.said
        seconds = phase_seconds(self.works, self.use) if self.reckoning is None else self.reckoning.seconds
        return seconds + finish_seconds(self.ahead, self.limit) if self.ahead else seconds

    @cached_property
    def fastest(self) -> float:
        """Seconds until it is done were it given all it can use in each phase, also where a later one is the wider."""
        if self.said is not None or not self.ahead:
            return float(self.left[-1])
        seconds = phase_seconds(self.works, self.use) if self.reckoning is None else self.reckoning.seconds
        return float(seconds[-1]) + sum(_alone(phase, self.capacity) for phase in self.ahead)

    @cached_property
    def sizes(self) -> Int64s:
        """The numbers of GPUs beyond those it keeps that it can use to the last, from 0."""
        return np.append(0, self.use.sizes(self.held) - self.held)

    @cached_property
    def least(self) -> int:
        """The fewest GPUs it can do anything with; 0 where there are none."""
        return min(self.use.beyond(0), default=0)

    def rho(self, gpus: int) -> float:
        """Its finish-time fairness with so many GPUs in all; with none, as if it were done ``NOTHING`` times later.

        Well seated, that is; ``rhos`` minds distance.
        """
        if not gpus:
            return NOTHING * self.rho(self.least)
        return (self.elapsed + float(self.left[gpus])) / self.ideal

    def rhos(self, gpus: Int64s, slower: Floats) -> list[float]:
        """Its finish-time fairness with each of these numbers of GPUs, so many times slower than well seated."""
        rhos: list[float] = ((self.elapsed + self.left[gpus] * slower) / self.ideal).tolist()
        return rhos

    def bid(self, offer: GpuOffer) -> Bid:
        """A row for every number of GPUs it could use of the offer, as near together as the offer allows at best."""
        near = _nearest(self.use, self.held, self.node, self.slowdown, offer.gpus, offer.block, offer.rack)
        rows = map(Row, near.sizes[1:], near.levels, self.rhos(near.gpus, near.slower))
        return Bid(self.app, (Row(0, Level.SLOT, self.rho(self.held)), *rows), near.sizes)

    def bid_machines(self, offer: GpuOffer) -> Bid:
        """Rows that name machines: for doubling numbers of GPUs, each machine as the one to begin with.

        A bundle takes from its first machine, then from the fullest in its rack, then from the fullest anywhere.
        """
        sizes = self.sizes[self.sizes <= offer.gpus]
        bundles: dict[Seats, tuple[int, int]] = {}
        for more in _doubling(sizes):
            widest = self.use.widest[[self.held + more]]
            for first in offer.free:
                seats = _bundle(offer, first, more)
                if seats not in bundles:
                    racks = {rack for node, rack, _ in offer.free if node in dict(seats)}
                    block, rack = max(n for _, n in seats), more if len(racks) == 1 else 0
                    bundles[seats] = more, int(_levels(widest, block, rack)[0])
        counts, levels = np.array(list(bundles.values()), dtype=np.int64).reshape(-1, 2).T
        slower = _slower(self.slowdown, levels, self.use.widest[self.held + counts], self.node)
        rhos = self.rhos(self.held + counts, slower)
        rows = map(Row, counts.tolist(), map(_LEVELS.__getitem__, levels.tolist()), rhos, bundles)
        return Bid(self.app, (Row(0, Level.SLOT, self.rho(self.held)), *rows), tuple(sizes.tolist()))

    def mistaken(self, work: float, slowdown: float) -> "AppAgent":
        """The same app, wrong by these fractions about its work and about how much distance costs it."""
        works, *ahead = (
            tuple(replace(w, seconds=w.seconds * (1.0 + work)) for w in phase) for phase in (self.works, *self.ahead)
        )
        near, machine, rack, cluster = self.slowdown
        wrong = (near, machine, max(rack * (1.0 + slowdown), 1.0), max(cluster * (1.0 + slowdown), 1.0))
        said = None if self.said is None else self.said * (1.0 + work)
        return replace(self, works=works, ahead=tuple(ahead), slowdown=wrong, said=said, reckoning=None)


def _alone(phase: Sequence[Work], capacity: int) -> float:
    """How long a phase takes with all the GPUs that it can use."""
    reaches = [(work.least, work.most) for work in phase]
    return float(phase_seconds(phase, usable(reaches, min(sum(most for _, most in reaches), capacity)))[-1])


def divided(gpus: int, reaches: Sequence[tuple[int, int]], running: Int64s) -> Int64s:
    """An app's GPUs by job, moving as few jobs as it can.

    ``reaches`` are the fewest and the most of each, ``running`` the GPUs each holds now. Who runs keeps what it has;
    those that wait share the rest evenly, for an app is no further before the last job of a phase is done; then those
    that run get more, in order. Where that would leave GPUs idle that could be used, all share evenly.
    """
    if len(reaches) == 1:
        least, most = reaches[0]
        return np.array([min(most, gpus) if gpus >= least else 0], dtype=np.int64)
    counts = np.zeros(len(reaches), dtype=np.int64)
    left = gpus
    for i, (least, most) in enumerate(reaches):
        take = min(int(running[i]), most, left)
        if least <= take:
            counts[i] = take
            left -= take
    waiting = [(0, 0) if counts[i] else reach for i, reach in enumerate(reaches)]
    counts += _evenly(left, waiting, running)
    left = gpus - int(counts.sum())
    for i, (_, most) in enumerate(reaches):
        if counts[i] and left:
            more = min(most - int(counts[i]), left)
            counts[i] += more
            left -= more
    even = _evenly(gpus, reaches, running) if left else counts
    return even if even.sum() > counts.sum() else counts


def _evenly(gpus: int, reaches: Sequence[tuple[int, int]], running: Int64s) -> Int64s:
    """Everyone's fewest, in order as far as they go, and the rest shared evenly among these."""
    low, high, left = np.zeros(len(reaches), dtype=np.int32), np.zeros(len(reaches), dtype=np.int32), gpus
    for i, (least, most) in enumerate(reaches):
        if least <= left:
            low[i], high[i] = least, most
            left -= least
    return fair_counts(left, low, high, np.ones(len(low)), running.astype(np.int32)).astype(np.int64)


def _levels(widest: Int64s, block: int, rack: int) -> Int64s:
    """How far apart jobs so wide are where so many GPUs are on one machine and so many in one rack, at best."""
    levels: Int64s = (widest > 1).astype(np.int64) + (widest > max(block, 1)) + (widest > max(block, rack, 1))
    return levels


def _slower(slowdown: Slowdown, levels: Int64s, widest: Int64s, node: int) -> Floats:
    """How many times slower jobs so wide go at these levels than expected: on one machine if one will do, in a rack."""
    by_level, expected = np.array(slowdown), _levels(widest, node, rack=int(widest.max(initial=0)))
    slower: Floats = by_level[levels] / by_level[expected]
    return slower


@dataclass(frozen=True, slots=True, eq=False)
class _Nearest:
    """What can be used of an offer by who holds some GPUs: how many more, and from the second of them on how many
    that makes in all, at which level at best, and how many times slower than well seated that is."""

    sizes: tuple[int, ...]
    gpus: Int64s
    levels: tuple[Level, ...]
    slower: Floats


@lru_cache(maxsize=4096)
def _nearest(use: Use, held: int, node: int, slowdown: Slowdown, gpus: int, block: int, rack: int) -> _Nearest:
    """Remembered, since many apps use GPUs alike."""
    more = use.beyond(held)
    more = more[: bisect_right(more, gpus)]
    counts = held + np.array(more, dtype=np.int64)
    widest = use.widest[counts]
    levels = _levels(widest, block, rack)
    named = tuple(_LEVELS[level] for level in levels.tolist())
    return _Nearest((0, *more), counts, named, _slower(slowdown, levels, widest, node))


def _doubling(sizes: Int64s) -> list[int]:
    """Of the usable numbers the first at or above each power of two, and the last."""
    if len(sizes) < 2:
        return []
    powers = 2 ** np.arange(int(sizes[-1]).bit_length())
    at = np.minimum(np.searchsorted(sizes, powers), len(sizes) - 1)
    numbers: list[int] = np.unique(np.append(sizes[np.maximum(at, 1)], sizes[-1])).tolist()
    return numbers


def _bundle(offer: GpuOffer, first: tuple[int, str, int], gpus: int) -> Seats:
    """So many GPUs from a machine on: the fullest of its rack next, then the fullest of all."""
    others = sorted((m for m in offer.free if m != first), key=lambda m: (m[1] != first[1], -m[2], m[0]))
    seats: list[tuple[int, int]] = []
    for node, _, free in (first, *others):
        if not gpus:
            break
        seats.append((node, min(free, gpus)))
        gpus -= seats[-1][1]
    return tuple(sorted(seats))
