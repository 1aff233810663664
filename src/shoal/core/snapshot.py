"""The frozen picture a policy decides on: live jobs only, service settled to ``now``, nothing of the hidden truth.

The same jobs come twice: ``columns`` for policies that think in arrays, ``jobs`` for those that think job by job.
Both are read-only; every array refuses to be written.
"""

from collections.abc import ItemsView, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.core.decision import Floats, Ints
from shoal.core.job import BatchSetting, JobSpec
from shoal.core.lifecycle import JobState
from shoal.core.room import Room
from shoal.core.topology import Locality, Placement, Topology
from shoal.core.units import JobId, Seconds, TenantId


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


class PerfModel(Protocol):
    """How fast a job would go, as far as anyone may know. Rates are progress per second, in the job's own unit."""

    def rate(self, job: "JobView", placement: Placement, batch: BatchSetting | None = None) -> Estimate:
        """The rate on exactly these seats."""
        ...

    def speeds(self, spec: JobSpec, batch_size: int | None = None) -> Floats:
        """By kind: the rate of the requested gang, seated well, at this or its declared batch size; 0: cannot run."""
        ...

    def curve(self, job: "JobView", kind: str) -> Floats:
        """By number of GPUs from 0 to the job's most: the rate on that kind, seated well."""
        ...

    def colocated(self, a: "JobView", b: "JobView") -> tuple[float, float]:
        """What fraction of their rates two jobs keep when they share GPUs."""
        ...


@dataclass(slots=True)
class StaticColumns:
    """What never changes about a job, by admission number; only ever appended to."""

    submitted: Floats
    gpus: Ints
    min_gpus: Ints
    max_gpus: Ints
    weight: Floats
    work: Floats
    deadline: Floats
    tenant: Ints
    app: Ints


F_ATTAINED, F_RUN, F_DONE, F_SINCE, F_PROGRESS_SINCE, F_RATE, F_SPEEDS = range(7)
"""Rows of the block of changing floats; the speeds by kind follow."""

I_STATE, I_HELD, I_KIND, I_INCARNATION, I_SEATS, I_PARTNER, I_STARTS, I_CRASHES, I_BATCH, I_MEASURED, I_ROWS = range(11)
"""Rows of the block of changing integers."""


def _sealed(array: NDArray[np.generic]) -> None:
    array.flags.writeable = False


