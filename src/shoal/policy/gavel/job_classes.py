"""Jobs of a snapshot grouped for space sharing: classes of equal jobs, and the pairs of classes that gain by it."""

import numpy as np

from shoal.core.arrays import Floats, Indices
from shoal.core.snapshot import Snapshot
from shoal.solve.job_classes import JobClasses


def job_classes(snapshot: Snapshot, rows: Indices, speeds: Floats, gangs: Floats, capacity: Floats) -> JobClasses:
    """Return classes by model, batch size, gang and speeds, and the pairs of equal gangs that gain by sharing GPUs.

    The performance model says which part of its speed each of two jobs keeps, the same on every kind of GPU.
    """
    numbers: dict[tuple[object, ...], int] = {}
    examples: list[int] = []
    classes: list[int] = []
    sizes = snapshot.columns.batch_size[rows].tolist()
    for row, (at, size) in enumerate(zip(rows.tolist(), sizes, strict=True)):
        spec = snapshot.specs[at]
        key = (spec.model, size, spec.gpus, speeds[row].tobytes())
        if key not in numbers:
            numbers[key] = len(examples)
            examples.append(row)
        classes.append(numbers[key])
    by_class, widths = speeds[examples], gangs[examples]
    views = [snapshot.jobs.at(int(rows[row])) for row in examples]
    pairs, keeps = [], []
    for a, first in enumerate(views):
        for b in range(a, len(views)):
            if widths[a] == widths[b]:
                kept = snapshot.perf.colocated(first, views[b])
                if sum(kept) > 1.0 and min(kept) > 0.0:
                    pairs.append((a, b))
                    keeps.append(kept)
    pair = np.array(pairs, dtype=np.intp).reshape(-1, 2)
    kept_by = np.array(keeps, dtype=np.float64).reshape(-1, 2, 1)
    both_run = (by_class[pair] > 0).all(axis=1, keepdims=True)
    pair_speed = by_class[pair] * kept_by * both_run
    return JobClasses(np.array(classes, dtype=np.intp), by_class, widths, capacity, pair, pair_speed)
