"""First fit in a given order: what is too large for the room left is passed over."""

import numpy as np

from shoal.core.arrays import Flags, Int32s


def first_fit(sizes: Int32s, room: int) -> Flags:
    """Which items get in when taken in order, each if it fits in what is left; sizes are at least 1."""
    taken: Flags = np.zeros(len(sizes), dtype=bool)
    line = np.flatnonzero(sizes <= room)
    # The item that stops a run is larger than what is left, so everything as large is out for good: there are at most
    # as many runs as there are distinct sizes.
    while len(line):
        total = np.cumsum(sizes[line])
        count = int(np.searchsorted(total, room, side="right"))
        taken[line[:count]] = True
        room -= int(total[count - 1]) if count else 0
        line = line[count:]
        line = line[sizes[line] <= room]
    return taken
