"""Tasks assigned to pools of unequal machines in a given order, each to the pool where it would end first.

A greedy rule without a bound; no task is assigned to a pool it cannot use. O(tasks · pools).
"""

import numpy as np

from shoal.core.arrays import Floats, Indices, Int8s, Int32s


def assign_in_order(
    alone: Floats, width: Int32s, capacity: Floats, order: Indices, pools: Int8s, *, moving: float
) -> Int8s:
    """The pool of each task, −1 for none.

    ``alone`` is tasks × pools: seconds a task takes there by itself, infinite where it cannot run. A task ends when its
    own work and the work assigned to the pool before it are done, spread over all ``capacity``, and no sooner than
    alone. ``pools`` is where tasks are now, −1 for none: leaving costs ``moving`` seconds.
    """
    area = alone * width[:, None] / np.maximum(capacity, 1.0)
    cost = np.where(pools[:, None] >= 0, moving, 0.0) * (np.arange(len(capacity)) != pools[:, None])
    load, found = np.zeros(len(capacity)), np.full(len(width), -1, dtype=np.int8)
    able = np.flatnonzero(np.isfinite(alone[order]).any(axis=1))
    for i in order[able].tolist():
        best = int(np.argmin(np.maximum(load + area[i], alone[i]) + cost[i]))
        found[i] = best
        load[best] += area[i, best]
    return found
