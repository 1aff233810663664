"""The frozen picture a policy decides on: live jobs only, service settled to ``now``, nothing of the hidden truth.

The same jobs come twice: ``columns`` for policies that think in arrays, ``jobs`` for those that think job by job.
Both are read-only; every array refuses to be written.
"""

from collections.abc import ItemsView, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from shoal.core.arrays import Flags, Floats
from shoal.core.bids import StandingBid
from shoal.core.columns import Columns, sealed
from shoal.core.free_gpus import FrozenFreeGpus
from shoal.core.goodput import GoodputReport
from shoal.core.job import JobSpec
from shoal.core.lifecycle import JobState
from shoal.core.topology import Locality, Placement, Topology
from shoal.core.units import JobId, Seconds, TenantId

if TYPE_CHECKING:
    from shoal.core.interfaces import PerfModel


@dataclass(frozen=True, slots=True)
class Estimate:
    """A guess at a rate: its value, what it rests on, and its spread as a fraction of the value."""

    value: float
    basis: str
    spread: float = 0.0


@dataclass(frozen=True, slots=True)
class Measurement:
    """A rate that was seen: on how many GPUs of which kind, how far apart, at which batch size."""

    kind: int
    gpus: int
    locality: Locality
    batch_size: int
    rate: float


@dataclass(frozen=True, slots=True)
class Usage:
    """What a tenant holds and has had."""

    live_jobs: int
    held_gpus: int
    attained: float
    weight: float = 1.0


class JobView:
    """One live job: its specification and what has been observed of it; a window onto the columns."""

    __slots__ = ("_at", "_snapshot", "spec")

    def __init__(self, snapshot: "Snapshot", at: int, spec: JobSpec) -> None:
        self._snapshot = snapshot
        self._at = at
        self.spec = spec

    @property
    def id(self) -> JobId:
        """The name its owner gave it."""
        return self.spec.id

    @property
    def gpus(self) -> int:
        """The gang it asked for."""
        return self.spec.gpus

    @property
    def position(self) -> int:
        """Where it stands in the snapshot's columns."""
        return self._at

    @property
    def state(self) -> JobState:
        """Where it is in its life."""
        return JobState(int(self._snapshot.columns.state[self._at]))

    @property
    def held(self) -> int:
        """GPUs it holds now."""
        return int(self._snapshot.columns.held[self._at])

    @property
    def kind(self) -> str | None:
        """The kind of the GPUs it holds."""
        index = int(self._snapshot.columns.kind[self._at])
        return self._snapshot.cluster.kinds[index] if index >= 0 else None

    @property
    def placement(self) -> Placement | None:
        """The seats it holds."""
        return self._snapshot.placement(self._at)

    @property
    def incarnation(self) -> int:
        """How often it has been started or resized."""
        return int(self._snapshot.columns.incarnation[self._at])

    @property
    def attained(self) -> float:
        """GPU-seconds held until now."""
        return float(self._snapshot.columns.attained[self._at])

    @property
    def run_seconds(self) -> float:
        """Seconds it has held GPUs until now."""
        return float(self._snapshot.columns.run_seconds[self._at])

    @property
    def done(self) -> float:
        """Progress until now, in its own unit."""
        return float(self._snapshot.columns.done[self._at])

    @property
    def remaining(self) -> float:
        """Declared work not yet done; infinity when not declared."""
        return float(self._snapshot.columns.remaining[self._at])

    @property
    def remaining_seconds(self) -> float:
        """Estimated run time left with the requested gang on its best kind."""
        return float(self._snapshot.columns.remaining_seconds[self._at])

    @property
    def rate(self) -> float:
        """Measured progress per second; 0 unless running."""
        return float(self._snapshot.columns.rate[self._at])

    @property
    def batch_size(self) -> int | None:
        """The batch size it runs at: as last reported, else as declared."""
        return int(self._snapshot.columns.batch_size[self._at]) or self.spec.batch_size

    @property
    def measured(self) -> tuple[Measurement, ...]:
        """Every distinct rate measured on it, latest first."""
        return self._snapshot.measurements(self._at)

    @property
    def report(self) -> GoodputReport | None:
        """What its agent last reported of its goodput; None before the first report."""
        return self._snapshot.report(self._at)

    @property
    def regimes(self) -> tuple[tuple[float, int], ...]:
        """(progress, batch size) of every batch size its owner's script was seen to train at, in order.

        The first is as declared; nothing where none was declared and none was seen.
        """
        return self._snapshot.regimes(self._at)


class JobViews(Mapping[JobId, JobView]):
    """The live jobs by name; views are made when asked for."""

    __slots__ = ("_snapshot",)

    def __init__(self, snapshot: "Snapshot") -> None:
        self._snapshot = snapshot

    def __getitem__(self, job: JobId) -> JobView:
        at = self._snapshot.position(job)
        return JobView(self._snapshot, at, self._snapshot.specs[at])

    def __iter__(self) -> Iterator[JobId]:
        return iter(self._snapshot.ids)

    def __len__(self) -> int:
        return len(self._snapshot.columns)

    def values(self) -> "_AllViews":
        """All of them in order of admission, made in bulk: a policy may well look at each."""
        return _AllViews(self)

    def items(self) -> "_AllItems":
        """Names and views in order of admission, made in bulk."""
        return _AllItems(self)

    def at(self, position: int) -> JobView:
        """The job at a position of the columns."""
        return JobView(self._snapshot, position, self._snapshot.specs[position])


