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

    rows, columns = linear_sum_assignment(np.where(finite, costs, _forbidding(costs, finite)))
    found = np.full(len(costs), -1, dtype=np.intp)
    allowed = finite[rows, columns]
    found[rows[allowed]] = columns[allowed]
    return Matching(found, float(costs[rows[allowed], columns[allowed]].sum()))


def _forbidding(costs: Floats, finite: Flags) -> float:
    """A cost above the sum of any allowed matching."""
    return 1.0 + 2.0 * float(np.where(finite, np.abs(costs), 0.0).max(axis=1).sum())


def completion_costs(lengths: Floats, ready: Floats, depth: int) -> Floats:
    """The cost of each task at each (machine, place from the end): its addition to the sum of completion times.

    ``lengths`` is tasks × machines (infinite: cannot run there), ``ready`` when each machine is free, ``depth`` how
    many places a machine's queue has. Column c is machine c // depth, place c % depth + 1.
    """
    places = np.arange(1, depth + 1)
    costs: Floats = (lengths[:, :, None] * places + ready[None, :, None]).reshape(len(lengths), -1)
    return costs


@dataclass(frozen=True, slots=True)
class Queued:
    """The machine kind of each task (−1: none can run it), its start, and the sum of all completion times.

    ``ready`` is, by kind, when each machine has finished its queue, in the order of when it was free before.
    """

    kinds: Indices
    starts: Floats
    total: float
    ready: tuple[Floats, ...]


def least_total_completion(lengths: Floats, ready: Sequence[Floats], spare: int | None = None) -> Queued:
    """Queues of tasks on machines of several kinds with the least sum of completion times.

    ``lengths`` is tasks × kinds (infinite: cannot run there); ``ready[k]`` holds, for each machine of kind k, when it
    is free. With ``spare`` a machine's queue has at most ``spare`` places more than an even split of the tasks: exact
    while machines of a kind become free at about the same time, and much smaller.
    """
    count = len(lengths)
    costs, slots = [], []
    after = tuple(np.sort(machines) for machines in ready)
    for k, machines in enumerate(after):
        when = machines[:count]  # no more machines than tasks can be of use, and the earliest are the best
        depth = count if spare is None or not len(when) else min(count, -(-count // len(when)) + spare)
        costs.append(completion_costs(np.repeat(lengths[:, [k]], len(when), axis=1), when, depth))
        slots += [(k, m, place) for m in range(len(when)) for place in range(depth)]
    found = match(np.concatenate(costs, axis=1)) if costs else Matching(np.full(count, -1, dtype=np.intp), 0.0)
    kinds, starts = np.full(count, -1, dtype=np.intp), np.full(count, np.inf)
    matched = [i for i in range(count) if found.columns[i] >= 0]
    for i in sorted(matched, key=lambda i: -slots[found.columns[i]][2]):  # from the front of each queue
        k, machine, _ = slots[found.columns[i]]
        kinds[i], starts[i] = k, after[k][machine]
        after[k][machine] += lengths[i, k]
    return Queued(kinds, starts, found.objective, after)
