"""First fit in a given order: items too large for the capacity left are skipped."""

import numpy as np

from shoal.core.arrays import Flags, Int32s


def first_fit(sizes: Int32s, capacity: int) -> Flags:
    """Return whether each item is taken: items are tried in order and taken if they fit; sizes are at least 1."""
    taken: Flags = np.zeros(len(sizes), dtype=bool)
    line = np.flatnonzero(sizes <= capacity)
    # The item that ends a run is larger than the capacity left, so every item as large is out: there are no more
    # runs than distinct sizes.
    while len(line):
        total = np.cumsum(sizes[line])
        count = int(np.searchsorted(total, capacity, side="right"))
        taken[line[:count]] = True
        capacity -= int(total[count - 1]) if count else 0
        line = line[count:]
        line = line[sizes[line] <= capacity]
    return taken
