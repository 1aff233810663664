"""Moves to a better machine that stands free, taken one after the other."""

import numpy as np

from shoal.core.arrays import Floats, Int8s, Int32s


def faster_kinds(
    speeds: Floats, size: Int32s, kinds: Int8s, free: Int32s, work: Floats, *, gain: float, saves: float
) -> Int8s:
    """Each task's kind after moving those that gain by it to a kind with room, in order; −1 stays as it is.

    ``speeds`` is tasks × kinds, ``size`` what a task takes of its kind's ``free`` room and gives back where it was. A
    move must be faster by the factor ``gain`` and save more than ``saves`` on the ``work`` left; work that is not
    known (infinite) may be long, and moves. Who found no room at first is not looked at again for what others left.
    """
    kinds, free = kinds.copy(), free.copy()
    present = np.where(
        kinds >= 0, np.take_along_axis(speeds, np.maximum(kinds, 0)[:, None].astype(np.intp), 1)[:, 0], np.inf
    )
    better = speeds > gain * present[:, None]
    for i in np.flatnonzero((better & (size[:, None] <= free)).any(axis=1)).tolist():
        room = np.where(better[i] & (size[i] <= free), speeds[i], 0.0)
        best = int(room.argmax())
        if room[best] > 0 and work[i] * (1 / present[i] - 1 / room[best]) > saves:
            free[[kinds[i], best]] += (size[i], -size[i])
            kinds[i] = best
    return kinds
