"""The window program: which gangs run in which of the next rounds, for the most welfare at a makespan level.

    maximise   Σ_j worth[j, n_j] − price · level,  n_j the rounds gang j runs,  level = max_j (left_j − n_j)
    subject to Σ widths of the gangs that run in a round ≤ capacity.

`round_counts` solves the knapsack over counts n_j at every level worth trying, which bounds the program; `layout` puts
the counts into rounds; where the layout misses the bound by more than `CLOSE`, `prices`, `patterns` and
`branch_and_bound` improve plan and bound over patterns of seats. The gap to the bound at the plan's level is returned.

References: Shockwave (NSDI '23) §6.1, appendices G and H.
"""

from dataclasses import dataclass, replace
from math import inf, isinf

import numpy as np

from shoal.core.arrays import Flags, Indices, Int32s, Int64s
from shoal.solve.window.branch_and_bound import in_whole_rounds
from shoal.solve.window.classes import classes
from shoal.solve.window.layout import Layout, eased, improved, in_order, packed, ranked, topped_up
from shoal.solve.window.patterns import Exchanges
from shoal.solve.window.prices import priced
from shoal.solve.window.round_counts import Claims, Ladder, RoundCounts, usable
from shoal.solve.window.seating import apart, seated

__all__ = ["Claims", "Window", "plan"]

CLOSE = 1e-4
"""A gap below this ends the search for a better layout, or a better bound."""

_ROUNDING = 1e-12
"""Relative: smaller distances of a welfare to its bound count as 0."""

_SMALL = 1500
"""Up to this many seats rounds are improved one by one; with more, gangs are narrow relative to the cluster and fill it
well without that.
"""

_ENOUGH, _SPLITS, _CLASSES = 5e-4, 4, 24
"""The gap above which gangs are put into finer classes, how often at most, and the most classes. Finer classes bound
better how many rounds a gang can have."""


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """A plan (gangs × rounds) with its certificate.

    ``level`` is the rounds left, after the window, of the gang that has most left. No plan of that level or lower has a
    welfare above ``bound``. ``gap`` is (bound − welfare) / (bound − worth of the rounds that the level forces).
    """

    runs: Flags
    welfare: float
    bound: float
    level: float
    gap: float

    @property
    def counts(self) -> Int32s:
        """Rounds each gang runs."""
        counts: Int32s = self.runs.sum(axis=1, dtype=np.int32)
        return counts


def plan(
    claims: Claims,
    capacity: int,
    price: float,
    order: Indices | None = None,
    *,
    least: float | None = None,
    early: bool = False,
) -> Window:
    """The plan found with the most welfare − ``price`` · level; with an infinite price one of the least level.

    ``order`` lists the gangs, those to run early first. With ``early`` order comes before welfare: only the rounds that
    the level forces are certain, and gangs late in the order may get fewer rounds than are best. Levels below ``least``
    gain nothing; its default is the work left per GPU of the cluster after a full window. Gangs wider than
    ``capacity`` get no rounds and count in no level.
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


def _best_level(ladder: Ladder, price: float, least: float) -> tuple[float, RoundCounts]:
    """Return the best makespan level, a whole number of rounds below the longest gang's, with its counts."""
    claims = ladder.claims
    longest = float(claims.left.max(initial=0.0))
    # At price 0 no level is forced: the bounds of several may be equal though their plans are not.
    levels = sorted({max(longest - n, least) for n in range(claims.rounds + 1)}) if price else [longest]
    most = 0.0 if isinf(price) else ladder.most
    found: tuple[float, RoundCounts] | None = None
    for level in levels:
        # No level has more welfare than the last, at which no round is forced.
        if found is not None and (isinf(price) or most - price * level <= found[1].bound - price * found[0]):
            break
        climb = ladder.climb(level)
        if climb is not None and (found is None or climb.bound - price * level > found[1].bound - price * found[0]):
            found = level, climb
    assert found is not None  # the last level can always be reached
    return found


def _laid_out(ladder: Ladder, capacity: int, level: float, climb: RoundCounts, order: Indices) -> Window:
    """The best of several layouts, the fastest first, until one is within `CLOSE` of its bound."""
    claims = ladder.claims
    first = ranked(claims.widths, climb.counts, climb.counts, capacity, claims.rounds, order)
    best = _judged(ladder, first, level)
    if best.gap <= CLOSE and best.level <= level:
        return best
    packs = _packs_well(claims, capacity)
    if packs:
        best = _by_packing(ladder, capacity, level, climb, best)
    best = _by_patterns(ladder, capacity, level, best, order)
    if not packs and (best.gap > _ENOUGH or best.level > level):
        best = _by_packing(ladder, capacity, level, climb, best)
    if best.gap > CLOSE and _seats(claims, capacity) <= _SMALL:
        again = improved(claims, Layout(best.runs), claims.forced(best.level), capacity)
        best = _better(claims, best, _judged(ladder, again, best.level))
    if best.runs is first.runs:
        return best
    return replace(best, runs=in_order(Layout(best.runs), claims.widths, order).runs)


