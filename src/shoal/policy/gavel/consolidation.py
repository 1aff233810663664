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
    row, kind = np.nonzero(near & (speeds > 0) & (gangs > 1)[:, None])
    apart = speeds.copy()
    apart[row, kind] *= _kept_across_nodes(snapshot, rows[row], kind)
    capacity = np.array(snapshot.cluster.capacity, dtype=np.float64)
    return Localities(np.where(near, speeds, 0.0), apart, gangs, capacity, nodes)


def _kept_across_nodes(snapshot: Snapshot, jobs: Indices, kinds: Indices) -> Floats:
    """Return the fraction of its speed on one node that each of these jobs keeps across nodes on this kind, at most 1.

    The model is asked once for jobs equal in all that it knows of a job's speed.
    """
    examples: dict[tuple[int, int], tuple[Placement, ...]] = {}
    known: dict[tuple[int, int], float] = {}
    fractions = np.ones(len(jobs))
    classes = _speed_classes(snapshot, jobs)
    for i, (key, job) in enumerate(zip(zip(classes, kinds.tolist(), strict=True), jobs.tolist(), strict=True)):
        if key not in known:
            known[key] = _kept(snapshot, job, key[1], examples)
        fractions[i] = known[key]
    return fractions


def _kept(snapshot: Snapshot, job: int, kind: int, examples: dict[tuple[int, int], tuple[Placement, ...]]) -> float:
    view = snapshot.jobs.at(job)
    if (kind, view.gpus) not in examples:
        examples[kind, view.gpus] = near_and_far(snapshot.cluster, kind, view.gpus)
    rates = [snapshot.perf.rate(view, placement).value for placement in examples[kind, view.gpus]]
    return min(rates[1] / rates[0], 1.0) if len(rates) == 2 and rates[0] > 0 else 1.0


def _speed_classes(snapshot: Snapshot, jobs: Indices) -> list[int]:
    """Return a class number for each of these jobs: the same for equal model, batch size, gang and measured rates."""
    numbers: dict[tuple[object, ...], int] = {}
    by_job: dict[int, int] = {}
    for at in dict.fromkeys(jobs.tolist()):
        spec, size = snapshot.specs[at], snapshot.columns.batch_size.item(at)
        measured = snapshot.measurements(at) if snapshot.columns.measured.item(at) >= 0 else ()
        key = (spec.model, size or spec.batch_size, spec.gpus, spec.kinds, spec.speed, measured)
        by_job[at] = numbers.setdefault(key, len(numbers))
    return [by_job[at] for at in jobs.tolist()]