class Columns:
    """The live jobs as arrays, in order of admission. A column is gathered, or computed, when it is first read.

    Until then it is read off the state's own blocks; the state calls ``secure`` before it changes them if anyone
    still holds these columns, so a snapshot shows its moment for as long as it is kept.
    """

    def __init__(self, now: Seconds, rows: NDArray[np.intp], static: StaticColumns, floats: Floats, ints: Ints) -> None:
        _sealed(rows)
        self.now = now
        self.rows = rows
        """Admission numbers, ascending."""
        self._static = static
        self._float_block: Floats | None = floats
        self._int_block: Ints | None = ints
        self._float_rows: list[Floats | None] = [None] * len(floats)
        self._int_rows: list[Ints | None] = [None] * len(ints)

    def secure(self) -> None:
        """Gather what nobody has read yet; afterwards the state's blocks may change."""
        for row in range(len(self._float_rows)):
            self._float(row)
        for row in range(len(self._int_rows)):
            self._int(row)
        self._float_block = self._int_block = None

    def _float(self, row: int) -> Floats:
        column = self._float_rows[row]
        if column is None:
            assert self._float_block is not None
            column = self._float_block[row].take(self.rows)
            _sealed(column)
            self._float_rows[row] = column
        return column

    def _int(self, row: int) -> Ints:
        column = self._int_rows[row]
        if column is None:
            assert self._int_block is not None
            column = self._int_block[row].take(self.rows)
            _sealed(column)
            self._int_rows[row] = column
        return column

    def __len__(self) -> int:
        return len(self.rows)

    def _gather(self, column: NDArray[np.generic]) -> NDArray[np.generic]:
        gathered = column[self.rows]
        _sealed(gathered)
        return gathered

    @cached_property
    def submitted(self) -> Floats:
        """When each was submitted."""
        return self._gather(self._static.submitted)  # type: ignore[return-value]

    @cached_property
    def gpus(self) -> Ints:
        """The gang each asked for."""
        return self._gather(self._static.gpus)  # type: ignore[return-value]

    @cached_property
    def min_gpus(self) -> Ints:
        """The fewest GPUs each can run on."""
        return self._gather(self._static.min_gpus)  # type: ignore[return-value]

    @cached_property
    def max_gpus(self) -> Ints:
        """The most GPUs each can use."""
        return self._gather(self._static.max_gpus)  # type: ignore[return-value]

    @cached_property
    def weight(self) -> Floats:
        """Each job's weight."""
        return self._gather(self._static.weight)  # type: ignore[return-value]

    @cached_property
    def work(self) -> Floats:
        """Declared total work, in the job's own unit; infinity when not declared."""
        return self._gather(self._static.work)  # type: ignore[return-value]

    @cached_property
    def deadline(self) -> Floats:
        """When each wants to be done; infinity when it does not say."""
        return self._gather(self._static.deadline)  # type: ignore[return-value]

    @cached_property
    def tenant(self) -> Ints:
        """Index of each job's tenant."""
        return self._gather(self._static.tenant)  # type: ignore[return-value]

    @cached_property
    def app(self) -> Ints:
        """Index of each job's app; jobs outside any app have one of their own."""
        return self._gather(self._static.app)  # type: ignore[return-value]

    @property
    def state(self) -> Ints:
        """Each job's ``JobState``."""
        return self._int(I_STATE)

    @property
    def held(self) -> Ints:
        """GPUs held now; 0 when waiting."""
        return self._int(I_HELD)

    @property
    def kind(self) -> Ints:
        """Index of the kind held now; −1 when waiting."""
        return self._int(I_KIND)

    @property
    def incarnation(self) -> Ints:
        """How often each has been started or resized."""
        return self._int(I_INCARNATION)

    @property
    def seats(self) -> Ints:
        """Index into the table of placements; −1 when waiting."""
        return self._int(I_SEATS)

    @property
    def partner(self) -> Ints:
        """Admission number of the job GPUs are shared with; −1 for none."""
        return self._int(I_PARTNER)

    @property
    def starts(self) -> Ints:
        """How often each was started."""
        return self._int(I_STARTS)

    @property
    def crashes(self) -> Ints:
        """How often each crashed through its own fault."""
        return self._int(I_CRASHES)

    @property
    def batch_size(self) -> Ints:
        """The batch size each runs at, as last reported; 0 when unknown."""
        return self._int(I_BATCH)

    @property
    def measured(self) -> Ints:
        """Head of each job's chain of measurements; −1 for none."""
        return self._int(I_MEASURED)

    @property
    def since(self) -> Floats:
        """When each got the GPUs it holds; meaningless for a waiting job."""
        return self._float(F_SINCE)

    @property
    def rate(self) -> Floats:
        """Measured progress per second; 0 unless running."""
        return self._float(F_RATE)

    @cached_property
    def attained(self) -> Floats:
        """GPU-seconds each has held until now."""
        return self._until_now(F_ATTAINED, self.held)

    @cached_property
    def run_seconds(self) -> Floats:
        """Seconds each has held GPUs until now."""
        return self._until_now(F_RUN, self.held > 0)

    def _until_now(self, row: int, speed: Ints | NDArray[np.bool_]) -> Floats:
        column: Floats = self._float(row) + speed * (self.now - self._float(F_SINCE))
        _sealed(column)
        return column

    @cached_property
    def done(self) -> Floats:
        """Progress until now, in the job's own unit, going on at the last measured rate."""
        done: Floats = self._float(F_DONE) + self.rate * (self.now - self._float(F_PROGRESS_SINCE))
        _sealed(done)
        return done

    @cached_property
    def speeds(self) -> Floats:
        """By job and kind: estimated rate of the requested gang; 0 where the job cannot run."""
        kinds = range(F_SPEEDS, len(self._float_rows))
        table: Floats = np.stack([self._float(k) for k in kinds], axis=1) if kinds else np.zeros((len(self), 0))
        _sealed(table)
        return table

    @cached_property
    def best_speed(self) -> Floats:
        """The estimated rate of the requested gang on the kind that suits the job best; 0 if none does."""
        if len(self._float_rows) == F_SPEEDS + 1:
            return self._float(F_SPEEDS)
        best: Floats = self.speeds.max(axis=1, initial=0.0)
        _sealed(best)
        return best

    @cached_property
    def remaining(self) -> Floats:
        """Declared work not yet done, never negative; infinity when not declared."""
        left: Floats = np.maximum(self.work - self.done, 0.0)
        _sealed(left)
        return left

    @cached_property
    def remaining_seconds(self) -> Floats:
        """Estimated run time left with the requested gang on the best kind; infinity when unknown or impossible."""
        speed = self.best_speed
        if speed.all():
            left: Floats = self.remaining / speed
        else:
            left = np.full(len(self), np.inf)
            np.divide(self.remaining, speed, out=left, where=speed > 0)
        _sealed(left)
        return left


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
    perf: PerfModel
    columns: Columns
    room: Room
    register: Register
    tenant_service: Floats
    sharing: bool = False
    """Whether any two jobs share GPUs now."""
    carry: object | None = None

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
    def possible(self) -> NDArray[np.bool_]:
        """Which jobs could run on the whole cluster, as it is now, if they were alone."""
        columns, capacity = self.columns, self.cluster.capacity
        if len(capacity) == 1:
            fits: NDArray[np.bool_] = (columns.gpus <= capacity[0]) & (columns.best_speed > 0)
        else:
            fits = np.any((columns.gpus[:, None] <= np.asarray(capacity)) & (columns.speeds > 0), axis=1)
        _sealed(fits)
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

    @cached_property
    def tenants(self) -> Mapping[TenantId, Usage]:
        """What each tenant that ever submitted holds, and has had, settled to now."""
        c, count = self.columns, len(self.tenant_service)
        live = np.bincount(c.tenant, minlength=count)
        held = np.bincount(c.tenant, weights=c.held, minlength=count)
        attained = self.tenant_service + np.bincount(c.tenant, weights=c.attained, minlength=count)
        names = self.register.tenants
        return {names[t]: Usage(int(live[t]), int(held[t]), float(attained[t])) for t in range(count)}
