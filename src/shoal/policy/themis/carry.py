"""Themis' carry: leases, the number of live apps over time, and the history and valuation of each app."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from typing import NamedTuple, TypeAlias

import numpy as np
from msgspec.structs import replace

from shoal.core.arrays import Flags, Floats, Indices, Int32s
from shoal.core.interfaces import PerfModel
from shoal.core.job import JobSpec
from shoal.core.units import Seconds
from shoal.core.value import Value
from shoal.perf.app_valuation import Use, Work
from shoal.policy.carried_rows import match_rows
from shoal.policy.themis.locality import GUESSED, Slowdown
from shoal.policy.themis.settled import SettledCarry
from shoal.policy.themis.single_records import SingleCarry

Lease: TypeAlias = tuple[tuple[int, Seconds], ...]
"""GPUs and the end of their lease, by end."""
Leases: TypeAlias = Mapping[tuple[int, int], Lease]
"""By app and kind."""


class AppValuation(Value, frozen=True, eq=False):
    """An app's last valuation: ``left[n]`` is the seconds until it completes if it keeps n GPUs.

    ``jobs`` are those it was made for; ``soonest`` is the seconds with all GPUs it can use in each of its phases.
    ``spent`` is the fraction of that work done since. ``bid_at`` is the time of the app's own bid, if it made one.
    """

    jobs: tuple[int, ...]
    left: Floats
    least: int
    soonest: Seconds
    spent: float = 0.0
    bid_at: Seconds | None = None

    def fastest(self, wait: Seconds = 0.0, gpus: int = 0) -> Seconds:
        """Seconds to go with all GPUs it can use, after ``wait`` seconds on ``gpus``."""
        return self.soonest * max(1.0 - self._spent(wait, gpus), 0.0)

    def after(self, seconds: Seconds, gpus: int) -> "AppValuation":
        """The valuation after this many seconds on ``gpus``."""
        spent = self._spent(seconds, gpus)
        return self if spent == self.spent else replace(self, spent=spent)

    def _spent(self, seconds: Seconds, gpus: int) -> float:
        if gpus < self.least or not seconds:
            return self.spent
        return self.spent + seconds / float(self.left[min(gpus, len(self.left) - 1)])


class GpuRange(NamedTuple):
    """The fewest and the most GPUs of a kind that a job can use, its rate by number of GPUs, and their inputs."""

    gpus: tuple[int, int]
    curve: Floats
    spec: JobSpec
    batch_size: int
    measured: int

    def holds(self, spec: JobSpec, batch_size: int, measured: int) -> bool:
        """Whether the inputs are still these."""
        return self.spec is spec and self.batch_size == batch_size and self.measured == measured


@dataclass(frozen=True, slots=True, eq=False)
class GpuRanges:
    """Ranges by admission number and kind; valid for this model and capacity by kind."""

    perf: PerfModel | None = None
    capacity: tuple[int, ...] = ()
    found: dict[tuple[int, int], GpuRange] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class WorkEstimate:
    """An app's remaining ``works``, the ``seconds`` they take side by side by number of GPUs, and their inputs.

    The inputs are the work left of each job, its rates, and how the jobs use GPUs.
    """

    left: tuple[float, ...]
    curves: tuple[Floats, ...]
    use: Use
    works: tuple[Work, ...]
    seconds: Floats

    def holds(self, left: tuple[float, ...], curves: tuple[Floats, ...], use: Use) -> bool:
        """Whether the inputs are still these."""
        if self.left != left or self.use is not use:
            return False
        return all(a is b or np.array_equal(a, b) for a, b in zip(self.curves, curves, strict=True))


class AppHistory(Value, frozen=True, eq=False):
    """An app's history since its start.

    The cluster's app-seconds at its start, GPU-seconds of its completed jobs (``gone``), the most GPUs it could ever
    use (``demand``), the slowdown it measured and its last valuation. A ``named`` app may get more jobs when all have
    completed. ``own_bid`` is the time of the app's own bid in force and the GPU-seconds left then by the cluster's
    figures. ``estimate`` saves work for apps that wait.
    """

    start: Seconds
    app_seconds: float
    named: bool
    gone: float = 0.0
    demand: int = 0
    slowdown: Slowdown = GUESSED
    valuation: AppValuation | None = None
    own_bid: tuple[Seconds, float] | None = None
    estimate: WorkEstimate | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ThemisCarry:
    """``app_seconds`` is the integral of the number of live apps up to ``at``, when there were ``live`` of them.

    By admission number (``rows``, ascending): the app, the most GPUs the job can use, GPU-seconds done and in all, and
    GPU-seconds done per second (``pace``). ``gpu_ranges`` are the last decision's ranges of GPUs, so that
    the next one computes only those of jobs that changed. Apps of one job are in ``singles``, all others in ``apps``
    and ``leases``.
    """

    at: Seconds = 0.0
    live: int = 0
    app_seconds: float = 0.0
    apps: Mapping[int, AppHistory] = field(default_factory=dict)
    leases: Leases = field(default_factory=dict)
    rows: Indices = field(default_factory=lambda: np.empty(0, dtype=np.intp))
    app: Indices = field(default_factory=lambda: np.empty(0, dtype=np.intp))
    most: Int32s = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    done: Floats = field(default_factory=lambda: np.empty(0))
    total: Floats = field(default_factory=lambda: np.empty(0))
    pace: Floats = field(default_factory=lambda: np.empty(0))
    gpu_ranges: GpuRanges = field(default_factory=GpuRanges)
    singles: SingleCarry = field(default_factory=SingleCarry)
    settled: SettledCarry = field(default_factory=SettledCarry)

    def app_seconds_at(self, now: Seconds) -> float:
        """The integral of the number of live apps up to now."""
        return self.app_seconds + self.live * (now - self.at)

    def changed(self, rows: Indices, most: Int32s) -> Flags:
        """By job: whether it is new, or could use fewer or more GPUs before."""
        at, known = match_rows(self.rows, rows)
        known[known] = self.most[at[known]] == most[known]
        return ~known

    def departed(self, rows: Indices, now: Seconds) -> dict[int, float]:
        """By app the GPU-seconds done by its jobs that are no longer live."""
        gone = ~match_rows(rows, self.rows)[1]
        done = np.minimum(self.done[gone] + self.pace[gone] * (now - self.at), self.total[gone])
        left: dict[int, float] = {}
        for app, seconds in zip(self.app[gone].tolist(), done.tolist(), strict=True):
            left[app] = left.get(app, 0.0) + seconds
        return left

    def with_objects(self, live: Indices, alone: Indices) -> "ThemisCarry":
        """The carry in which apps of one live job are in columns only if that is among ``alone``; both ascending."""
        records, leases = self.singles.records, self.singles.leases
        leaves = match_rows(live, records.rows)[1] & ~match_rows(alone, records.rows)[1]
        if not leaves.any():
            return self
        moved = leases.of(match_rows(records.rows[leaves], leases.rows)[1])
        app = dict(zip(records.rows.tolist(), records.app.tolist(), strict=True))
        joined: dict[tuple[int, int], Lease] = dict(self.leases)
        for row, kind, gpus, end in zip(
            *(c.tolist() for c in (moved.rows, moved.kind, moved.gpus, moved.end)), strict=True
        ):
            joined[app[row], kind] = (*joined.get((app[row], kind), ()), (gpus, end))
        apps = {app[int(records.rows[n])]: self._history(int(n)) for n in np.flatnonzero(leaves)}
        kept = leases.of(match_rows(alone, leases.rows)[1])
        singles = replace_fields(self.singles, records=records.at(np.flatnonzero(~leaves)), leases=kept)
        return replace_fields(self, apps={**self.apps, **apps}, leases=joined, singles=singles)

    @property
    def histories(self) -> Mapping[int, AppHistory]:
        """The history of every app, those of apps of one job included."""
        return self.with_objects(self.singles.records.rows, np.zeros(0, dtype=np.intp)).apps

    def _history(self, n: int) -> AppHistory:
        """The history of an app of one job, as an object."""
        records, rates, valuation = self.singles.records, self.singles.rates, None
        of = records.valued.item(n)
        if of >= 0:
            least, most = rates.least.item(of), rates.most.item(of)
            counts = np.arange(least, most + 1)
            one = np.full(len(counts), n)
            left = rates.seconds(records.valued[one], counts, records.work[one], records.gpu_seconds[one])
            left = np.append(np.full(least, np.inf), left)
            left.flags.writeable = False
            figures = (left, least, records.soonest.item(n), records.spent.item(n))
            valuation = AppValuation((int(records.rows[n]),), *figures)
        near, machine, rack, cluster = records.slowdown[n].tolist()
        began = (records.start.item(n), records.app_seconds.item(n), False)
        demand = records.demand.item(n)
        return AppHistory(*began, demand=demand, slowdown=(near, machine, rack, cluster), valuation=valuation)
