"""State is a fold over the journal: feed it the same events and commands and it is the same state.

It is an arena: a job's admission number is its slot and never moves. What never changes about a job is written once
and only appended to; what changes is written in place by slot and copied out, live rows only, when a snapshot is
frozen. Nothing here reads a clock: time comes with each event.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any
from weakref import ref

import numpy as np

from shoal.core.arrays import Floats, Indices, Int32s
from shoal.core.bids import StandingBid
from shoal.core.columns import (
    F_ATTAINED,
    F_DONE,
    F_PROGRESS_SINCE,
    F_RATE,
    F_RUN,
    F_SINCE,
    F_SPEEDS,
    I_BATCH,
    I_CRASHES,
    I_HELD,
    I_INCARNATION,
    I_KIND,
    I_MEASURED,
    I_PARTNER,
    I_ROWS,
    I_SEATS,
    I_STARTS,
    I_STATE,
    Columns,
    StaticColumns,
)
from shoal.core.commands import Command, Resize, Start, Stop
from shoal.core.errors import JournalError
from shoal.core.events import (
    AppBid,
    BatchChanged,
    Event,
    JobCancelled,
    JobCompleted,
    JobCrashed,
    JobMeasured,
    JobProfiled,
    JobReleased,
    JobReshaped,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeLost,
    NodeReturned,
)
from shoal.core.free_gpus import FreeGpus
from shoal.core.interfaces import LearnsOfPairs, PerfModel
from shoal.core.job import ADAPTIVE
from shoal.core.lifecycle import TRANSITIONS, JobState, Trigger
from shoal.core.retry import NO_CRASHES, Crashes
from shoal.core.snapshot import Measurement, Register, Snapshot
from shoal.core.topology import Placement, Topology
from shoal.core.units import Seconds
from shoal.engine.training_reports import TrainingReports

_FIRST_CAPACITY = 64

_UNFIT = 2
"""Crashes in a row, without getting further, after which a job is tried on another kind of GPU, if there is one."""

_LAST_ON_SEATS = int(JobState.STOPPING)
_PENDING = int(JobState.PENDING)
_STARTING = int(JobState.STARTING)
_HELD = int(JobState.HELD)
# Looking a member up in an enumeration costs more than folding an event; the fold uses the table's own pairs.
_NEXT = {(int(state), trigger): int(following) for (state, trigger), following in TRANSITIONS.items()}
_START, _STOP, _RESIZE, _STARTED = Trigger.START, Trigger.STOP, Trigger.RESIZE, Trigger.STARTED
_MEASURED, _STOPPED, _COMPLETED = Trigger.MEASURED, Trigger.STOPPED, Trigger.COMPLETED


class State:
    """All that is known, and the only place where it changes."""

    def __init__(self, topology: Topology, perf: PerfModel, seed: int = 0) -> None:
        self.topology = topology
        self.perf = perf
        self.seed = seed
        self.now: Seconds = 0.0
        self.cycle = 0
        self.carry: object | None = None
        self.free_gpus = FreeGpus.of(topology)
        self.register = Register([], [], {}, [], [], [])
        self._placement_index: dict[tuple[tuple[int, int], ...], int] = {}
        self._tenant_index: dict[str, int] = {}
        self._app_index: dict[str, int] = {}
        self._tenant_service: Floats = np.zeros(0)
        self._frozen: ref[Columns] | None = None
        self._paired: set[int] = set()
        self._learned = TrainingReports()
        self._crashes: dict[int, Crashes] = {}
        self._bids: Mapping[int, StandingBid] = {}
        self._count = 0
        self._live: Indices = np.empty(_FIRST_CAPACITY, dtype=np.intp)
        self._live_count = 0
        self._static = _static_columns(_FIRST_CAPACITY)
        self._floats: Floats = np.zeros((F_SPEEDS + len(topology.kinds), _FIRST_CAPACITY))
        self._ints: Int32s = np.zeros((I_ROWS, _FIRST_CAPACITY), dtype=np.int32)

    @property
    def live(self) -> int:
        """How many jobs a policy answers for: those that want GPUs and are not held back."""
        return self._live_count

    def freeze(self) -> Snapshot:
        """The picture of this moment; nothing that happens later changes it."""
        self._secure()
        rows = self._live[: self._live_count].copy()
        columns = Columns(self.now, rows, self._static, self._floats, self._ints)
        self._frozen = ref(columns)
        service = self._tenant_service.copy()
        service.flags.writeable = False
        reports, remembered, changes = self._learned.show()
        return Snapshot(
            cycle=self.cycle,
            now=self.now,
            seed=self.seed,
            cluster=self.topology,
            perf=self.perf,
            columns=columns,
            free_gpus=self.free_gpus.freeze(),
            register=self.register,
            tenant_service=service,
            sharing=bool(self._paired),
            carry=self.carry,
            reports=reports,
            model_reports=remembered,
            batch_changes=changes,
            bids=MappingProxyType(self._bids),
        )

    def _secure(self) -> None:
        """Before anything changes: whoever still holds the last snapshot keeps its moment."""
        columns = self._frozen() if self._frozen is not None else None
        if columns is not None:
            columns.secure()
        self._frozen = None

    def apply_events(self, now: Seconds, events: Iterable[Event]) -> None:
        """Fold what happened up to now."""
        self._secure()
        for event in events:
            _FOLD[type(event)](self, event)
        self.now = now

    def apply_commands(self, commands: Sequence[Command]) -> None:
        """Fold what was ordered, as if it were carried out at once."""
        if not commands:
            return
        self._secure()
        begins: list[tuple[Start | Resize, Trigger]] = []
        for command in commands:  # all seats are given back before any is taken: jobs may swap
            if type(command) is Stop:
                self._move(command.job, _STOP)
                self._release(command.job, self.now)
            elif type(command) is Start:
                begins.append((command, _START))
            elif type(command) is Resize:
                self._release(command.job, self.now)
                begins.append((command, _RESIZE))
        for begin, trigger in begins:
            self._begin(begin, trigger)

    def end_cycle(self, carry: object | None) -> None:
        """End the cycle: remember what the policy asked to be reminded of."""
        self.carry = carry
        self.cycle += 1

    # ── commands ──────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, order: Start | Resize, trigger: Trigger) -> None:
        slot, ints, floats = order.job, self._ints, self._floats
        self._move(slot, trigger)
        partner = -1 if order.partner is None else order.partner
        if not self._shares(slot, partner, order.placement):
            self.free_gpus.take(order.placement)
        ints[I_HELD, slot] = order.placement.gpus
        ints[I_KIND, slot] = self.topology.kind_of(order.placement)
        ints[I_SEATS, slot] = self._placement_number(order.placement)
        ints[I_INCARNATION, slot] = order.incarnation
        ints[I_PARTNER, slot] = partner
        if partner >= 0:
            ints[I_PARTNER, partner] = slot
            self._paired |= {slot, partner}
        if trigger is _START:
            ints[I_STARTS, slot] += 1
        if order.batch is None and slot in self._learned.reports:  # nobody adapts its batch size any more
            ints[I_BATCH, slot] = self.register.specs[slot].batch_size or 0
        elif order.batch is not None and order.batch != ADAPTIVE:
            ints[I_BATCH, slot] = order.batch.size
        floats[F_SINCE, slot] = self.now
        floats[F_PROGRESS_SINCE, slot] = self.now

    def _shares(self, slot: int, partner: int, placement: Placement) -> bool:
        """Whether these seats are already counted as taken by the partner."""
        if partner < 0:
            return False
        index = int(self._ints[I_SEATS, partner])
        return index >= 0 and self.register.placements[index] == placement

    def _release(self, slot: int, at: Seconds) -> None:
        """Settle service and progress, and give the seats back."""
        ints, floats = self._ints, self._floats
        held = ints.item(I_HELD, slot)
        if not held:
            return
        elapsed = at - floats.item(F_SINCE, slot)
        floats[F_ATTAINED, slot] += held * elapsed
        floats[F_RUN, slot] += elapsed
        floats[F_DONE, slot] += floats.item(F_RATE, slot) * (at - floats.item(F_PROGRESS_SINCE, slot))
        floats[F_RATE, slot] = 0.0
        placement = self.register.placements[ints.item(I_SEATS, slot)]
        partner = ints.item(I_PARTNER, slot)
        ints[I_HELD, slot] = 0
        ints[I_SEATS, slot] = ints[I_KIND, slot] = ints[I_PARTNER, slot] = -1
        if partner >= 0:
            ints[I_PARTNER, partner] = -1
            self._paired -= {slot, partner}
            index = int(ints[I_SEATS, partner])
            if index >= 0 and self.register.placements[index] == placement:
                return
        self.free_gpus.give(placement)

    # ── events ────────────────────────────────────────────────────────────────────────────────────────────────

    def _submitted(self, event: JobSubmitted) -> None:
        spec = event.spec
        if spec.id in self.register.numbers:
            raise JournalError(f"job {spec.id!r} was submitted twice")
        slot = self._count
        if slot == len(self._static.gpus):
            self._grow()
        self._count += 1
        self.register.ids.append(spec.id)
        self.register.specs.append(spec)
        self.register.numbers[spec.id] = slot
        static = self._static
        static.submitted[slot] = event.at
        static.gpus[slot] = spec.gpus
        static.min_gpus[slot] = spec.min_gpus
        static.max_gpus[slot] = spec.max_gpus
        static.weight[slot] = spec.weight
        static.work[slot] = np.inf if spec.work is None else spec.work
        static.deadline[slot] = np.inf if spec.deadline is None else spec.deadline
        static.tenant[slot] = self._tenant_number(spec.tenant)
        static.app[slot] = self._app_index.setdefault(spec.app or f"\0{spec.id}", len(self._app_index))
        self._floats[F_SPEEDS:, slot] = self.perf.speeds(spec)
        ints = self._ints
        ints[I_KIND, slot] = ints[I_SEATS, slot] = ints[I_PARTNER, slot] = ints[I_MEASURED, slot] = -1
        ints[I_BATCH, slot] = spec.batch_size or 0
        self._live[self._live_count] = slot
        self._live_count += 1

    def _started(self, event: JobStarted) -> None:
        if self._stale(event.job, event.incarnation) or not self._ints[I_HELD, event.job]:
            return
        self._move(event.job, _STARTED)
        self._progress(event.job, event.at, event.done, event.rate)
        self._remember(event.job, event.rate)

    def _measured(self, event: JobMeasured | BatchChanged) -> None:
        # A job told to stop may still be measured once, as when the one it shared GPUs with stops just before it.
        if self._stale(event.job, event.incarnation) or not self._ints[I_HELD, event.job]:
            return
        self._move(event.job, _MEASURED)
        if type(event) is BatchChanged:
            self._ints[I_BATCH, event.job] = event.batch_size
            self._floats[F_SPEEDS:, event.job] = self.perf.speeds(self.register.specs[event.job], event.batch_size)
            self._learned.change(event.job, event.done, event.batch_size)
        self._progress(event.job, event.at, event.done, event.rate)
        self._remember(event.job, event.rate)

    def _profiled(self, event: JobProfiled) -> None:
        slot = event.job
        if self._stale(slot, event.incarnation) or not self._ints[I_HELD, slot]:
            return
        self._move(slot, _MEASURED)
        self._ints[I_BATCH, slot] = event.report.batch.size
        # Its rate drifts with the noise scale; the fits say more of its speed than a chain of such rates would.
        self._progress(slot, event.at, event.done, event.rate)
        self._learned.report(slot, self.register.specs[slot].model, event.report)

    def _progress(self, slot: int, at: Seconds, done: float, rate: float) -> None:
        floats = self._floats
        floats[F_DONE, slot] = done
        floats[F_PROGRESS_SINCE, slot] = at
        floats[F_RATE, slot] = rate

    def _remember(self, slot: int, rate: float) -> None:
        """Add a measurement to the job's chain unless it is there already."""
        ints, table = self._ints, self.register.measurements
        kind, gpus, batch_size = ints.item(I_KIND, slot), ints.item(I_HELD, slot), ints.item(I_BATCH, slot)
        locality = self.topology.locality(self.register.placements[ints.item(I_SEATS, slot)])
        head = link = ints.item(I_MEASURED, slot)
        while link >= 0:
            link, known = table[link]
            if (known.rate, known.gpus, known.kind, known.locality, known.batch_size) == (
                rate,
                gpus,
                kind,
                locality,
                batch_size,
            ):
                return
        ints[I_MEASURED, slot] = len(table)
        table.append((head, Measurement(kind, gpus, locality, batch_size, rate)))

    def _stopped(self, event: JobStopped) -> None:
        if self._stale(event.job, event.incarnation):
            return
        self._move(event.job, _STOPPED)
        self._floats[F_DONE, event.job] = event.done

    def _completed(self, event: JobCompleted) -> None:
        if self._stale(event.job, event.incarnation):
            return
        self._end(event.job, _COMPLETED, event.at)
        self._floats[F_DONE, event.job] = event.done

    def _crashed(self, event: JobCrashed) -> None:
        if self._stale(event.job, event.incarnation):
            return
        slot = event.job
        self._learn_from(event)
        crashes, failed, _ = self._crashes.get(slot, NO_CRASHES).after(event.done, blamed=event.blamed)
        self._crashes[slot] = crashes
        self._ints[I_CRASHES, slot] = crashes.in_a_row
        if event.blamed and crashes.in_a_row >= _UNFIT:
            self._shun(slot, self._ints.item(I_KIND, slot))
        if failed:
            self._end(slot, Trigger.GAVE_UP, event.at)
        elif event.retry_in > 0:
            self._move(slot, Trigger.HELD_BACK)
            self._release(slot, event.at)
            self._withdraw(slot)
        else:
            self._move(slot, Trigger.CRASHED)
            self._release(slot, event.at)
        self._floats[F_DONE, slot] = event.done

    def _shun(self, slot: int, kind: int) -> None:
        """Take a job to be unable to run on a kind it keeps crashing on, as long as there is another for it."""
        speeds, gang = self._floats[F_SPEEDS:, slot], self.register.specs[slot].gpus
        fits = np.asarray(self.topology.installed) >= gang
        fits[kind] = False
        if (speeds[fits] > 0.0).any():
            speeds[kind] = 0.0

    def _learn_from(self, event: JobCrashed) -> None:
        """A job that breaks off at its start, not to blame and its nodes standing, does not fit beside its partner."""
        ints, slot = self._ints, event.job
        partner, state = ints.item(I_PARTNER, slot), ints.item(I_STATE, slot)
        if event.blamed or partner < 0 or state != _STARTING or not isinstance(self.perf, LearnsOfPairs):
            return
        if self.topology.down.isdisjoint(self.register.placements[ints.item(I_SEATS, slot)].nodes):
            specs = self.register.specs
            mine, other = (ints.item(I_BATCH, job) or None for job in (slot, partner))
            self.perf = self.perf.parted(specs[slot], mine, specs[partner], other)

    def _released(self, event: JobReleased) -> None:
        slot = event.job
        if self._ints.item(I_STATE, slot) != _HELD:  # it was cancelled meanwhile
            return
        self._move(slot, Trigger.RELEASED)
        live, count = self._live, self._live_count
        at_row = int(np.searchsorted(live[:count], slot))
        live[at_row + 1 : count + 1] = live[at_row:count]
        live[at_row] = slot
        self._live_count = count + 1

    def _reshaped(self, event: JobReshaped) -> None:
        slot, register = event.job, self.register
        if not JobState(int(self._ints[I_STATE, slot])).live:
            return
        old = register.specs[slot]
        # Work without a model is counted in seconds on the gang first asked for: another gang does it faster or slower.
        speed = old.speed if old.model is not None else old.speed * event.gpus / old.gpus
        spec = replace(old, gpus=event.gpus, min_gpus=event.min_gpus, max_gpus=event.max_gpus, speed=speed)
        # Snapshots share these tables and must go on showing their moment, so the changed ones are new.
        specs = list(register.specs)
        specs[slot] = spec
        self.register = replace(register, specs=specs)
        static = replace(
            self._static,
            gpus=self._static.gpus.copy(),
            min_gpus=self._static.min_gpus.copy(),
            max_gpus=self._static.max_gpus.copy(),
        )
        static.gpus[slot], static.min_gpus[slot], static.max_gpus[slot] = spec.gpus, spec.min_gpus, spec.max_gpus
        self._static = static
        self._floats[F_SPEEDS:, slot] = self.perf.speeds(spec, self._ints.item(I_BATCH, slot) or None)

    def _cancelled(self, event: JobCancelled) -> None:
        if JobState(int(self._ints[I_STATE, event.job])).live:
            self._end(event.job, Trigger.CANCELLED, event.at)

    def _bid(self, event: AppBid) -> None:
        said = StandingBid(event.at, event.jobs, event.rows)
        self._bids = {**self._bids, self._app_index[event.app]: said}

    def _node_lost(self, event: NodeLost) -> None:
        self.topology = self.topology.without(event.node)
        self.free_gpus.close(event.node)

    def _node_returned(self, event: NodeReturned) -> None:
        self.topology = self.topology.with_back(event.node)
        self.free_gpus.open(event.node)

    # ── shared pieces ─────────────────────────────────────────────────────────────────────────────────────────

    def _stale(self, slot: int, incarnation: int) -> bool:
        """Whether a message comes from a run that is over: an earlier one, or the last one of a job that now waits."""
        ints = self._ints
        state = ints.item(I_STATE, slot)
        return ints.item(I_INCARNATION, slot) != incarnation or not _PENDING < state <= _LAST_ON_SEATS

    def _move(self, slot: int, trigger: Trigger) -> None:
        state = self._ints.item(I_STATE, slot)
        following = _NEXT.get((state, trigger))
        if following is None:
            name = self.register.ids[slot]
            raise JournalError(f"job {name!r} cannot be {trigger.value} while {JobState(state).name.lower()}")
        self._ints[I_STATE, slot] = following

    def _end(self, slot: int, trigger: Trigger, at: Seconds) -> None:
        held_back = self._ints.item(I_STATE, slot) == _HELD
        self._move(slot, trigger)
        self._release(slot, at)
        self._learned.forget(slot)
        self._crashes.pop(slot, None)
        app = self._static.app.item(slot)
        if app in self._bids:  # whatever it said was with this job
            self._bids = {other: said for other, said in self._bids.items() if other != app}
        self._tenant_service[self._static.tenant[slot]] += self._floats[F_ATTAINED, slot]
        if not held_back:
            self._withdraw(slot)

    def _withdraw(self, slot: int) -> None:
        """No policy is asked about the job from now on."""
        live, count = self._live, self._live_count
        at_row = int(np.searchsorted(live[:count], slot))
        live[at_row : count - 1] = live[at_row + 1 : count]
        self._live_count = count - 1

    def _placement_number(self, placement: Placement) -> int:
        number = self._placement_index.get(placement.seats)
        if number is None:
            number = len(self.register.placements)
            self.register.placements.append(placement)
            self._placement_index[placement.seats] = number
        return number

    def _tenant_number(self, tenant: str) -> int:
        number = self._tenant_index.get(tenant)
        if number is None:
            number = len(self._tenant_index)
            self._tenant_index[tenant] = number
            self.register.tenants.append(tenant)
            self._tenant_service = np.append(self._tenant_service, 0.0)
        return number

    def _grow(self) -> None:
        """Double every column into new buffers; snapshots keep the old ones."""
        size = 2 * len(self._static.gpus)
        old, new = self._static, _static_columns(size)
        for name in StaticColumns.__slots__:
            getattr(new, name)[: size // 2] = getattr(old, name)
        self._static = new
        self._floats = np.concatenate([self._floats, np.zeros_like(self._floats)], axis=1)
        self._ints = np.concatenate([self._ints, np.zeros_like(self._ints)], axis=1)
        self._live = np.concatenate([self._live, np.zeros_like(self._live)])


def _static_columns(size: int) -> StaticColumns:
    def floats() -> Floats:
        return np.zeros(size)

    def ints() -> Int32s:
        return np.zeros(size, dtype=np.int32)

    return StaticColumns(
        submitted=floats(),
        gpus=ints(),
        min_gpus=ints(),
        max_gpus=ints(),
        weight=floats(),
        work=floats(),
        deadline=floats(),
        tenant=ints(),
        app=ints(),
    )


_FOLD: dict[type, Callable[[State, Any], None]] = {
    JobSubmitted: State._submitted,
    JobStarted: State._started,
    JobMeasured: State._measured,
    BatchChanged: State._measured,
    JobProfiled: State._profiled,
    JobStopped: State._stopped,
    JobCompleted: State._completed,
    JobCrashed: State._crashed,
    JobCancelled: State._cancelled,
    NodeLost: State._node_lost,
    NodeReturned: State._node_returned,
    JobReleased: State._released,
    JobReshaped: State._reshaped,
    AppBid: State._bid,
}
