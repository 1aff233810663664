"""Time shares when two jobs may share the same GPUs, for every objective that there is without sharing.

The variables are the time of each job alone and of each pair together, by type; a job's time alone and in its pairs
adds up to at most 1, and a pair's GPUs and their price count once. Programs are solved over groups of equal jobs (see
`job_classes`), then distributed to jobs, where gap and residual are recomputed. Running alone is among the choices, so
sharing is never worse than not sharing.

If too many jobs are different, some pairs are left out (``restricted``): bound and gap then refer to the pairs kept.

References: Gavel (OSDI '20) §3.1 on space sharing, §4.1 to §4.3 for the objectives.
"""

from dataclasses import dataclass, replace

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices
from shoal.solve.job_classes import Groups, JobClasses, grouped, spread
from shoal.solve.level_rise import LevelRise
from shoal.solve.linear_objectives import checked_floors, checked_weights
from shoal.solve.linear_program import LpSession, Status, judged, relative_gap
from shoal.solve.prices.paths import BoundedPath, FinishTime, Path, ShareNode, Tree
from shoal.solve.ratio_program import best_ratio, checked_prices
from shoal.solve.time_share_lp import TINY, Activities, floored

_TIGHT = 1e-9
"""A group whose part of the level's price is above this cannot rise further and is frozen."""


@dataclass(frozen=True, slots=True)
class SharedShares:
    """Shares of time alone (jobs × types) and together (pairs × types), with their certificate.

    ``pairs[e]`` names two different jobs, every two at most once, and ``together[e]`` the time both spend on the same
    GPUs. ``throughput`` counts both. The other fields are those of `TimeShares`; ``restricted`` says that not all
    useful pairs were considered, so that the bound holds only for those that were.
    """

    alone: Floats
    pairs: Indices
    together: Floats
    throughput: Floats
    objective: float
    bound: float
    gap: float
    residual: float
    status: Status
    prices: Floats
    unattainable: Flags
    shortfall: Floats
    restricted: bool


def shared_throughput(classes: JobClasses, weights: Floats | None = None, floors: Floats | None = None) -> SharedShares:
    """The shares with the largest Σ weight · throughput; floors are those of `TimeShares`."""
    groups, weight, floor = _grouped(classes, weights, floors)
    held = floored(groups.activities, floor)
    gain = held.padded(groups.activities.gain(weight))
    vertex = held.session.maximise(gain)
    solved = vertex.solved and held.feasible
    bound = held.session.bound(gain, vertex.prices) if solved else float("inf")
    x = groups.activities.trimmed(vertex.x[: groups.activities.size])
    found = _by_job(groups, x, vertex.prices, held.kept, floor)
    objective = float((weight[groups.of_job] * found.throughput).sum())
    return _judged(replace(found, unattainable=held.unattainable[groups.of_job]), objective, bound, solved)


def shared_cheapest(
    classes: JobClasses, prices: Floats, weights: Floats | None = None, floors: Floats | None = None
) -> SharedShares:
    """The shares with the largest Σ weight · throughput / Σ price · GPUs in use, as `ratio_program.cheapest`."""
    groups, weight, floor = _grouped(classes, weights, floors)
    activities = groups.activities
    held = floored(activities, floor)
    per_type = checked_prices(prices, activities)
    best = best_ratio(activities, held, activities.gain(weight), activities.cost(per_type))
    found = _by_job(groups, best.x, best.prices, held.kept, floor)
    gangs = classes.gangs[classes.kinds]
    paid = float((gangs @ found.alone + gangs[found.pairs[:, 0]] @ found.together) @ per_type)
    objective = float((weight[groups.of_job] * found.throughput).sum()) / paid if paid > 0 else 0.0
    return _judged(replace(found, unattainable=held.unattainable[groups.of_job]), objective, best.bound, best.solved)


