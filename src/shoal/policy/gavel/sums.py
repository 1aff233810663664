"""Rules that maximise a sum of throughputs: first in first out, shortest job first, the most throughput.

References: Gavel (OSDI '20) §4.2, which prints "Minimize" for the throughput: it is maximised.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shoal.policy.base import check_round
from shoal.policy.gavel.policy import by_rounds
from shoal.policy.gavel.problem import ShareProblem, Shares, seated, shared, solved
from shoal.policy.gavel.reasons import REASONS
from shoal.policy.gavel.tuning import TUNING
from shoal.solve.consolidation import first_come, most_throughput, shortest_first
from shoal.solve.linear_objectives import fifo, maximise_throughput, shortest_job_first
from shoal.solve.space_sharing import shared_shortest, shared_throughput


@dataclass(frozen=True, slots=True)
class GavelFifo:
    """First in, first out, each on its fastest kind as far as GPUs suffice; weights do not count."""

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
        """The largest sum of throughput / fastest throughput · (jobs − place in line)."""
        line = np.arange(len(problem))
        if self.space_sharing:
            ahead = (len(line) - line) / problem.fastest
            return shared(problem, shared_throughput(problem.job_classes, ahead))
        found = fifo(problem.speeds, problem.gangs, problem.capacity, line)
        if problem.scarce(found.shares):
            return seated(problem, first_come(problem.localities, line))
        return solved(problem, found)


@dataclass(frozen=True, slots=True)
class GavelShortest:
    """Shortest job first: the job that could end first gets its fastest kind, the others follow by length."""

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
        """The least duration for the shortest job, the rest in order of theirs."""
        if self.space_sharing:
            return shared(problem, shared_shortest(problem.job_classes, problem.steps))
        found = shortest_job_first(problem.speeds, problem.gangs, problem.capacity, problem.steps)
        if problem.scarce(found.shares):
            return seated(problem, shortest_first(problem.localities, problem.steps))
        return solved(problem, found)


@dataclass(frozen=True, slots=True)
class GavelThroughput:
    """The largest total throughput; with ``weighted`` each job's counts by its weight, which the paper's does not.

    Where every job's progress has a unit of its own, it is counted in GPUs of the kind that is fastest for the job.
    """

    reasons = REASONS
    tuning = TUNING
    aware: bool = True
    space_sharing: bool = False
    weighted: bool = False
    round: float = 360.0
    fills: ClassVar[bool] = True
    decide = by_rounds

    def __post_init__(self) -> None:
        check_round(self.round)

    def shares(self, problem: ShareProblem) -> Shares:
        """The largest sum of gang · throughput / fastest throughput, or of throughput in a common unit."""
        worth = np.ones(len(problem)) if problem.same_unit else problem.gangs / problem.fastest
        if self.weighted:
            worth = worth * problem.weight
        if self.space_sharing:
            return shared(problem, shared_throughput(problem.job_classes, worth))
        found = maximise_throughput(problem.speeds, problem.gangs, problem.capacity, worth)
        if problem.scarce(found.shares):
            return seated(problem, most_throughput(problem.localities, worth))
        return solved(problem, found)
