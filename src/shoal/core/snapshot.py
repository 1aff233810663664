"""The snapshot a policy decides on: live jobs only, with service and progress up to ``now``, and no hidden truth.

A snapshot has the jobs in two forms, both read-only: ``columns`` for policies that work on arrays, ``jobs`` for
policies that work job by job.
"""

from collections.abc import ItemsView, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
import numpy as np

from shoal.core.arrays import Flags, Floats, Indices
from shoal.core.bids import StandingBid
from shoal.core.cached import cached
from shoal.core.columns import Columns, IntRow, Saves, sealed
from shoal.core.events import JobSetAside
from shoal.core.free_gpus import FrozenFreeGpus
from shoal.core.goodput import GoodputReport
from shoal.core.job import MOST_LOST, PREEMPTIBLE, JobSpec
from shoal.core.lengths import LengthView, PredictedWork, nothing_predicted
from shoal.core.lifecycle import JobState
from shoal.core.quota import Quota
from shoal.core.suspension import NO_SUSPENSIONS, Suspensions
from shoal.core.topology import Locality, Placement, Topology
from shoal.core.units import JobId, Seconds, TenantId
from shoal.core.value import Value

if TYPE_CHECKING:
    from shoal.core.interfaces import PerfModel

_T = TypeVar("_T", int, float)

NEVER_STOPPED = PREEMPTIBLE.index("no")
"""The value of ``Columns.preemptible`` of jobs whose owner declared that they must not be stopped."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A predicted rate: its value, its basis, and its standard deviation as a fraction of the value."""

    value: float
    basis: str
    spread: float = 0.0


class Measurement(Value, frozen=True):
    """A measured rate, with the kind's index, the number of GPUs, their distance and the batch size."""

    kind: int
    gpus: int
    locality: Locality
    batch_size: int
    rate: float


@dataclass(frozen=True, slots=True)
class Usage:
    """A tenant's live jobs, the GPUs they hold, and all GPU-seconds it has attained."""

    live_jobs: int
    held_gpus: int
    attained: float
    weight: float = 1.0


class _Value(Generic[_T]):
    """A property: the job's value in the column of the same name."""

    def __init__(self, doc: str) -> None:
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, view: "JobView", owner: type | None = None) -> _T:
        lists, name = view._lists, self._name
        if lists is None:
            return getattr(view._snapshot.columns, name).item(view.position)  # type: ignore[no-any-return]
        if name not in lists:
            lists[name] = getattr(view._snapshot.columns, name).tolist()
        return lists[name][view.position]  # type: ignore[no-any-return]


class JobView(msgspec.Struct, eq=False):
    """One live job: its specification and its observed values, read from the snapshot's columns."""

    _snapshot: "Snapshot"
    position: int
    """Index of the job in the snapshot's columns."""
    spec: JobSpec
    id: JobId
    """Its name."""
    gpus: int
    """GPUs of the requested gang."""
    _lists: dict[str, list[Any]] | None = None
    """Columns as lists, shared by all views that were made together: reading one entry then costs less."""

    held = _Value[int]("GPUs held now; 0 while waiting.")
    incarnation = _Value[int]("Number of times it was started or resized.")
    attained = _Value[float]("GPU-seconds held until now.")
    run_seconds = _Value[float]("Seconds with GPUs until now.")
    done = _Value[float]("Progress until now, in its own unit.")
    remaining = _Value[float]("Declared work not yet done; infinity if not declared.")
    remaining_seconds = _Value[float]("Estimated run time left with the requested gang on its best kind.")
    rate = _Value[float]("Measured progress per second; 0 unless running.")
    unsaved = _Value[float]("Seconds of run that a stop now would lose.")

    @property
    def state(self) -> JobState:
        """Its state in the life cycle."""
        return JobState(self._snapshot.columns.state.item(self.position))

    @property
    def unstoppable(self) -> bool:
        """Whether it keeps its GPUs whatever a policy decides, since a stop would lose work."""
        return bool(self._snapshot.unstoppable[self.position])

    @property
    def kind(self) -> str | None:
        """The kind of the GPUs it holds."""
        index = self._snapshot.columns.kind.item(self.position)
        return self._snapshot.cluster.kinds[index] if index >= 0 else None

    @property
    def placement(self) -> Placement | None:
        """The seats it holds."""
        return self._snapshot.placement(self.position)

    @property
    def bound_to(self) -> Placement | None:
        """The seats on which it can be resumed, if it is suspended."""
        run = self._snapshot.suspensions.runs.get(int(self._snapshot.columns.rows[self.position]))
        return None if run is None else run.placement

    @property
    def batch_size(self) -> int | None:
        """Its batch size, as last reported or else as declared."""
        return self._snapshot.columns.batch_size.item(self.position) or self.spec.batch_size

    @property
    def measured(self) -> tuple[Measurement, ...]:
        """The rates measured on the job, one for each setting, latest first."""
        return self._snapshot.measurements(self.position)

    @property
    def report(self) -> GoodputReport | None:
        """The last goodput report of its agent; None before the first."""
        return self._snapshot.report(self.position)

    @property
    def regimes(self) -> tuple[tuple[float, int], ...]:
        """Batch sizes at which its owner's script trained, in order, each as (progress at which it began, size).

        Progress is in the unit of its work. The first size is the declared one; empty if none was declared or observed.
        """
        return self._snapshot.regimes(self.position)


