"""Builders for tests: a job, a simulation or a snapshot in one call each.

They use the ring itself (``State`` folds the events and commands, ``Loop`` runs the cycles), so a test sees what a
policy sees.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from math import inf
from typing import Any, Literal, TypeAlias

from shoal.core.commands import Command, Decided, Start, Stop
from shoal.core.events import Event, EventBatch, JobCompleted, JobStarted, JobStopped, JobSubmitted, NodeLost, QuotaSet
from shoal.core.interfaces import PerfModel, Placer, Policy
from shoal.core.job import MOST_LOST, JobSpec
from shoal.core.quota import Quota
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement, Topology, parse_cluster
from shoal.core.units import JobId, Seconds, TenantId
from shoal.engine.loop import Judgement, Loop
from shoal.engine.moves import StopStartPlanner
from shoal.engine.state import State
from shoal.perf.catalog import catalog
from shoal.perf.model import OnlineModel, ProfiledModel
from shoal.placement import packed
from shoal.placement.any import AnyPlacer
from shoal.placement.network import NetworkPlacer
from shoal.placement.packed import PackedPlacer
from shoal.placement.rack import RackPlacer
from shoal.sim.backend import SimulatedBackend
from shoal.sim.faults import NO_FAULTS, Faults
from shoal.sim.suspension import SuspensionCost
from shoal.sim.truth import RestartCost, Truth
from shoal.store.journal import MemoryJournal
from shoal.workload.schema import Job

Knowledge: TypeAlias = Literal["oracle", "profiled", "online"]
PlacementName: TypeAlias = Literal["packed", "any", "rack", "network"]

_PLACERS: dict[str, Callable[[], Placer]] = {
    "packed": PackedPlacer,
    "any": AnyPlacer,
    "rack": RackPlacer,
    "network": NetworkPlacer,
}
_NAMES = count(1)


def job(id: JobId | None = None, submitted: Seconds = 0.0, gpus: int = 1, seconds: float = 100.0, **more: Any) -> Job:
    """Return a job that takes ``seconds`` on its GPUs; without an ``id`` it gets a unique one.

    ``more`` are further fields of ``Job``; with a ``model``, give ``work`` in samples instead of ``seconds``.
    """
    more.setdefault("work", float(seconds))
    return Job(id=id or f"unnamed-{next(_NAMES)}", submitted=float(submitted), gpus=gpus, **more)


def topology(cluster: str | Topology) -> Topology:
    """Return the cluster of a specification; a ``Topology`` as it is."""
    return parse_cluster(cluster) if isinstance(cluster, str) else cluster


@dataclass(frozen=True, slots=True)
class Cycle:
    """One cycle of the ring: the snapshot, and the judgement on it."""

    snapshot: Snapshot
    judgement: Judgement

    @property
    def now(self) -> Seconds:
        """The time of the snapshot."""
        return self.snapshot.now

    def granted(self) -> dict[JobId, int]:
        """Return the GPUs after placement by job that got any."""
        gpus = self.judgement.verdicts.gpus.tolist()
        return {name: n for name, n in zip(self.snapshot.ids, gpus, strict=True) if n}

    def sentence(self, job: JobId) -> str:
        """Return the job's reason as a sentence."""
        return self.judgement.verdicts[job].reason.sentence()


