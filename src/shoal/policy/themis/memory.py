"""What Themis remembers between decisions: leases, how crowded it was, and of every app its past and its valuation."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from shoal.core.units import Seconds
from shoal.perf.valuation import Floats
from shoal.policy.themis.locality import GUESSED, Slowdown

Rows = NDArray[np.intp]
Lease: TypeAlias = tuple[tuple[int, Seconds], ...]
"""GPUs and until when they are leased, the first to end first."""
Leases: TypeAlias = Mapping[tuple[int, int], Lease]
"""By app and kind."""


@dataclass(frozen=True, slots=True, eq=False)
class Valuation:
    """What an app last said: by GPUs held for good, the seconds it would take to be done.

    ``jobs`` are those it was made for; ``spent`` is the part of what was left then that has been done since. ``heard``
    is when the app itself said so, if it did.
    """

    jobs: tuple[int, ...]
    left: Floats
    least: int
    spent: float = 0.0
    heard: Seconds | None = None

    def seconds(self, gpus: int) -> Seconds:
        """Until it is done with so many GPUs from now on, or the fewest it can use if that is more."""
        return float(self.left[min(max(gpus, self.least), len(self.left) - 1)]) * max(1.0 - self.spent, 0.0)

    def after(self, seconds: Seconds, gpus: int) -> "Valuation":
        """The same when so many GPUs have been held for so long."""
        if gpus < self.least or not seconds:
            return self
        return replace(self, spent=self.spent + seconds / float(self.left[min(gpus, len(self.left) - 1)]))


@dataclass(frozen=True, slots=True)
class Past:
    """An app's past: when it began and how crowded it had been by then, GPU-seconds of jobs that are gone, the most
    GPUs it could ever use, what it learned of distance, and what it last said it is worth. Of one that is ``named``
    more jobs may come when all are gone. ``heard`` is when it said of itself what counts now, and the GPU-seconds that
    were left then by what the cluster knows."""

    start: Seconds
    crowd: float
    named: bool
    gone: float = 0.0
    demand: int = 0
    slowdown: Slowdown = GUESSED
    valuation: Valuation | None = None
    heard: tuple[Seconds, float] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """``crowd`` is the integral of the number of live apps up to ``at``, when there were ``live`` of them.

    ``leases`` are GPUs and the end of their lease, by app and kind. By admission number (``rows``): the app,
    GPU-seconds done and in all, and how fast they are being done.
    """

    at: Seconds = 0.0
    live: int = 0
    crowd: float = 0.0
    apps: Mapping[int, Past] = field(default_factory=dict)
    leases: Leases = field(default_factory=dict)
    rows: Rows = field(default_factory=lambda: np.empty(0, dtype=np.intp))
    app: Rows = field(default_factory=lambda: np.empty(0, dtype=np.intp))
    done: Floats = field(default_factory=lambda: np.empty(0))
    total: Floats = field(default_factory=lambda: np.empty(0))
    pace: Floats = field(default_factory=lambda: np.empty(0))

    def crowd_at(self, now: Seconds) -> float:
        """The integral of the number of live apps up to now."""
        return self.crowd + self.live * (now - self.at)

    def departed(self, rows: Rows, now: Seconds) -> dict[int, float]:
        """By app the GPU-seconds done by its jobs that are no longer there."""
        gone = ~np.isin(self.rows, rows)
        done = np.minimum(self.done[gone] + self.pace[gone] * (now - self.at), self.total[gone])
        left: dict[int, float] = {}
        for app, seconds in zip(self.app[gone].tolist(), done.tolist(), strict=True):
            left[app] = left.get(app, 0.0) + seconds
        return left
