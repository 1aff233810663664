"""Hyper-parameters of trials: the cross product of lists, or drawn at random from ranges.

Equal seeds draw equal settings. Each parameter has a random stream of its own, so adding a parameter or trials changes
none of the values drawn before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import exp, log
from random import Random
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import optuna

Value: TypeAlias = str | int | float | bool
Setting: TypeAlias = Mapping[str, Value]
"""The hyper-parameters of one trial, by name."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Numbers from ``low`` to ``high``, uniform, or with ``logarithmic`` uniform in their logarithm."""

    low: float
    high: float
    logarithmic: bool = False

    def draw(self, rng: Random) -> float:
        """Draw a value."""
        if not self.logarithmic:
            return rng.uniform(self.low, self.high)
        return min(max(exp(rng.uniform(log(self.low), log(self.high))), self.low), self.high)

    def ask(self, name: str, trial: "optuna.Trial") -> Value:
        """The value an Optuna study suggests."""
        return float(trial.suggest_float(name, self.low, self.high, log=self.logarithmic))


@dataclass(frozen=True, slots=True)
class Categorical:
    """One of ``values``, with equal chances."""

    values: tuple[Value, ...]

    def draw(self, rng: Random) -> Value:
        """Draw a value."""
        return self.values[rng.randrange(len(self.values))]

    def ask(self, name: str, trial: "optuna.Trial") -> Value:
        """The value an Optuna study suggests."""
        suggested: Value | None = trial.suggest_categorical(name, self.values)
        assert suggested is not None
        return suggested


Range: TypeAlias = Interval | Categorical


def crossed(grid: Mapping[str, Sequence[Value]]) -> tuple[Setting, ...]:
    """All combinations, the last parameter changing fastest."""
    return tuple(dict(zip(grid, values, strict=True)) for values in product(*grid.values()))


def drawn(ranges: Mapping[str, Range], count: int, seed: int) -> tuple[Setting, ...]:
    """Draw ``count`` settings from these ranges."""
    columns = []
    for name, within in ranges.items():
        rng = Random(f"{seed} {name}")
        columns.append([within.draw(rng) for _ in range(count)])
    return tuple(dict(zip(ranges, row, strict=True)) for row in zip(*columns, strict=True))
