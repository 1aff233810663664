"""Lower bound on the sum of completion times of gangs of fixed width with deadlines, and its proof.

It holds for every schedule, whatever it knows in advance, with preemption at no cost. The proof is a price of a GPU at
each moment, checked by weak duality alone: charge every schedule p(t) for each GPU in use and pay it p(t) for each GPU
of the cluster. Since no more are used than there are,

    Σ C_j  ≥  Σ_j min (C_j + gpus_j · ∫ p over j's seconds)  −  capacity · ∫ p,

where each task's minimum is over all ways to run alone between its release and its deadline. With p constant in each
interval that minimum is exact: no time is rounded.

References: Fisher (1981) for Lagrangian bounds; Goemans et al. (2002) for mean busy times, the program that finds the
first prices; Polyak (1969) for the steps that improve them.
"""

from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Floats, Indices
from shoal.core.errors import InputError
from shoal.solve.linear_objectives import refuse, table

_EPS = 1e-9
"""Relative tolerance: a deadline this little before a task's earliest completion is moved to that completion."""

_FIRST_STEP, _MOST_FAILURES = 0.02, 4
"""Relative improvement that the first steps aim for, and the number of failed steps after which it is halved."""


@dataclass(frozen=True, slots=True, eq=False)
class Tasks:
    """Arrays by task: release time, run time in seconds, GPUs, and deadline."""

    released: Floats
    seconds: Floats
    gpus: Floats
    due: Floats

    def __post_init__(self) -> None:
        columns = {name: table(name, getattr(self, name), 1) for name in ("released", "seconds", "gpus", "due")}
        for name, column in columns.items():
            if column.shape != columns["released"].shape:
                raise InputError(name, len(column), f"one per task: {len(columns['released'])}")
            object.__setattr__(self, name, column)
        refuse("seconds", self.seconds, self.seconds <= 0, "must be greater than 0")
        refuse("gpus", self.gpus, self.gpus <= 0, "must be greater than 0")
        alone = self.released + self.seconds
        refuse("due", self.due, self.due * (1 + _EPS) < alone, "is before it can be done")
        object.__setattr__(self, "due", np.maximum(self.due, alone))


@dataclass(frozen=True, slots=True)
class CompletionBound:
    """A lower bound on the sum of completion times: ``total`` in seconds, proved by ``prices`` between ``edges``.

    ``total`` equals ``proved_bound(tasks, capacity, edges, prices)``, so the proof can be checked without the search.
    """

    total: float
    edges: Floats
    prices: Floats


def proved_bound(tasks: Tasks, capacity: float, edges: Floats, prices: Floats) -> float:
    """Return the bound that these prices prove; valid for any prices ≥ 0, tight for good ones.

    The edges must increase, from no later than the first release to no earlier than the last deadline.
    """
    edges, prices = table("edges", edges, 1), table("prices", prices, 1)
    if len(prices) != len(edges) - 1:
        raise InputError("prices", len(prices), f"one per interval: {len(edges) - 1}")
    refuse("edges", edges[1:], np.diff(edges) <= 0, "must be above the one before")
    if edges[0] > tasks.released.min(initial=np.inf) or edges[-1] < tasks.due.max(initial=-np.inf):
        raise InputError("edges", (float(edges[0]), float(edges[-1])), "must span all releases and deadlines")
    return _dual(tasks, capacity, edges, prices)[0]


def least_completion(tasks: Tasks, capacity: float, intervals: int = 90, steps: int = 40) -> CompletionBound:
    """Return the best bound found in ``steps`` steps, with a constant price in each of ``intervals`` intervals."""
    if intervals < 1:
        raise InputError("intervals", intervals, "must be at least 1")
    refuse("gpus", tasks.gpus, tasks.gpus > capacity, f"more than the {capacity:g} there are")
    if not len(tasks.seconds):
        return CompletionBound(0.0, np.zeros(2), np.zeros(1))
    edges = np.linspace(tasks.released.min(), tasks.due.max(), intervals + 1)
    prices = _first_prices(tasks, capacity, edges)
    total, over = _dual(tasks, capacity, edges, prices)
    found, best, step, failures = total, (prices, over), _FIRST_STEP, 0
    for _ in range(steps):
        # A price of 0 in an interval with free GPUs cannot fall, so that direction is dropped.
        direction = np.where((prices <= 0.0) & (over < 0.0), 0.0, over)
        length = float(direction @ direction)
        if length <= 0.0:
            break
        prices = np.maximum(prices + (found + step * abs(found) - total) / length * direction, 0.0)
        total, over = _dual(tasks, capacity, edges, prices)
        if total > found:
            found, best, failures = total, (prices, over), 0
        elif (failures := failures + 1) > _MOST_FAILURES:
            (prices, over), total, step, failures = best, found, step / 2, 0
    return CompletionBound(found, edges, best[0])


