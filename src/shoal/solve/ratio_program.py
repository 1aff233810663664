"""The most throughput per unit of cost: a ratio of two sums over time shares, with or without floors.

    maximise Σ weight · throughput / Σ price · gang · X  over the time shares X of `linear_objectives`.

Without floors the best ratio is that of the best single (job, type), since no mixture exceeds its best part. With
floors Newton's iteration on the ratio (Dinkelbach) maximises throughput − ratio · cost, a few simplex steps each time.
Among allocations of the best ratio the one with the most throughput is returned. The bound follows from the last
program's prices. Of many jobs those without a floor are counted together where they are equal (`equal_jobs`).

Weights make throughputs comparable. With weights 1 a single job of many cheap steps takes everything; with weights of
1 / (its best steps per unit of cost) every job runs where it is cheapest for that job.

References: Gavel (OSDI '20) §4.2; Dinkelbach (1967).
"""

from dataclasses import dataclass, replace

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.errors import InputError
from shoal.solve.equal_jobs import EqualJobs
from shoal.solve.linear_objectives import TimeShares, alone, checked_floors, checked_weights, refuse, table, time_shares
from shoal.solve.linear_program import ACCURATE, LpSession, Vertex
from shoal.solve.priced_shares import many_alone, most_gain
from shoal.solve.time_share_lp import Activities, Floored, floored

_TIED = 1e-9
"""Relative: ratios, and prices against gains, closer than this are equal."""
_SETTLED = 1e-13
_TINY = 1e-300
_MOST_STEPS = 50
"""Newton's iteration converges in 3 to 6 steps; after this many, rounding prevents convergence."""


def cheapest(
    speed: Floats,
    gangs: Floats,
    capacity: Floats,
    prices: Floats,
    weights: Floats | None = None,
    floors: Floats | None = None,
) -> TimeShares:
    """The shares with the largest Σ weight · throughput / Σ price · gang · share, and of those the most throughput.

    ``prices`` are per GPU and unit of time, all above 0. ``floors`` are throughputs to keep, e.g. steps left over time
    left; one above a job's top speed (infinite: the deadline is past) is dropped, and if the others cannot be met
    together the least is given up: both are named in the answer. ``TimeShares.prices`` are worths in the program
    throughput − ratio · cost. The objective is 0 where nothing can run.
    """
    activities = alone(speed, gangs, capacity)
    weights = checked_weights("weights", weights, len(speed))
    floors = checked_floors(floors, len(speed))
    return cheapest_activities(activities, checked_prices(prices, activities), weights, floors)


def cheapest_activities(activities: Activities, prices: Floats, weights: Floats, floors: Floats | None) -> TimeShares:
    """As `cheapest`, over any activities of jobs that are each their own group."""
    gain, cost = activities.gain(weights), activities.cost(prices)
    if many_alone(activities):
        found = _for_many(activities, gain, cost, floors)
        if found.status == "optimal":
            return found
    held = floored(activities, floors)
    best = best_ratio(activities, held, gain, cost)
    return time_shares(activities, best.x, (best.ratio, best.bound), best.prices, held, floors, solved=best.solved)


def checked_prices(prices: Floats, activities: Activities) -> Floats:
    """A price above 0 for every type; a free type would make every ratio infinite."""
    array = table("prices", prices, 1)
    if len(array) != len(activities.capacity):
        raise InputError("prices", len(array), f"one per type: {len(activities.capacity)}")
    refuse("prices", array, array <= 0, "must be greater than 0")
    return array


@dataclass(frozen=True, slots=True)
class RatioSolution:
    """Feasible amounts, their Σ gain / Σ cost, and a bound on that ratio."""

    x: Floats
    ratio: float
    bound: float
    prices: Floats
    solved: bool


def best_ratio(activities: Activities, held: Floored, gain: Floats, cost: Floats) -> RatioSolution:
    """The amounts of the largest Σ gain / Σ cost that keep the floors of ``held``, and of those with the most gain."""
    if not activities.size:
        return RatioSolution(
            np.zeros(0), 0.0, 0.0, np.zeros(len(activities.counts) + len(activities.capacity)), held.feasible
        )
    if held.start is None:
        return _best_part(activities, held.session, gain, cost)
    ratio, vertex = _newton(held, held.start.x, held.padded(gain), held.padded(cost))
    net = held.padded(gain - ratio * cost)
    # N − ratio·C ≤ excess on every feasible point, and C is at least what keeping the floors costs.
    excess = max(held.session.bound(net, vertex.prices), 0.0)
    bound = min(ratio + excess / max(_least_cost(activities, held, cost), _TINY), float((gain / cost).max()))
    filled = _most_on_face(held.session, held.padded(gain), net, vertex)
    candidates = [activities.trimmed(v.x[: activities.size]) for v in (filled, vertex) if v.solved]
    for x in candidates:
        reached = _ratio(gain, cost, x)
        if bound - reached <= _TIED * bound or x is candidates[-1]:
            return RatioSolution(x, reached, bound, vertex.prices, held.feasible)
    return RatioSolution(np.zeros(activities.size), 0.0, float("inf"), vertex.prices, solved=False)


