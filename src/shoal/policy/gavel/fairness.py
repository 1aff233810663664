"""Rules solved by water filling: max-min fairness, the least makespan, finish-time fairness.

References: Gavel (OSDI '20) §4.1 and §4.2; Themis (NSDI '20) for ρ.
"""

from dataclasses import dataclass
from typing import ClassVar

from shoal.policy.base import check_round
from shoal.policy.gavel.policy import by_rounds
from shoal.policy.gavel.problem import ShareProblem, Shares, filled, seated, shared
from shoal.policy.gavel.reasons import REASONS
from shoal.policy.gavel.tuning import TUNING
from shoal.solve.consolidation import water_filled
from shoal.solve.prices import finish_time_fairness, makespan, max_min, paths
from shoal.solve.space_sharing import shared_finish_time, shared_makespan, shared_max_min


@dataclass(frozen=True, slots=True)
class GavelMaxMin:
    """Max-min fairness: the least gang/weight · throughput/throughput(equal shares) is maximised.

    This is least attained service on unequal GPUs. With ``water_filling`` the next least is maximised too, and so on;
    without, what is left is shared by all jobs alike.
    """

    reasons = REASONS
    tuning = TUNING
    aware: bool = True
    water_filling: bool = True
    space_sharing: bool = False
    round: float = 360.0
    fills: ClassVar[bool] = True
    decide = by_rounds

    def __post_init__(self) -> None:
        check_round(self.round)

    def shares(self, problem: ShareProblem) -> Shares:
        """Max-min fair shares of time."""
        demands = problem.weight * problem.equal_speed / problem.gangs
        if self.space_sharing:
            return shared(problem, shared_max_min(problem.job_classes, demands, water_filling=self.water_filling))
        speeds, gangs, capacity = problem.speeds, problem.gangs, problem.capacity
        found = max_min(speeds, gangs, capacity, demands, water_filling=self.water_filling, prefer=problem.preferred)
        if problem.scarce(found.X):
            path = paths.Proportional(demands)
            return seated(problem, water_filled(problem.localities, path, water_filling=self.water_filling))
        return filled(problem, found)


@dataclass(frozen=True, slots=True)
class GavelMakespan:
    """Least makespan: the largest work left / throughput is minimised. Weights do not count."""

    reasons = REASONS
    tuning = TUNING
    aware: bool = True
    space_sharing: bool = False
    round: float = 360.0
    fills: ClassVar[bool] = True
    decide = by_rounds

    def __post_init__(self) -> None:
        check_round(self.round)

    def shares(self, problem: ShareProblem) -> Shares:
        """Shares with which the last job ends as early as possible; the objective is that time in seconds from now."""
        if self.space_sharing:
            return shared(problem, shared_makespan(problem.job_classes, problem.steps))
        found = makespan(problem.speeds, problem.gangs, problem.capacity, problem.steps, prefer=problem.preferred)
        if problem.scarce(found.X):
            path = paths.Proportional(problem.steps)
            return seated(problem, water_filled(problem.localities, path), inverse=True)
        return filled(problem, found, inverse=True)


@dataclass(frozen=True, slots=True)
class GavelFinishTime:
    """Finish-time fairness: the largest ρ, completion time over that on an n-th of the cluster, is minimised.

    n is the number of live jobs; a job of weight w is compared with w such parts.
    """

    reasons = REASONS
    tuning = TUNING
    aware: bool = True
    space_sharing: bool = False
    round: float = 360.0
    fills: ClassVar[bool] = True
    decide = by_rounds

    def __post_init__(self) -> None:
        check_round(self.round)

    def shares(self, problem: ShareProblem) -> Shares:
        """Shares with the least worst ρ, which is the objective."""
        steps, elapsed = problem.steps, problem.elapsed
        alone = (problem.isolated + steps / problem.isolated_speed) / problem.weight
        if self.space_sharing:
            together = shared_finish_time(problem.job_classes, steps, elapsed, alone)
            return shared(problem, together, inverse=True)
        found = finish_time_fairness(
            problem.speeds, problem.gangs, problem.capacity, steps, elapsed, alone, prefer=problem.preferred
        )
        if problem.scarce(found.X):
            path = paths.FinishTime(steps, elapsed, alone)
            return seated(problem, water_filled(problem.localities, path), inverse=True)
        return filled(problem, found, inverse=True)
