"""The seam between an app and its scheduler, after Themis's figure 7: what was heard of each trial, and the orders.

A *trial* is one setting of the hyper-parameters. Its training is counted as a part of its whole work, from 0 to 1, and
its loss is the lower the better. It is trained in *legs*: each is a job of its own, which ends where the leg does and
leaves a checkpoint for the next. So nobody holds GPUs while waiting to hear who goes on.

Reference: Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling", NSDI 2020, §4.3.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Trial:
    """What an app knows of one trial.

    Its latest leg goes from ``since`` to ``until`` (0 before the first); ``heard`` are its losses by part of the
    training done. One that is ``lost`` was killed, failed or was cancelled by somebody, and is never trained again.
    """

    since: float = 0.0
    until: float = 0.0
    heard: tuple[tuple[float, float], ...] = ()
    legs: int = 0
    running: bool = False
    lost: bool = False

    @property
    def loss(self) -> float:
        """The latest loss heard."""
        return self.heard[-1][1]


@dataclass(frozen=True, slots=True)
class Train:
    """Train a trial from where it is to ``until``, on ``wider`` times its first gang; a later leg is a promotion."""

    trial: int
    until: float
    wider: int = 1


@dataclass(frozen=True, slots=True)
class Kill:
    """Give a running trial up."""

    trial: int


Order: TypeAlias = Train | Kill


@dataclass(frozen=True, slots=True)
class SearchPhase:
    """Legs to come that will run side by side: how many, each how much of a training, on how wide a gang."""

    trials: int
    part: float
    wider: int = 1


class Searcher(Protocol):
    """An app scheduler: pure, so the same trials give the same orders."""

    @property
    def marks(self) -> tuple[float, ...]:
        """Parts of a training at which to be told the loss; where a leg ends it is told anyway."""
        ...

    def orders(self, trials: Sequence[Trial]) -> Sequence[Order]:
        """What to do now: asked at the beginning, when nobody was trained, and whenever something was heard."""
        ...

    def ahead(self, trials: Sequence[Trial]) -> tuple[SearchPhase, ...]:
        """The phases expected after the legs that run now; empty where these are the last."""
        ...


@dataclass(slots=True)
class AppSearch:
    """One app under way: its scheduler, and what is known of its trials."""

    searcher: Searcher
    trials: list[Trial] = field(default_factory=list)

    @classmethod
    def of(cls, searcher: Searcher, count: int) -> "AppSearch":
        """A search over so many trials, none of them begun."""
        return cls(searcher, [Trial()] * count)

    @property
    def over(self) -> bool:
        """Whether no trial is being trained; without one nothing is ever heard again."""
        return not any(trial.running for trial in self.trials)

    @property
    def best(self) -> int | None:
        """Of the trials that were trained furthest the one with the least loss; None before any was heard of."""
        heard = [n for n, trial in enumerate(self.trials) if trial.heard]
        return min(heard, key=lambda n: (-self.trials[n].heard[-1][0], self.trials[n].loss), default=None)

    def passed_over(self) -> tuple[int, ...]:
        """Those who wait to hear whether they go on and will not, however badly those that run turn out."""
        waiting = [n for n, t in enumerate(self.trials) if 0.0 < t.until < 1.0 and not t.running and not t.lost]
        if not waiting:
            return ()
        turned_out = [
            replace(t, heard=(*t.heard, (t.until, inf)), running=False) if t.running else t for t in self.trials
        ]
        going_on = {order.trial for order in self.searcher.orders(turned_out)}
        return tuple(n for n in waiting if n not in going_on)

    def hear(self, trial: int, at: float, loss: float) -> None:
        """A trial got this far, with this loss; at the end of its leg it no longer runs."""
        known = self.trials[trial]
        if known.running and (not known.heard or at > known.heard[-1][0]):
            ended = at >= known.until
            self.trials[trial] = replace(known, heard=(*known.heard, (at, loss)), running=not ended)

    def lose(self, trial: int) -> None:
        """A trial failed, or somebody else cancelled it."""
        self.trials[trial] = replace(self.trials[trial], running=False, lost=True)

    def ask(self) -> tuple[Order, ...]:
        """What the scheduler wants now, taken as done; an order that makes no sense is a ``ValueError``."""
        orders = tuple(self.searcher.orders(tuple(self.trials)))
        for order in orders:
            known = self.trials[order.trial]
            if isinstance(order, Kill):
                if not known.running:
                    raise ValueError(f"trial {order.trial} does not run, so it cannot be killed")
                self.lose(order.trial)
            elif known.running or known.lost or not known.until < order.until <= 1.0 or order.wider < 1:
                raise ValueError(f"trial {order.trial}, which is {known}, cannot be trained as {order} says")
            else:
                begun = replace(known, since=known.until, until=order.until, legs=known.legs + 1, running=True)
                self.trials[order.trial] = begun
        return orders
