"""The interface between an app and its searcher, after Themis's figure 7: the state of each trial, and orders.

A *trial* is one setting of the hyper-parameters. Its training is measured as a fraction of its whole work, from 0 to 1;
a lower loss is better. It is trained in *legs*: each is a job of its own that ends where the leg does and leaves a
checkpoint for the next, so no trial holds GPUs while it waits for a comparison.

Reference: Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling", NSDI 2020, §4.3.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Trial:
    """State of one trial.

    Its latest leg goes from ``since`` to ``until`` (0 before the first). ``losses`` are pairs of the fraction trained
    and the loss. A ``dropped`` trial was killed, failed or was cancelled, and is never trained again.
    """

    since: float = 0.0
    until: float = 0.0
    losses: tuple[tuple[float, float], ...] = ()
    legs: int = 0
    running: bool = False
    dropped: bool = False

    @property
    def loss(self) -> float:
        """The latest loss."""
        return self.losses[-1][1]


@dataclass(frozen=True, slots=True)
class Train:
    """Train a trial to ``until``, on ``wider`` times its first gang; a later leg is a promotion."""

    trial: int
    until: float
    wider: int = 1


@dataclass(frozen=True, slots=True)
class Kill:
    """Stop a running trial for good."""

    trial: int


Order: TypeAlias = Train | Kill


@dataclass(frozen=True, slots=True)
class SearchPhase:
    """Future legs that will run in parallel: how many, the fraction of a training and the width factor of each."""

    trials: int
    part: float
    wider: int = 1


class Searcher(Protocol):
    """Decides which trials are trained; pure, so the same trials give the same orders."""

    @property
    def marks(self) -> tuple[float, ...]:
        """Fractions of a training at which the loss is reported, besides the end of a leg."""

    def orders(self, trials: Sequence[Trial]) -> Sequence[Order]:
        """The orders to carry out now; called at the beginning, when no trial was trained, and after each change."""

    def ahead(self, trials: Sequence[Trial]) -> tuple[SearchPhase, ...]:
        """The phases expected after the running legs; empty where these are the last."""


@dataclass(slots=True)
class AppSearch:
    """A search in progress: its searcher and the state of its trials."""

    searcher: Searcher
    trials: list[Trial] = field(default_factory=list)

    @classmethod
    def of(cls, searcher: Searcher, count: int) -> "AppSearch":
        """A search over ``count`` trials, none begun."""
        return cls(searcher, [Trial()] * count)

    @property
    def over(self) -> bool:
        """Whether no trial is being trained."""
        return not any(trial.running for trial in self.trials)

    @property
    def best(self) -> int | None:
        """The trial with the least loss among those trained furthest; None before the first loss."""
        known = [n for n, trial in enumerate(self.trials) if trial.losses]
        return min(known, key=lambda n: (-self.trials[n].losses[-1][0], self.trials[n].loss), default=None)

    def rejected(self) -> tuple[int, ...]:
        """Waiting trials that will not be promoted, whatever the losses of the running ones."""
        waiting = [n for n, t in enumerate(self.trials) if 0.0 < t.until < 1.0 and not t.running and not t.dropped]
        if not waiting:
            return ()
        worst_case = [
            replace(t, losses=(*t.losses, (t.until, inf)), running=False) if t.running else t for t in self.trials
        ]
        promoted = {order.trial for order in self.searcher.orders(worst_case)}
        return tuple(n for n in waiting if n not in promoted)

    def record(self, trial: int, at: float, loss: float) -> None:
        """Record a trial's loss at fraction ``at``; at the end of its leg the trial no longer runs."""
        known = self.trials[trial]
        if known.running and (not known.losses or at > known.losses[-1][0]):
            ended = at >= known.until
            self.trials[trial] = replace(known, losses=(*known.losses, (at, loss)), running=not ended)

    def drop(self, trial: int) -> None:
        """Record that a trial failed or was cancelled."""
        self.trials[trial] = replace(self.trials[trial], running=False, dropped=True)

    def next_orders(self) -> tuple[Order, ...]:
        """The searcher's orders, recorded as carried out; an impossible order is a ``ValueError``."""
        orders = tuple(self.searcher.orders(tuple(self.trials)))
        for order in orders:
            known = self.trials[order.trial]
            if isinstance(order, Kill):
                if not known.running:
                    raise ValueError(f"trial {order.trial} does not run, so it cannot be killed")
                self.drop(order.trial)
            elif known.running or known.dropped or not known.until < order.until <= 1.0 or order.wider < 1:
                raise ValueError(f"trial {order.trial}, which is {known}, cannot be trained as {order} says")
            else:
                begun = replace(known, since=known.until, until=order.until, legs=known.legs + 1, running=True)
                self.trials[order.trial] = begun
        return orders
