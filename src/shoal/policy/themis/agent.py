"""An app's side of the auction: its valuation, its bids, and the division of its GPUs among its jobs.

An agent is a value: an app's figures at one time. It bids truthfully; experiments distort its ``slowdown`` and
``works``.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import inf

import numpy as np

from shoal.core.arrays import Floats, Int64s
from shoal.perf.app_valuation import Use, Work, finish_seconds, phase_seconds, usable
from shoal.policy.themis.carry import WorkEstimate
from shoal.policy.themis.locality import Slowdown
from shoal.policy.themis.protocol import Bid, GpuOffer, Level, Row, Seats
from shoal.solve.max_min_counts import fair_counts

_LEVELS = tuple(Level)


@dataclass(frozen=True, eq=False)
class AppAgent:
    """An app's figures for one kind of GPU.

    ``elapsed`` is seconds since its start, ``ideal`` its seconds on its own share of the cluster; ``works`` are its
    jobs in the order in which they are served, ``ahead`` the phases after them, ``held`` the GPUs it keeps under lease;
    ``node`` is the GPUs of a machine (up to that many, a job is expected to be on one), ``limit`` the most GPUs that
    ``works`` can use, ``capacity`` the most there are. ``own_seconds``, the app's own bid by number of GPUs, replaces
    what follows from ``works`` and ``ahead``. ``estimate`` has what follows from ``works``, where known already.
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
    own_seconds: Floats | None = None
    estimate: WorkEstimate | None = None
    nothing: float = inf

    @cached_property
    def use(self) -> Use:
        """How its jobs can use GPUs, by number."""
        return usable([(work.least, work.most) for work in self.works], self.limit)

    @cached_property
    def left(self) -> Floats:
        """Seconds until it completes, by number of GPUs kept until then, on as few machines as possible."""
        if self.own_seconds is not None:
            return self.own_seconds
        seconds = self._phase_seconds
        return seconds + finish_seconds(self.ahead, self.limit) if self.ahead else seconds

    @cached_property
    def fastest(self) -> float:
        """The seconds until it completes with all GPUs it can use in each phase, however wide a later one."""
        if self.own_seconds is not None or not self.ahead:
            return float(self.left[-1])
        return float(self._phase_seconds[-1]) + sum(_alone(phase, self.capacity) for phase in self.ahead)

    @property
    def _phase_seconds(self) -> Floats:
        return phase_seconds(self.works, self.use) if self.estimate is None else self.estimate.seconds

    @cached_property
    def sizes(self) -> Int64s:
        """The numbers of further GPUs, beside those it keeps, that it can use without any left over, from 0."""
        return np.append(0, self.use.sizes(self.held) - self.held)

    @cached_property
    def least(self) -> int:
        """The fewest GPUs it can use; 0 if it can use none."""
        return min(self.use.beyond(0), default=0)

    def rho(self, gpus: int) -> float:
        """Return ρ with ``gpus`` in all, on few machines; without any, ``nothing`` times ρ of its fewest."""
        if not gpus:
            return self.nothing * self.rho(self.least)
        return (self.elapsed + float(self.left[gpus])) / self.ideal

    def rhos(self, gpus: Int64s, slower: Floats) -> list[float]:
        """Return ρ with each of these numbers of GPUs, ``slower`` times slower than on as few machines as possible."""
        rhos: list[float] = ((self.elapsed + self.left[gpus] * slower) / self.ideal).tolist()
        return rhos

    def bid(self, offer: GpuOffer) -> Bid:
        """Return a bid with a row for every number of GPUs it could use, as near together as the offer allows."""
        near = _nearest(self.use, self.held, self.node, self.slowdown, offer.gpus, offer.block, offer.rack)
        rows = map(Row, near.sizes[1:], near.levels, self.rhos(near.gpus, near.slower))
        return Bid(self.app, (Row(0, Level.SLOT, self.rho(self.held)), *rows), near.sizes)

    def bid_machines(self, offer: GpuOffer) -> Bid:
        """A bid that names machines: for doubling numbers of GPUs, a bundle that begins at each machine.

        A bundle takes from its first machine, then from that of its rack with the most free GPUs, then from any.
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
                    bundles[seats] = more, int(best_levels(widest, block, rack)[0])
        counts, levels = np.array(list(bundles.values()), dtype=np.int64).reshape(-1, 2).T
        slower = _slower(self.slowdown, levels, self.use.widest[self.held + counts], self.node)
        rhos = self.rhos(self.held + counts, slower)
        rows = map(Row, counts.tolist(), map(_LEVELS.__getitem__, levels.tolist()), rhos, bundles)
        return Bid(self.app, (Row(0, Level.SLOT, self.rho(self.held)), *rows), tuple(sizes.tolist()))

    def with_errors(self, work: float, slowdown: float) -> "AppAgent":
        """Return the agent with its work and its slowdown by distance misjudged by these fractions."""
        works, *ahead = (
            tuple(replace(w, seconds=w.seconds * (1.0 + work)) for w in phase) for phase in (self.works, *self.ahead)
        )
        near, machine, rack, cluster = self.slowdown
        wrong = (near, machine, max(rack * (1.0 + slowdown), 1.0), max(cluster * (1.0 + slowdown), 1.0))
        own = None if self.own_seconds is None else self.own_seconds * (1.0 + work)
        return replace(self, works=works, ahead=tuple(ahead), slowdown=wrong, own_seconds=own, estimate=None)


def _alone(phase: Sequence[Work], capacity: int) -> float:
    """Seconds that a phase takes with all the GPUs that it can use."""
    gpu_ranges = [(work.least, work.most) for work in phase]
    return float(phase_seconds(phase, usable(gpu_ranges, min(sum(most for _, most in gpu_ranges), capacity)))[-1])


def divided(gpus: int, gpu_ranges: Sequence[tuple[int, int]], running: Int64s) -> Int64s:
    """An app's GPUs by job, moving as few jobs as possible.

    ``gpu_ranges`` are the fewest and the most of each, ``running`` the GPUs each holds now. Running jobs keep what they
    have; waiting jobs share the rest evenly, since a phase ends with its last job; then running jobs get more, in
    order. Where that would leave usable GPUs idle, all jobs share evenly.
    """
    if len(gpu_ranges) == 1:
        least, most = gpu_ranges[0]
        return np.array([min(most, gpus) if gpus >= least else 0], dtype=np.int64)
    counts = np.zeros(len(gpu_ranges), dtype=np.int64)
    left = gpus
    for i, (least, most) in enumerate(gpu_ranges):
        take = min(int(running[i]), most, left)
        if least <= take:
            counts[i] = take
            left -= take
    waiting = [(0, 0) if counts[i] else gpu_range for i, gpu_range in enumerate(gpu_ranges)]
    counts += _evenly(left, waiting, running)
    left = gpus - int(counts.sum())
    for i, (_, most) in enumerate(gpu_ranges):
        if counts[i] and left:
            more = min(most - int(counts[i]), left)
            counts[i] += more
            left -= more
    even = _evenly(gpus, gpu_ranges, running) if left else counts
    return even if even.sum() > counts.sum() else counts


def _evenly(gpus: int, gpu_ranges: Sequence[tuple[int, int]], running: Int64s) -> Int64s:
    """Return the fewest GPUs of each job, in order as far as they suffice, and the rest evenly among these jobs."""
    low, high, left = np.zeros(len(gpu_ranges), dtype=np.int32), np.zeros(len(gpu_ranges), dtype=np.int32), gpus
    for i, (least, most) in enumerate(gpu_ranges):
        if least <= left:
            low[i], high[i] = least, most
            left -= least
    return fair_counts(left, low, high, np.ones(len(low)), running.astype(np.int32)).astype(np.int64)


def best_levels(widest: Int64s, block: int, rack: int) -> Int64s:
    """The best levels of jobs this wide with ``block`` GPUs on one machine and ``rack`` in one rack."""
    levels: Int64s = (widest > 1).astype(np.int64) + (widest > max(block, 1)) + (widest > max(block, rack, 1))
    return levels


def _slower(slowdown: Slowdown, levels: Int64s, widest: Int64s, node: int) -> Floats:
    """Return the slowdown of jobs this wide at these levels over the expected one: on one machine or in a rack."""
    by_level, expected = np.array(slowdown), best_levels(widest, node, rack=int(widest.max(initial=0)))
    slower: Floats = by_level[levels] / by_level[expected]
    return slower


@dataclass(frozen=True, slots=True, eq=False)
class _Nearest:
    """The GPUs of an offer that an app can use, by its number of further GPUs (``sizes``, from 0).

    For all sizes but the first: the GPUs in all, the best level, and the slowdown there.
    """

    sizes: tuple[int, ...]
    gpus: Int64s
    levels: tuple[Level, ...]
    slower: Floats


@lru_cache(maxsize=4096)
def _nearest(use: Use, held: int, node: int, slowdown: Slowdown, gpus: int, block: int, rack: int) -> _Nearest:
    more = use.beyond(held)
    more = more[: bisect_right(more, gpus)]
    counts = held + np.array(more, dtype=np.int64)
    widest = use.widest[counts]
    levels = best_levels(widest, block, rack)
    named = tuple(_LEVELS[level] for level in levels.tolist())
    return _Nearest((0, *more), counts, named, _slower(slowdown, levels, widest, node))


def _doubling(sizes: Int64s) -> list[int]:
    """The first usable number at or above each power of two, and the last."""
    if len(sizes) < 2:
        return []
    powers = 2 ** np.arange(int(sizes[-1]).bit_length())
    at = np.minimum(np.searchsorted(sizes, powers), len(sizes) - 1)
    numbers: list[int] = np.unique(np.append(sizes[np.maximum(at, 1)], sizes[-1])).tolist()
    return numbers


def _bundle(offer: GpuOffer, first: tuple[int, str, int], gpus: int) -> Seats:
    """Return GPUs of a machine, then of the machine of its rack with the most free GPUs, then of any other."""
    others = sorted((m for m in offer.free if m != first), key=lambda m: (m[1] != first[1], -m[2], m[0]))
    seats: list[tuple[int, int]] = []
    for node, _, free in (first, *others):
        if not gpus:
            break
        seats.append((node, min(free, gpus)))
        gpus -= seats[-1][1]
    return tuple(sorted(seats))
