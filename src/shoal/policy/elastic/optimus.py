"""Optimus: GPUs one by one to the job whose completion they bring forward most.

Jobs in order of arrival get the fewest GPUs they can run on, since Optimus gives every job one unit and none
precedence; the rest go, one at a time, to the job whose estimated remaining time falls most by one more, until no job
gains. A job that declares no work is expected to run as long again as it has run, and an hour at least.

The division is made afresh every ``interval`` seconds. In between, new jobs get their fewest GPUs and GPUs that come
free are given out, but no job gives up a GPU (``marginal_gain``).

References: Optimus (EuroSys '18), as AFS (NSDI '21) §5 and Pollux (OSDI '21) §5.1 describe it.
"""

from dataclasses import dataclass
from math import inf

import numpy as np

from shoal.core.arrays import Floats, Indices
from shoal.core.decision import Decision
from shoal.core.snapshot import Snapshot
from shoal.perf.work_prior import PRIOR_SECONDS, remaining_work
from shoal.policy.base import check_round, next_review
from shoal.policy.elastic.admission import admit
from shoal.policy.elastic.curves import curve_table
from shoal.policy.elastic.marginal_gain import (
    HOLDING,
    MARGINAL_GAIN,
    HoldingTuning,
    ReviewCarry,
    by_marginal_gain,
)
from shoal.policy.tuning import constant


@dataclass(frozen=True, slots=True)
class OptimusTuning:
    """Constants of Optimus."""

    holding: HoldingTuning = HOLDING
    prior_seconds: float = constant(PRIOR_SECONDS, "least expected run time of a job that declares no work")


@dataclass(frozen=True, slots=True)
class Optimus:
    """Marginal gain in completion time."""

    reasons = (MARGINAL_GAIN,)
    tuning = OptimusTuning()
    interval: float = 600.0

    def __post_init__(self) -> None:
        check_round(self.interval, "interval")

    def decide(self, snapshot: Snapshot) -> Decision:
        """Decide shares by marginal gain, reviewed at the end of the interval while an elastic job runs."""
        columns = snapshot.columns
        before = snapshot.carry if isinstance(snapshot.carry, ReviewCarry) else None
        review, due = next_review(before and before.due, snapshot.now, self.interval)
        table = curve_table(snapshot, before and before.table)
        admitted = admit(snapshot, np.arange(len(columns)), table)
        left = remaining_work(columns.work, columns.done, columns.best_speed)

        def sooner(jobs: Indices, rates: Floats) -> Floats:
            earlier: Floats = -left[jobs, None] / np.maximum(rates, 1e-30)
            return earlier

        verdicts = by_marginal_gain(snapshot, admitted, sooner, self.tuning.holding.factor(review))
        return Decision(verdicts, due if admitted.curves else inf, ReviewCarry(due, table))