@dataclass(frozen=True)
class SimulationLog:
    """A simulation that has ended: its cycles, journal and last state."""

    jobs: tuple[Job, ...]
    cycles: tuple[Cycle, ...]
    journal: MemoryJournal
    state: State

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """All events, in order."""
        return tuple(e for record in self.journal.read() if isinstance(record, EventBatch) for e in record.events)

    @cached_property
    def commands(self) -> tuple[tuple[Seconds, Command], ...]:
        """All commands with the times they were given."""
        given: list[tuple[Seconds, Command]] = []
        now = 0.0
        for record in self.journal.read():
            if isinstance(record, EventBatch):
                now = record.now
            elif isinstance(record, Decided):
                given += [(now, command) for command in record.commands]
        return tuple(given)

    @cached_property
    def started(self) -> dict[JobId, Seconds]:
        """By job that ever got GPUs, the time it first got them."""
        firsts: dict[JobId, Seconds] = {}
        for at, command in self.commands:
            if isinstance(command, Start):
                firsts.setdefault(self.jobs[command.job].id, at)
        return firsts

    @cached_property
    def completed(self) -> dict[JobId, Seconds]:
        """By completed job, the time it completed."""
        return {self.jobs[e.job].id: e.at for e in self.events if isinstance(e, JobCompleted)}

    @cached_property
    def starts(self) -> dict[JobId, int]:
        """By job, the number of starts."""
        counts = dict.fromkeys((j.id for j in self.jobs), 0)
        for _, command in self.commands:
            if isinstance(command, Start):
                counts[self.jobs[command.job].id] += 1
        return counts

    def story(self, job: JobId) -> list[tuple[Seconds, str]]:
        """Return (time, sentence) of the job's reasons, without repetitions."""
        found: list[tuple[Seconds, str]] = []
        for cycle in self.cycles:
            if job in cycle.snapshot.jobs:
                sentence = cycle.sentence(job)
                if not found or found[-1][1] != sentence:
                    found.append((cycle.now, sentence))
        return found


def simulate(
    policy: Policy,
    jobs: Iterable[Job],
    cluster: str | Topology = "gpu:1x4",
    *,
    placement: PlacementName = "packed",
    restart_cost: Seconds = 0.0,
    faults: Faults = NO_FAULTS,
    seed: int = 0,
    knowledge: Knowledge = "profiled",
    noise: float = 0.0,
    measurement_noise: float = 0.0,
    until: Seconds = inf,
    quotas: Mapping[TenantId, Quota] | None = None,
    most_lost: Seconds = MOST_LOST,
    watch: Callable[[Cycle], None] | None = None,
    suspension: SuspensionCost | None = None,
) -> SimulationLog:
    """Run a policy on a workload until nothing more can happen, or past the time ``until``.

    Equal arguments give equal journals, byte for byte. ``watch`` is called with each cycle.
    """
    rows, world = tuple(sorted(jobs, key=lambda j: j.submitted)), topology(cluster)
    truth = Truth.of(rows, faults.grown(world), catalog(), noise=noise, seed=seed)
    specs = [_declared(row, knowledge, speed) for row, speed in zip(rows, truth.factors, strict=True)]
    cost, spread = RestartCost(restart_cost), measurement_noise
    backend = SimulatedBackend(truth, specs, cost, faults, seed, measurement_noise=spread, suspension=suspension)
    state = State(world, _perf(world, knowledge), seed, most_lost)
    state.apply_events(0.0, [QuotaSet(0.0, tenant, quota) for tenant, quota in (quotas or {}).items()])
    journal = MemoryJournal.begin({})
    cycles: list[Cycle] = []

    def record(snapshot: Snapshot, judgement: Judgement) -> None:
        cycles.append(Cycle(snapshot, judgement))
        if watch is not None:
            watch(cycles[-1])

    loop = Loop(backend, state, policy, _PLACERS[placement](), StopStartPlanner(), journal, record)
    while state.now <= until and loop.cycle():
        pass
    return SimulationLog(rows, tuple(cycles), journal, state)


def _declared(row: Job, knowledge: Knowledge, speed: float) -> JobSpec:
    spec = row.spec()
    return replace(spec, speed=speed, batch_schedule=row.batch_schedule) if knowledge == "oracle" else spec


def _perf(cluster: Topology, knowledge: Knowledge) -> PerfModel:
    return OnlineModel(cluster) if knowledge == "online" else ProfiledModel(cluster, catalog())


