"""Shares that maximise a sum: first in first out, shortest job first, the most throughput.

References: Gavel (OSDI '20) §4.2, which prints "Minimize" for the throughput: it is maximised.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shoal.core.decision import Decision
from shoal.core.snapshot import Snapshot
from shoal.policy.base import check_round
from shoal.policy.gavel.pairs import crowd_of, shared
from shoal.policy.gavel.policy import by_rounds
from shoal.policy.gavel.problem import ShareProblem, Shares, seated, shares_of
from shoal.policy.gavel.reasons import REASONS
from shoal.policy.gavel.tuning import TUNING
from shoal.solve.consolidation import first_come, most_throughput, shortest_first
from shoal.solve.linear_objectives import TimeShares, fifo, maximise_throughput, shortest_job_first
from shoal.solve.space_sharing import shared_throughput


@dataclass(frozen=True, slots=True)
class GavelFifo:
    """First in, first out, each on its fastest kind as far as that goes; weights do not count."""

    reasons = REASONS
    tuning = TUNING
    aware: bool = True
    space_sharing: bool = False
    round: float = 360.0
    fills: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_round(self.round)

    def decide(self, snapshot: Snapshot) -> Decision:
        """A verdict for every live job, by rounds."""
        return by_rounds(self, snapshot)

    def shares(self, problem: ShareProblem) -> Shares:
        """The largest sum of throughput / fastest throughput · (jobs − place in line)."""
        count = len(problem.rows)
        if self.space_sharing:
            ahead = (count - np.arange(count)) / problem.speeds.max(axis=1)
            return shared(problem, shared_throughput(crowd_of(problem), ahead))
        found = fifo(problem.speeds, problem.gangs, problem.capacity, np.arange(count))
        if problem.scarce(found.shares):
            return seated(problem, first_come(problem.places, np.arange(count)))
        return solved(problem, found)


@dataclass(frozen=True, slots=True)
class GavelShortest:
    """Shortest job first: the one that could be done first gets its fastest kind, the others follow by length."""

    reasons = REASONS
    tuning = TUNING
    aware: bool = True
    round: float = 360.0
    fills: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_round(self.round)

    def decide(self, snapshot: Snapshot) -> Decision:
        """A verdict for every live job, by rounds."""
        return by_rounds(self, snapshot)

    def shares(self, problem: ShareProblem) -> Shares:
        """The least duration for the shortest job, the rest in order of theirs."""
        found = shortest_job_first(problem.speeds, problem.gangs, problem.capacity, problem.steps)
        if problem.scarce(found.shares):
            return seated(problem, shortest_first(problem.places, problem.steps))
        return solved(problem, found)


@dataclass(frozen=True, slots=True)
class GavelThroughput:
    """The most throughput in all, times weight.

    Progress is in each job's own unit, so throughput is counted in GPUs of the kind that is fastest for the job.
    """

    reasons = REASONS
    tuning = TUNING
    aware: bool = True
    space_sharing: bool = False
    round: float = 360.0
    fills: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_round(self.round)

    def decide(self, snapshot: Snapshot) -> Decision:
        """A verdict for every live job, by rounds."""
        return by_rounds(self, snapshot)

    def shares(self, problem: ShareProblem) -> Shares:
        """The largest sum of weight · gang · throughput / fastest throughput."""
        worth = problem.weight * problem.gangs / problem.speeds.max(axis=1)
        if self.space_sharing:
            return shared(problem, shared_throughput(crowd_of(problem), worth))
        found = maximise_throughput(problem.speeds, problem.gangs, problem.capacity, worth)
        if problem.scarce(found.shares):
            return seated(problem, most_throughput(problem.places, worth))
        return solved(problem, found)


def solved(problem: ShareProblem, found: TimeShares, notes: dict[int, str] | None = None) -> Shares:
    """The shares of a linear program, judged by what it says of itself."""
    trouble = "" if found.status == "optimal" else f"{found.status} (gap {found.gap:.1e})"
    return shares_of(problem, found.shares, trouble, notes)
