"""Linear programs over time shares: weighted throughput, first in first out, shortest job first.

    maximise   Σ_m weight_m · throughput_m,  throughput_m = Σ_j speed_mj · X_mj
    subject to X ≥ 0,  Σ_j X_mj ≤ 1,  Σ_m gang_m · X_mj ≤ capacity_j,  throughput_m ≥ floor_m.

X[m, j] is the fraction of time job m spends on type j; it is 0 where the job has no speed or the type has fewer GPUs
than its gang. Each objective is one linear program of M · J columns, solved by the simplex method, for many jobs by
prices (`priced_shares`). Gap and residual are
recomputed from the answer and the row prices, and the status of an answer that is not accurate says so.

References: Gavel (OSDI '20) §3.1 and §4.2. The paper prints "Minimize Σ throughput": it is maximised.
"""

from dataclasses import dataclass, replace

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices
from shoal.core.errors import InputError
from shoal.solve.linear_program import ACCURATE, Status, judged, relative_gap
from shoal.solve.priced_shares import many_alone, most_gain
from shoal.solve.time_share_lp import NO_PARTNER, Activities, Floored, floored


@dataclass(frozen=True, slots=True)
class TimeShares:
    """Shares of time (jobs × types) with their certificate.

    No allocation has a better objective than ``bound``. ``gap`` is their relative distance and ``residual`` the largest
    relative violation of a constraint, both recomputed from ``shares``. ``status`` is "optimal" when both are below
    1e-7, else "inaccurate"; "unsolved" shares are all 0 and must not be used. ``prices`` is what one more GPU of each
    type would add to the objective. ``unattainable`` marks jobs whose floor is above their top speed and was dropped.
    ``shortfall`` is how far each job stays below the floor asked for, whether that was dropped or given up because the
    floors cannot all be met. ``consolidated`` is the part of ``shares`` spent with all GPUs on one node, where that
    makes a difference (see `shoal.solve.consolidation`), else 0.
    """

    shares: Floats
    throughput: Floats
    objective: float
    bound: float
    gap: float
    residual: float
    status: Status
    prices: Floats
    unattainable: Flags
    shortfall: Floats
    consolidated: Floats


def maximise_throughput(
    speed: Floats, gangs: Floats, capacity: Floats, weights: Floats | None = None, floors: Floats | None = None
) -> TimeShares:
    """The shares with the largest Σ weight · throughput; floors that cannot all be met give up the least total."""
    activities = alone(speed, gangs, capacity)
    weights = checked_weights("weights", weights, len(speed))
    return most_throughput(activities, weights, checked_floors(floors, len(speed)))


def fifo(speed: Floats, gangs: Floats, capacity: Floats, order: Indices) -> TimeShares:
    """First in, first out: the shares with the largest Σ throughput / top speed · (M − place), places from 0.

    ``order`` lists the jobs by arrival. The last place still counts 1, so no GPU idles that any job could use. As in
    the paper, a wide job early in line may still wait for several narrow ones behind it.
    """
    activities = alone(speed, gangs, capacity)
    return most_throughput(activities, line_weights(activities, order))


def shortest_job_first(speed: Floats, gangs: Floats, capacity: Floats, steps: Floats) -> TimeShares:
    """The shares with the least duration of the shortest job, then of the others in order of their least durations.

    The objective is min over jobs of steps / throughput, reached when the job that could end first holds its fastest
    type all the time. The rest is shared as in `fifo`. ``gap`` covers both.
    """
    return shortest_first(alone(speed, gangs, capacity), checked_weights("steps", steps, len(speed)))


def shortest_first(activities: Activities, steps: Floats) -> TimeShares:
    """As `shortest_job_first`, over any activities of jobs that are each their own group."""
    top = activities.top_speed()
    duration = np.divide(steps, top, out=np.full(len(top), np.inf), where=top > 0)
    order = np.argsort(duration, kind="stable")
    floors = np.zeros(len(top))
    if len(order) and np.isfinite(duration[order[0]]):
        floors[order[0]] = top[order[0]]
    weights = line_weights(activities, order)
    found = _priced(activities, weights, int(order[0])) if floors.any() and many_alone(activities) else None
    if found is None:
        found = most_throughput(activities, weights, floors)
    if not floors.any() or found.status == "unsolved":
        return found
    rate = found.throughput[order[0]]
    objective = float(steps[order[0]] / rate) if rate > 0 else float("inf")
    bound = float(duration[order[0]])
    gap = max(found.gap, relative_gap(objective, bound))
    return replace(found, objective=objective, bound=bound, gap=gap, status=judged(True, gap, found.residual))


def alone(speed: Floats, gangs: Floats, capacity: Floats) -> Activities:
    """Every job alone on every type it can use, from checked arrays; each job is its own group."""
    speed = table("speed", speed, 2)
    gangs, capacity = table("gangs", gangs, 1), table("capacity", capacity, 1)
    if speed.shape != (len(gangs), len(capacity)):
        raise InputError("speed", speed.shape, f"one row per job and one column per type: {len(gangs), len(capacity)}")
    refuse("gangs", gangs, gangs <= 0, "must be greater than 0")
    job, kind = np.nonzero((speed > 0) & (gangs[:, None] <= capacity))
    return Activities(
        counts=np.ones(len(gangs)),
        first=job,
        second=np.full(len(job), NO_PARTNER),
        first_speed=speed[job, kind],
        second_speed=np.zeros(len(job)),
        types=kind,
        width=gangs[job],
        capacity=capacity,
    )


