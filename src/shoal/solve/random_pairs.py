"""Random pairs of jobs of equal size."""

from collections.abc import Container

import numpy as np

from shoal.core.arrays import Indices, Int32s


def random_pairs(
    rng: np.random.Generator,
    hosts: Indices,
    guests: Indices,
    size: Int32s,
    *,
    most: int,
    barred: Container[tuple[int, int]],
) -> list[tuple[int, int]]:
    """Up to ``most`` disjoint pairs of a host and a guest of equal ``size``; one draw for each host.

    A host whose draw is ``barred`` stays without a partner until the next call.
    """
    lines: dict[int, list[int]] = {}
    for j in rng.permutation(guests).tolist():
        lines.setdefault(int(size[j]), []).append(j)
    pairs: list[tuple[int, int]] = []
    for i in rng.permutation(hosts).tolist():
        line = lines.get(int(size[i]))
        if len(pairs) >= most:
            break
        if line and (i, line[-1]) not in barred:
            pairs.append((i, line.pop()))
    return pairs
