"""Exact processor sharing: each of n live jobs holds 1/n of the GPUs, and no gang is faster than its full speed."""

import heapq
from functools import lru_cache
from math import inf, nan

import numpy as np

from shoal.core.arrays import Floats, Int64s


def share_equally(arrival: Floats, length: Floats, gang: Int64s, gpus: int) -> Floats:
    """Completion times; ``length`` is a job's run time at full speed, and its speed is min(1, gpus / (n · gang)).

    All jobs of one gang size have the same speed at any time, so one clock of attained run time per size is enough: a
    job completes when its clock has advanced by its length. O(N log N + N·K) for N jobs of K gang sizes.
    """
    sizes, size_of = np.unique(gang, return_inverse=True)
    order = np.argsort(arrival, kind="stable").tolist()
    arrivals, lengths, classes = arrival.tolist(), length.tolist(), size_of.tolist()
    gangs = [float(size) for size in sizes]
    clocks = [0.0] * len(gangs)
    waiting: list[list[tuple[float, int]]] = [[] for _ in gangs]
    finish = [nan] * len(arrivals)

    @lru_cache(1024)
    def speeds_of(live: int) -> list[float]:
        share = gpus / live if live else inf
        return [1.0 if g <= share else share / g for g in gangs]

    now, live, coming = 0.0, 0, 0
    while live or coming < len(order):
        soonest, first, speeds = inf, -1, speeds_of(live)
        for k, queue in enumerate(waiting):
            if queue:
                wait = (queue[0][0] - clocks[k]) / speeds[k]
                if wait < soonest:
                    soonest, first = wait, k
        arrives = arrivals[order[coming]] if coming < len(order) else inf
        elapsed = min(soonest, arrives - now)
        for k, queue in enumerate(waiting):
            # The clock of a size without live jobs restarts at 0, which preserves precision.
            clocks[k] = clocks[k] + elapsed * speeds[k] if queue else 0.0
        if soonest <= arrives - now:
            now += soonest
            clocks[first], job = heapq.heappop(waiting[first])
            finish[job] = now
            live -= 1
        else:
            now, job = arrives, order[coming]
            heapq.heappush(waiting[classes[job]], (clocks[classes[job]] + lengths[job], job))
            coming += 1
            live += 1
    return np.array(finish)
