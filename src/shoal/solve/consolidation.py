"""Time shares of gangs that are faster on one node: a kind's GPUs together or apart, and how much can be together.

A gang's time on a kind is *consolidated*, all its GPUs on one node, or not; either takes GPUs of the kind. A node of n
GPUs seats at most ⌊n/h⌋ gangs of h or more at once, so for every h the consolidated time of such gangs adds up to at
most what all nodes seat. Nothing that can be carried out breaks these limits; not all that keeps them can be packed.

Levels are raised along the same paths as in `shoal.solve.prices`. There is no search over prices here, because a gang's
price now depends on its size in more than one way: a linear program says whether levels fit, and if not its prices give
a cut that the next levels must keep. As in Newton's method on a concave function few cuts are needed. Whoever has a
part in the last cut can never rise again. Every cut is recomputed from its prices, whatever the solver said.

References: Gavel (OSDI '20) §3.1 on placement sensitivity; Kelley (1960) for cuts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices
from shoal.solve.linear_program import LpSession, Program, Status, judged, relative_gap
from shoal.solve.prices.paths import BoundedPath, Path
from shoal.solve.ratio_program import best_ratio
from shoal.solve.time_share_lp import NOBODY, Activities, Floored, LimitRows, extended, floored

_FITS = 1e-9
"""Levels fit if at most this much of an even part of a top speed is missing."""
_TIGHT = 1e-9
"""Whoever has more than this part of a cut stays where it is."""
_MOST_CUTS = 200
"""Most stages take 3 to 6; this many mean that rounding has taken over."""
_TINY = 1e-300


@dataclass(frozen=True, slots=True)
class Localities:
    """By job and kind the speed of its gang consolidated and apart, 0 where it cannot run so; node sizes by kind.

    Consolidated is never the slower of the two, except where it is 0: a gang larger than every node.
    """

    consolidated: Floats
    apart: Floats
    gangs: Floats
    capacity: Floats
    nodes: Sequence[Sequence[int]]

    @property
    def sensitive(self) -> Flags:
        """By job and kind: whether it makes a difference."""
        return self.consolidated > self.apart

    def top_speed(self) -> Floats:
        """The fastest each job can ever go."""
        top: Floats = np.maximum(self.consolidated, self.apart).max(axis=1, initial=0.0)
        return top

    def per(self, unit: Floats) -> "Localities":
        """The same with each job's speeds counted in units of its own."""
        scale = 1.0 / unit[:, None]
        return replace(self, consolidated=self.consolidated * scale, apart=self.apart * scale)

    def throughput(self, found: "LocalShares") -> Floats:
        """What each job makes of such shares."""
        rest = found.shares - found.consolidated
        made: Floats = (self.consolidated * found.consolidated + self.apart * rest).sum(axis=1)
        return made

    def limits(self) -> list[tuple[int, int, int]]:
        """(kind, h, how many gangs of h or more all nodes seat), for each h that sensitive gangs have there."""
        return [
            (kind, int(size), sum(node // int(size) for node in self.nodes[kind]))
            for kind in range(len(self.capacity))
            for size in np.unique(self.gangs[self.sensitive[:, kind]])
        ]

    def fit(self, shares: Floats) -> bool:
        """Whether all of this time by job and kind could be consolidated where that makes a difference."""
        time = np.where(self.sensitive, shares, 0.0)
        return all(time[self.gangs >= size, kind].sum() <= most + _FITS for kind, size, most in self.limits())

    def activities(self) -> Activities:
        """Every job on every kind it can use, consolidated first; one way only where it makes no difference."""
        sensitive = self.sensitive
        job, kind = np.nonzero(sensitive)
        other, other_kind = np.nonzero(self.apart > 0)
        rows = [(self.gangs[job] >= size) & (kind == k) for k, size, _ in self.limits()]
        named = [np.flatnonzero(row) for row in rows]
        limits = LimitRows(
            row=np.repeat(np.arange(len(named)), [len(row) for row in named]),
            activity=np.concatenate([np.zeros(0, dtype=np.intp), *named]),
            most=np.array([most for _, _, most in self.limits()], dtype=np.float64),
        )
        jobs = np.concatenate([job, other])
        return Activities(
            counts=np.ones(len(self.gangs)),
            first=jobs,
            second=np.full(len(jobs), NOBODY),
            first_speed=np.concatenate([self.consolidated[job, kind], self.apart[other, other_kind]]),
            second_speed=np.zeros(len(jobs)),
            types=np.concatenate([kind, other_kind]),
            width=self.gangs[jobs],
            capacity=self.capacity,
            limits=limits,
        )


@dataclass(frozen=True, slots=True)
class LocalShares:
    """Shares of time by job and kind, the part of them that is consolidated where that counts, and what proves them.

    The other fields are those of `shoal.solve.linear_objectives.TimeShares`.
    """

    shares: Floats
    consolidated: Floats
    throughput: Floats
    objective: float
    bound: float
    gap: float
    residual: float
    status: Status
    unattainable: Flags
    shortfall: Floats


def most_throughput(places: Localities, weights: Floats, floors: Floats | None = None) -> LocalShares:
    """The shares with the largest Σ weight · throughput, every job at or above its floor as far as that can be."""
    activities = places.activities()
    held = floored(activities, floors)
    gain = activities.gain(weights)
    vertex = held.session.maximise(held.padded(gain))
    x = activities.trimmed(vertex.x[: activities.size])
    solved = vertex.solved and held.feasible
    bound = held.session.bound(held.padded(gain), vertex.prices) if solved else float("inf")
    return _told(activities, x, (float(gain @ x), bound), held, floors, solved=solved)


def first_come(places: Localities, order: Indices) -> LocalShares:
    """First in, first out, as `linear_objectives.fifo`: the largest Σ throughput / top speed · (M − place)."""
    ahead = np.empty(len(order))
    ahead[order] = len(order) - np.arange(len(order))
    return most_throughput(places, ahead / places.top_speed())


def shortest_first(places: Localities, steps: Floats) -> LocalShares:
    """The least duration for the shortest job, then the next, as `linear_objectives.shortest_job_first`."""
    top = places.top_speed()
    order = np.argsort(steps / top, kind="stable")
    ahead, floors = np.empty(len(top)), np.zeros(len(top))
    ahead[order] = (len(top) - np.arange(len(top))) / top[order]
    floors[order[0]] = top[order[0]]
    found = most_throughput(places, ahead, floors)
    shortest = int(order[0])
    rate, bound = float(found.throughput[shortest]), float(steps[shortest] / top[shortest])
    objective = float(steps[shortest]) / rate if rate > 0 else float("inf")
    gap = max(found.gap, relative_gap(objective, bound))
    status = judged(found.status != "unsolved", gap, found.residual)
    return replace(found, objective=objective, bound=bound, gap=gap, status=status)


def most_for_the_money(
    places: Localities, prices: Floats, weights: Floats, floors: Floats | None = None
) -> LocalShares:
    """The shares with the largest Σ weight · throughput / Σ price · GPUs, as `shoal.solve.ratio_program.cheapest`."""
    activities = places.activities()
    held = floored(activities, floors)
    best = best_ratio(activities, held, activities.gain(weights), activities.cost(prices))
    return _told(activities, best.x, (best.ratio, best.bound), held, floors, solved=best.solved)


def water_filled(places: Localities, path: Path, *, water_filling: bool = True) -> LocalShares:
    """Raise everyone along the path, then whoever still can rise; without ``water_filling`` what is left goes where it
    adds most, each job counted in its own top speed. The objective is the path's; every job must have a way to run."""
    activities = places.activities()
    rise = _Rise(activities, path)
    while rise.stage() and water_filling:
        pass
    if not water_filling:
        rise.spend()
    x = activities.trimmed(rise.x)
    levels = activities.throughput(x)
    short = float(((rise.levels - levels) / rise.top).max(initial=0.0))
    return _told(activities, x, (path.worth(levels), rise.bound), None, None, solved=rise.solved, short=short)


class _Rise:
    """Levels on their way up: the program that says what fits, where everybody stops, and how far it has come."""

    def __init__(self, activities: Activities, path: Path) -> None:
        self._activities, self._path = activities, path
        self.top = activities.top_speed()
        self._stop, self._tau = self.top.copy(), 0.0
        crowding = float(_widths(activities).sum()) / float(activities.capacity.sum())
        # Rows in units of about what is reached: in top speeds a small part of many GPUs would drown in the tolerance.
        self._unit = self.top / max(crowding, 1.0)
        self._base = LpSession(activities.program())
        self._session, first = _level_session(activities, self._unit, max(crowding, 1.0))
        self._rows = np.arange(first, first + len(self.top))
        self._missing = np.concatenate([np.zeros(activities.size), [-1.0]])
        self.x, self.levels = np.zeros(activities.size), np.zeros(len(self.top))
        self.bound = np.inf
        self.solved = True

    def stage(self) -> bool:
        """Raise all as far as all can; who cannot go on stops there. Whether anyone is left who might rise."""
        climb, cut, whole = self._path.climb(self._stop), np.zeros(len(self.top)), self.bound == np.inf
        tau = climb.top
        for _ in range(_MOST_CUTS):
            levels = climb.at(tau)
            self._session.raise_floors(self._rows, levels / self._unit)
            vertex = self._session.maximise(self._missing)
            if not vertex.solved:
                break
            if vertex.x[-1] <= _FITS:
                self.x, self.levels, self._tau = vertex.x[:-1], levels, tau
                if whole:
                    self.bound = self._path.worth(climb.at(tau))
                stuck = cut > _TIGHT
                self._stop[stuck] = levels[stuck]
                return bool(stuck.any())
            cut = np.maximum(-vertex.prices[self._rows], 0.0)
            most = self._base.bound(self._activities.gain(cut / self._unit), vertex.prices[: self._rows[0]])
            tau = _highest(climb, cut / self._unit, most, self._tau, tau)
        self.solved = False
        return False

    def spend(self) -> None:
        """Give what is left to whom it does most good, above the levels reached."""
        self._session.raise_floors(self._rows, np.maximum(self.levels / self._unit - _FITS, 0.0))
        self._session.limit(np.array([self._activities.size]), np.zeros(1))
        vertex = self._session.maximise(np.append(self._activities.gain(1.0 / self.top), 0.0))
        if vertex.solved:
            self.x = vertex.x[:-1]


def _highest(climb: BoundedPath, cut: Floats, most: float, low: float, high: float) -> float:
    """The largest τ whose levels keep a cut, by halving: levels only rise with τ."""
    for _ in range(100):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if float(cut @ climb.at(middle)) <= most:
            low = middle
        else:
            high = middle
    return low


def _widths(activities: Activities) -> Floats:
    widths = np.zeros(len(activities.counts))
    widths[activities.first] = activities.width
    return widths


def _level_session(activities: Activities, unit: Floats, most: float) -> tuple[LpSession, int]:
    """The common constraints, then a row throughput / unit + missing ≥ level / unit per job; what is missing, up to
    ``most``, is the last column, the same for all."""
    program = activities.program()
    first, jobs = len(program.lower), np.arange(len(unit))
    extra = Program(
        rows=first + np.concatenate([activities.first, jobs]),
        columns=np.concatenate([np.arange(activities.size), np.full(len(unit), activities.size)]),
        values=np.concatenate([activities.first_speed / unit[activities.first], np.ones(len(unit))]),
        lower=np.zeros(len(unit)),
        upper=np.full(len(unit), np.inf),
        reach=np.full(1, most),
    )
    return LpSession(extended(program, extra)), first


def _told(
    activities: Activities,
    x: Floats,
    value: tuple[float, float],
    held: Floored | None,
    floors: Floats | None,
    *,
    solved: bool,
    short: float = 0.0,
) -> LocalShares:
    """The answer by job and kind, with the residual of every limit; ``short`` is what levels lack of their claim."""
    shape = len(activities.counts), len(activities.capacity)
    both = np.zeros((2, *shape))
    split = _consolidated(activities)
    for way, at in enumerate((slice(None, split), slice(split, None))):
        both[way][activities.first[at], activities.types[at]] = x[at]
    shares, throughput = both.sum(axis=0), activities.throughput(x)
    used = np.bincount(activities.types, activities.width * x, minlength=shape[1])
    kept = np.zeros(shape[0]) if held is None else held.kept
    over = (
        short,
        (shares.sum(axis=1) - 1.0).max(initial=0.0),
        (used / np.maximum(activities.capacity, _TINY) - 1.0).max(initial=0.0),
        (activities.limits.filled(x) - activities.limits.most).max(initial=0.0),
        ((kept - throughput) / np.maximum(activities.top_speed(), _TINY)).max(initial=0.0),
    )
    residual, gap = float(max(over)), relative_gap(*value)
    asked = np.zeros(shape[0]) if floors is None else floors
    return LocalShares(
        shares=shares,
        consolidated=both[0],
        throughput=throughput,
        objective=value[0],
        bound=value[1],
        gap=gap,
        residual=residual,
        status=judged(solved, gap, residual),
        unattainable=np.zeros(shape[0], dtype=np.bool_) if held is None else held.unattainable,
        shortfall=np.maximum(asked - np.maximum(throughput, kept), 0.0),
    )


def _consolidated(activities: Activities) -> int:
    """How many activities, the first ones, are consolidated: all that a limit names."""
    return int(activities.limits.activity.max(initial=-1)) + 1
