"""SLAQ: GPUs to the jobs whose loss they bring down most in the next interval.

The scheduler here does not see losses, so we read SLAQ's own assumption for it: the loss of a first-order method falls
like 1/k in its iterations. With p the fraction of the declared work that is done, the loss is taken as
1 / (1 + steepness · p), 1 at the start for every job, so that drops can be compared across jobs as SLAQ's normalised
losses are. A job that declares no work is taken to be half done, or to take ``prior`` seconds if that is more.

Everyone gets the fewest GPUs it can run on, the highest expected drop per GPU first where not everyone fits; the rest
go one by one to the highest further drop. What is nearly converged gets little, and waits longest when GPUs are short.

References: SLAQ (SoCC '17); Themis (NSDI '20) §6.1 uses it as its quality baseline.
"""

from dataclasses import dataclass
from math import inf

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.decision import Decision
from shoal.core.snapshot import Snapshot
from shoal.policy.elastic.max_min import admit
from shoal.policy.elastic.optimus import ATTACHED, FASTENED, MARGINAL_GAIN, by_marginal_gain, next_review


@dataclass(frozen=True, slots=True)
class Slaq:
    """Marginal drop in loss over the next ``interval`` seconds."""

    reasons = (MARGINAL_GAIN,)
    interval: float = 600.0
    steepness: float = 9.0
    prior: float = 3600.0

    def __post_init__(self) -> None:
        if not 1.0 <= self.interval < inf:
            raise ValueError("interval must be a finite number of seconds, at least 1")
        if not 0.0 < self.steepness < inf:
            raise ValueError("steepness must be a finite number above 0")
        if not 0.0 < self.prior < inf:
            raise ValueError("prior must be a finite number of seconds above 0")

    def decide(self, snapshot: Snapshot) -> Decision:
        """A verdict for every live job, reviewed at the end of the interval."""
        columns = snapshot.columns
        review, due = next_review(snapshot, self.interval)
        attachment = ATTACHED if review else FASTENED
        assumed = np.maximum(2.0 * columns.done, columns.best_speed * self.prior)
        work = np.maximum(np.where(np.isinf(columns.work), assumed, columns.work), 1e-300)
        progress = np.clip(columns.done / work, 0.0, 1.0)
        drop = self._drop(progress, columns.best_speed * self.interval / work) / columns.gpus
        drop = np.where(columns.held > 0, drop * attachment, drop)
        # Ties, such as several jobs past their declared work, go to the running and then to the first.
        order = np.lexsort((columns.held == 0, -drop))

        def lower(i: int, rates: Floats) -> Floats:
            return self._drop(progress[i], rates * self.interval / work[i])

        admitted = admit(snapshot, order)
        verdicts = by_marginal_gain(snapshot, admitted, lower, attachment)
        waiting = bool((verdicts.gpus == 0).any())
        return Decision(verdicts, due if waiting or admitted.curves else inf, due)

    def _drop(self, progress: Floats, step: Floats) -> Floats:
        """How much the loss falls from a progress by a further step."""
        after = np.minimum(progress + step, 1.0)
        fall: Floats = 1.0 / (1.0 + self.steepness * progress) - 1.0 / (1.0 + self.steepness * after)
        return fall