def snapshot(
    jobs: Sequence[Job],
    cluster: str | Topology = "gpu:1x4",
    *,
    held: Mapping[JobId, int | Placement] | None = None,
    ran: Mapping[JobId, Seconds] | None = None,
    sharing: Mapping[JobId, JobId] | None = None,
    down: Collection[int] = (),
    now: Seconds | None = None,
    seed: int = 0,
    carry: object | None = None,
    knowledge: Knowledge = "profiled",
    quotas: Mapping[TenantId, Quota] | None = None,
) -> Snapshot:
    """Return what a policy would see at ``now`` (by default the last submission), without a simulation.

    ``held`` are the seats of running jobs; a number means packed seats on the job's fastest kind. ``ran`` is the time
    each job has held GPUs: for a running job until now (by default since its submission), for a waiting one earlier, on
    its requested gang; past runs may overlap. ``sharing`` maps a job to the running job whose seats it shares. Nodes in
    ``down``, which must be empty, are lost now.
    """
    rows, world = tuple(sorted(jobs, key=lambda j: j.submitted)), topology(cluster)
    moment = max((j.submitted for j in rows), default=0.0) if now is None else now
    state = State(world, _perf(world, knowledge), seed)
    draft = _SnapshotDraft(rows, state, Truth.of(rows, world, catalog()), moment)
    state.apply_events(moment, [JobSubmitted(row.submitted, _declared(row, knowledge, 1.0)) for row in rows])
    holding, past, guests = held or {}, ran or {}, sharing or {}
    for number, row in enumerate(rows):
        if row.id in past and row.id not in holding and row.id not in guests:
            draft.ran_once(number, past[row.id])
    for name, seats in holding.items():
        draft.runs(state.register.numbers[name], seats, past.get(name))
    for name, host in guests.items():
        draft.shares(state.register.numbers[name], state.register.numbers[host], past.get(name))
    state.apply_events(moment, [NodeLost(moment, node) for node in down])
    state.apply_events(moment, [QuotaSet(moment, tenant, quota) for tenant, quota in (quotas or {}).items()])
    return replace(state.freeze(), carry=carry)


@dataclass(frozen=True, slots=True)
class _SnapshotDraft:
    """A snapshot in progress. Each job's past is folded separately, with the time set back for it."""

    jobs: tuple[Job, ...]
    state: State
    truth: Truth
    now: Seconds

    def ran_once(self, number: int, seconds: Seconds) -> None:
        begin, end = self.now - seconds, self.now
        rate = self._start(number, self._seats(number, self.jobs[number].gpus), begin, None)
        self.state.apply_events(end, ())
        self.state.apply_commands([Stop(number, 1)])
        self.state.apply_events(end, [JobStopped(end, number, 1, rate * seconds)])

    def runs(self, number: int, seats: int | Placement, seconds: Seconds | None) -> None:
        placement = seats if isinstance(seats, Placement) else self._seats(number, seats)
        self._start(number, placement, self._since(number, seconds), None)

    def shares(self, number: int, host: int, seconds: Seconds | None) -> None:
        seats = self.state.freeze().placement(host)
        if seats is None:
            raise ValueError(f"{self.jobs[host].id!r} holds no seats to share")
        self._start(number, seats, self._since(number, seconds), host)

    def _since(self, number: int, seconds: Seconds | None) -> Seconds:
        return self.jobs[number].submitted if seconds is None else self.now - seconds

    def _start(self, number: int, seats: Placement, at: Seconds, partner: int | None) -> float:
        rate = self.truth.rate(number, seats, self.jobs[number].batch_size, partner)
        self.state.apply_events(at, ())
        self.state.apply_commands([Start(number, 1, seats, partner=partner)])
        self.state.apply_events(self.now, [JobStarted(at, number, 1, rate, 0.0)])
        return rate

    def _seats(self, number: int, gpus: int) -> Placement:
        world = self.state.topology
        speeds = self.state.perf.speeds(self.state.register.specs[number])
        for kind in sorted(range(len(world.kinds)), key=lambda k: -speeds[k]):
            found = packed.find(world, self.state.free_gpus, kind, gpus, None)
            if found is not None:
                return found
        raise ValueError(f"no {gpus} GPUs of one kind are free for {self.jobs[number].id!r}; give its seats")