def _windows(tasks: Tasks, edges: Floats) -> tuple[Floats, Floats]:
    """By task and interval: begin and end of the time in which it may run."""
    begin = np.maximum(edges[None, :-1], tasks.released[:, None])
    return begin, np.maximum(np.minimum(edges[None, 1:], tasks.due[:, None]), begin)


def _first_prices(tasks: Tasks, capacity: float, edges: Floats) -> Floats:
    """Prices of the linear program that minimises mean busy times, with work counted at the start of its interval."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    begin, end = _windows(tasks, edges)
    job, interval = np.nonzero(end > begin)
    intervals, columns = len(edges) - 1, np.arange(len(job))
    used = csr_array((tasks.gpus[job], (interval, columns)), shape=(intervals, len(job)))
    run = csr_array((np.ones(len(job)), (job, columns)), shape=(len(tasks.seconds), len(job)))
    answer = linprog(  # type: ignore[call-overload]  # the stubs know no sparse matrices
        begin[job, interval] / tasks.seconds[job],
        A_ub=used,
        b_ub=capacity * np.diff(edges),
        A_eq=run,
        b_eq=tasks.seconds,
        bounds=np.stack([np.zeros(len(job)), (end - begin)[job, interval]], axis=1),
        method="highs",
    )
    if answer.status == 2:
        raise InputError("due", float(tasks.due.max()), "not all can be done in time: give them longer")
    return np.zeros(intervals) if answer.x is None else np.maximum(-answer.ineqlin.marginals, 0.0)


def _dual(tasks: Tasks, capacity: float, edges: Floats, prices: Floats) -> tuple[float, Floats]:
    """The bound that prices prove, and by how many GPU-seconds the tasks' cheapest choices exceed each interval."""
    begin, end = _windows(tasks, edges)
    over = -capacity * np.diff(edges)
    total = float(prices @ over)
    for j, gpus in enumerate(tasks.gpus.tolist()):
        open_at = np.flatnonzero(end[j] > begin[j])
        earliest = float(tasks.released[j] + tasks.seconds[j])
        cost, ran = _cheapest(
            gpus * prices[open_at], begin[j, open_at], end[j, open_at], earliest, float(tasks.seconds[j])
        )
        total += cost
        over[open_at] += gpus * ran
    return total, over


def _cheapest(price: Floats, begin: Floats, end: Floats, earliest: float, seconds: float) -> tuple[float, Floats]:
    """Least completion time plus cost of seconds of one task alone, and its seconds in each interval.

    A task that completes at C runs its cheapest seconds before C. Within an interval of price q, completing a second
    later adds a second there in place of the dearest one, of price u, which pays while u − q > 1. Replacing the dearest
    seconds first, the saving is a sum over the seconds in use, so the best C of each interval is found at once and the
    overall minimum is exact.
    """
    last: Indices = np.flatnonzero(end * (1 + _EPS) >= earliest)
    done = np.minimum(np.maximum(begin[last], earliest), end[last])
    order = np.argsort(price, kind="stable")
    free = np.where(np.arange(len(price)) < last[:, None], end - begin, 0.0)
    free[np.arange(len(last)), last] = done - begin[last]
    used = np.diff(np.minimum(np.cumsum(free[:, order], axis=1), seconds), axis=1, prepend=0.0)
    saved = np.maximum(price[order] - price[last][:, None] - 1.0, 0.0)
    dearest = np.where(saved > 0.0, used, 0.0)[:, ::-1]
    slack = (end[last] - done)[:, None]
    moved = np.diff(np.minimum(np.cumsum(dearest, axis=1), slack), axis=1, prepend=0.0)[:, ::-1]
    cost = done + used @ price[order] - (moved * saved).sum(axis=1)
    best = int(np.argmin(cost))
    ran = np.zeros(len(price))
    ran[order] = used[best] - moved[best]
    ran[last[best]] += moved[best].sum()
    return float(cost[best]), ran
