"""Max-min fair whole numbers: water filling in units, by bisection on the level.

maximise lexicographically the sorted counts_i / weight_i  over low ≤ counts ≤ high, Σ (counts − low) ≤ budget.
"""

import numpy as np

from shoal.core.arrays import Floats, Int32s

_HALVINGS = 60
"""Enough to determine a level to the last bit of a float; the units left then go out in a round or two."""


def fair_counts(budget: int, low: Int32s, high: Int32s, weight: Floats, held: Int32s) -> Int32s:
    """Counts from ``low`` to ``high`` after giving ``budget`` units, each to the least count ÷ weight below its high.

    No count could be higher by one without another at a lower or equal level being lower by one, and all units are
    given unless every count is at its high. Of equals, those that ``held`` more than they have so far come first, then
    the first in order, which keeps changes between calls small.
    """
    counts = low.copy()
    left = min(budget, int((high.astype(np.int64) - low).sum()))
    if left <= 0:
        return counts
    least, most = 0.0, float((high / weight).max())
    for _ in range(_HALVINGS):
        level = 0.5 * (least + most)
        raised = _raised(level, low, high, weight)
        given = int((raised.astype(np.int64) - low).sum())
        if given > left:
            most = level
            continue
        least, counts = level, raised
        if given == left:
            break
    left -= int((counts.astype(np.int64) - low).sum())
    while left > 0:
        wanting = np.flatnonzero(counts < high)
        levels = counts[wanting] / weight[wanting]
        tied = wanting[levels <= levels.min() * (1.0 + 1e-12)]
        chosen = tied[np.argsort(held[tied] <= counts[tied], kind="stable")][:left]
        counts[chosen] += 1
        left -= len(chosen)
    return counts


def _raised(level: float, low: Int32s, high: Int32s, weight: Floats) -> Int32s:
    raised: Int32s = np.clip(np.ceil(level * weight), low, high).astype(np.int32)
    return raised