def shared_max_min(classes: JobClasses, demands: Floats, *, water_filling: bool = True) -> SharedShares:
    """The shares with the largest least throughput / demand, then the largest next one, and so on.

    Gavel's fairness has demand = weight · throughput(equal shares) / gang. Jobs that can run nowhere do not count.
    Without ``water_filling`` the least level is kept and the rest goes where it adds most, each job counted in its own
    top speed: one linear program instead of one for each level. Either way no job can rise without another's falling.
    The gap is the worst of all stages, each among allocations that keep the levels before it. Demands more than a
    million times apart, each over its job's top speed, may be beyond the solver's accuracy, which the status then says.
    """
    groups, demand, _ = _grouped(classes, demands, None, "demands")
    levels = _levels(groups.activities, demand, water_filling=water_filling)
    found = _by_job(groups, groups.activities.trimmed(levels.x), levels.prices, np.zeros(len(demand)), None)
    able = groups.activities.top_speed()[groups.of_job] > 0
    reached = (found.throughput / demand[groups.of_job])[able]
    return _judged(found, float(reached.min()) if len(reached) else 0.0, levels.bound, levels.solved, levels.gap)


def shared_makespan(classes: JobClasses, steps: Floats) -> SharedShares:
    """The shares with the least makespan, max over jobs of steps / throughput; the bound is a lower one.

    Jobs that can run nowhere are left out. Time left over goes where it adds most throughput, as in `shared_max_min`
    without ``water_filling``.
    """
    found = shared_max_min(classes, checked_weights("steps", steps, len(classes.kinds)), water_filling=False)
    if found.status == "unsolved" or found.objective <= 0:
        return replace(found, objective=0.0, bound=0.0)
    return replace(found, objective=1.0 / found.objective, bound=1.0 / found.bound)


def shared_finish_time(classes: JobClasses, steps: Floats, elapsed: Floats, alone: Floats) -> SharedShares:
    """The shares with the least worst ρ = (elapsed + steps / throughput) / alone; the objective is one over it.

    ``alone`` is the seconds a job takes on its own n-th part. Time left over goes where it adds most throughput, each
    job counted in its own top speed. Every job must be able to run.
    """
    count = len(classes.kinds)
    for field, values in (("steps", steps), ("alone", alone)):
        checked_weights(field, values, count)
    path = FinishTime(steps, elapsed, alone)
    return _risen(classes, path, np.ones(count), [steps, elapsed, alone], water_filling=False)


def shared_hierarchical(classes: JobClasses, tree: ShareNode, weights: Floats, unit: Floats) -> SharedShares:
    """The water-filled shares of a tree; levels are throughput / ``unit``, ``weights`` the jobs' own in fair nodes.

    ``unit`` may differ between classes only. Every job must be able to run and is in the tree once. The objective is
    the least sum of levels per weight among the root's children, as in `shoal.solve.prices.hierarchical`. The bound is
    that of the first stage: later stages may pass it, since inside a branch other jobs may rise when one cannot.
    """
    path = Tree(tree, checked_weights("weights", weights, len(classes.kinds)))
    return _risen(classes, path, unit, [weights, _alike_in_tree(tree, len(unit))], water_filling=True)


def shared_shortest(classes: JobClasses, steps: Floats) -> SharedShares:
    """The shares with the least duration of the shortest job, then of the others in order of their least durations.

    As `linear_objectives.shortest_job_first`: the job that could end first holds its fastest type alone.
    """
    count = len(classes.kinds)
    checked_weights("steps", steps, count)
    groups = grouped(classes)
    top = groups.activities.top_speed()[groups.of_job]
    duration = np.divide(steps, top, out=np.full(count, np.inf), where=top > 0)
    order = np.argsort(duration, kind="stable")
    place = np.empty(count, dtype=np.intp)
    place[order] = np.arange(count)
    weights = (count - place) / np.where(top > 0, top, 1.0)
    if not count or not np.isfinite(duration[order[0]]):
        return shared_throughput(classes, weights)
    first, floors = order[0], np.zeros(count)
    floors[first] = top[first]
    found = shared_throughput(classes, weights, floors)
    if found.status == "unsolved" or found.throughput[first] <= 0:
        return found
    return _judged(found, float(steps[first] / found.throughput[first]), float(duration[first]), True, found.gap)


