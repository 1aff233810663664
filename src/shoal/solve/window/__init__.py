"""The window program: which gangs run in which of the next rounds, for the most welfare at a makespan level.

``plan`` maximises Σ worth − price · level, the level being what is left, after the window, of the gang that has most
left. It climbs the ladder of steps at every level worth trying, lays the best one out in rounds, and says how far from
the bound at that level the welfare of the layout is. Nothing here knows of jobs or seconds.

References: Shockwave (NSDI '23) §6.1, appendices G and H.
"""

from dataclasses import dataclass
from math import inf, isinf

import numpy as np
from numpy.typing import NDArray

from shoal.solve.window.classes import class_bound
from shoal.solve.window.ladder import Claims, Climb, Flags, Ints, Ladder, usable
from shoal.solve.window.layout import Layout, eased, improved, in_order, packed, ranked, topped_up

__all__ = ["Claims", "Window", "plan"]

CLOSE = 1e-4
"""A gap below this ends the search for a better layout, or a better bound."""

_SMALL = 1500
"""Seats to choose for, of every width and in every round, up to which rounds are improved one by one. Where there are
more, gangs are narrow beside the cluster and fill it well without."""


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Who runs in which round, and what proves it good.

    ``level`` is what is left, in rounds, of the gang that has most left after the window. No plan that leaves no more
    than that has a welfare above ``bound``. ``gap`` is the part of what the window can add at this level, above the
    worth of the rounds the level forces, that the plan does not reach.
    """

    runs: Flags
    welfare: float
    bound: float
    level: float
    gap: float

    @property
    def counts(self) -> Ints:
        """Rounds each gang runs."""
        counts: Ints = self.runs.sum(axis=1, dtype=np.int32)
        return counts


def plan(
    claims: Claims,
    capacity: int,
    price: float,
    order: NDArray[np.intp] | None = None,
    *,
    least: float | None = None,
    early: bool = False,
) -> Window:
    """The plan of most welfare less ``price`` for each round of makespan level; an infinite price: the least level.

    ``order`` says who should run early, the first first. With ``early`` that comes before welfare: only the rounds
    that the level forces are sure, and a gang that has come late in the order may end with fewer rounds than are best.
    A level below ``least`` gains nothing: by default what would be left for every GPU of the cluster after a full
    window. Gangs wider than ``capacity`` get no rounds and no level.
    """
    wide = claims.widths > capacity
    if wide.any():
        return _without(claims, capacity, price, order, wide, least=least, early=early)
    if least is None:
        least = float(claims.widths @ claims.left) / capacity - claims.rounds
    order = np.arange(len(claims.widths)) if order is None else order
    ladder = Ladder(claims, usable(claims.widths, capacity))
    level, climb = _best_level(ladder, price, max(least, 0.0))
    if early:
        forced = claims.forced(level)
        first = ranked(claims.widths, climb.counts, forced, capacity, claims.rounds, order)
        return _judged(ladder, topped_up(claims, first, capacity, order), level)
    return _laid_out(ladder, capacity, level, climb, order)


def _best_level(ladder: Ladder, price: float, least: float) -> tuple[float, Climb]:
    """The makespan level with the best sum, of those a whole number of rounds below the longest gang's."""
    claims = ladder.claims
    longest = float(claims.left.max(initial=0.0))
    # Where a level is worth nothing none is forced: the bounds of several may be alike though their plans are not.
    levels = sorted({max(longest - n, least) for n in range(claims.rounds + 1)}) if price else [longest]
    most = 0.0 if isinf(price) else ladder.most
    found: tuple[float, Climb] | None = None
    for level in levels:
        # No level is worth more than the last, at which nothing is forced.
        if found is not None and (isinf(price) or most - price * level <= found[1].bound - price * found[0]):
            break
        climb = ladder.climb(level)
        if climb is not None and (found is None or climb.bound - price * level > found[1].bound - price * found[0]):
            found = level, climb
    assert found is not None  # the last level can always be reached
    return found


def _laid_out(ladder: Ladder, capacity: int, level: float, climb: Climb, order: NDArray[np.intp]) -> Window:
    claims, envelope = ladder.claims, ladder.envelope
    first = ranked(claims.widths, climb.counts, climb.counts, capacity, claims.rounds, order)
    best = _judged(ladder, first, level)
    if best.gap <= CLOSE and best.level <= level:
        return best
    pressure = np.empty(len(order))
    pressure[order] = np.linspace(1.0, 0.0, len(order), endpoint=False)
    forced = claims.forced(level)
    for counts in (climb.counts, eased(claims, envelope, climb.counts, forced, ladder.capacity)):
        other = in_order(packed(claims, envelope, counts, forced, capacity), claims.widths, pressure)
        tried = _judged(ladder, other, level)
        if tried.level < best.level or (tried.level == best.level and tried.welfare > best.welfare):
            best = tried
    if best.gap > CLOSE and claims.rounds * int((capacity // np.unique(claims.widths)).sum()) <= _SMALL:
        again = improved(claims, Layout(best.runs), claims.forced(best.level), capacity)
        tried = _judged(ladder, in_order(again, claims.widths, pressure), best.level)
        if tried.welfare > best.welfare:
            best = tried
    if best.gap <= CLOSE:
        return best
    return _with_bound(claims, best, class_bound(claims, envelope, capacity, claims.forced(best.level)))


def _judged(ladder: Ladder, layout: Layout, level: float) -> Window:
    claims = ladder.claims
    counts = layout.counts
    welfare = float(claims.worth[np.arange(len(counts)), counts].sum())
    reached = max(level, claims.level(counts))
    climb = ladder.climb(reached)
    assert climb is not None  # the layout itself shows that its level can be reached
    return _with_bound(claims, Window(layout.runs, welfare, inf, reached, inf), climb.bound)


def _with_bound(claims: Claims, window: Window, bound: float) -> Window:
    bound = max(min(bound, window.bound), window.welfare)
    base = float(claims.worth[np.arange(len(window.runs)), claims.forced(window.level)].sum())
    gap = (bound - window.welfare) / (bound - base) if bound > base else 0.0
    return Window(window.runs, window.welfare, bound, window.level, gap)


def _without(
    claims: Claims,
    capacity: int,
    price: float,
    order: NDArray[np.intp] | None,
    wide: Flags,
    *,
    least: float | None,
    early: bool,
) -> Window:
    """The plan of those that fit; the others' worth of no rounds is added to it."""
    kept = np.flatnonzero(~wide)
    place = np.cumsum(~wide) - 1
    rest = Claims(claims.widths[kept], claims.worth[kept], claims.left[kept])
    others = None if order is None else place[order[~wide[order]]]
    some = plan(rest, capacity, price, others, least=least, early=early)
    runs = np.zeros((len(wide), claims.rounds), dtype=bool)
    runs[kept] = some.runs
    idle = float(claims.worth[wide, 0].sum())
    return Window(runs, some.welfare + idle, some.bound + idle, some.level, some.gap)
