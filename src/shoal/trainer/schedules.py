"""Rules by which a training script changes its own batch size from epoch to epoch.

Pure: at the end of each epoch a schedule returns the next batch size and its own state, which is saved in checkpoints.

References: Agarwal et al., MLSys 2021 (Accordion); McCandlish et al., 2018 (gradient noise scale); Zheng et al., NSDI
2023 (Shockwave), §2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

ScheduleState = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class EpochSummary:
    """A finished epoch.

    ``epochs`` is the number of finished epochs. ``batch`` is the last batch size and ``noise`` the noise scale φ, in
    samples; ``gradient_norm`` is the mean over the epoch. Values that were not measured are 0.
    """

    epochs: int
    batch: int
    noise: float
    gradient_norm: float
    learning_rate: float


class BatchSchedule(Protocol):
    """A rule for the batch size."""

    def next(self, seen: EpochSummary, state: ScheduleState) -> tuple[int, ScheduleState]:
        """Batch size over all ranks from now on, and the rule's new state."""


@dataclass(frozen=True, slots=True)
class Scripted:
    """Batch sizes by first epoch, in order: ``((0, 64), (10, 256))``."""

    changes: tuple[tuple[int, int], ...]

    def next(self, seen: EpochSummary, state: ScheduleState) -> tuple[int, ScheduleState]:
        """Batch size of the last entry reached; the present one before the first entry."""
        return next((batch for epoch, batch in reversed(self.changes) if epoch <= seen.epochs), seen.batch), state


@dataclass(frozen=True, slots=True)
class NoiseDoubling:
    """GNS: doubles the batch while twice its size does not exceed the noise scale; never shrinks it."""

    most: int

    def next(self, seen: EpochSummary, state: ScheduleState) -> tuple[int, ScheduleState]:
        """The present batch size, doubled as often as the noise scale allows."""
        batch = seen.batch
        while 2 * batch <= min(seen.noise, self.most):
            batch *= 2
        return batch, state


@dataclass(frozen=True, slots=True)
class Accordion:
    """Accordion: the small batch in critical regimes, the large one otherwise.

    An epoch is critical if its gradient norm differs from that of ``every`` epochs before by at least ``threshold`` of
    the latter, if there is no earlier norm to compare with, or if the learning rate has just fallen.
    """

    small: int
    large: int
    threshold: float = 0.5
    every: int = 1

    def next(self, seen: EpochSummary, state: ScheduleState) -> tuple[int, ScheduleState]:
        """Small or large batch for the next epochs; unchanged between two comparisons."""
        decayed = seen.learning_rate < state.get("learning_rate", 0.0)
        compared = int(state.get("epochs", 0))
        if seen.epochs - compared < self.every and not decayed:
            return seen.batch, state
        before = state.get("norm", 0.0)
        moved = abs(before - seen.gradient_norm) >= self.threshold * before
        new_state = {"norm": seen.gradient_norm, "learning_rate": seen.learning_rate, "epochs": float(seen.epochs)}
        return (self.small if before == 0 or moved or decayed else self.large), new_state
