"""Time shares of gangs that are faster on one node: time with all GPUs on one node is a limited resource.

A gang's time on a kind is *consolidated* (all its GPUs on one node) or not; both use GPUs of the kind. A node of n GPUs
holds at most ⌊n/h⌋ gangs of h or more at once, so for every h

    Σ consolidated time of gangs of h or more ≤ Σ over nodes of ⌊n/h⌋.

Every schedule obeys these limits; some shares that obey them cannot be packed. The linear objectives are those of
`linear_objectives` and `ratio_program` with these rows added. Levels are raised along the paths of `shoal.solve.prices`
by cutting planes (`level_rise`) instead of a search over prices, because a gang's price now depends on its size in
several ways. Many jobs with levels in proportion to weights are counted together where they are equal (`equal_jobs`).

References: Gavel (OSDI '20) §3.1 on placement sensitivity.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices
from shoal.solve import linear_objectives
from shoal.solve.equal_jobs import EqualJobs
from shoal.solve.level_rise import LevelRise
from shoal.solve.linear_objectives import TimeShares, time_shares
from shoal.solve.priced_shares import many_alone
from shoal.solve.prices.paths import Path, Proportional
from shoal.solve.ratio_program import cheapest_activities
from shoal.solve.time_share_lp import NO_PARTNER, Activities, LimitRows

_FITS = 1e-9
"""Time fits if at most this much is missing."""


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
        """Whether consolidation makes a difference, by job and kind."""
        return self.consolidated > self.apart

    def top_speed(self) -> Floats:
        """The top speed of each job."""
        top: Floats = np.maximum(self.consolidated, self.apart).max(axis=1, initial=0.0)
        return top

    def per(self, unit: Floats) -> "Localities":
        """These localities with the speeds of each job divided by its ``unit``."""
        scale = 1.0 / unit[:, None]
        return replace(self, consolidated=self.consolidated * scale, apart=self.apart * scale)

    def throughput(self, found: TimeShares) -> Floats:
        """The throughput of each job with these shares."""
        rest = found.shares - found.consolidated
        made: Floats = (self.consolidated * found.consolidated + self.apart * rest).sum(axis=1)
        return made

    def limits(self) -> list[tuple[int, int, int]]:
        """Return (kind, h, how many gangs of h GPUs or more fit on all nodes) for each size h of sensitive gangs."""
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
            second=np.full(len(jobs), NO_PARTNER),
            first_speed=np.concatenate([self.consolidated[job, kind], self.apart[other, other_kind]]),
            second_speed=np.zeros(len(jobs)),
            types=np.concatenate([kind, other_kind]),
            width=self.gangs[jobs],
            capacity=self.capacity,
            limits=limits,
        )


def most_throughput(places: Localities, weights: Floats, floors: Floats | None = None) -> TimeShares:
    """The shares with the largest Σ weight · throughput, as `linear_objectives.maximise_throughput`."""
    return linear_objectives.most_throughput(places.activities(), weights, floors)


def first_come(places: Localities, order: Indices) -> TimeShares:
    """The shares of first in, first out, as `linear_objectives.fifo`."""
    activities = places.activities()
    return linear_objectives.most_throughput(activities, linear_objectives.line_weights(activities, order))


def shortest_first(places: Localities, steps: Floats) -> TimeShares:
    """The shares with the least duration of the shortest job, as `linear_objectives.shortest_job_first`."""
    return linear_objectives.shortest_first(places.activities(), steps)


def most_per_cost(places: Localities, prices: Floats, weights: Floats, floors: Floats | None = None) -> TimeShares:
    """The shares with the largest Σ weight · throughput / Σ price · GPUs, as `ratio_program.cheapest`."""
    return cheapest_activities(places.activities(), prices, weights, floors)


def water_filled(places: Localities, path: Path, *, water_filling: bool = True) -> TimeShares:
    """The water-filled shares along the path; the objective is the path's, and every job must be able to run.

    Without ``water_filling`` only the first stage is filled, and time left over goes where it adds most throughput,
    each job counted in its own top speed.
    """
    activities = places.activities()
    if isinstance(path, Proportional) and many_alone(activities):
        equal = EqualJobs.of(activities, activities.first_speed, path.weights)
        rise = LevelRise(equal.activities, Proportional(path.weights[equal.examples]))
        rise.fill(water_filling=water_filling)
        x, claimed, top = equal.evenly(rise.x, activities), rise.levels[equal.group], rise.top[equal.group]
    else:
        rise = LevelRise(activities, path)
        rise.fill(water_filling=water_filling)
        x, claimed, top = rise.x, rise.levels, rise.top
    x = activities.trimmed(x)
    levels = activities.throughput(x)
    short = float(((claimed - levels) / top).max(initial=0.0))
    unpriced = np.zeros(len(levels) + len(activities.capacity))
    # Later stages may pass the bound of the first: inside a branch of a tree other jobs may rise when one cannot.
    objective = path.worth(levels)
    value = objective, max(rise.bound, objective)
    return time_shares(activities, x, value, unpriced, solved=rise.solved, short=short)
