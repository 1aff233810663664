"""Tasks dealt out to pools of unequal machines, in an order: each to the pool where it would be done first.

A greedy rule, without a bound: what one may rely on is that nobody is dealt to a pool it cannot use.
"""

import numpy as np

from shoal.core.arrays import Floats, Indices, Int8s, Int32s


def dealt(alone: Floats, width: Int32s, capacity: Floats, order: Indices, pools: Int8s, *, moving: float) -> Int8s:
    """Each task's pool, −1 for none.

    ``alone`` is tasks × pools: how long a task takes there by itself, infinite where it cannot be. A task is done when
    the work dealt to the pool before it and its own are, spread over all ``capacity``, and no sooner than alone.
    ``pools`` is where tasks are now, −1 for nowhere: leaving costs ``moving``.
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
