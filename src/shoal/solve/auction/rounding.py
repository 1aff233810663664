"""Unbiased rounding of a fraction of a bundle to units the bidder can use.

Partial allocation leaves cᵢ times a bundle, which need not be whole or usable. `rounded` picks one of the two usable
numbers next to it so that the expectation is exact; without a draw it takes the lower one, which gives nothing to a
bidder whose part is below its smallest usable number.
"""

import numpy as np

from shoal.core.arrays import Int64s


def rounded(expected: float, usable: Int64s, draw: float | None) -> int:
    """One of the ``usable`` numbers of units (ascending from 0) next to ``expected``.

    With a ``draw`` from [0, 1) it is the upper one with the probability that makes the expectation exact for uniform
    draws; with None always the lower one. ``expected`` must not exceed the largest usable number.
    """
    near = expected * (1.0 + 1e-12)  # 0.3 + 0.7 units are one
    at = int(np.searchsorted(usable, near, side="right")) - 1
    low = int(usable[at])
    if draw is None or at + 1 == len(usable):
        return low
    high = int(usable[at + 1])
    return high if draw < (expected - low) / (high - low) else low
