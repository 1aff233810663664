"""Division of an epoch's samples into steps, ranks and passes, such that each sample is used once per epoch.

Pure functions. The order of an epoch depends only on its number and the seed; a step takes the next samples of that
order. Positions are counted in samples, so consecutive steps may use different batch sizes and numbers of ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from shoal.core.arrays import Int64s
from shoal.core.errors import InputError


@dataclass(frozen=True, slots=True)
class Cursor:
    """Position of training: the epoch and the samples of it already used."""

    epoch: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True)
class Pass:
    """The samples that a rank puts through the model at once.

    ``weight`` multiplies the mean loss of the pass: if each rank sums the gradients of its passes and the ranks average
    theirs, the result is the gradient of the mean loss over the whole step. A rank that gets no samples in a short last
    step has one pass of weight 0, so that it still takes part in collectives.
    """

    indices: Int64s
    weight: float


@dataclass(frozen=True, slots=True)
class Epochs:
    """A data set of ``size`` samples, shuffled anew for each epoch; in natural order if ``seed`` is None."""

    size: int
    seed: int | None = 0

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InputError("size", self.size, "an epoch needs at least one sample")

    def order(self, epoch: int) -> Int64s:
        """Sample indices of an epoch in order of use; read-only, shape (size,)."""
        return _order(self.size, self.seed, epoch)

    def step(self, at: Cursor, batch: int) -> Int64s:
        """Sample indices of the step at ``at`` over all ranks; fewer than ``batch`` at the end of an epoch."""
        _check("batch", batch)
        return self.order(at.epoch)[at.position : at.position + batch]

    def share(self, at: Cursor, batch: int, rank: int, world: int) -> Int64s:
        """Sample indices of one rank in a step; the ranks' shares are consecutive and differ by at most one sample.

        A share is empty where fewer samples remain than there are ranks.
        """
        samples = self.step(at, batch)
        first, last = _cut(len(samples), rank, world)
        return samples[first:last]

    def passes(self, at: Cursor, batch: int, rank: int, world: int, most_local: int) -> Sequence[Pass]:
        """One rank's share in passes of at most ``most_local`` samples; every rank has the same number of passes."""
        samples = self.step(at, batch)
        made = []
        for begin, end, weight in _bounds(len(samples), rank, world, most_local):
            made.append(Pass(samples[begin:end], weight))
        return made

    def after(self, at: Cursor, batch: int) -> Cursor:
        """Position after a step of ``batch`` samples."""
        position = at.position + batch
        return Cursor(at.epoch, position) if position < self.size else Cursor(at.epoch + 1, 0)

    def seen(self, at: Cursor) -> int:
        """Samples used so far, over all epochs."""
        return at.epoch * self.size + at.position


@lru_cache(maxsize=2)
def _order(size: int, seed: int | None, epoch: int) -> Int64s:
    natural = np.arange(size, dtype=np.int64)
    order = natural if seed is None else np.random.default_rng([seed, epoch]).permutation(natural)
    order.flags.writeable = False
    return order


@lru_cache(maxsize=64)
def _bounds(length: int, rank: int, world: int, most_local: int) -> Sequence[tuple[int, int, float]]:
    """Begin, end and weight of each pass of a rank in a step of ``length`` samples."""
    _check("most_local", most_local)
    largest = -(-length // world)
    count = -(-largest // most_local)
    first, last = _cut(length, rank, world)
    made = []
    for number in range(count):
        begin, end = _cut(last - first, number, count)
        made.append((first + begin, first + end, (end - begin) * world / length) if begin < end else (0, 1, 0.0))
    return tuple(made)


def _cut(length: int, part: int, parts: int) -> tuple[int, int]:
    if not 0 <= part < parts:
        raise InputError("rank", part, f"must be from 0 to {parts - 1}")
    return length * part // parts, length * (part + 1) // parts


def _check(field: str, value: int) -> None:
    if value < 1:
        raise InputError(field, value, "must be at least 1")
