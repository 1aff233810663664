"""Batch sizes that the owner's script changes by itself, epoch by epoch; the scheduler only observes them.

Pure: a schedule is asked at the end of each epoch what the next is trained with, and keeps what it must remember in
``memory``, which is saved with the run.

References: Agarwal et al., MLSys 2021 (Accordion); McCandlish et al., 2018 (gradient noise scale); Zheng et al., NSDI
2023 (Shockwave), §2 (jobs that do this).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

Memory = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class EpochSeen:
    """An epoch that has ended: how many have, the batch size it ended with, the noise scale φ in samples, the mean norm
    of its gradients and its learning rate. What was not measured is 0."""

    epochs: int
    batch: int
    noise: float
    gradient_norm: float
    learning_rate: float


class BatchSchedule(Protocol):
    """By which rule the batch size changes."""

    def next(self, seen: EpochSeen, memory: Memory) -> tuple[int, Memory]:
        """The total batch size from now on, and what to remember."""


@dataclass(frozen=True, slots=True)
class Scripted:
    """Batch sizes from given epochs on, in order: ``((0, 64), (10, 256))``."""

    changes: tuple[tuple[int, int], ...]

    def next(self, seen: EpochSeen, memory: Memory) -> tuple[int, Memory]:
        """The one that was reached last; before the first, what there is."""
        return next((batch for epoch, batch in reversed(self.changes) if epoch <= seen.epochs), seen.batch), memory


@dataclass(frozen=True, slots=True)
class NoiseDoubling:
    """GNS: doubles as long as twice the batch is still no larger than the noise scale, and never comes back."""

    most: int

    def next(self, seen: EpochSeen, memory: Memory) -> tuple[int, Memory]:
        """As many doublings as the noise scale allows."""
        batch = seen.batch
        while 2 * batch <= min(seen.noise, self.most):
            batch *= 2
        return batch, memory


@dataclass(frozen=True, slots=True)
class Accordion:
    """The small batch in critical regimes, the large one otherwise.

    Critical is an epoch whose gradients' norm differs from that of ``every`` epochs before by ``threshold`` of it or
    more, and every epoch until there is such a one to compare with; a learning rate that fell makes the next critical.
    """

    small: int
    large: int
    threshold: float = 0.5
    every: int = 1

    def next(self, seen: EpochSeen, memory: Memory) -> tuple[int, Memory]:
        """Small or large for the next epochs; between two looks, as it was."""
        decayed = seen.learning_rate < memory.get("learning_rate", 0.0)
        compared = int(memory.get("epochs", 0))
        if seen.epochs - compared < self.every and not decayed:
            return seen.batch, memory
        before = memory.get("norm", 0.0)
        moved = abs(before - seen.gradient_norm) >= self.threshold * before
        looked = {"norm": seen.gradient_norm, "learning_rate": seen.learning_rate, "epochs": float(seen.epochs)}
        return (self.small if before == 0 or moved or decayed else self.large), looked
