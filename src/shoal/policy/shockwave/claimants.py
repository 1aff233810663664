"""Jobs as a window sees them: who wants rounds on which kind of GPU, and what a window then gives them.

Arrays only, so that a snapshot and a written-down problem can be planned for alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices, Int8s, Int32s
from shoal.core.units import Seconds
from shoal.policy.shockwave.carry import Outlooks
from shoal.solve.list_scheduling import dealt
from shoal.solve.window import Window


@dataclass(frozen=True, slots=True, eq=False)
class Claimants:
    """By job: its gang, its speed on every kind (0: not there), its budget and the ρ it is heading for.

    ``kinds`` is the kind it runs on now, −1 for none; ``ran`` the seconds it has run; ``known`` what it has before it,
    on the kind that suits it best.
    """

    gpus: Int32s
    speeds: Floats
    budget: Floats
    rho: Floats
    kinds: Int8s
    ran: Floats
    known: Outlooks


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """A window drawn up: by job its rounds, its rank in the order, and the kind it is dealt to, −1 for none.

    ``windows`` are those of the kinds that anybody was dealt to, with what proves each good. ``objective`` is welfare
    less the price of the makespan level, over all of them; an infinite price is left out.
    """

    runs: Flags
    rank: Indices
    kinds: Int8s
    windows: tuple[Window, ...]
    objective: float


def dealt_out(claimants: Claimants, capacity: Sequence[int], order: Indices, moving: Seconds) -> tuple[Int8s, Floats]:
    """Each job's kind, −1 for none, and its speed there beside its best: in this order, where it would be done first.

    Going from the kind it runs on to another costs ``moving`` seconds.
    """
    speeds, gpus, rooms = claimants.speeds, claimants.gpus, np.asarray(capacity, dtype=np.float64)
    best = speeds.max(axis=1, initial=0.0)
    if len(capacity) == 1:
        return np.where(best > 0.0, 0, -1).astype(np.int8), np.ones(len(gpus))
    pace = speeds / np.where(best > 0.0, best, 1.0)[:, None]
    able = (pace > 0.0) & (gpus[:, None] <= rooms)
    alone = np.divide(claimants.known.seconds[:, None], pace, out=np.full(pace.shape, np.inf), where=able)
    kinds = dealt(alone, gpus, rooms, order, claimants.kinds, moving=moving)
    return kinds, np.where(kinds >= 0, pace[np.arange(len(kinds)), kinds], 1.0)


def fairness(age: Floats, ran: Floats, left: Floats, contention: Floats | float) -> Floats:
    """By job: the ρ it would end at, if it ran from now on at its fastest; all in seconds, but the jobs by GPU."""
    alone = np.maximum(ran + left, 1e-9)
    rho: Floats = (age + left) / (alone * np.maximum(contention, 1.0))
    return np.maximum(rho, 1e-9)