class JobViews(Mapping[JobId, JobView]):
    """The live jobs by name; views are made on demand."""

    __slots__ = ("_snapshot",)

    def __init__(self, snapshot: "Snapshot") -> None:
        self._snapshot = snapshot

    def __getitem__(self, job: JobId) -> JobView:
        return self.at(self._snapshot.position(job))

    def __iter__(self) -> Iterator[JobId]:
        return iter(self._snapshot.ids)

    def __len__(self) -> int:
        return len(self._snapshot.columns)

    def values(self) -> "_AllViews":
        """Return all views in order of admission, made in bulk."""
        return _AllViews(self)

    def items(self) -> "_AllItems":
        """Return names and views in order of admission, made in bulk."""
        return _AllItems(self)

    def at(self, position: int) -> JobView:
        """Return the job at a position of the columns."""
        spec = self._snapshot.spec(position)
        return JobView(self._snapshot, position, spec, spec.id, spec.gpus)


class _AllViews(ValuesView[JobView]):
    """All views, without looking each one up by name."""

    _mapping: JobViews

    def __iter__(self) -> Iterator[JobView]:
        snapshot = self._mapping._snapshot
        lists: dict[str, list[Any]] = {}
        return iter([JobView(snapshot, at, s, s.id, s.gpus, lists) for at, s in enumerate(snapshot.specs)])


class _AllItems(ItemsView[JobId, JobView]):
    """All names and views, without looking each one up by name."""

    _mapping: JobViews

    def __iter__(self) -> Iterator[tuple[JobId, JobView]]:
        return zip(self._mapping, self._mapping.values(), strict=True)


@dataclass(frozen=True, slots=True)
class Register:
    """Append-only tables to which numbers in columns refer; shared by the state and all its snapshots.

    ``ids`` and ``specs`` are by admission number; ended jobs may be missing.
    """

    ids: dict[int, JobId]
    specs: dict[int, JobSpec]
    numbers: dict[JobId, int]
    placements: list[Placement]
    measurements: list[tuple[int, Measurement]]
    tenants: list[TenantId]


