"""Which samples a rank trains on in a step, so that an epoch uses each sample once however often the world changes.

Pure: an epoch's order follows from its number and the seed, and a step takes the next samples of that order. Where a
step begins is counted in samples, so a step can be cut for any number of ranks, and the next for another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from shoal.core.arrays import Int64s
from shoal.core.errors import InputError


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far training is: samples of this epoch that were used already."""

    epoch: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True)
class Pass:
    """Samples a rank puts through the model at once.

    ``weight`` is what the mean loss over them counts: where ranks average their gradients and a rank sums those of its
    passes, the weighted losses give the gradient of the mean over the whole step. A rank that a short step left
    without samples has one pass of weight 0, over a sample that counts elsewhere, so that it still takes part.
    """

    indices: Int64s
    weight: float


@dataclass(frozen=True, slots=True)
class Epochs:
    """The samples of a data set, in an order of their own for each epoch; in their natural order without a seed."""

    size: int
    seed: int | None = 0

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InputError("size", self.size, "an epoch needs at least one sample")

    def order(self, epoch: int) -> Int64s:
        """The samples of an epoch in the order of use; read-only."""
        return _order(self.size, self.seed, epoch)

    def step(self, at: Cursor, batch: int) -> Int64s:
        """The samples of the step that begins here, over all ranks; fewer than ``batch`` at the end of an epoch."""
        _check("batch", batch)
        return self.order(at.epoch)[at.position : at.position + batch]

    def share(self, at: Cursor, batch: int, rank: int, world: int) -> Int64s:
        """One rank's samples of a step: the ranks' shares differ by at most one and make up the step, in rank order.

        A rank may be left with none where fewer samples remain than there are ranks.
        """
        samples = self.step(at, batch)
        first, last = _cut(len(samples), rank, world)
        return samples[first:last]

    def passes(self, at: Cursor, batch: int, rank: int, world: int, most_local: int) -> Sequence[Pass]:
        """One rank's share in passes of at most ``most_local`` samples, as many on every rank and of like length."""
        samples = self.step(at, batch)
        made = []
        for begin, end, weight in _bounds(len(samples), rank, world, most_local):
            made.append(Pass(samples[begin:end], weight))
        return made

    def after(self, at: Cursor, batch: int) -> Cursor:
        """Where the next step begins."""
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
    """Where a rank's passes of a step of so many samples begin and end, and what each counts."""
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
