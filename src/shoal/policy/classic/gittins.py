"""Gittins index: the job most likely to finish per GPU-second spent on it goes first, judged by its age alone.

No job's length is known, but the distribution of all jobs' GPU-seconds is. A job that has attained service a has the
index G(a) = max over Δ of P(S − a ≤ Δ | S > a) / E[min(S − a, Δ) | S > a]; reasons give its inverse, the expected
GPU-seconds per completion. Serving the highest index minimises the mean completion time on one server; for gangs on
many GPUs it is a heuristic. Where a job becomes less likely to finish soon as it ages, this is least attained service.

The distribution is declared: lognormal, by its ``median`` in GPU-seconds and the ``sigma`` of its logarithm. The
defaults are a fit to the 82,247 jobs of the Philly trace as Pollux cut it (geometric mean 982, σ 2.27, rounded). Ages
are rounded down to whole quanta, a job that got GPUs keeps them for a quantum, and running jobs win ties.

References: Tiresias (NSDI '19), 2D-Gittins; Gittins (J. Royal Stat. Soc. B, 1979).
"""

from dataclasses import dataclass
from functools import lru_cache
from math import erfc, floor, inf, isfinite, sqrt

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.columns import sealed
from shoal.core.decision import Decision
from shoal.core.snapshot import Snapshot
from shoal.policy.base import ranked_verdicts, serve
from shoal.policy.tuning import constant


@dataclass(frozen=True, slots=True)
class GittinsTuning:
    """Constants of the table of indices."""

    ages: int = constant(600, "ages in the table of indices; neighbours are a few percent apart")


_TUNING = GittinsTuning()


def gittins_index(ages: Floats, survival: Floats) -> Floats:
    """Return the index at each age but the last; sizes survive to ``ages`` with the probabilities ``survival``.

    Ages ascend, probabilities are positive and never rise. Between two ages the hazard is taken as constant, so an
    exponential distribution gets its rate back at every age, and one of falling hazard its hazard.
    """
    width = np.diff(ages)
    decay = np.log(survival[:-1] / survival[1:])
    shrink = np.where(decay > 1e-9, -np.expm1(-decay) / np.maximum(decay, 1e-9), 1.0)
    piece = survival[:-1] * width * shrink
    ahead = np.append(np.cumsum(piece[::-1])[::-1], 0.0)
    later = np.triu(np.ones((len(ages) - 1, len(ages)), dtype=bool), 1)
    gain = survival[:-1, None] - survival
    cost = np.where(later, ahead[:-1, None] - ahead, np.inf)
    index: Floats = (gain / cost).max(axis=1)
    return index


@lru_cache(maxsize=16)
def _table(median: float, sigma: float) -> tuple[Floats, Floats]:
    """Ages, and the expected GPU-seconds per completion at each, for a lognormal distribution."""
    z = np.linspace(-5.0, 7.0, _TUNING.ages)
    ages = np.concatenate([[0.0], median * np.exp(sigma * z)])
    survival = np.array([1.0, *(erfc(x / sqrt(2)) / 2 for x in z.tolist())])
    price = 1.0 / gittins_index(ages, survival)
    ages = ages[:-1]
    sealed(ages)
    sealed(price)
    return ages, price


@dataclass(frozen=True, slots=True)
class Gittins:
    """Serves jobs under lease, then the others by expected GPU-seconds per completion."""

    tuning = _TUNING
    median: float = 1000.0
    sigma: float = 2.3
    quantum: float = 600.0

    def __post_init__(self) -> None:
        for name in ("median", "sigma", "quantum"):
            if not (isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{name} must be a finite number above 0, not {getattr(self, name)}")
        if self.sigma > 20:
            raise ValueError(f"sigma is that of the natural logarithm and at most 20, not {self.sigma}")

    def price(self, attained: Floats) -> Floats:
        """Expected GPU-seconds per completion, by attained service: the inverse of the index."""
        ages, price = _table(self.median, self.sigma)
        found: Floats = np.interp(np.floor(attained / self.quantum) * self.quantum, ages, price)
        return found

    def decide(self, snapshot: Snapshot) -> Decision:
        """Verdicts for the jobs in that order, reviewed when the first lease ends if a job waits."""
        columns, now = snapshot.columns, snapshot.now
        ends, running = columns.since + self.quantum, columns.held > 0
        price, leased = self.price(columns.attained), running & (ends > now)
        served = serve(snapshot, np.lexsort((~running, price, ~leased)))
        granted = served.gpus > 0
        review_at = inf
        if (snapshot.possible & ~granted).any():
            review_at = float(floor(ends[leased].min() if leased.any() else now + self.quantum)) + 1.0
        name = "expected GPU-seconds per completion"
        return Decision(ranked_verdicts(snapshot, served, name, price, leased=leased, until=ends), review_at)