@dataclass(frozen=True)
class Snapshot:
    """Everything a policy may know at one moment. Equal snapshots must get equal decisions."""

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
    """By admission number of a live job: the last goodput report of its agent."""
    model_reports: Mapping[str, GoodputReport] = field(default_factory=dict)
    """By declared model: the reports of all its jobs, joined. For each kind the fit that has seen the most GPUs, the
    latest of equals; the latest noise scale; the most GPUs any of the jobs trained on."""
    batch_changes: Mapping[int, tuple[tuple[float, int], ...]] = field(default_factory=dict)
    """By admission number of a live job whose own script changed its batch size: (progress, new size) in order."""
    bids: Mapping[int, StandingBid] = field(default_factory=dict)
    """By number of an app: its last valuation of GPUs, possibly made with other jobs than it has now."""
    avoided: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """By admission number: the nodes that could not start the job's ranks, to be avoided."""
    probed: frozenset[int] = frozenset()
    """Nodes that may get one start, to find out whether they work."""
    set_aside: Mapping[int, JobSetAside] = field(default_factory=dict)
    """By admission number of a live job that a policy failed on: when and why. Policies decide without that job."""
    quotas: Mapping[TenantId, Quota] = field(default_factory=dict)
    """By tenant, its quota; the ring enforces it on the verdicts of every policy."""
    suspensions: Suspensions = NO_SUSPENSIONS
    """The suspended runs, each bound to its node, and the limits of nodes on suspended runs."""
    overran: str | None = None
    """How the policy overran its time at this decision; if set, it is not asked and every job keeps its placement."""
    ending: Mapping[int, int] = field(default_factory=dict)
    """By node, the GPUs that the runs of cancelled jobs still hold: part of the cluster, neither free nor a job's."""
    guarded: bool = False
    """Whether there may be jobs that must keep their GPUs; if false, ``unstoppable`` is false for every job."""
    most_lost: Seconds = MOST_LOST
    """Seconds of run that a stop may lose at most."""
    priorities: Mapping[int, int] = field(default_factory=dict)
    """By admission number of a live job with a priority other than 0; the ring enforces it on every policy."""
    lengths: LengthView | None = None
    """Lengths of jobs predicted from ended runs; None if nothing is predicted."""

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "Snapshot":
        """Return a snapshot with these values of all its fields; ten times as fast as the constructor."""
        snapshot = object.__new__(cls)
        object.__setattr__(snapshot, "__dict__", fields)
        return snapshot

    @cached
    def ids(self) -> Sequence[JobId]:
        """Names of the live jobs, in order of admission."""
        return list(map(self.register.ids.__getitem__, self.columns.rows.tolist()))

    @cached
    def specs(self) -> Sequence[JobSpec]:
        """Specifications of the live jobs, in order of admission."""
        return list(map(self.register.specs.__getitem__, self.columns.rows.tolist()))

    def spec(self, at: int) -> JobSpec:
        """Return the specification of the job at a position; costs less than ``specs`` where few are read."""
        specs = self.__dict__.get("specs")
        return self.register.specs[self.columns.rows.item(at)] if specs is None else specs[at]

    @property
    def jobs(self) -> JobViews:
        """The live jobs by name, in order of admission."""
        return JobViews(self)  # not cached: a reference cycle would keep the snapshot alive

    @cached
    def possible(self) -> Flags:
        """By position: whether the job could run on the present cluster if it were alone."""
        columns, capacity = self.columns, self.cluster.capacity
        if self._no_gang_too_wide:
            fits: Flags = np.ones(len(columns), dtype=np.bool_) if columns.all_able else columns.best_speed > 0
        else:
            fits = np.zeros(len(columns), dtype=np.bool_)
            for k, most in enumerate(capacity):
                fits |= (columns.gpus <= most) & (columns.speeds[:, k] > 0)
        return sealed(fits)

    @cached
    def all_possible(self) -> bool:
        """Whether each job could run on the present cluster if no other job held GPUs."""
        return (self.columns.all_able and self._no_gang_too_wide) or bool(self.possible.all())

    @property
    def _no_gang_too_wide(self) -> bool:
        return self.columns.widest <= min(self.cluster.capacity, default=0)

    @cached
    def unstoppable(self) -> Flags:
        """By position: whether the job holds GPUs and keeps them, since a stop now would lose work.

        A job keeps them if its owner declared that it must not be stopped, if it has never saved, or if more than
        ``most_lost`` seconds of run are not saved. A job whose owner changed its gang so that it does not fit its GPUs
        may be moved.
        """
        columns = self.columns
        if not self.guarded:
            return sealed(np.zeros(len(columns), dtype=np.bool_))
        held, least, most = columns.held, columns.min_gpus, columns.max_gpus
        runs = (held > 0) & (held >= least) & (held <= most) & (columns.preemptible > 0)
        starting = columns.saves == Saves.UNKNOWN
        kept: Flags = runs & ((columns.preemptible == NEVER_STOPPED) | starting | (columns.unsaved > self.most_lost))
        return sealed(kept)

    @cached
    def unstoppable_once_started(self) -> Flags:
        """By position: whether the job waits and would, once started, be ``unstoppable`` at first."""
        columns = self.columns
        if not self.guarded:
            return self.unstoppable
        waits: Flags = (columns.held == 0) & (columns.preemptible > 0)
        return sealed(waits & ((columns.preemptible == NEVER_STOPPED) | (columns.saves == Saves.UNKNOWN)))

    @cached
    def predicted_left(self) -> PredictedWork:
        """By position: work left, as ended runs predict it, of the jobs that declare no work; NaN for all others.

        In the unit of each job's own work: divide by ``columns.best_speed`` for seconds.
        """
        if self.lengths is None:
            return nothing_predicted(len(self.columns))
        found, rows = self.lengths.left, self.columns.rows
        if len(found.mean) == len(rows):
            return found
        return found.at(np.searchsorted(self.lengths.rows, rows))  # without the jobs that are kept from the policy

    @property
    def kept_from_policy(self) -> Indices:
        """Positions of the jobs that are set aside now, ascending."""
        due = [n for n, aside in self.set_aside.items() if self.now < aside.retry_at]
        return np.flatnonzero(np.isin(self.columns.rows, due))

    def without(self, positions: Indices) -> "Snapshot":
        """Return the snapshot as a policy sees it without the jobs at these positions."""
        keep = np.delete(np.arange(len(self.columns)), positions)
        return replace(self, columns=self.columns.subset(keep), set_aside={})

    def position(self, job: JobId) -> int:
        """Return the position of a live job in the columns; ``KeyError`` if it is not live."""
        at = self.position_of(self.register.numbers[job])
        if at < 0:
            raise KeyError(job)
        return at

    def position_of(self, number: int) -> int:
        """Return the position of the job with this admission number, or −1 if it is not live."""
        rows = self.columns.rows
        at = int(np.searchsorted(rows, number))
        return at if at < len(rows) and rows[at] == number else -1

    def placement(self, at: int) -> Placement | None:
        """Return the seats held by the job at a position."""
        index = self.columns.int_at(IntRow.SEATS, at)
        return self.register.placements[index] if index >= 0 else None

    @cached
    def all_placements(self) -> Sequence[Placement | None]:
        """By position the seats held; costs less than ``placement`` where many are read."""
        table = self.register.placements
        return [table[index] if index >= 0 else None for index in self.columns.seats.tolist()]

    def measurements(self, at: int) -> tuple[Measurement, ...]:
        """Return every distinct rate measured on the job at a position, latest first."""
        found: list[Measurement] = []
        link = int(self.columns.measured[at])
        while link >= 0:
            link, measurement = self.register.measurements[link]
            found.append(measurement)
        return tuple(found)

    def report(self, at: int) -> GoodputReport | None:
        """Return the last goodput report on the job at a position."""
        return self.reports.get(int(self.columns.rows[at])) if self.reports else None

    def regimes(self, at: int) -> tuple[tuple[float, int], ...]:
        """Return the batch sizes at which the job at a position trained, in order, each as (progress, size)."""
        declared, changes = self.specs[at].batch_size, self.batch_changes.get(int(self.columns.rows[at]), ())
        if declared is None or (changes and changes[0][0] <= 0.0):
            return changes
        return ((0.0, declared), *changes)

    @cached
    def tenants(self) -> Mapping[TenantId, Usage]:
        """By tenant that ever submitted a job: the GPUs it holds and the GPU-seconds it has attained."""
        c, count = self.columns, len(self.tenant_service)
        live = np.bincount(c.tenant, minlength=count)
        held = np.bincount(c.tenant, weights=c.held, minlength=count)
        attained = self.tenant_service + np.bincount(c.tenant, weights=c.attained, minlength=count)
        names = self.register.tenants
        return {names[t]: Usage(int(live[t]), int(held[t]), float(attained[t])) for t in range(count)}
