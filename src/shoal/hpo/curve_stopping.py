"""Stopping by the performance curve: a trial is killed once its forecast final loss is above one already reached.

The final loss is extrapolated from the last three by the hyperbola ``a + b/(x + c)`` through them, the family of curves
that SLAQ and Optimus fit. Where the losses do not flatten, the straight line through the last two is more optimistic
and is used; where they rise, the least loss so far.

References: Mahajan et al., NSDI 2020, §4.3.2 (the most optimistic curve counts); Rasley et al., Middleware 2017
(HyperDrive); Golovin et al., KDD 2017 (Vizier's performance curve stopping).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import ClassVar

from shoal.hpo.search import Kill, Order, SearchPhase, Train, Trial


@dataclass(frozen=True, slots=True)
class SingleJob:
    """Trains every trial to its end: for an app of one job, or of several that are not compared."""

    marks: ClassVar[tuple[float, ...]] = ()

    def orders(self, trials: Sequence[Trial]) -> Sequence[Order]:
        """Train every trial to its end, at once."""
        return _train_fully(trials)

    def ahead(self, trials: Sequence[Trial]) -> tuple[SearchPhase, ...]:
        """Empty: no phase follows."""
        return ()


@dataclass(frozen=True, slots=True)
class CurveStopping:
    """Kills a trial once its forecast loss is above the least loss that any trial has reached.

    Losses are read ``looks`` times in a training, the last time at its end. The best trial so far is never killed.
    """

    looks: int = 10

    def __post_init__(self) -> None:
        if not 3 <= self.looks <= 1000:
            raise ValueError(f"looks must be from 3, which make a curve, to 1000, not {self.looks}")

    @property
    def marks(self) -> tuple[float, ...]:
        """Evenly spaced fractions of a training."""
        return tuple(k / self.looks for k in range(1, self.looks))

    def orders(self, trials: Sequence[Trial]) -> Sequence[Order]:
        """Train every trial to its end; later kill those that fall behind."""
        begun = _train_fully(trials)
        if begun:
            return begun
        reached = min((loss for trial in trials for _, loss in trial.losses), default=inf)
        judged = [n for n, trial in enumerate(trials) if trial.running and len(trial.losses) >= 3]
        return [Kill(n) for n in judged if forecast(trials[n].losses) > reached]

    def ahead(self, trials: Sequence[Trial]) -> tuple[SearchPhase, ...]:
        """Empty: no phase follows."""
        return ()


def _train_fully(trials: Sequence[Trial]) -> list[Order]:
    return [Train(n, 1.0) for n, trial in enumerate(trials) if not trial.until and not trial.dropped]


def forecast(losses: Sequence[tuple[float, float]]) -> float:
    """The loss at the end of the training, extrapolated from the last three ``(fraction trained, loss)``."""
    (x1, y1), (x2, y2), (x3, y3) = losses[-3:]
    if x3 >= 1.0 or not isfinite(y3):
        return y3
    if not isfinite(y1 + y2):  # an earlier loss was not finite: the curve is unknown
        return -inf
    early, late = (y2 - y1) / (x2 - x1), (y3 - y2) / (x3 - x2)
    if late >= 0.0:
        return min(y1, y2, y3)
    bend = early / late
    if bend <= 1.0:
        return y3 + late * (1.0 - x3)
    shift = (x3 - bend * x1) / (bend - 1.0)
    scale = -late * (x2 + shift) * (x3 + shift)
    return y3 - scale / (x3 + shift) + scale / (1.0 + shift)