def _risen(classes: JobClasses, path: Path, unit: Floats, keys: list[Floats], *, water_filling: bool) -> SharedShares:
    """Return the shares of levels raised along a path; jobs of equal ``keys`` have equal levels all along it."""
    groups = grouped(classes, *keys)
    example = np.array([jobs[0] for jobs in groups.jobs], dtype=np.intp)
    rise = LevelRise(groups.activities, _GroupPath(path, groups.of_job, example, unit))
    rise.fill(water_filling=water_filling)
    jobs = len(groups.of_job)
    unpriced = np.zeros(len(groups.kind) + len(groups.activities.capacity))
    found = _by_job(groups, groups.activities.trimmed(rise.x), unpriced, np.zeros(len(groups.kind)), None)
    short = (rise.levels[groups.of_job] - found.throughput) / rise.top[groups.of_job] if jobs else np.zeros(0)
    found = replace(found, residual=max(found.residual, float(short.max(initial=0.0))))
    objective = path.worth(found.throughput / unit)
    return _judged(found, objective, max(rise.bound, objective), rise.solved)


def _alike_in_tree(tree: ShareNode, jobs: int) -> Floats:
    """Return a number for each job: equal for two jobs of one fair node, its own for each job of a FIFO node."""
    alike, nodes, number = np.zeros(jobs), [tree], 0
    while nodes:
        node = nodes.pop()
        number += 1
        for child in node.children:
            if isinstance(child, ShareNode):
                nodes.append(child)
            else:
                number += node.policy == "fifo"
                alike[child] = number
    return alike


@dataclass(frozen=True, slots=True)
class _GroupPath:
    """The path of jobs as a path of groups, in throughput: a job's level is its throughput / ``unit``."""

    path: Path
    of_job: Indices
    example: Indices
    unit: Floats

    def climb(self, stop: Floats) -> BoundedPath:
        """The path under these stops of groups."""
        return _GroupClimb(self.path.climb(stop[self.of_job] / self.unit), self.example, self.unit[self.example])

    def worth(self, levels: Floats) -> float:
        """Return the objective of the jobs at these levels of their groups."""
        return self.path.worth(levels[self.of_job] / self.unit)


@dataclass(frozen=True, slots=True)
class _GroupClimb:
    jobs: BoundedPath
    example: Indices
    unit: Floats

    @property
    def top(self) -> float:
        return self.jobs.top

    def at(self, tau: float) -> Floats:
        levels: Floats = self.jobs.at(tau)[self.example] * self.unit
        return levels


def _grouped(
    classes: JobClasses, weights: Floats | None, floors: Floats | None, field: str = "weights"
) -> tuple[Groups, Floats, Floats]:
    """The groups, and by group the weight and the floor."""
    count = len(classes.kinds)
    weight = checked_weights(field, weights, count)
    asked = checked_floors(floors, count)
    floor = np.zeros(count) if asked is None else asked
    groups = grouped(classes, weight, floor)
    example = np.array([jobs[0] for jobs in groups.jobs], dtype=np.intp)
    return groups, weight[example], floor[example]


def _by_job(groups: Groups, x: Floats, prices: Floats, kept: Floats, floor: Floats | None) -> SharedShares:
    """The amounts distributed to jobs, with their residual; objective and bound are set by `_judged`."""
    found = spread(groups, x)
    jobs, types = len(groups.of_job), len(groups.activities.capacity)
    capacity, top = groups.activities.capacity, groups.activities.top_speed()[groups.of_job]
    kept = kept[groups.of_job]
    over = (
        0.0 - min(found.alone.min(initial=0.0), found.together.min(initial=0.0)),
        (found.time - 1.0).max(initial=0.0),
        (found.used / np.maximum(capacity, TINY) - 1.0).max(initial=0.0),
        ((kept - found.throughput) / np.maximum(top, TINY)).max(initial=0.0),
    )
    asked = np.zeros(jobs) if floor is None else floor[groups.of_job]
    row = len(groups.kind)
    return SharedShares(
        alone=found.alone,
        pairs=found.pairs,
        together=found.together,
        throughput=found.throughput,
        objective=0.0,
        bound=float("inf"),
        gap=float("inf"),
        residual=float(max(over)),
        status="unsolved",
        prices=prices[row : row + types],
        unattainable=np.zeros(jobs, dtype=np.bool_),
        shortfall=np.maximum(asked - np.maximum(found.throughput, kept), 0.0),
        restricted=groups.restricted,
    )


