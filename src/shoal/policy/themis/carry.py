"""What Themis remembers between decisions: leases, how crowded it was, and of every app its past and its valuation."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices, Int32s
from shoal.core.interfaces import PerfModel
from shoal.core.job import JobSpec
from shoal.core.units import Seconds
from shoal.perf.app_valuation import Use, Work
from shoal.policy.themis.locality import GUESSED, Slowdown

Lease: TypeAlias = tuple[tuple[int, Seconds], ...]
"""GPUs and until when they are leased, the first to end first."""
Leases: TypeAlias = Mapping[tuple[int, int], Lease]
"""By app and kind."""


@dataclass(frozen=True, slots=True, eq=False)
class AppValuation:
    """What an app last said: by GPUs held for good, the seconds it would take to be done.

    ``jobs`` are those it was made for, and ``left`` has the numbers of GPUs that they can use; ``soonest`` are the
    seconds with all it can use in each of its phases. ``spent`` is the part of what was left then that has been done
    since. ``heard`` is when the app itself said so, if it did.
    """

    jobs: tuple[int, ...]
    left: Floats
    least: int
    soonest: Seconds
    spent: float = 0.0
    heard: Seconds | None = None

    def fastest(self, wait: Seconds = 0.0, gpus: int = 0) -> Seconds:
        """Until it is done with as many GPUs as it can use, once so many have been held for so long."""
        return self.soonest * max(1.0 - self._spent(wait, gpus), 0.0)

    def after(self, seconds: Seconds, gpus: int) -> "AppValuation":
        """The same when so many GPUs have been held for so long."""
        spent = self._spent(seconds, gpus)
        return self if spent == self.spent else replace(self, spent=spent)

    def _spent(self, seconds: Seconds, gpus: int) -> float:
        if gpus < self.least or not seconds:
            return self.spent
        return self.spent + seconds / float(self.left[min(gpus, len(self.left) - 1)])


class Reach(NamedTuple):
    """The fewest and the most GPUs of a kind that a job can use, its curve there, and what that rested on."""

    gpus: tuple[int, int]
    curve: Floats
    spec: JobSpec
    batch_size: int
    measured: int

    def holds(self, spec: JobSpec, batch_size: int, measured: int) -> bool:
        """Whether it is still what would be found."""
        return self.spec is spec and self.batch_size == batch_size and self.measured == measured


@dataclass(frozen=True, slots=True, eq=False)
class Reaches:
    """By admission number and kind, as long as the model and the capacity by kind are the same."""

    perf: PerfModel | None = None
    capacity: tuple[int, ...] = ()
    found: dict[tuple[int, int], Reach] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Reckoning:
    """What was reckoned of an app's jobs, and from what: the work left of each, its curve, how they use GPUs.

    As long as these are the same so are the ``works``, and the ``seconds`` they take side by side by number of GPUs.
    """

    left: tuple[float, ...]
    curves: tuple[Floats, ...]
    use: Use
    works: tuple[Work, ...]
    seconds: Floats

    def holds(self, left: tuple[float, ...], curves: tuple[Floats, ...], use: Use) -> bool:
        """Whether it is still what would be reckoned."""
        if self.left != left or self.use is not use:
            return False
        return all(a is b or np.array_equal(a, b) for a, b in zip(self.curves, curves, strict=True))


@dataclass(frozen=True, slots=True)
class AppHistory:
    """An app's past: when it began and how crowded it had been by then, GPU-seconds of jobs that are gone, the most
    GPUs it could ever use, what it learned of distance, and what it last said it is worth. Of one that is ``named``
    more jobs may come when all are gone. ``heard`` is when it said of itself what counts now, and the GPU-seconds that
    were left then by what the cluster knows; ``reckoning`` is kept so as not to be made again for an app that waits."""

    start: Seconds
    crowd: float
    named: bool
    gone: float = 0.0
    demand: int = 0
    slowdown: Slowdown = GUESSED
    valuation: AppValuation | None = None
    heard: tuple[Seconds, float] | None = None
    reckoning: Reckoning | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ThemisCarry:
    """``crowd`` is the integral of the number of live apps up to ``at``, when there were ``live`` of them.

    ``leases`` are GPUs and the end of their lease, by app and kind. By admission number (``rows``, ascending): the app,
    the most GPUs the job can use, GPU-seconds done and in all, and how fast they are being done. ``reaches`` are kept
    so as not to be found again.
    """

    at: Seconds = 0.0
    live: int = 0
    crowd: float = 0.0
    apps: Mapping[int, AppHistory] = field(default_factory=dict)
    leases: Leases = field(default_factory=dict)
    rows: Indices = field(default_factory=lambda: np.empty(0, dtype=np.intp))
    app: Indices = field(default_factory=lambda: np.empty(0, dtype=np.intp))
    most: Int32s = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    done: Floats = field(default_factory=lambda: np.empty(0))
    total: Floats = field(default_factory=lambda: np.empty(0))
    pace: Floats = field(default_factory=lambda: np.empty(0))
    reaches: Reaches = field(default_factory=Reaches)

    def crowd_at(self, now: Seconds) -> float:
        """The integral of the number of live apps up to now."""
        return self.crowd + self.live * (now - self.at)

    def unlike(self, rows: Indices, most: Int32s) -> Flags:
        """Which of these jobs were not there, or could use fewer or more GPUs."""
        at = np.searchsorted(self.rows, rows)
        there = at < len(self.rows)
        at = at[there]
        there[there] = (self.rows[at] == rows[there]) & (self.most[at] == most[there])
        return ~there

    def departed(self, rows: Indices, now: Seconds) -> dict[int, float]:
        """By app the GPU-seconds done by its jobs that are no longer there."""
        gone = ~np.isin(self.rows, rows)
        done = np.minimum(self.done[gone] + self.pace[gone] * (now - self.at), self.total[gone])
        left: dict[int, float] = {}
        for app, seconds in zip(self.app[gone].tolist(), done.tolist(), strict=True):
            left[app] = left.get(app, 0.0) + seconds
        return left