class _AllViews(ValuesView[JobView]):
    """The views in order, without looking each one up by name."""

    _mapping: JobViews

    def __iter__(self) -> Iterator[JobView]:
        snapshot = self._mapping._snapshot
        return iter([JobView(snapshot, at, spec) for at, spec in enumerate(snapshot.specs)])


class _AllItems(ItemsView[JobId, JobView]):
    """Names and views in order, without looking each one up by name."""

    _mapping: JobViews

    def __iter__(self) -> Iterator[tuple[JobId, JobView]]:
        return zip(self._mapping, self._mapping.values(), strict=True)


@dataclass(frozen=True, slots=True)
class Register:
    """Append-only tables shared by the state and all its snapshots: what an index in a column points to."""

    ids: list[JobId]
    specs: list[JobSpec]
    numbers: dict[JobId, int]
    placements: list[Placement]
    measurements: list[tuple[int, Measurement]]
    tenants: list[TenantId]


@dataclass(frozen=True)
class Snapshot:
    """Everything a policy may know at one moment. Two equal snapshots must get equal decisions."""

    cycle: int
    now: Seconds
    seed: int
    cluster: Topology
    perf: "PerfModel"
    columns: Columns
    free_gpus: FrozenFreeGpus
    register: Register
    tenant_service: Floats
    sharing: bool = False
    """Whether any two jobs share GPUs now."""
    carry: object | None = None
    reports: Mapping[int, GoodputReport] = field(default_factory=dict)
    """By admission number of a live job: what its agent last reported of its goodput."""
    model_reports: Mapping[str, GoodputReport] = field(default_factory=dict)
    """By declared model: what all jobs of it ever reported, taken together. For each kind the fit that has seen the
    most GPUs, the latest of equals; the latest noise scale; the most GPUs any of them trained on."""
    batch_changes: Mapping[int, tuple[tuple[float, int], ...]] = field(default_factory=dict)
    """By admission number of a live job whose owner's script changed its batch size: from which progress to what."""
    bids: Mapping[int, StandingBid] = field(default_factory=dict)
    """By number of an app: what it last said of itself. It may have been with other jobs than it has now."""

    @cached_property
    def ids(self) -> Sequence[JobId]:
        """Names of the live jobs, in order of admission."""
        names = self.register.ids
        return [names[n] for n in self.columns.rows.tolist()]

    @cached_property
    def specs(self) -> Sequence[JobSpec]:
        """Specifications of the live jobs, in order of admission."""
        specs = self.register.specs
        return [specs[n] for n in self.columns.rows.tolist()]

    @property
    def jobs(self) -> JobViews:
        """The live jobs by name, in order of admission."""
        return JobViews(self)  # not kept: a snapshot that points to itself would outlive its cycle

    @cached_property
    def possible(self) -> Flags:
        """Which jobs could run on the whole cluster, as it is now, if they were alone."""
        columns, capacity = self.columns, self.cluster.capacity
        if len(capacity) == 1:
            fits: Flags = (columns.gpus <= capacity[0]) & (columns.best_speed > 0)
        else:
            fits = np.any((columns.gpus[:, None] <= np.asarray(capacity)) & (columns.speeds > 0), axis=1)
        sealed(fits)
        return fits

    @cached_property
    def all_possible(self) -> bool:
        """Whether every job could run on the whole cluster, if it were alone."""
        return bool(self.possible.all())

    def position(self, job: JobId) -> int:
        """Where a live job stands in the columns."""
        number = self.register.numbers[job]
        rows = self.columns.rows
        at = int(np.searchsorted(rows, number))
        if at == len(rows) or rows[at] != number:
            raise KeyError(job)
        return at

    def position_of(self, number: int) -> int:
        """Where the job of this admission number stands, or −1 if it is no longer live."""
        rows = self.columns.rows
        at = int(np.searchsorted(rows, number))
        return at if at < len(rows) and rows[at] == number else -1

    def placement(self, at: int) -> Placement | None:
        """The seats held by the job at a position."""
        index = int(self.columns.seats[at])
        return self.register.placements[index] if index >= 0 else None

    def measurements(self, at: int) -> tuple[Measurement, ...]:
        """Every distinct rate measured on the job at a position, latest first."""
        found: list[Measurement] = []
        link = int(self.columns.measured[at])
        while link >= 0:
            link, measurement = self.register.measurements[link]
            found.append(measurement)
        return tuple(found)

    def report(self, at: int) -> GoodputReport | None:
        """What the agent of the job at a position last reported."""
        return self.reports.get(int(self.columns.rows[at])) if self.reports else None

    def regimes(self, at: int) -> tuple[tuple[float, int], ...]:
        """(progress, batch size) of every batch size the job at a position was seen to train at, in order."""
        declared, changes = self.specs[at].batch_size, self.batch_changes.get(int(self.columns.rows[at]), ())
        if declared is None or (changes and changes[0][0] <= 0.0):
            return changes
        return ((0.0, declared), *changes)

    @cached_property
    def tenants(self) -> Mapping[TenantId, Usage]:
        """What each tenant that ever submitted holds, and has had, settled to now."""
        c, count = self.columns, len(self.tenant_service)
        live = np.bincount(c.tenant, minlength=count)
        held = np.bincount(c.tenant, weights=c.held, minlength=count)
        attained = self.tenant_service + np.bincount(c.tenant, weights=c.attained, minlength=count)
        names = self.register.tenants
        return {names[t]: Usage(int(live[t]), int(held[t]), float(attained[t])) for t in range(count)}
