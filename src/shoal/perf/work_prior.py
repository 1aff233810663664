"""The remaining work of jobs, where it is declared and where it is not.

Policies use `remaining_work`, one number for each job. Forecasts use `Known.draw`, a random total for each job that is
conditional on how long the job has run; the same seed draws the same total for the same job.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.units import Seconds
from shoal.perf.length_table import DRAWN

DECLARED_SPREAD = 0.3
"""Error of declared work, as the σ of its logarithm: two jobs of three lie within a third of it."""

PRIOR_SECONDS: Seconds = 3600.0
"""Expected run time of a job that declares no work, until it has run longer than this."""

OVERDUE = 0.01
"""Work assumed to be left of a job that has passed its declared work, as a fraction of the work done."""


def remaining_work(work: Floats, done: Floats, speed: Floats, prior: Seconds = PRIOR_SECONDS) -> Floats:
    """Expected remaining work of each job, in the unit of its work; always above 0.

    ``work`` is the declared total (infinity where none is declared), ``done`` the progress and ``speed`` the work per
    second on the job's best GPUs. A job without declared work is expected to run as long again as it has run, and for
    ``prior`` seconds at least.
    """
    undeclared = np.maximum(done, speed * prior)
    declared = np.maximum(work - done, OVERDUE * np.maximum(done, work))
    left: Floats = np.maximum(np.where(np.isinf(work), undeclared, declared), 1e-9)
    return left


class Basis(StrEnum):
    """The source from which a job's total work is drawn."""

    DECLARED = "declared work"
    HISTORY = "lengths of earlier runs"
    AS_LONG_AGAIN = "as long again as it has run"


@dataclass(frozen=True, slots=True)
class Known:
    """Known facts of jobs, in columns: declared work (infinity for none), progress, seconds run, work per second.

    ``predicted`` has, for each job, its total work at the probabilities ``length_table.DRAWN``, as earlier runs predict
    it given its progress; NaN where they do not.
    """

    declared: Floats
    done: Floats
    run_seconds: Floats
    rate: Floats
    predicted: Floats

    def bases(self) -> list[Basis]:
        """By job: the basis of its drawn work."""
        undeclared = np.where(np.isnan(self.predicted[:, 0]), Basis.AS_LONG_AGAIN, Basis.HISTORY)
        return [Basis(name) for name in np.where(np.isfinite(self.declared), Basis.DECLARED, undeclared).tolist()]

    def draw(self, seed: int, spread: float = DECLARED_SPREAD) -> Floats:
        """Total work by job, never less than its progress; with a spread of 0 declared work is taken as exact."""
        draws = np.random.default_rng([seed, 3]).random(len(self.done))
        left = np.clip(1.0 - draws, 1e-12, 1.0 - 1e-12)  # probability of taking longer, given the seconds run so far
        again = self.done - np.log(left) * np.maximum(self.run_seconds, PRIOR_SECONDS) * self.rate
        known = np.isfinite(self.declared)
        total = np.where(known, self.declared, np.where(np.isnan(self.predicted[:, 0]), again, self._of_history(left)))
        if spread:
            total[known] = _longer_than(self.done[known], self.declared[known], spread, left[known])
        return np.maximum(total, self.done)

    def _of_history(self, left: Floats) -> Floats:
        """Return the predicted total that is exceeded with these probabilities."""
        place = np.clip((1.0 - left) * len(DRAWN) - 0.5, 0.0, len(DRAWN) - 1.0)
        low = np.minimum(place.astype(np.intp), len(DRAWN) - 2)
        rows, part = np.arange(len(left)), place - low
        total: Floats = self.predicted[rows, low] * (1.0 - part) + self.predicted[rows, low + 1] * part
        return total


def _longer_than(done: Floats, median: Floats, spread: float, left: Floats) -> Floats:
    """Draws from a lognormal around the median, conditional on exceeding ``done``; exact however large ``done`` is."""
    from scipy.special import log_ndtr, ndtri_exp  # here, since importing it takes 0.2 s

    ratio = np.full(len(done), -np.inf)
    np.log(done / median, out=ratio, where=done > 0)
    deviation = -ndtri_exp(np.log(left) + log_ndtr(-ratio / spread))
    total: Floats = median * np.exp(spread * deviation)
    return total
