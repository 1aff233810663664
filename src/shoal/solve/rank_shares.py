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

import numpy as np

from shoal.core.arrays import Flags, Floats

EXPONENT = 0.5
"""The a of speed-ups like k^a: between those of language models and of image models."""

AHEAD = 5.0
"""Ranks left empty below the largest job."""


def rank_weights(places: Floats, exponent: float = EXPONENT, ahead: float = AHEAD) -> Floats:
    """Return the weights of jobs of these ranks, the largest job's being 1; √(2·rank + 9) with the defaults."""
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
    counts, bids, floor = _certain(speedups, weights, fewest, budget)
    budget -= sum(counts)
    high = bids >= floor
    heap, rest = _heap(bids, high & (bids > 0)), _heap(bids, ~high & (bids > 0))
    while budget > 0 and (heap or rest):
        if rest and (not heap or -heap[0][0] < floor):
            heap, rest = heap + rest, []
            heapify(heap)
        i = heap[0][1]
        step = 1 if counts[i] else fewest[i]
        if step > budget:
            heappop(heap)
            continue
        counts[i] += step
        budget -= step
        speedup, k = speedups[i], counts[i]
        more = weights[i] * (speedup[k + 1] - speedup[k]) if k + 1 < len(speedup) else 0.0
        if more > 0:
            heapreplace(heap, (-more, i))
        else:
            heappop(heap)
    return counts


def _heap(bids: Floats, chosen: Flags) -> list[tuple[float, int]]:
    """Return the chosen jobs and their bids, with their signs changed, as a heap."""
    jobs = np.flatnonzero(chosen)
    heap = list(zip((-bids[jobs]).tolist(), jobs.tolist(), strict=True))
    heapify(heap)
    return heap


_FEW_CURVES = 200
"""Different curves up to which units are counted curve by curve."""


def _certain(
    speedups: Sequence[Sequence[float]], weights: Sequence[float], fewest: Sequence[int], budget: int
) -> tuple[list[int], Floats, float]:
    """Return by job the units given before the budget becomes scarce and its bid for the next, and a level of bids.

    Few units are given later for bids below the level.

    A job's units are given in the order of the lowest bid passed on the way to each. Those above a level whose total is
    within the budget are given whatever the order; jobs that share a curve (one object) are counted together.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for i, (speedup, few) in enumerate(zip(speedups, fewest, strict=True)):
        groups.setdefault((id(speedup), few), []).append(i)
    if len(groups) > _FEW_CURVES or len(groups) > len(speedups) / 4:
        first = [w * speedup[few] / few for w, speedup, few in zip(weights, speedups, fewest, strict=True)]
        return [0] * len(speedups), np.array(first), 0.0
    counts, bids, weight_of = np.zeros(len(speedups), dtype=np.intp), np.zeros(len(speedups)), np.array(weights)
    curves = []
    for (_, few), jobs in groups.items():
        curve = np.array(speedups[jobs[0]], dtype=np.float64)
        levels = np.minimum.accumulate(np.append(curve[few] / few, np.diff(curve[few:])))
        curves.append((levels[levels > 0], weight_of[jobs], few))

    given = _UnitsGiven(curves).above
    low, high = 0.0, 2.0 * max((float(w.max() * ls[0]) for ls, w, _ in curves if len(ls)), default=0.0)
    for _ in range(_HALVINGS):
        level = 0.5 * (low + high)
        low, high = (level, high) if given(level) > budget else (low, level)
    for (levels, weight, few), jobs in zip(curves, groups.values(), strict=True):
        if len(levels) and high > 0:
            steps = len(levels) - np.searchsorted(levels[::-1], high * (1.0 + 1e-9) / weight)
            counts[jobs] = np.where(steps > 0, steps + few - 1, 0)
        curve = np.array(speedups[jobs[0]], dtype=np.float64)
        gains = np.append(np.diff(curve), 0.0)
        bids[jobs] = np.where(counts[jobs] > 0, weight * gains[counts[jobs]], weight * curve[few] / few)
    return counts.tolist(), bids, 0.999 * low


_HALVINGS = 14
"""Halvings of the level: then few units are left to be given one by one. Their number does not change the answer."""


class _UnitsGiven:
    """The number of units that jobs get at a level, for the jobs of all curves at once.

    ``curves`` are, by curve, the lowest gains on the way to each unit, the weights of its jobs, and the units that are
    given first together. Weights are replaced by their ranks among all jobs, so that one search serves every curve.
    """

    def __init__(self, curves: Sequence[tuple[Floats, Floats, int]]) -> None:
        of_curve = np.repeat(np.arange(len(curves)), [len(weights) for _, weights, _ in curves])
        weights = np.concatenate([weights for _, weights, _ in curves])
        order = weights.argsort()
        self._ranked = weights[order]
        self._keys = np.sort(of_curve[order] * (len(order) + 1) + np.arange(len(order)))
        """By job, ascending: its curve's number and, below it, its weight's rank."""
        curve = np.repeat(np.arange(len(curves)), [len(levels) for levels, _, _ in curves])
        self._levels = np.concatenate([levels for levels, _, _ in curves])
        self._first_keys = curve * (len(order) + 1)
        self._ends = np.cumsum([len(weights) for _, weights, _ in curves])[curve]
        self._units = np.concatenate([[few, *[1] * (len(levels) - 1)][: len(levels)] for levels, _, few in curves])

    def above(self, level: float) -> int:
        """Return the units given at this level."""
        ranks = self._ranked.searchsorted(level / self._levels)
        jobs = self._ends - self._keys.searchsorted(self._first_keys + ranks)
        return int(jobs @ self._units)
