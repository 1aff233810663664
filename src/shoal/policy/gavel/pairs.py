"""Space sharing: which jobs could share GPUs, told to the solvers as kinds of job, and their answer told by job."""

import numpy as np

from shoal.policy.gavel.problem import ShareProblem, Shares, spread
from shoal.solve.job_classes import JobClasses
from shoal.solve.space_sharing import SharedShares


def crowd_of(problem: ShareProblem) -> JobClasses:
    """The jobs grouped by model, batch size, gang and speeds, and every two groups of one gang that gain by sharing.

    What two jobs keep of their speeds beside each other is the performance model's word, the same on every kind of GPU.
    """
    snapshot, speeds = problem.snapshot, problem.speeds
    numbers: dict[tuple[object, ...], int] = {}
    examples: list[int] = []
    kinds: list[int] = []
    sizes = snapshot.columns.batch_size[problem.rows].tolist()
    for row, (at, size) in enumerate(zip(problem.rows.tolist(), sizes, strict=True)):
        spec = snapshot.specs[at]
        key = (spec.model, size, spec.gpus, speeds[row].tobytes())
        if key not in numbers:
            numbers[key] = len(examples)
            examples.append(row)
        kinds.append(numbers[key])
    of_kind, gangs = speeds[examples], problem.gangs[examples]
    views = [snapshot.jobs.at(int(problem.rows[row])) for row in examples]
    pairs, keeps = [], []
    for a, first in enumerate(views):
        for b in range(a, len(views)):
            if gangs[a] == gangs[b] and sum(kept := snapshot.perf.colocated(first, views[b])) > 1.0 and min(kept) > 0.0:
                pairs.append((a, b))
                keeps.append(kept)
    named = np.array(pairs, dtype=np.intp).reshape(-1, 2)
    kept_by = np.array(keeps, dtype=np.float64).reshape(-1, 2, 1)
    # Two share only where both can run alone.
    where = (of_kind[named] > 0).all(axis=1, keepdims=True)
    pair_speed = of_kind[named] * kept_by * where
    return JobClasses(np.array(kinds, dtype=np.intp), of_kind, gangs, problem.capacity, named, pair_speed)


def shared(problem: ShareProblem, found: SharedShares, notes: dict[int, str] | None = None) -> Shares:
    """The shares of a solve with pairs, spread where kinds look alike."""
    alone, together = found.alone, found.together
    if not problem.aware:
        use, pairs = problem.speeds > 0, found.pairs
        rows = np.concatenate([alone, together])
        both = np.concatenate([use, use[pairs[:, 0]] & use[pairs[:, 1]]])
        gangs = np.concatenate([problem.gangs, problem.gangs[pairs[:, 0]]])
        alone, together = np.split(spread(rows, both, gangs, problem.capacity), [len(alone)])
    trouble = "" if found.status == "optimal" else f"{found.status} (gap {found.gap:.1e})"
    return Shares(alone, found.pairs, together, trouble, notes or {})
