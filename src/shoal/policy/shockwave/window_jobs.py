"""The jobs that a window is planned for, as arrays, and a planned window.

Arrays only, so that a snapshot and a problem file are planned alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices, Int8s, Int32s
from shoal.core.units import Seconds
from shoal.policy.shockwave.carry import JobForecasts
from shoal.solve.list_scheduling import assign_in_order
from shoal.solve.window import Window


@dataclass(frozen=True, slots=True, eq=False)
class WindowJobs:
    """By job: its gang, its speed on every kind (0: cannot run there), its budget and its predicted ρ.

    ``kinds`` is the kind it runs on now, −1 for none; ``ran`` the seconds it has run; ``known`` its forecast on the
    kind that suits it best.
    """

    gpus: Int32s
    speeds: Floats
    budget: Floats
    rho: Floats
    kinds: Int8s
    ran: Floats
    known: JobForecasts


@dataclass(frozen=True, slots=True, eq=False)
class WindowDraft:
    """A planned window: by job its rounds, its rank in the order, and its kind, −1 for none.

    ``windows`` are the solutions of the kinds that have jobs, with their bounds. ``objective`` is welfare less the
    price of the makespan level, over all of them; an infinite price is left out.
    """

    runs: Flags
    rank: Indices
    kinds: Int8s
    windows: tuple[Window, ...]
    objective: float


def assign_kinds(jobs: WindowJobs, capacity: Sequence[int], order: Indices, moving: Seconds) -> tuple[Int8s, Floats]:
    """Return, by job, the kind where it would end first (−1: none) and its speed there over its best, in this order.

    A change of kind costs ``moving`` seconds.
    """
    speeds, gpus, most = jobs.speeds, jobs.gpus, np.asarray(capacity, dtype=np.float64)
    best = speeds.max(axis=1, initial=0.0)
    if len(capacity) == 1:
        return np.where(best > 0.0, 0, -1).astype(np.int8), np.ones(len(gpus))
    pace = speeds / np.where(best > 0.0, best, 1.0)[:, None]
    able = (pace > 0.0) & (gpus[:, None] <= most)
    alone = np.divide(jobs.known.seconds[:, None], pace, out=np.full(pace.shape, np.inf), where=able)
    kinds = assign_in_order(alone, gpus, most, order, jobs.kinds, moving=moving)
    return kinds, np.where(kinds >= 0, pace[np.arange(len(kinds)), kinds], 1.0)


def predicted_rho(age: Floats, ran: Floats, left: Floats, contention: Floats | float) -> Floats:
    """Return, by job, ρ at its end if it runs from now on at its fastest; seconds, ``contention`` is jobs per GPU."""
    alone = np.maximum(ran + left, 1e-9)
    rho: Floats = (age + left) / (alone * np.maximum(contention, 1.0))
    return np.maximum(rho, 1e-9)
