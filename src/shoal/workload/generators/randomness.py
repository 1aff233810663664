"""Random numbers for generators: every distribution is made from one stream of uniform numbers.

Only uniform numbers are drawn from numpy, since its other distributions may change between versions; a seed must keep
giving the same workload.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RandomStream:
    """A seeded stream of random numbers."""

    stream: "np.random.Generator"

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """A number uniform in ``[low, high)``."""
        return low + (high - low) * float(self.stream.random())

    def log_uniform(self, low: float, high: float) -> float:
        """A number in ``[low, high)`` whose logarithm is uniform."""
        return math.exp(self.uniform(math.log(low), math.log(high)))

    def exponential(self, mean: float) -> float:
        """An exponential number with this mean: the time to the next event of a Poisson process."""
        return -mean * math.log1p(-self.uniform())

    def normal(self) -> float:
        """A standard normal number, from two uniform ones (Box-Muller)."""
        radius = math.sqrt(-2.0 * math.log1p(-self.uniform()))
        return radius * math.cos(2.0 * math.pi * self.uniform())

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.uniform() < probability

    def pick(self, things: Sequence[T], weights: Sequence[float] | None = None) -> T:
        """One of ``things``, uniformly or in proportion to ``weights``, which need not sum to 1."""
        if weights is None:
            return things[int(self.uniform() * len(things))]
        at = self.uniform() * sum(weights)
        for thing, weight in zip(things, weights, strict=True):
            at -= weight
            if at < 0.0:
                return thing
        return next(t for t, w in zip(reversed(things), reversed(weights), strict=True) if w > 0.0)

    def shuffled(self, things: Sequence[T]) -> list[T]:
        """``things`` in uniformly random order."""
        keys = [self.uniform() for _ in things]
        return [things[i] for i in sorted(range(len(things)), key=keys.__getitem__)]


def random_stream(seed: int) -> RandomStream:
    """Return the stream of a seed."""
    import numpy as np

    return RandomStream(np.random.Generator(np.random.PCG64(seed)))


def poisson_arrivals(rng: RandomStream, count: int, mean: float) -> list[float]:
    """Times of a Poisson process's first ``count`` events, ``mean`` seconds apart on average; the first is at 0."""
    times = [0.0]
    while len(times) < count:
        times.append(times[-1] + rng.exponential(mean))
    return times[:count]
