"""Moves of running tasks to faster kinds of GPU that are free, one after the other."""

import numpy as np

from shoal.core.arrays import Floats, Int8s, Int32s


def faster_kinds(
    speeds: Floats, size: Int32s, kinds: Int8s, free: Int32s, work: Floats, *, gain: float, saves: float
) -> Int8s:
    """Return the kind of each task after moves, made in order, to faster kinds with free GPUs; −1 stays −1.

    ``speeds`` is tasks × kinds, ``size`` the GPUs of a task, ``free`` the free GPUs by kind. A move must be faster by
    the factor ``gain`` and save more than ``saves`` seconds on the ``work`` left; infinite (unknown) work always saves.
    A task that found no free GPUs is not tried again when others leave some.
    """
    kinds, free = kinds.copy(), free.copy()
    present = np.where(
        kinds >= 0, np.take_along_axis(speeds, np.maximum(kinds, 0)[:, None].astype(np.intp), 1)[:, 0], np.inf
    )
    better = speeds > gain * present[:, None]
    for i in np.flatnonzero((better & (size[:, None] <= free)).any(axis=1)).tolist():
        reachable = np.where(better[i] & (size[i] <= free), speeds[i], 0.0)
        best = int(reachable.argmax())
        if reachable[best] > 0 and work[i] * (1 / present[i] - 1 / reachable[best]) > saves:
            free[[kinds[i], best]] += (size[i], -size[i])
            kinds[i] = best
    return kinds