def _best_part(activities: Activities, session: LpSession, gain: Floats, cost: Floats) -> RatioSolution:
    rate = gain / cost
    bound = float(rate.max())
    session.limit(np.flatnonzero(rate < bound * (1.0 - _TIED)), np.zeros(int((rate < bound * (1.0 - _TIED)).sum())))
    vertex = session.maximise(gain)
    x = activities.trimmed(vertex.x)
    return RatioSolution(x, _ratio(gain, cost, x), bound, vertex.prices, vertex.solved)


def _for_many(activities: Activities, gain: Floats, cost: Floats, floors: Floats | None) -> TimeShares:
    """As `cheapest_activities`, for many jobs: without floors by prices, else with equal jobs counted together."""
    jobs = len(activities.counts)
    if floors is None or not floors.any():
        rate = gain / cost
        bound = float(rate.max())
        priced = most_gain(activities, np.where(rate < bound * (1.0 - _TIED), 0.0, gain))
        x, prices = activities.trimmed(priced.x), np.concatenate([np.zeros(jobs), priced.prices])
        value = _ratio(gain, cost, x), bound
        return time_shares(activities, x, value, prices, floors=floors, solved=priced.gap <= ACCURATE)
    equal = EqualJobs.of(activities, gain, np.where(floors > 0, np.arange(1.0, jobs + 1.0), 0.0))
    wanted = np.zeros(len(equal.activities.counts))
    wanted[equal.group[equal.group >= 0]] = floors[equal.group >= 0]
    held = floored(equal.activities, wanted)
    best = best_ratio(equal.activities, held, gain[equal.at], cost[equal.at])
    x = activities.trimmed(equal.in_order(best.x, activities, gain))
    prices = np.concatenate([np.zeros(jobs), best.prices[len(wanted) :]])
    runs = equal.group >= 0
    held = replace(
        held,
        kept=np.where(runs, held.kept[equal.group], 0.0),
        unattainable=np.where(runs, held.unattainable[equal.group], floors > 0),
    )
    value = _ratio(gain, cost, x), best.bound
    return time_shares(activities, x, value, prices, held, floors, solved=best.solved)


def _newton(held: Floored, x: Floats, gain: Floats, cost: Floats) -> tuple[float, Vertex]:
    """Raise the ratio until no feasible point improves on it; every ratio is attained, so none is too high."""
    ratio = _ratio(gain, cost, x)
    for _ in range(_MOST_STEPS):
        vertex = held.session.maximise(gain - ratio * cost)
        reached = _ratio(gain, cost, vertex.x)
        if not vertex.solved or reached <= ratio * (1.0 + _SETTLED):
            break
        ratio = reached
    return ratio, vertex


def _most_on_face(session: LpSession, gain: Floats, net: Floats, vertex: Vertex) -> Vertex:
    """Return the most gain among the optima of ``net``, which any optimal prices mark by complementary slackness."""
    worth = session.worth(net, vertex.prices)
    scale = float(np.abs(net).max())
    losing = np.flatnonzero(worth < -_TIED * scale)
    session.limit(losing, np.zeros(len(losing)))
    session.tighten(np.abs(vertex.prices) > _TIED * scale, vertex.prices)
    return session.maximise(gain)


def _least_cost(activities: Activities, held: Floored, cost: Floats) -> float:
    """Return a cost below every feasible one: each floor at its cheapest, both members of a pair paid for by one."""
    activity, group, speed = activities.members()
    per_step = np.full(len(activities.counts), np.inf)
    np.minimum.at(per_step, group, cost[activity] / np.maximum(speed, _TINY))
    owed = np.where(held.kept > 0, activities.counts * held.kept * np.where(held.kept > 0, per_step, 0.0), 0.0)
    return float(owed.sum()) / 2.0 if (activities.second >= 0).any() else float(owed.sum())


def _ratio(gain: Floats, cost: Floats, x: Floats) -> float:
    paid = float(cost @ x)
    return float(gain @ x) / paid if paid > 0 else 0.0
