"""Speeds of gangs on one node and across nodes, by the performance model."""

import numpy as np

from shoal.core.arrays import Floats, Indices
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement, Topology
from shoal.policy.one_node import near_and_far
from shoal.solve.consolidation import Localities


def node_sizes(cluster: Topology) -> tuple[tuple[int, ...], ...]:
    """GPUs that jobs may hold on each node that has any, by kind."""
    sizes: list[list[int]] = [[] for _ in cluster.kinds]
    for gpus, kind in zip(cluster.usable, cluster.node_kind, strict=True):
        if gpus:
            sizes[kind].append(gpus)
    return tuple(tuple(of_kind) for of_kind in sizes)


def localities(snapshot: Snapshot, rows: Indices, speeds: Floats, gangs: Floats) -> Localities:
    """Return speeds on one node, as given, and across nodes, lower by the model's slowdown for the distance.

    Across nodes means two nodes of one rack, where there are such; a gang larger than a node has its given speed there.
    """
    nodes = node_sizes(snapshot.cluster)
    near = gangs[:, None] <= np.array([max(sizes, default=0) for sizes in nodes])
    apart = speeds.copy()
    examples: dict[tuple[int, int], tuple[Placement, ...]] = {}
    for row, kind in np.argwhere(near & (speeds > 0) & (gangs > 1)[:, None]).tolist():
        size = int(gangs[row])
        if (kind, size) not in examples:
            examples[kind, size] = near_and_far(snapshot.cluster, kind, size)
        view = snapshot.jobs.at(int(rows[row]))
        rates = [snapshot.perf.rate(view, placement).value for placement in examples[kind, size]]
        if len(rates) == 2 and rates[0] > 0:
            apart[row, kind] *= min(rates[1] / rates[0], 1.0)
    capacity = np.array(snapshot.cluster.capacity, dtype=np.float64)
    return Localities(np.where(near, speeds, 0.0), apart, gangs, capacity, nodes)
