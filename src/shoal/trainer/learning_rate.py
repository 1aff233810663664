"""Rules that scale a learning rate tuned at one batch size to another.

Pure; each rule returns 1 at the batch size the rate was tuned for.

References: Johnson et al., ICML 2020 (AdaScale); Krizhevsky, 2014 (square root); Goyal et al., 2017 (linear); You et
al., 2019 (LEGW: square root, with a warm-up whose epochs grow with the batch).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import TypeAlias

from shoal.core.errors import InputError, nearest


@dataclass(frozen=True, slots=True)
class BatchScaling:
    """The tuned and the present batch size, the noise scale φ (all in samples), and the epochs trained so far."""

    initial: int
    batch: int
    noise: float
    epochs: float


Rule: TypeAlias = Callable[[BatchScaling], float]


def adascale(at: BatchScaling) -> float:
    """Return AdaScale's gain: 1 if gradients have no noise, rising to batch / initial if they are only noise."""
    return (at.noise / at.initial + 1.0) / (at.noise / at.batch + 1.0)


def square_root(at: BatchScaling) -> float:
    """Return sqrt(batch / initial), customary with Adam."""
    return sqrt(at.batch / at.initial)


def linear(at: BatchScaling) -> float:
    """Return batch / initial."""
    return at.batch / at.initial


@dataclass(frozen=True, slots=True)
class Legw:
    """LEGW: sqrt(batch / initial), reached linearly over ``warm_up`` · batch / initial epochs."""

    warm_up: float = 1.0

    def __call__(self, at: BatchScaling) -> float:
        """Factor after ``at.epochs`` epochs; 1 throughout at the initial batch size."""
        scale = at.batch / at.initial
        if scale == 1.0 or self.warm_up == 0:
            return sqrt(scale)
        return sqrt(scale) * min(1.0, max(at.epochs, 0.0) / (self.warm_up * scale))


RULES: dict[str, Rule] = {"adascale": adascale, "sqrt": square_root, "linear": linear, "legw": Legw()}


def rule_of(given: str | Rule) -> Rule:
    """The rule of this name, or ``given`` itself if it is a function."""
    if not isinstance(given, str):
        return given
    if given not in RULES:
        raise InputError("learning_rate", given, nearest(given, RULES) + ", or give a function of a BatchScaling")
    return RULES[given]
