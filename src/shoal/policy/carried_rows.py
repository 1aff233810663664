"""Match the jobs of a carry with the live jobs of a snapshot."""

import numpy as np

from shoal.core.arrays import Flags, Indices


def match_rows(old: Indices, new: Indices) -> tuple[Indices, Flags]:
    """Positions of the ``new`` admission numbers in ``old``, and whether each is there.

    Both arrays are ascending. Where a number is not in ``old`` its position is arbitrary but valid for indexing,
    unless ``old`` is empty.
    """
    if not len(old):
        return np.zeros(len(new), dtype=np.intp), np.zeros(len(new), dtype=bool)
    at = np.minimum(np.searchsorted(old, new), len(old) - 1)
    return at, old[at] == new
