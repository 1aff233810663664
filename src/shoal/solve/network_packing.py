"""Network packing: shares rounded so that no two jobs share a machine's network, their total unchanged.

An allowed share is a factor of the GPUs per machine or a multiple of it, the factors being such that each divides the
next (1, 2, 4 on machines of four). Then every job can be placed on the fewest machines, with at most one job on a
machine that spans machines (AFS, Appendix E, proposition 1); and shares can always be rounded without leaving a GPU
idle, each job getting at least the largest allowed share within its own (proposition 2). This is such a rounding with
the least sum of differences.

Reference: Hwang et al., NSDI 2021, §4.4 and Appendix E.
"""

from collections.abc import Sequence

import numpy as np


def packing_units(machine_gpus: int, most: int) -> list[int]:
    """The allowed shares up to ``most``, ascending: a chain of factors of a machine's GPUs, then whole machines."""
    factors, size = list[int](), machine_gpus
    while size > 1:
        size //= next(d for d in range(2, size + 1) if size % d == 0)
        factors.append(size)
    units = sorted(factors) + list(range(machine_gpus, most + 1, machine_gpus))
    return [unit for unit in units if unit <= most]


def regulated(shares: Sequence[int], most: Sequence[int], machine_gpus: int) -> list[int]:
    """Allowed shares instead of these, none above its ``most`` and none below the largest allowed within it.

    The total is unchanged, or, where no job may have some of the GPUs, as near to it as possible; among all such
    answers this is one with the least Σ |new − old|. A share of 0 stays 0.
    """
    total = sum(shares)
    units = packing_units(machine_gpus, total)
    floors = [max((u for u in units if u <= share), default=0) for share in shares]
    spare = total - sum(floors)
    if not spare:
        return floors
    growing = [i for i, share in enumerate(shares) if share]
    # steps[i]: what job i may have beyond its floor, and what that costs in difference.
    steps = {
        i: [(u - floors[i], abs(u - shares[i])) for u in units if floors[i] <= u <= min(most[i], floors[i] + spare)]
        or [(0, shares[i] - floors[i])]
        for i in growing
    }
    given = _cheapest([steps[i] for i in growing], spare)
    answer = list(floors)
    for i, extra in zip(growing, given, strict=True):
        answer[i] += extra
    return answer


def _cheapest(steps: Sequence[Sequence[tuple[int, int]]], spare: int) -> list[int]:
    """Return one step of each list, so that their sum is the most within ``spare``, at the least cost."""
    cost = np.full(spare + 1, np.inf)
    cost[0] = 0.0
    chosen = []
    for options in steps:
        table = np.full((len(options), spare + 1), np.inf)
        for row, (extra, difference) in zip(table, options, strict=True):
            row[extra:] = cost[: spare + 1 - extra] + difference
        chosen.append(table.argmin(axis=0))
        cost = table.min(axis=0)
    at = int(np.flatnonzero(np.isfinite(cost))[-1])
    given = []
    for options, choice in zip(reversed(steps), reversed(chosen), strict=True):
        extra = options[int(choice[at])][0]
        given.append(extra)
        at -= extra
    return given[::-1]
