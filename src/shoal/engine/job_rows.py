"""The jobs of a state: the arrays that it folds events into.

Each job has a slot, in order of admission; ``slot_of`` finds it by admission number. Slots are assigned anew when a
state is restored without its ended jobs; until then a job's slot is its admission number. Declared values are only
appended. Values that change are written in place, by slot; a snapshot gathers those of the live jobs.
"""

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any
from weakref import ref

import numpy as np

from shoal.core.arrays import Floats, Indices, Int32s
from shoal.core.columns import Columns, FloatRow, IntRow, Saves, StaticColumns
from shoal.core.errors import JournalError
from shoal.core.events import JobSaved, RunEvent
from shoal.core.job import PREEMPTIBLE, JobSpec
from shoal.core.lifecycle import JobState
from shoal.core.snapshot import Register
from shoal.core.topology import Placement
from shoal.core.units import JobNumber, Seconds

_FIRST_CAPACITY = 64
_WITH_RUN = frozenset(map(int, (JobState.STARTING, JobState.RUNNING, JobState.STOPPING, JobState.SUSPENDED)))


class JobRows:
    """Jobs: declared values, blocks of changing values (rows: ``FloatRow`` and ``IntRow``), and which are live.

    ``tenant_service`` holds, by tenant, the GPU-seconds of ended jobs; ``submitted`` counts all jobs ever submitted,
    those that were dropped included; ``guarded`` is whether any of the others may not always be stopped.
    """

    def __init__(self, kinds: int) -> None:
        self.register = Register({}, {}, {}, [], [], [])
        self.submitted = 0
        self.floats: Floats = np.zeros((FloatRow.SPEEDS + kinds, _FIRST_CAPACITY))
        self.ints: Int32s = np.zeros((IntRow.COUNT, _FIRST_CAPACITY), dtype=np.int32)
        self.tenant_service: Floats = np.zeros(0)
        self.app_index: dict[str, int] = {}
        self.live_count = 0
        self.guarded = False
        self._live: Indices = np.empty(_FIRST_CAPACITY, dtype=np.intp)
        self._static = _static_columns(_FIRST_CAPACITY)
        self._tenant_index: dict[str, int] = {}
        self._placement_index: dict[tuple[tuple[int, int], ...], int] = {}
        self._slots: dict[int, int] = {}
        self._numbers: Indices | None = None  # by slot; None while every job's slot is its number
        self._frozen: ref[Columns] | None = None

    def freeze(self, now: Seconds) -> Columns:
        """Return the live jobs as columns; they keep showing this moment."""
        self.secure()
        slots = self._live[: self.live_count].copy()
        rows = slots if self._numbers is None else self._numbers[slots]
        columns = Columns(now, rows, slots, self._static, self.floats, self.ints)
        self._frozen = ref(columns)
        return columns

    def secure(self) -> None:
        """Prepare for a change: if the last frozen columns are still in use, gather the rows they have not read yet."""
        columns = self._frozen() if self._frozen is not None else None
        if columns is not None:
            columns.secure()
        self._frozen = None

    def slot_of(self, number: JobNumber) -> int:
        """Return a job's slot; −1 if the job has ended and was dropped. A number not yet given is a ``LookupError``."""
        slot = self._slots.get(number, -1)
        if slot < 0 and not 0 <= number < self.submitted:
            raise LookupError(f"no job has number {number}")
        return slot

    def number_at(self, slot: int) -> JobNumber:
        """Return the admission number of the job in a slot."""
        return slot if self._numbers is None else int(self._numbers[slot])

    def add(self, at: Seconds, spec: JobSpec, speeds: Floats) -> None:
        """Append a job, live and without GPUs; ``speeds`` are its rates by kind. Its number is ``submitted``."""
        register, number, slot = self.register, self.submitted, len(self._slots)
        if spec.id in register.numbers:
            raise JournalError(f"job {spec.id!r} was submitted twice")
        if slot == len(self._static.gpus):
            self._grow()
        self._slots[number] = slot
        if number != slot and self._numbers is None:
            self._numbers = np.arange(len(self._static.gpus))
        if self._numbers is not None:
            self._numbers[slot] = number
        self.submitted = number + 1
        register.ids[number] = spec.id
        register.specs[number] = spec
        register.numbers[spec.id] = number
        static, ints = self._static, self.ints
        static.submitted[slot] = at
        static.gpus[slot] = spec.gpus
        static.min_gpus[slot] = spec.min_gpus
        static.max_gpus[slot] = spec.max_gpus
        static.weight[slot] = spec.weight
        static.work[slot] = np.inf if spec.work is None else spec.work
        static.deadline[slot] = np.inf if spec.deadline is None else spec.deadline
        static.tenant[slot] = self.tenant_number(spec.tenant)
        static.app[slot] = self.app_index.setdefault(spec.app or f"\0{spec.id}", len(self.app_index))
        static.preemptible[slot] = PREEMPTIBLE.index(spec.preemptible)
        self.guarded = self.guarded or spec.preemptible != "yes"
        self.floats[FloatRow.SPEEDS :, slot] = speeds
        ints[IntRow.KIND, slot] = ints[IntRow.SEATS, slot] = ints[IntRow.PARTNER, slot] = -1
        ints[IntRow.MEASURED, slot] = -1
        ints[IntRow.BATCH, slot] = spec.batch_size or 0
        self._live[self.live_count] = slot
        self.live_count += 1

    def reshape(self, number: JobNumber, spec: JobSpec) -> None:
        """Replace a job's specification. Snapshots share the tables, so the changed ones are new."""
        slot = self._slots[number]
        self.register = replace(self.register, specs={**self.register.specs, number: spec})
        static = self._static
        self._static = static = replace(
            static, gpus=static.gpus.copy(), min_gpus=static.min_gpus.copy(), max_gpus=static.max_gpus.copy()
        )
        static.gpus[slot], static.min_gpus[slot], static.max_gpus[slot] = spec.gpus, spec.min_gpus, spec.max_gpus

    def withdraw(self, slot: int) -> None:
        """Remove a job from the live ones."""
        live, count = self._live, self.live_count
        at = int(np.searchsorted(live[:count], slot))
        live[at : count - 1] = live[at + 1 : count]
        self.live_count = count - 1

    def readmit(self, slot: int) -> None:
        """Make a withdrawn job live again."""
        live, count = self._live, self.live_count
        at = int(np.searchsorted(live[:count], slot))
        live[at + 1 : count + 1] = live[at:count]
        live[at] = slot
        self.live_count = count + 1

    def submitted_at(self, slot: int) -> Seconds:
        """Return the time of a job's submission."""
        return self._static.submitted.item(slot)

    def app(self, slot: int) -> int:
        """Return the number of a job's app."""
        return self._static.app.item(slot)

    def note_saved(self, event: JobSaved) -> None:
        """Note that a job has saved its progress, and when in its run."""
        slot, ints, floats = self.slot_on_seats(event), self.ints, self.floats
        if slot >= 0:
            ran = floats.item(FloatRow.RUN, slot) + event.at - event.age - floats.item(FloatRow.SINCE, slot)
            floats[FloatRow.SAFE, slot] = max(ran, floats.item(FloatRow.SAFE, slot))
            found = Saves.WHEN_WARNED if event.when_warned else Saves.ONCE
            ints[IntRow.SAVES, slot] = max(found, ints.item(IntRow.SAVES, slot))

    def charge(self, slot: int) -> None:
        """Add an ended job's GPU-seconds to those of its tenant."""
        self.tenant_service[self._static.tenant[slot]] += self.floats[FloatRow.ATTAINED, slot]

    def placement(self, slot: int) -> Placement | None:
        """Return the seats a job holds."""
        number = self.ints.item(IntRow.SEATS, slot)
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
        number = self._placement_index.setdefault(placement.seats, len(self.register.placements))
        if number == len(self.register.placements):
            self.register.placements.append(placement)
        return number

    def tenant_number(self, tenant: str) -> int:
        """Return the index of a tenant in the register, where it is added if new."""
        number = self._tenant_index.setdefault(tenant, len(self._tenant_index))
        if number == len(self.register.tenants):
            self.register.tenants.append(tenant)
            self.tenant_service = np.append(self.tenant_service, 0.0)
        return number

    def live_slot(self, job: JobNumber) -> int:
        """Return the slot of a job that has not ended, else −1."""
        slot = self.slot_of(job)
        return slot if slot >= 0 and JobState(self.ints.item(IntRow.STATE, slot)).live else -1

    def current_slot(self, event: RunEvent) -> int:
        """Return the slot of the job whose present run an event is about; −1 if it is about another run."""
        ints, slot = self.ints, self.slot_of(event.job)
        current = slot >= 0 and ints.item(IntRow.INCARNATION, slot) == event.incarnation
        return slot if current and ints.item(IntRow.STATE, slot) in _WITH_RUN else -1

    def slot_on_seats(self, event: RunEvent) -> int:
        """Return the slot of the job if an event is about its present run and it still holds seats, else −1.

        A job that is being stopped holds none; it may still be measured, as when its partner stops just before it.
        """
        slot = self.current_slot(event)
        return slot if slot >= 0 and self.ints.item(IntRow.HELD, slot) > 0 else -1

    def _grow(self) -> None:
        """Double every column into new buffers; snapshots keep the old ones."""
        size = 2 * len(self._static.gpus)
        old, self._static = self._static, _static_columns(size)
        for name in StaticColumns.__slots__:
            getattr(self._static, name)[: size // 2] = getattr(old, name)
        self.floats = np.concatenate([self.floats, np.zeros_like(self.floats)], axis=1)
        self.ints = np.concatenate([self.ints, np.zeros_like(self.ints)], axis=1)
        self._live = np.concatenate([self._live, np.zeros_like(self._live)])
        if self._numbers is not None:
            self._numbers = np.concatenate([self._numbers, np.zeros_like(self._numbers)])


def _static_columns(size: int) -> StaticColumns:
    columns: dict[str, Any] = {
        column.name: np.zeros(size, dtype=np.float64 if column.type is Floats else np.int32)
        for column in fields(StaticColumns)
    }
    return StaticColumns(**columns)
