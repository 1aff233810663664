"""The jobs of a state: the arrays that it folds events into.

Each job has a slot, in order of admission; ``slot_of`` finds it by admission number. Slots are assigned anew when a
state is restored without its ended jobs; until then a job's slot is its admission number. Declared values are only
appended. Values that change are written in place, by slot; a snapshot gathers those of the live jobs. The fold reads
and writes single entries through a memory view of each row, at a fifth of the cost of numpy's indexing.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import fields, replace
from math import inf
from typing import Any
from weakref import ref

import numpy as np

from shoal.core.arrays import Floats, Indices, Int32s
from shoal.core.columns import Columns, FloatRow, IntRow, Saves, StaticColumns
from shoal.core.errors import JournalError
from shoal.core.events import JobSaved, RunEvent
from shoal.core.job import PREEMPTIBLE, JobSpec
from shoal.core.lifecycle import WITH_RUN, JobState
from shoal.core.snapshot import Register
from shoal.core.topology import Placement
from shoal.core.units import JobNumber, Seconds

_FIRST_CAPACITY = 64
_WITH_RUN = frozenset(map(int, WITH_RUN))
_SEEN = frozenset(int(state) for state in JobState if state.live and state not in (JobState.HELD, JobState.CANCELLING))
"""The states of jobs that policies see."""

_FEW_UNSERVED = 2
"""Most unserved jobs that are found by their slots; with more of them comparing two columns is faster."""


class JobRows:
    """Jobs: declared values, blocks of changing values (rows: ``FloatRow`` and ``IntRow``), and which are live.

    ``floats`` and ``ints`` are the blocks; ``held``, ``since`` and so on are their rows, for reading and writing one
    entry, as ``jobs.held[slot]``. ``tenant_service`` holds, by tenant, the GPU-seconds of ended jobs; ``submitted``
    counts all jobs ever submitted, those that were dropped included; ``guarded`` is whether any job kept here is not
    declared to be preemptible.
    """

    def __init__(self, kinds: int) -> None:
        self.register = Register({}, {}, {}, [], [], [])
        self.submitted = 0
        self._set_blocks(
            np.zeros((FloatRow.SPEEDS + kinds, _FIRST_CAPACITY)),
            _int_block(_FIRST_CAPACITY),
        )
        self.tenant_service: Floats = np.zeros(0)
        self.app_index: dict[str, int] = {}
        self.live_count = 0
        self.guarded = False
        self._live: Indices = np.empty(_FIRST_CAPACITY, dtype=np.intp)
        self._set_static(_static_columns(_FIRST_CAPACITY))
        self._demand, self._unable, self._recount = 0, 0, False
        self._gangs: dict[int, int] = {}  # by number of GPUs, how many live jobs ask for it
        self._widest = 0  # of the gangs
        self._unserved: set[int] = set()  # slots of live jobs that hold another number of GPUs than their gang's
        self._tenant_index: dict[str, int] = {}
        self._placement_index: dict[tuple[tuple[int, int], ...], int] = {}
        self._shared_seats: dict[tuple[int, int], tuple[int, int]] = {}  # one object for all placements with a seat
        self._used = 0  # slots
        self._apps = 0  # numbers of apps given
        self._numbers: Indices | None = None  # by slot; None while every job's slot is its number
        self._slots: dict[int, int] = {}  # by number; empty while every job's slot is its number
        self._frozen: ref[Columns] | None = None

    def freeze(self, now: Seconds) -> Columns:
        """Return the live jobs as columns; they keep showing this moment."""
        self.secure()
        slots = self._live[: self.live_count].copy()
        rows = slots if self._numbers is None else self._numbers[slots]
        columns = Columns(now, rows, slots, self._static, self.floats, self.ints)
        if self._recount:
            self._demand, self._unable = columns.demand, int(np.count_nonzero(columns.best_speed == 0.0))
            self._gangs, self._widest = dict(Counter(columns.gpus.tolist())), columns.widest
            self._recount = False
        few = len(self._unserved) <= _FEW_UNSERVED
        unserved = [bisect_left(slots.data, slot) for slot in sorted(self._unserved)] if few else None
        columns.keep_totals(self._demand, self._widest, self._unable == 0, unserved)
        self._frozen = ref(columns)
        return columns

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy: all but the memory views, which a copy makes of its own blocks."""
        lists = ("_speeds", "_declared")
        return {name: v for name, v in vars(self).items() if not isinstance(v, memoryview) and name not in lists}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._set_blocks(self.floats, self.ints)
        self._set_static(self._static)

    def _set_blocks(self, floats: Floats, ints: Int32s) -> None:
        self.floats, self.ints = floats, ints
        (
            self.state,
            self.held,
            self.kind,
            self.incarnation,
            self.seats,
            self.partner,
            self.starts,
            self.crashes,
            self.batch,
            self.measured,
            self.saves,
        ) = _entries(ints)
        (
            self.attained,
            self.run,
            self.done,
            self.since,
            self.progress_since,
            self.rate,
            self.safe,
            *self._speeds,
        ) = _entries(floats)

    def _set_static(self, static: StaticColumns) -> None:
        self._static = static
        declared = {column: memoryview(getattr(static, column)) for column in StaticColumns.__slots__}
        self._declared: list[Any] = list(declared.values())
        self.submitted_at, self.length_scale = declared["submitted"], declared["length_scale"]
        self.app, self._gpus, self._tenant = declared["app"], declared["gpus"], declared["tenant"]

    def _count(self, slot: int, sign: int) -> None:
        """Update the totals over the live jobs as one is added (``sign`` 1) or removed (−1)."""
        gang = self._gpus[slot]
        self._demand += sign * gang
        count = self._gangs.get(gang, 0) + sign
        self._gangs[gang] = count
        if gang > self._widest:
            self._widest = gang
        elif not count:
            del self._gangs[gang]
            if gang == self._widest:
                self._widest = max(self._gangs, default=0)
        for speeds in self._speeds:
            if speeds[slot]:
                return
        self._unable += sign

    def hold(self, slot: int, gpus: int) -> None:
        """Note how many GPUs a job holds."""
        self.held[slot] = gpus
        if gpus != self._gpus[slot] and self.state[slot] in _SEEN:
            self._unserved.add(slot)
        else:
            self._unserved.discard(slot)

    def speeds_to_change(self, slot: int) -> Floats:
        """Return a job's speeds by kind, which the caller may write."""
        self._recount = True
        return self.floats[FloatRow.SPEEDS :, slot]

    def secure(self) -> None:
        """Prepare for a change: if the last frozen columns are still in use, gather the rows they have not read yet."""
        columns = self._frozen() if self._frozen is not None else None
        if columns is not None:
            columns.secure()
        self._frozen = None

    def slot_of(self, number: JobNumber) -> int:
        """Return a job's slot; −1 if the job has ended and was dropped. A number not yet given is a ``LookupError``."""
        packed = self._numbers is None
        slot = (number if 0 <= number < self._used else -1) if packed else self._slots.get(number, -1)
        if slot < 0 and not 0 <= number < self.submitted:
            raise LookupError(f"no job has number {number}")
        return slot

    def number_at(self, slot: int) -> JobNumber:
        """Return the admission number of the job in a slot."""
        return slot if self._numbers is None else int(self._numbers[slot])

    def add(self, at: Seconds, spec: JobSpec, speeds: Floats, length: tuple[int, float] = (-1, 1.0)) -> None:
        """Append a job, live and without GPUs; ``speeds`` are its rates by kind. Its number is ``submitted``.

        ``length`` is its class and scale in the history of lengths.
        """
        register, number, slot = self.register, self.submitted, self._used
        if spec.id in register.numbers:
            raise JournalError(f"job {spec.id!r} was submitted twice")
        if slot == len(self._static.gpus):
            self._grow()
        if number != slot and self._numbers is None:
            self._numbers = np.arange(len(self._static.gpus))
            self._slots = dict(zip(range(slot), range(slot), strict=True))
        if self._numbers is not None:
            self._numbers[slot], self._slots[number] = number, slot
        self._used, self.submitted = slot + 1, number + 1
        register.ids[number] = spec.id
        register.specs[number] = spec
        register.numbers[spec.id] = number
        declared = (
            at,
            spec.gpus,
            spec.min_gpus,
            spec.max_gpus,
            spec.weight,
            inf if spec.work is None else spec.work,
            inf if spec.deadline is None else spec.deadline,
            self.tenant_number(spec.tenant),
            self._app_number(spec.app),
            PREEMPTIBLE.index(spec.preemptible),
            *length,
        )
        for column, value in zip(self._declared, declared, strict=True):
            column[slot] = value
        self.guarded = self.guarded or spec.preemptible != "yes"
        for row, speed in zip(self._speeds, speeds.tolist(), strict=True):
            row[slot] = speed
        if spec.batch_size is not None:
            self.batch[slot] = spec.batch_size
        self._count(slot, 1)
        self._unserved.add(slot)
        self._live[self.live_count] = slot
        self.live_count += 1

    def reshape(self, number: JobNumber, spec: JobSpec) -> None:
        """Replace a job's specification. Snapshots share the tables, so the changed ones are new."""
        slot = self.slot_of(number)
        self.register = replace(self.register, specs={**self.register.specs, number: spec})
        static = self._static
        static = replace(
            static, gpus=static.gpus.copy(), min_gpus=static.min_gpus.copy(), max_gpus=static.max_gpus.copy()
        )
        self._set_static(static)
        self._recount = True
        static.gpus[slot], static.min_gpus[slot], static.max_gpus[slot] = spec.gpus, spec.min_gpus, spec.max_gpus
        self.hold(slot, self.held[slot])

    def withdraw(self, slot: int) -> None:
        """Remove a job from the live ones."""
        live, count = self._live.data, self.live_count
        at = bisect_left(live, slot, 0, count)
        live[at : count - 1] = live[at + 1 : count]
        self.live_count = count - 1
        self._count(slot, -1)
        self._unserved.discard(slot)

    def readmit(self, slot: int) -> None:
        """Make a withdrawn job live again."""
        live, count = self._live.data, self.live_count
        at = bisect_left(live, slot, 0, count)
        live[at + 1 : count + 1] = live[at:count]
        live[at] = slot
        self.live_count = count + 1
        self._count(slot, 1)
        self.hold(slot, self.held[slot])

    @property
    def kinds(self) -> int:
        """Number of kinds that jobs have speeds for."""
        return len(self.floats) - FloatRow.SPEEDS

    def add_kinds(self, kinds: int) -> None:
        """Let jobs have speeds for this many kinds, 0 on the new ones; snapshots keep the old block."""
        more = np.zeros((kinds - self.kinds, self.floats.shape[1]))
        self._set_blocks(np.concatenate([self.floats, more]), self.ints)

    def note_saved(self, event: JobSaved) -> None:
        """Note that a job has saved its progress, and when in its run."""
        slot = self.slot_on_seats(event)
        if slot >= 0:
            self.safe[slot] = max(self.run[slot] + event.at - event.age - self.since[slot], self.safe[slot])
            found = Saves.WHEN_WARNED if event.when_warned else Saves.ONCE
            self.saves[slot] = max(found, self.saves[slot])

    def charge(self, slot: int) -> None:
        """Add an ended job's GPU-seconds to those of its tenant."""
        tenant = self._tenant[slot]
        self.tenant_service[tenant] = self.tenant_service.item(tenant) + self.attained[slot]

    def placement(self, slot: int) -> Placement | None:
        """Return the seats a job holds."""
        number = self.seats[slot]
        return self.register.placements[number] if number >= 0 else None

    def gpus_by_node(self, numbers: Iterable[JobNumber]) -> dict[int, int]:
        """Return the GPUs that these jobs hold, by node."""
        held: dict[int, int] = {}
        for number in numbers:
            placement = self.placement(self.slot_of(number))
            for node, gpus in () if placement is None else placement.seats:
                held[node] = held.get(node, 0) + gpus
        return held

    def placement_number(self, placement: Placement) -> int:
        """Return the index of a placement in the register, where it is added if new."""
        number = self._placement_index.get(placement.seats)
        if number is None:
            number, shared = len(self.register.placements), self._shared_seats
            placement = Placement(tuple(shared.setdefault(seat, seat) for seat in placement.seats))
            self._placement_index[placement.seats] = number
            self.register.placements.append(placement)
        return number

    def tenant_number(self, tenant: str) -> int:
        """Return the index of a tenant in the register, where it is added if new."""
        number = self._tenant_index.setdefault(tenant, len(self._tenant_index))
        if number == len(self.register.tenants):
            self.register.tenants.append(tenant)
            self.tenant_service = np.append(self.tenant_service, 0.0)
        return number

    def _app_number(self, app: str | None) -> int:
        """Return the index of an app, a new one if it is new; a job outside any app has an index of its own."""
        number = self.app_index.setdefault(app, self._apps) if app else self._apps
        self._apps = max(self._apps, number + 1)
        return number

    def live_slot(self, job: JobNumber) -> int:
        """Return the slot of a job that has not ended, else −1."""
        slot = self.slot_of(job)
        return slot if slot >= 0 and JobState(self.state[slot]).live else -1

    def current_slot(self, event: RunEvent) -> int:
        """Return the slot of the job whose present run an event is about; −1 if it is about another run."""
        slot = self.slot_of(event.job)
        if slot < 0 or self.incarnation[slot] != event.incarnation or self.state[slot] not in _WITH_RUN:
            return -1
        return slot

    def slot_on_seats(self, event: RunEvent) -> int:
        """Return the slot of the job if an event is about its present run and it still holds seats, else −1.

        A job that is being stopped holds none; it may still be measured, as when its partner stops just before it.
        """
        slot = self.current_slot(event)
        return slot if slot >= 0 and self.held[slot] > 0 else -1

    def _grow(self) -> None:
        """Double every column into new buffers; snapshots keep the old ones."""
        size = 2 * len(self._static.gpus)
        static = _static_columns(size)
        for name in StaticColumns.__slots__:
            getattr(static, name)[: size // 2] = getattr(self._static, name)
        self._set_static(static)
        self._set_blocks(
            np.concatenate([self.floats, np.zeros_like(self.floats)], axis=1),
            np.concatenate([self.ints, _int_block(size // 2)], axis=1),
        )
        self._live = np.concatenate([self._live, np.zeros_like(self._live)])
        if self._numbers is not None:
            self._numbers = np.concatenate([self._numbers, np.zeros_like(self._numbers)])


def _entries(block: Any) -> list[Any]:
    """Return the rows of a block as sequences of plain numbers, which share its memory."""
    return [memoryview(row) for row in block]


def _int_block(size: int) -> Int32s:
    """Return the values of jobs that have not run, for this many slots."""
    block = np.zeros((IntRow.COUNT, size), dtype=np.int32)
    block[[IntRow.KIND, IntRow.SEATS, IntRow.PARTNER, IntRow.MEASURED]] = -1
    return block


def _static_columns(size: int) -> StaticColumns:
    columns: dict[str, Any] = {
        column.name: np.zeros(size, dtype=np.float64 if column.type is Floats else np.int32)
        for column in fields(StaticColumns)
    }
    return StaticColumns(**columns)
