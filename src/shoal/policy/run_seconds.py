"""Estimated run times of jobs on each kind of GPU."""

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.snapshot import Snapshot
from shoal.perf.work_prior import remaining_work


def run_seconds(snapshot: Snapshot) -> Floats:
    """Estimated seconds left of each job's gang on each kind (jobs × kinds); infinite where it cannot run."""
    columns = snapshot.columns
    left = remaining_work(columns.work, columns.done, columns.best_speed)
    able = (columns.speeds > 0) & (columns.gpus[:, None] <= np.asarray(snapshot.cluster.capacity))
    seconds: Floats = np.full(columns.speeds.shape, np.inf)
    np.divide(left[:, None], columns.speeds, out=seconds, where=able)
    return seconds