def table(field: str, values: Floats, dimensions: int) -> Floats:
    """``values`` as an array of this many axes, all finite and at least 0; `InputError` names the first that is not."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != dimensions:
        raise InputError(field, array.shape, f"must have {dimensions} dimension(s)")
    refuse(field, array, ~(np.isfinite(array) & (array >= 0)), "must be a finite number, 0 or more")
    return array


def refuse(field: str, array: Floats | Indices, wrong: Flags, hint: str) -> None:
    """Raise an `InputError` naming the first place where ``wrong`` holds, if any."""
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise InputError(f"{field}[{', '.join(map(str, at))}]", array[at].item(), hint)


def checked_weights(field: str, weights: Floats | None, count: int) -> Floats:
    """Positive numbers, one per job; all 1 where none are given."""
    if weights is None:
        return np.ones(count)
    array = table(field, weights, 1)
    if len(array) != count:
        raise InputError(field, len(array), f"one per job: {count}")
    refuse(field, array, array <= 0, "must be greater than 0")
    return array


def checked_floors(floors: Floats | None, count: int) -> Floats | None:
    """Throughputs to keep, one per job, 0 for none and infinite for a deadline already past; `None` stays `None`."""
    if floors is None:
        return None
    array = np.asarray(floors, dtype=np.float64)
    if array.shape != (count,):
        raise InputError("floors", array.shape, f"one per job: {count}")
    refuse("floors", array, ~(array >= 0), "must be 0 or more")
    return array


def time_shares(
    activities: Activities,
    x: Floats,
    value: tuple[float, float],
    prices: Floats,
    held: Floored | None = None,
    floors: Floats | None = None,
    *,
    solved: bool,
    short: float = 0.0,
) -> TimeShares:
    """The answer for jobs that are each their own group, from trimmed amounts ``x`` and (objective, bound).

    ``short`` is how far the levels stay below those claimed, relative to top speeds; it counts in the residual.
    """
    shape = jobs, types = len(activities.counts), len(activities.capacity)
    both = np.zeros((2, *shape))
    split = activities.limits.activities
    for way, at in enumerate((slice(None, split), slice(split, None))):
        both[way][activities.first[at], activities.types[at]] = x[at]
    shares, throughput = both.sum(axis=0), activities.throughput(x)
    kept = np.zeros(jobs) if held is None else held.kept
    residual = max(short, activities.violation(x, shares.sum(axis=1), throughput, kept))
    gap = relative_gap(*value)
    return TimeShares(
        shares,
        throughput,
        *value,
        gap,
        residual,
        judged(solved, gap, residual),
        prices[jobs : jobs + types],
        np.zeros(jobs, dtype=np.bool_) if held is None else held.unattainable,
        np.maximum((np.zeros(jobs) if floors is None else floors) - np.maximum(throughput, kept), 0.0),
        both[0],
    )


def line_weights(activities: Activities, order: Indices) -> Floats:
    """Return (M − place) / top speed by job; 1 for a job that cannot run, whose weight is not used."""
    count = len(activities.counts)
    order = np.asarray(order)
    if sorted(order.tolist()) != list(range(count)):
        raise InputError("order", order.tolist(), f"must name each of the {count} jobs once")
    place = np.empty(count, dtype=np.intp)
    place[order] = np.arange(count)
    top = activities.top_speed()
    weights: Floats = (count - place) / np.where(top > 0, top, 1.0)
    return weights


def most_throughput(activities: Activities, weights: Floats, floors: Floats | None = None) -> TimeShares:
    """The amounts of the activities with the largest Σ weight · throughput, as time shares."""
    floored_some = floors is not None and bool(floors.any())
    found = _priced(activities, weights) if many_alone(activities) and not floored_some else None
    return _programmed(activities, weights, floors) if found is None else found


def _programmed(activities: Activities, weights: Floats, floors: Floats | None) -> TimeShares:
    """As `most_throughput`, by one linear program."""
    held = floored(activities, floors)
    gain = activities.gain(weights)
    vertex = held.session.maximise(held.padded(gain))
    x = activities.trimmed(vertex.x[: activities.size])
    solved = vertex.solved and held.feasible
    bound = held.session.bound(held.padded(gain), vertex.prices) if solved else float("inf")
    return time_shares(activities, x, (float(gain @ x), bound), vertex.prices, held, floors, solved=solved)


def _priced(activities: Activities, weights: Floats, whole: int | None = None) -> TimeShares | None:
    """As `most_throughput` for many jobs, by prices; None where these come to no accurate answer.

    The job ``whole`` has all its time on its fastest types.
    """
    gain, top = activities.gain(weights), activities.top_speed()
    found = most_gain(activities, gain, whole)
    if found.gap > ACCURATE:
        return None
    x = activities.trimmed(found.x)
    prices = np.concatenate([np.zeros(len(weights)), found.prices])
    short = 0.0 if whole is None else 1.0 - float(activities.throughput(x)[whole] / top[whole])
    return time_shares(activities, x, (float(gain @ x), found.bound), prices, solved=True, short=short)