def _judged(found: SharedShares, objective: float, bound: float, solved: bool, gap: float = 0.0) -> SharedShares:
    gap = max(gap, relative_gap(objective, bound))
    return replace(found, objective=objective, bound=bound, gap=gap, status=judged(solved, gap, found.residual))


@dataclass(frozen=True, slots=True)
class _Levels:
    x: Floats
    bound: float
    gap: float
    prices: Floats
    solved: bool


@dataclass(frozen=True, slots=True)
class _LevelProgram:
    """A program with a row grain · throughput / top ≥ slope · level for each group that can run.

    The level, in units of ``unit``, is the last column. ``row``, ``slope`` and ``ceiling``, the most that a group's
    level can be, are by group; ``first_row`` is the first of the level rows.
    """

    session: LpSession
    row: Indices
    slope: Floats
    ceiling: Floats
    unit: float
    first_row: int

    @classmethod
    def of(cls, activities: Activities, demand: Floats, rising: Indices) -> "_LevelProgram":
        top = activities.top_speed()
        unit = float((top[rising] / demand[rising]).min())
        ceiling = top / demand / unit
        # Rows scaled in top speeds lose small demands in the tolerance, rows scaled in levels lose the others: the
        # geometric mean of both worked over the widest range of demands.
        grain = np.sqrt(ceiling) / activities.counts
        slope = np.divide(grain * activities.counts, ceiling, out=np.zeros(len(top)), where=top > 0)
        _, group, speed = activities.members()
        program, rows = activities.with_levels(
            speed * (grain / np.maximum(top, TINY))[group],
            rising,
            column=np.full(len(rising), activities.size),
            value=-slope[rising],
            lower=np.zeros(len(rising)),
            reach=np.ones(1),
        )
        first_row = int(rows[0])
        row = np.full(len(top), first_row)
        row[rising] = rows
        return cls(LpSession(program), row, slope, ceiling, unit, first_row)


def _levels(activities: Activities, demand: Floats, *, water_filling: bool) -> _Levels:
    """Raise the levels of all groups, freeze those that cannot rise, and repeat with the rest.

    At a vertex a group whose level row has a price is at its level in every optimum, so it has risen as far as it can
    beside the others. Each stage has such a group, so there are at most as many stages as groups.
    """
    top = activities.top_speed()
    rising = np.flatnonzero(top > 0)
    if not len(rising):
        nothing = np.zeros(len(activities.counts) + len(activities.capacity))
        return _Levels(np.zeros(activities.size), 0.0, 0.0, nothing, solved=True)
    levels = _LevelProgram.of(activities, demand, rising)
    session, row, slope, ceiling = levels.session, levels.row, levels.slope, levels.ceiling
    level = np.array([activities.size])
    only_level = np.concatenate([np.zeros(activities.size), [1.0]])
    first: tuple[float, Floats] | None = None
    gap, x = 0.0, np.zeros(activities.size)
    while len(rising):
        session.limit(level, ceiling[rising].min(keepdims=True))
        vertex = session.maximise(only_level)
        if not vertex.solved:
            gap = float("inf")
            break
        x, reached = vertex.x[:-1], float(vertex.x[-1])
        above = session.bound(only_level, vertex.prices)
        gap = max(gap, relative_gap(reached, above))
        first = first or (above * levels.unit, vertex.prices * levels.unit)
        tight = -vertex.prices[row[rising]] * slope[rising] > _TIGHT
        tight |= ceiling[rising] <= reached * (1.0 + _TIGHT)
        done = rising[tight] if tight.any() and water_filling else rising
        session.detach(row[done], activities.size)
        session.raise_floors(row[done], slope[done] * reached)
        rising = np.setdiff1d(rising, done)
    if first is not None and not water_filling:
        session.limit(level, np.zeros(1))
        gain = np.concatenate([activities.gain(1.0 / np.maximum(top, TINY)), [0.0]])
        vertex = session.maximise(gain)
        x = vertex.x[:-1] if vertex.solved else x
        gap = max(gap, relative_gap(float(gain @ vertex.x), session.bound(gain, vertex.prices)))
    bound, prices = first or (float("inf"), np.zeros(levels.first_row))
    return _Levels(x, bound, gap, prices, solved=first is not None)
