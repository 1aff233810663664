"""Chance, as the generators use it: one stream of uniform numbers, and everything else made from those.

Only uniform numbers are drawn from numpy, whose other distributions may change their streams between versions; so a
seed keeps its meaning.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Dice:
    """A stream of random numbers that its seed determines."""

    stream: "np.random.Generator"

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """A number from ``[low, high)``, all alike."""
        return low + (high - low) * float(self.stream.random())

    def log_uniform(self, low: float, high: float) -> float:
        """A number from ``[low, high)`` whose logarithm is uniform."""
        return math.exp(self.uniform(math.log(low), math.log(high)))

    def exponential(self, mean: float) -> float:
        """The waiting time for the next event of a Poisson process."""
        return -mean * math.log1p(-self.uniform())

    def chance(self, probability: float) -> bool:
        """Whether something of this probability happens."""
        return self.uniform() < probability

    def pick(self, things: Sequence[T], weights: Sequence[float] | None = None) -> T:
        """One of these, all alike or by weight (weights need not sum to 1)."""
        if weights is None:
            return things[int(self.uniform() * len(things))]
        at = self.uniform() * sum(weights)
        for thing, weight in zip(things, weights, strict=True):
            at -= weight
            if at < 0.0:
                return thing
        return next(t for t, w in zip(reversed(things), reversed(weights), strict=True) if w > 0.0)

    def shuffled(self, things: Sequence[T]) -> list[T]:
        """The same things in an order that is as likely as any other."""
        keys = [self.uniform() for _ in things]
        return [things[i] for i in sorted(range(len(things)), key=keys.__getitem__)]


def dice(seed: int) -> Dice:
    """The dice of this seed."""
    import numpy as np

    return Dice(np.random.Generator(np.random.PCG64(seed)))


def poisson_arrivals(roll: Dice, count: int, mean: float) -> list[float]:
    """The times of a Poisson process's first events; the first is at 0, since a trace begins with a job."""
    times = [0.0]
    while len(times) < count:
        times.append(times[-1] + roll.exponential(mean))
    return times[:count]
