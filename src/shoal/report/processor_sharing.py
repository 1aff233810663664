"""Processor sharing, exactly: every live job holds 1/n of the GPUs, and a gang goes at most at its own full speed."""

import heapq
from math import inf

import numpy as np

from shoal.core.arrays import Floats, Int64s


def share_equally(arrival: Floats, length: Floats, gang: Int64s, gpus: int) -> Floats:
    """When each job finishes; ``length`` is its run time at full speed, and its speed min(1, gpus / (n · gang)).

    All jobs of one gang size go equally fast at any moment, so one clock of attained run time for each size is enough:
    a job finishes when its clock has gone its length further. O(N log N + N·K) for N jobs of K gang sizes.
    """
    sizes, size_of = np.unique(gang, return_inverse=True)
    order = np.argsort(arrival, kind="stable").tolist()
    arrivals, lengths, classes = arrival.tolist(), length.tolist(), size_of.tolist()
    gangs = [float(size) for size in sizes]
    clocks = [0.0] * len(gangs)
    waiting: list[list[tuple[float, int]]] = [[] for _ in gangs]
    finish = np.full(len(arrivals), np.nan)
    now, live, coming = 0.0, 0, 0
    while live or coming < len(order):
        share = gpus / live if live else inf
        soonest, first = inf, -1
        speeds = [1.0 if g <= share else share / g for g in gangs]
        for k, queue in enumerate(waiting):
            if queue:
                wait = (queue[0][0] - clocks[k]) / speeds[k]
                if wait < soonest:
                    soonest, first = wait, k
        arrives = arrivals[order[coming]] if coming < len(order) else inf
        elapsed = min(soonest, arrives - now)
        for k, queue in enumerate(waiting):
            # A clock nobody reads starts again from 0, which keeps its digits for those who will.
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
    return finish
