"""Rules for the most throughput per dollar, with or without deadlines.

Where every job's progress has a unit of its own, throughput is counted relative to the job's progress per dollar on the
kind that is cheapest for it: each runs where it is cheapest. GPUs that cost more for the same progress stay idle. With
``weighted`` a job's throughput counts by its weight; the paper's does not.

References: Gavel (OSDI '20) §4.2.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shoal.core.arrays import Floats
from shoal.policy.base import check_round
from shoal.policy.gavel.policy import by_rounds
from shoal.policy.gavel.problem import ShareProblem, Shares, seated, shared, solved
from shoal.policy.gavel.reasons import REASONS
from shoal.policy.gavel.tuning import TUNING
from shoal.solve.consolidation import most_per_cost
from shoal.solve.ratio_program import cheapest
from shoal.solve.space_sharing import shared_cheapest

SET_ASIDE = TUNING.set_aside
"""Fraction of the time until a deadline that is set aside for restarts, besides two rounds for turns that come late."""


@dataclass(frozen=True, slots=True)
class GavelCost:
    """Runs each job on the kind where its progress costs least, however long that takes."""

    reasons = REASONS
    tuning = TUNING
    aware: bool = True
    space_sharing: bool = False
    weighted: bool = False
    round: float = 360.0
    fills: ClassVar[bool] = False
    decide = by_rounds

    def __post_init__(self) -> None:
        check_round(self.round)

    def shares(self, problem: ShareProblem) -> Shares:
        """The largest throughput per dollar, and of those the largest throughput."""
        return _cheapest(problem, None, space_sharing=self.space_sharing, weighted=self.weighted)


@dataclass(frozen=True, slots=True)
class GavelCostSlo:
    """Runs each job where its progress costs least among the ways that meet its deadline.

    A deadline that is past, or that the job would miss with all the time on its fastest kind, is dropped; if those left
    cannot all be met, the least throughput is given up. The job's reason says either.
    """

    reasons = REASONS
    tuning = TUNING
    aware: bool = True
    space_sharing: bool = False
    weighted: bool = False
    round: float = 360.0
    fills: ClassVar[bool] = False
    decide = by_rounds

    def __post_init__(self) -> None:
        check_round(self.round)

    def shares(self, problem: ShareProblem) -> Shares:
        """The largest throughput per dollar with which deadlines are met."""
        floors = _floors(problem)
        return _cheapest(problem, floors, space_sharing=self.space_sharing, weighted=self.weighted)


def _floors(problem: ShareProblem) -> Floats:
    """Return the throughput that each deadline needs from now on; infinity if it is past, 0 without one.

    Where shares are carried out in rounds, turns come late and restarts cost time, so some of the time left is set
    aside, but never so much that a deadline that can still be met counts as lost.
    """
    left, fastest = problem.deadline - problem.now, problem.fastest
    usable = left * (1.0 - SET_ASIDE) - 2 * problem.round if problem.round else left
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = np.where(left > 0, problem.steps / left, np.inf)
        careful = np.where(usable > 0, problem.steps / usable, np.inf)
    return np.where(needed <= fastest, np.minimum(careful, fastest), needed)


def _cheapest(problem: ShareProblem, floors: Floats | None, *, space_sharing: bool, weighted: bool) -> Shares:
    prices, worth = problem.prices, problem.weight if weighted else np.ones(len(problem))
    if not problem.same_unit:
        worth = worth / (problem.speeds / (prices * problem.gangs[:, None])).max(axis=1)
    if space_sharing:
        together = shared_cheapest(problem.job_classes, prices, worth, floors)
        return shared(problem, together, _missed(problem, floors, together.shortfall))
    found = cheapest(problem.speeds, problem.gangs, problem.capacity, prices, worth, floors)
    if problem.scarce(found.shares):
        local = most_per_cost(problem.localities, prices, worth, floors)
        return seated(problem, local, _missed(problem, floors, local.shortfall))
    return solved(problem, found, _missed(problem, floors, found.shortfall))


def _missed(problem: ShareProblem, floors: Floats | None, shortfall: Floats) -> dict[int, str]:
    """By row: the note of a job whose deadline will not be met."""
    notes: dict[int, str] = {}
    if floors is None:
        return notes
    fastest = problem.fastest
    for row in np.flatnonzero(shortfall > 1e-9 * fastest).tolist():
        deadline = float(problem.deadline[row])
        if not np.isfinite(floors[row]):
            notes[row] = f"; its deadline, t = {deadline:,.6g} s, is past"
        else:
            why = f"it would need {floors[row]:,.4g} a second, its fastest kind gives {fastest[row]:,.4g}"
            notes[row] = f"; its deadline, t = {deadline:,.6g} s, cannot be met: {why}"
    return notes
