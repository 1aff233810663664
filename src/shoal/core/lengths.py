"""Predicted lengths: the work left of jobs whose owners declare none, as a distribution for each job."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from shoal.core.arrays import Floats, Indices
from shoal.core.units import JobNumber


@dataclass(frozen=True, slots=True)
class PredictedWork:
    """Work left of the live jobs, by position in the snapshot, in the unit of each job's own work.

    ``low``, ``median`` and ``high`` are the 10th, 50th and 90th percentile, given the work the job has done. NaN for a
    job that declares its work and for one without any history.
    """

    mean: Floats
    low: Floats
    median: Floats
    high: Floats

    def at(self, positions: Indices) -> "PredictedWork":
        """Return the predictions for the jobs at these positions."""
        return PredictedWork(*(column[positions] for column in (self.mean, self.low, self.median, self.high)))


@dataclass(frozen=True, slots=True)
class JobLength:
    """Work left of one job, predicted from the ``runs`` earlier runs that lasted longer; ``of`` says whose runs.

    ``low``, ``median`` and ``high`` are the 10th, 50th and 90th percentile. With ``runs`` 0 the job has outlasted all
    earlier runs, or there are too few of them.
    """

    low: float
    median: float
    high: float
    runs: int
    of: str


class LengthView(Protocol):
    """The predictions of one moment."""

    @property
    def rows(self) -> Indices:
        """The admission numbers, ascending."""
        ...

    @property
    def left(self) -> PredictedWork:
        """The work left, by position in ``rows``."""
        ...

    def keep(self) -> None:
        """Let ``given`` be called from other threads, and after later events, with unchanged answers."""
        ...

    def given(self, job: JobNumber, done: float) -> JobLength | None:
        """Return the predicted work left of a job once this much is done; None where nothing is predicted."""
        ...


def nothing_predicted(jobs: int) -> PredictedWork:
    """Return predictions that are NaN for this many jobs."""
    nan = np.full(jobs, np.nan)
    nan.flags.writeable = False
    return PredictedWork(nan, nan, nan, nan)