def _seats(claims: Claims, capacity: int) -> int:
    """Return how many seats of each width all rounds hold, summed over the widths."""
    return claims.rounds * int((capacity // np.unique(claims.widths)).sum())


def _packs_well(claims: Claims, capacity: int) -> bool:
    """Whether narrower gangs can fill what laying out the widest first leaves free in a round."""
    return _seats(claims, capacity) > _SMALL or not (claims.widths % claims.widths.min()).any()


def _by_packing(ladder: Ladder, capacity: int, level: float, climb: RoundCounts, best: Window) -> Window:
    """Return the better of ``best`` and the counts of most worth, laid out widest first and filled by a knapsack."""
    claims, forced = ladder.claims, ladder.claims.forced(level)
    for counts in (climb.counts, eased(claims, ladder.envelope, climb.counts, forced, ladder.capacity)):
        other = packed(claims, ladder.envelope, counts, forced, capacity)
        best = _better(claims, best, _judged(ladder, other, level))
    return best


def _by_patterns(ladder: Ladder, capacity: int, level: float, best: Window, order: Indices) -> Window:
    """Return ``best`` or a better plan made of patterns of seats, for ``level`` or for the level of ``best``."""
    for reached in sorted({level, best.level}):
        if best.level > reached or (best.level == reached and best.gap > CLOSE):
            best = _exchanged(ladder, capacity, reached, best, order)
    return best


def _exchanged(ladder: Ladder, capacity: int, level: float, best: Window, order: Indices) -> Window:
    claims, forced, climb = ladder.claims, ladder.claims.forced(level), ladder.climb(level)
    assert climb is not None  # the ladder chose this level, or a layout has reached it
    # Gangs forced into every round are classes of their own: every pattern has them.
    of = np.unique(2 * claims.widths + (forced == claims.rounds), return_inverse=True)[1]
    for _ in range(_SPLITS):
        program = classes(ladder, of, forced, capacity)
        many, close = len(program.widths), CLOSE / 10.0 * (climb.bound - program.base)
        found = priced(program, climb.price, close)
        now = np.stack([np.bincount(of[run], minlength=many) for run in best.runs.T])
        seats = Exchanges(program, found).best(now, close)
        best = _seated(ladder, level, best, found.bound, seats, program.widths, order)
        if best.level == level and best.gap > _ENOUGH:
            whole = in_whole_rounds(program, found, best.welfare)
            if whole is not None:
                best = _seated(ladder, level, best, *whole, program.widths, order)
        finer = apart(ladder, seats, of, forced)
        if (best.gap <= _ENOUGH and best.level <= level) or not many <= finer.max() < _CLASSES:
            break
        of = finer
    return best


def _seated(
    ladder: Ladder, level: float, best: Window, bound: float, seats: Int64s, widths: Int64s, order: Indices
) -> Window:
    """Return the better of ``best`` and the plan on these seats, with a bound on every plan of that level."""
    claims = ladder.claims
    tried = _judged(ladder, seated(ladder, seats, widths, claims.forced(level), order), level)
    return _better(claims, *(_with_bound(claims, w, bound) if w.level == level else w for w in (best, tried)))


def _better(claims: Claims, one: Window, other: Window) -> Window:
    """Return the plan of the lower level or, at equal levels, of more welfare, with the lower bound of both."""
    if one.level != other.level:
        return min(one, other, key=lambda window: window.level)
    more = other if other.welfare > one.welfare else one
    return _with_bound(claims, more, min(one.bound, other.bound))


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
    short = bound - window.welfare
    gap = short / (bound - base) if short > _ROUNDING * (1.0 + abs(bound)) else 0.0
    return Window(window.runs, window.welfare, bound, window.level, gap)


def _without(
    claims: Claims,
    capacity: int,
    price: float,
    order: Indices | None,
    wide: Flags,
    *,
    least: float | None,
    early: bool,
) -> Window:
    """Return the plan of the gangs that fit in the capacity; the others' worth of no rounds is added."""
    kept = np.flatnonzero(~wide)
    place = np.cumsum(~wide) - 1
    rest = Claims(claims.widths[kept], claims.worth[kept], claims.left[kept])
    others = None if order is None else place[order[~wide[order]]]
    some = plan(rest, capacity, price, others, least=least, early=early)
    runs = np.zeros((len(wide), claims.rounds), dtype=bool)
    runs[kept] = some.runs
    idle = float(claims.worth[wide, 0].sum())
    return Window(runs, some.welfare + idle, some.bound + idle, some.level, some.gap)
