"""Shockwave's carry: the plan in force, each job's forecast, and the most jobs that were live at once."""

from dataclasses import dataclass

from shoal.core.arrays import Flags, Floats, Indices, Int8s, Int32s
from shoal.core.units import Seconds


@dataclass(frozen=True, slots=True, eq=False)
class WindowPlan:
    """A window of rounds, by admission number (``rows``): ``runs`` (jobs × rounds), the kind, the rank in the order.

    ``batches`` and ``capacity`` are those it was made for; ``gap`` is the solver's, the worst of any kind of GPU.
    """

    begins: Seconds
    rows: Indices
    runs: Flags
    kinds: Int8s
    rank: Indices
    batches: Int32s
    capacity: tuple[int, ...]
    gap: float

    @property
    def rounds(self) -> int:
        """Rounds in the window."""
        return int(self.runs.shape[1])


@dataclass(frozen=True, slots=True, eq=False)
class JobForecasts:
    """By admission number: a job's forecast, valid while its progress, batch size and measurements stay the same.

    ``seconds`` is the predicted run time left and ``optimistic`` that at its fastest known rate, both with the
    requested gang; ``whole`` is all its work, done and to do; ``gained[n]`` the work done by n more rounds.
    """

    rows: Indices
    done: Floats
    batches: Int32s
    measured: Int32s
    seconds: Floats
    optimistic: Floats
    whole: Floats
    gained: Floats


@dataclass(frozen=True, slots=True, eq=False)
class JobContention:
    """By admission number: the most jobs that were live at once since it arrived, and their number summed over time.

    ``jobs`` were live at ``at``; ``job_seconds`` is the integral of their number since the job's arrival.
    """

    at: Seconds
    jobs: int
    peak_jobs: Int32s
    job_seconds: Floats


@dataclass(frozen=True, slots=True, eq=False)
class ShockwaveCarry:
    """The end of the present round, the plan in force, and the one made ahead for the next round, if any.

    ``contention`` counts, for each of ``rows``, the jobs beside it.
    """

    ends: Seconds
    rows: Indices
    contention: JobContention
    forecasts: JobForecasts | None = None
    plan: WindowPlan | None = None
    next_plan: WindowPlan | None = None
