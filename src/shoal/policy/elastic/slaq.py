"""SLAQ: GPUs to the jobs whose loss they bring down most in the next interval.

This scheduler does not see losses, so it uses SLAQ's own assumption: the loss of a first-order method falls like 1/k
in its iterations. With p the fraction of the work that is done, the loss is 1 / (1 + steepness · p), which is 1 at the
start of every job, so that drops are comparable across jobs as SLAQ's normalised losses are. A job that declares no
work is expected to run as long again as it has run, and for ``prior`` seconds at least.

Each job gets the fewest GPUs it can run on, the highest expected drop per GPU first where not all jobs fit; the rest
go one by one to the highest further drop. A nearly converged job gets few GPUs, and waits longest when they are scarce.

References: SLAQ (SoCC '17); Themis (NSDI '20) §6.1 uses it as its quality baseline.
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


@dataclass(frozen=True, slots=True)
class SlaqTuning:
    """Constants of SLAQ."""

    holding: HoldingTuning = HOLDING


@dataclass(frozen=True, slots=True)
class Slaq:
    """Marginal drop in loss over the next ``interval`` seconds."""

    reasons = (MARGINAL_GAIN,)
    tuning = SlaqTuning()
    interval: float = 600.0
    steepness: float = 9.0
    prior: float = PRIOR_SECONDS

    def __post_init__(self) -> None:
        check_round(self.interval, "interval")
        if not 0.0 < self.steepness < inf:
            raise ValueError("steepness must be a finite number above 0")
        if not 0.0 < self.prior < inf:
            raise ValueError("prior must be a finite number of seconds above 0")

    def decide(self, snapshot: Snapshot) -> Decision:
        """Shares by marginal drop, reviewed at the end of the interval while a job waits or is elastic."""
        columns = snapshot.columns
        before = snapshot.carry if isinstance(snapshot.carry, ReviewCarry) else None
        review, due = next_review(before and before.due, snapshot.now, self.interval)
        table = curve_table(snapshot, before and before.table)
        holding = self.tuning.holding.factor(review)
        assumed = columns.done + remaining_work(columns.work, columns.done, columns.best_speed, self.prior)
        work = np.maximum(np.where(np.isinf(columns.work), assumed, columns.work), 1e-300)
        progress = np.clip(columns.done / work, 0.0, 1.0)
        drop = self._drop(progress, columns.best_speed * self.interval / work) / columns.gpus
        drop = np.where(columns.held > 0, drop * holding, drop)
        # Ties, such as several jobs past their declared work, go to running jobs and then in order of arrival.
        order = np.lexsort((columns.held == 0, -drop))

        def lower(jobs: Indices, rates: Floats) -> Floats:
            return self._drop(progress[jobs, None], rates * self.interval / work[jobs, None])

        admitted = admit(snapshot, order, table)
        verdicts = by_marginal_gain(snapshot, admitted, lower, holding)
        waiting = bool((verdicts.gpus == 0).any())
        return Decision(verdicts, due if waiting or admitted.curves else inf, ReviewCarry(due, table))

    def _drop(self, progress: Floats, step: Floats) -> Floats:
        """The fall of the loss by a further step from the present progress."""
        after = np.minimum(progress + step, 1.0)
        fall: Floats = 1.0 / (1.0 + self.steepness * progress) - 1.0 / (1.0 + self.steepness * after)
        return fall
