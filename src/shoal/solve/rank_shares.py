"""Units to jobs by rank of size: the shorter a job is among those present, the more its next unit counts.

After heSRPT, which minimises mean completion time of jobs that arrive together and all speed up like k^a: with jobs
ranked from the largest (1) to the smallest (n), job i's share is proportional to i^e − (i − 1)^e, e = 1/(1 − a). As a
weight on speed-up that is [i^e − (i − 1)^e]^(1−a): greedy awards by weighted marginal speed-up then give heSRPT's
shares where speed-ups are k^a, and respect each job's own curve where they are not. Counting ranks from ``AHEAD`` up
softens the preference, since more jobs will arrive.

Reference: Berg, Vesilo, Harchol-Balter, "heSRPT: Optimal scheduling of parallel jobs with known sizes", 2019.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace

from shoal.core.arrays import Floats

EXPONENT = 0.5
"""The a of speed-ups like k^a: between what chatbots and image models do."""

AHEAD = 5.0
"""Ranks left empty below the largest job."""


def rank_weight(rank: int, exponent: float = EXPONENT, ahead: float = AHEAD) -> float:
    """The weight of the job of this rank, the largest being 1; √(2·rank + 9) with the defaults."""
    e, at = 1.0 / (1.0 - exponent), rank + ahead
    return float((at**e - (at - 1.0) ** e) ** (1.0 - exponent))


def rank_weights(places: Floats, exponent: float, ahead: float) -> Floats:
    """``rank_weight`` of many ranks at once."""
    e, at = 1.0 / (1.0 - exponent), places + ahead
    weights: Floats = (at**e - (at - 1.0) ** e) ** (1.0 - exponent)
    return weights


def by_weighted_speedup(
    speedups: Sequence[Sequence[float]], weights: Sequence[float], fewest: Sequence[int], budget: int
) -> list[int]:
    """Units by job after giving ``budget`` of them, each to the highest weight × further speed-up.

    A job's first ``fewest`` units are given together and bid with their average; where too few are left the job gets
    none. Units that do not raise a job's speed-up are not given. Of equal bids the first in order is served.
    """
    counts = [0] * len(speedups)
    heap = [(-w * s[f] / f, i) for i, (s, w, f) in enumerate(zip(speedups, weights, fewest, strict=True)) if s[f] > 0]
    heapify(heap)
    while budget > 0 and heap:
        i = heap[0][1]
        speedup, step = speedups[i], 1 if counts[i] else fewest[i]
        if step > budget:
            heappop(heap)
            continue
        counts[i] += step
        budget -= step
        k = counts[i]
        more = speedup[k + 1] - speedup[k] if k + 1 < len(speedup) else 0.0
        if more > 0:
            heapreplace(heap, (-weights[i] * more, i))
        else:
            heappop(heap)
    return counts
