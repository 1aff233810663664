"""What is searched over: the settings of a search's trials, written out, crossed, or drawn at random from ranges.

Equal seeds draw equal settings. Each parameter is drawn from a stream of its own, so one more parameter, or more
trials, changes none of those drawn before.
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
    """Numbers from ``low`` to ``high``, evenly, or with ``logarithmic`` evenly in their logarithm."""

    low: float
    high: float
    logarithmic: bool = False

    def draw(self, chance: Random) -> float:
        """One of them."""
        if not self.logarithmic:
            return chance.uniform(self.low, self.high)
        return min(max(exp(chance.uniform(log(self.low), log(self.high))), self.low), self.high)

    def ask(self, name: str, trial: "optuna.Trial") -> Value:
        """What a study suggests."""
        return float(trial.suggest_float(name, self.low, self.high, log=self.logarithmic))


@dataclass(frozen=True, slots=True)
class Categorical:
    """One of these."""

    values: tuple[Value, ...]

    def draw(self, chance: Random) -> Value:
        """One of them."""
        return self.values[chance.randrange(len(self.values))]

    def ask(self, name: str, trial: "optuna.Trial") -> Value:
        """What a study suggests."""
        suggested: Value | None = trial.suggest_categorical(name, self.values)
        assert suggested is not None
        return suggested


Range: TypeAlias = Interval | Categorical


def crossed(grid: Mapping[str, Sequence[Value]]) -> tuple[Setting, ...]:
    """Every combination, the last parameter changing fastest."""
    return tuple(dict(zip(grid, values, strict=True)) for values in product(*grid.values()))


def drawn(ranges: Mapping[str, Range], count: int, seed: int) -> tuple[Setting, ...]:
    """So many settings drawn from these ranges."""
    columns = []
    for name, within in ranges.items():
        chance = Random(f"{seed} {name}")
        columns.append([within.draw(chance) for _ in range(count)])
    return tuple(dict(zip(ranges, row, strict=True)) for row in zip(*columns, strict=True))
