"""Minimum-cost matching, and the least total completion time on unrelated machines.

    minimise Σ_i cost[i, column_i] over distinct columns.

The k-th task from the end of a machine's queue delays itself and the k − 1 tasks behind it, so it adds k times its
length, plus the time until the machine is ready, to the sum of completion times. Matching tasks to (machine, place from
the end) at these costs is exact. O(n³) in the number of tasks and places.

References: Horn (1973) and Bruno, Coffman and Sethi (1974) for the reduction; AlloX (EuroSys '20) uses it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices


@dataclass(frozen=True, slots=True)
class Matching:
    """The column of each row, −1 for a row without one of finite cost, and the total cost of the others."""

    columns: Indices
    objective: float


def match(costs: Floats) -> Matching:
    """The cheapest matching of rows to distinct columns; infinite costs are forbidden pairs.

    As many rows as possible are matched, and of those matchings one of the cheapest is returned.
    """
    finite = np.isfinite(costs)
    if not finite.any():
        return Matching(np.full(len(costs), -1, dtype=np.intp), 0.0)
    from scipy.optimize import linear_sum_assignment  # here, since importing it takes 0.4 s

    allowed_costs = costs if finite.all() else np.where(finite, costs, _forbidding(costs, finite))
    rows, columns = linear_sum_assignment(allowed_costs)
    found = np.full(len(costs), -1, dtype=np.intp)
    allowed = finite[rows, columns]
    found[rows[allowed]] = columns[allowed]
    return Matching(found, float(costs[rows[allowed], columns[allowed]].sum()))


def _forbidding(costs: Floats, finite: Flags) -> float:
    """Return a finite cost for forbidden pairs, above the total of any allowed matching."""
    return 1.0 + 2.0 * float(np.where(finite, np.abs(costs), 0.0).max(axis=1).sum())


@dataclass(frozen=True, slots=True)
class Queued:
    """The machine kind of each task (−1: none can run it), its start, and the sum of all completion times.

    ``ready`` is, by kind, when each machine has finished its queue, in the order of when it was free before.
    """

    kinds: Indices
    starts: Floats
    total: float
    ready: tuple[Floats, ...]


@dataclass(frozen=True, slots=True)
class _Places:
    """Places in the queues of machines: the kind and machine of each, and its number from the end of the queue."""

    kind: Indices
    machine: Indices
    number: Indices

    @classmethod
    def of(cls, ready: Sequence[Floats], tasks: int, spare: int | None, *, useful: bool) -> "_Places":
        """The places in queues of this number of tasks, as `least_total_completion` says."""
        kind, machine, number = [], [], []
        for k, times in enumerate(ready):
            machines = min(
                len(times), tasks
            )  # no more machines than tasks can be of use, and the earliest are the best
            depth = tasks if spare is None or not machines else min(tasks, -(-tasks // machines) + spare)
            at, place = np.repeat(np.arange(machines), depth), np.tile(np.arange(1, depth + 1), machines)
            kept = place * (at + 1) <= tasks if useful else np.ones(len(at), dtype=bool)
            machine.append(at[kept])
            number.append(place[kept])
            kind.append(np.full(int(kept.sum()), k))
        nothing = np.zeros(0, dtype=np.intp)
        return cls(*(np.concatenate([nothing, *parts]) for parts in (kind, machine, number)))


def least_total_completion(
    lengths: Floats, ready: Sequence[Floats], spare: int | None = None, *, useful: bool = False
) -> Queued:
    """Queues of tasks on machines of several kinds with the least sum of completion times.

    ``lengths`` is tasks × kinds (infinite: cannot run there); ``ready[k]`` holds, for each machine of kind k, when it
    is free. With ``spare`` a machine's queue has at most ``spare`` places more than an even split of the tasks: exact
    while machines of a kind become free at about the same time, and much smaller. With ``useful``, places that some
    optimum does not use are left out: place p of the m-th machine to become free, where p · m is more than the tasks.
    The first p places of the first m machines are as good for any task and suffice for all. The total is the same; of
    equal optima it may be another.
    """
    count, after = len(lengths), tuple(np.sort(machines, kind="stable") for machines in ready)  # nearly in order
    places = _Places.of(after, count, spare, useful=useful)
    free = np.concatenate(
        [np.zeros(0), *(machines[places.machine[places.kind == k]] for k, machines in enumerate(after))]
    )
    found = match(lengths[:, places.kind] * places.number + free)
    kinds, starts = np.full(count, -1, dtype=np.intp), np.full(count, np.inf)
    matched = np.flatnonzero(found.columns >= 0)
    at = found.columns[matched]
    front = np.argsort(-places.number[at], kind="stable")  # from the front of each queue
    queue = zip(*(part[front].tolist() for part in (matched, places.kind[at], places.machine[at])), strict=True)
    for i, k, machine in queue:
        kinds[i], starts[i] = k, after[k][machine]
        after[k][machine] += lengths[i, k]
    return Queued(kinds, starts, found.objective, after)
