"""Levels of groups of jobs raised along a path as far as their activities allow, by cutting planes.

A linear program says whether levels fit, and if not its prices give a cut that the next levels must keep. Every cut is
recomputed from its prices, so the levels of the first stage are a bound that does not rest on the solver. Groups with a
part in the last cut cannot rise further. Unlike the search over prices of `shoal.solve.prices`, this holds for any
activities: time on one node or across nodes (`consolidation`), and pairs on the same GPUs (`shared_levels`).

References: Kelley (1960) for cuts; Gavel (OSDI '20) §4.3 for water filling.
"""

import numpy as np

from shoal.core.arrays import Floats
from shoal.solve.linear_program import LpSession
from shoal.solve.prices.paths import BoundedPath, Path
from shoal.solve.time_share_lp import Activities

_FITS = 1e-9
"""Levels fit if at most this much of an even part of a top speed is missing."""
_TIGHT = 1e-9
"""Groups with more than this part of a cut are frozen."""
_MOST_CUTS = 200
"""Cuts of a stage: most stages take 3 to 6; after this many, rounding prevents convergence."""


class LevelRise:
    """Water filling in progress: the program that checks levels, each group's stop, and the levels reached.

    Levels, stops and ``top`` are those of one job of each group, and every group must be able to run. ``bound`` is an
    upper bound on the path's objective; ``solved`` is False where a program failed.
    """

    def __init__(self, activities: Activities, path: Path) -> None:
        self._activities, self._path = activities, path
        self.top = activities.top_speed()
        self._stop, self._tau = self.top.copy(), 0.0
        contention = float(activities.counts @ _widths(activities)) / float(activities.capacity.sum())
        # Rows in units of about the level reached: in top speeds small parts of many GPUs would be below the tolerance.
        self._unit = self.top / max(contention, 1.0)
        self._base = LpSession(activities.program())
        # The last column is the level missing, the same for all rows: a job's throughput / unit + missing ≥ level /
        # unit, where a group's throughput is divided among its jobs.
        groups = np.arange(len(self.top))
        _, group, speed = activities.members()
        program, self._rows = activities.with_levels(
            speed / (self._unit * activities.counts)[group],
            groups,
            column=np.full(len(groups), activities.size),
            value=np.ones(len(groups)),
            lower=np.zeros(len(groups)),
            reach=np.full(1, max(contention, 1.0)),
        )
        self._session = LpSession(program)
        self._missing = np.concatenate([np.zeros(activities.size), [-1.0]])
        self.x, self.levels = np.zeros(activities.size), np.zeros(len(self.top))
        self.bound = np.inf
        self.solved = True

    def fill(self, *, water_filling: bool) -> None:
        """Raise the levels in stages until no group can rise; without ``water_filling`` raise them once.

        Time that one stage leaves goes where it adds most throughput, each job counted in its own top speed.
        """
        while self._stage() and water_filling:
            pass
        if not water_filling:
            self._spend()

    def _stage(self) -> bool:
        """Raise all levels as far as they fit and freeze the groups in the last cut; return whether any was frozen."""
        climb, cut, whole = self._path.climb(self._stop), np.zeros(len(self.top)), self.bound == np.inf
        tau = climb.top
        per_job = self._unit * self._activities.counts
        for _ in range(_MOST_CUTS):
            levels = climb.at(tau)
            self._session.raise_floors(self._rows, levels / self._unit)
            vertex = self._session.maximise(self._missing)
            if not vertex.solved:
                break
            if vertex.x[-1] <= _FITS:
                self.x, self.levels, self._tau = vertex.x[:-1], levels, tau
                if whole:
                    self.bound = self._path.worth(climb.at(tau))
                stuck = cut > _TIGHT
                self._stop[stuck] = levels[stuck]
                return bool(stuck.any())
            cut = np.maximum(-vertex.prices[self._rows], 0.0)
            most = self._base.bound(self._activities.gain(cut / per_job), vertex.prices[: self._rows[0]])
            tau = _highest(climb, cut / self._unit, most, self._tau, tau)
        self.solved = False
        return False

    def _spend(self) -> None:
        self._session.raise_floors(self._rows, np.maximum(self.levels / self._unit - _FITS, 0.0))
        self._session.limit(np.array([self._activities.size]), np.zeros(1))
        vertex = self._session.maximise(np.append(self._activities.gain(1.0 / self.top), 0.0))
        if vertex.solved:
            self.x = vertex.x[:-1]


def _highest(climb: BoundedPath, cut: Floats, most: float, low: float, high: float) -> float:
    """The largest τ whose levels keep a cut, by bisection: levels only rise with τ."""
    for _ in range(100):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if float(cut @ climb.at(middle)) <= most:
            low = middle
        else:
            high = middle
    return low


def _widths(activities: Activities) -> Floats:
    widths = np.zeros(len(activities.counts))
    both = activities.second >= 0
    widths[activities.second[both]] = activities.width[both]
    widths[activities.first] = activities.width
    return widths
