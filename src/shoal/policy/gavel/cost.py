"""The most throughput for the money, with or without deadlines.

Prices are those of the cluster, in dollars per GPU-hour; if any kind has none, all count 1. Progress is in each job's
own unit, so throughput is counted in what the job could do for a dollar where a dollar goes furthest for it: each runs
where it is cheapest. GPUs that would cost more for the same stay idle; weights do not count, money has none.

References: Gavel (OSDI '20) §4.2.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.decision import Decision
from shoal.core.snapshot import Snapshot
from shoal.policy.base import check_round
from shoal.policy.gavel.pairs import crowd_of, shared
from shoal.policy.gavel.policy import by_rounds
from shoal.policy.gavel.problem import ShareProblem, Shares, seated
from shoal.policy.gavel.reasons import REASONS
from shoal.policy.gavel.sums import solved
from shoal.policy.gavel.tuning import TUNING
from shoal.solve.consolidation import most_for_the_money
from shoal.solve.ratio_program import cheapest
from shoal.solve.space_sharing import shared_cheapest

SET_ASIDE = TUNING.set_aside
"""Of the time until a deadline, for restarts; besides two rounds, for turns that come late."""


@dataclass(frozen=True, slots=True)
class GavelCost:
    """Each job where it is cheapest, however long that takes."""

    reasons = REASONS
    tuning = TUNING
    aware: bool = True
    space_sharing: bool = False
    round: float = 360.0
    fills: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_round(self.round)

    def decide(self, snapshot: Snapshot) -> Decision:
        """A verdict for every live job, by rounds."""
        return by_rounds(self, snapshot)

    def shares(self, problem: ShareProblem) -> Shares:
        """The largest throughput per dollar, and of those the largest throughput."""
        return _cheapest(problem, None, self.space_sharing)


@dataclass(frozen=True, slots=True)
class GavelCostSlo:
    """Each job where it is cheapest among the ways that meet its deadline.

    A deadline that is past, or that the job would miss with all the time on its fastest kind, counts for nothing any
    more; if those left cannot all be met, the least throughput is given up. Either is said in the job's reason.
    """

    reasons = REASONS
    tuning = TUNING
    aware: bool = True
    space_sharing: bool = False
    round: float = 360.0
    fills: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_round(self.round)

    def decide(self, snapshot: Snapshot) -> Decision:
        """A verdict for every live job, by rounds."""
        return by_rounds(self, snapshot)

    def shares(self, problem: ShareProblem) -> Shares:
        """The largest throughput per dollar with which deadlines are met."""
        return _cheapest(problem, _floors(problem, self.round), self.space_sharing)


def _floors(problem: ShareProblem, round_seconds: float) -> Floats:
    """The throughput each deadline asks for from now on; infinite if it is past, 0 without one or known work.

    Rounds are not fluid and every restart costs time, so some of the time left is set aside, but never so much that a
    deadline that can still be met counts as lost.
    """
    columns = problem.snapshot.columns
    left = columns.deadline[problem.rows] - problem.snapshot.now
    asks = np.isfinite(left) & np.isfinite(columns.remaining[problem.rows])
    fastest, usable = problem.speeds.max(axis=1), left * (1.0 - SET_ASIDE) - 2 * round_seconds
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = np.where(left > 0, problem.steps / left, np.inf)
        careful = np.where(usable > 0, problem.steps / usable, np.inf)
    floors = np.where(needed <= fastest, np.minimum(careful, fastest), needed)
    return np.where(asks, floors, 0.0)


def _cheapest(problem: ShareProblem, floors: Floats | None, space_sharing: bool) -> Shares:
    prices = prices_of(problem.snapshot)
    worth = 1.0 / (problem.speeds / (prices * problem.gangs[:, None])).max(axis=1)
    if space_sharing:
        together = shared_cheapest(crowd_of(problem), prices, worth, floors)
        return shared(problem, together, _missed(problem, floors, together.shortfall))
    found = cheapest(problem.speeds, problem.gangs, problem.capacity, prices, worth, floors)
    if problem.scarce(found.shares):
        local = most_for_the_money(problem.places, prices, worth, floors)
        return seated(problem, local, _missed(problem, floors, local.shortfall))
    return solved(problem, found, _missed(problem, floors, found.shortfall))


def prices_of(snapshot: Snapshot) -> Floats:
    """Dollars per GPU-hour by kind; 1 for all if any kind has no price above 0."""
    known = [t.price_per_hour for t in snapshot.cluster.types]
    prices = np.array([p if p is not None and p > 0 else np.nan for p in known])
    return np.ones(len(prices)) if np.isnan(prices).any() else prices


def _missed(problem: ShareProblem, floors: Floats | None, shortfall: Floats) -> dict[int, str]:
    """What jobs are told whose deadline will not be met."""
    notes: dict[int, str] = {}
    if floors is None:
        return notes
    fastest = problem.speeds.max(axis=1)
    for row in np.flatnonzero(shortfall > 1e-9 * fastest).tolist():
        deadline = float(problem.snapshot.columns.deadline[problem.rows[row]])
        if not np.isfinite(floors[row]):
            notes[row] = f"; its deadline, t = {deadline:,.6g} s, is past"
        else:
            why = f"it would need {floors[row]:,.4g} a second, its fastest kind gives {fastest[row]:,.4g}"
            notes[row] = f"; its deadline, t = {deadline:,.6g} s, cannot be met: {why}"
    return notes
