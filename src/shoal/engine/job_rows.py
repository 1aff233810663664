"""All jobs ever submitted, by admission number: the arrays that the state folds events into.

A job's admission number is its slot and never changes. Declared values are only appended. Values that change are
written in place, by slot; a snapshot gathers those of the live jobs.
"""

from dataclasses import fields, replace
from typing import Any
from weakref import ref

import numpy as np

from shoal.core.arrays import Floats, Indices, Int32s
from shoal.core.columns import Columns, FloatRow, IntRow, StaticColumns
from shoal.core.errors import JournalError
from shoal.core.job import JobSpec
from shoal.core.snapshot import Register
from shoal.core.topology import Placement
from shoal.core.units import Seconds

_FIRST_CAPACITY = 64


class JobRows:
    """All jobs: declared values, blocks of changing values (rows: ``FloatRow`` and ``IntRow``), and which are live.

    ``tenant_service`` holds, by tenant, the GPU-seconds of ended jobs.
    """

    def __init__(self, kinds: int) -> None:
        self.register = Register([], [], {}, [], [], [])
        self.floats: Floats = np.zeros((FloatRow.SPEEDS + kinds, _FIRST_CAPACITY))
        self.ints: Int32s = np.zeros((IntRow.COUNT, _FIRST_CAPACITY), dtype=np.int32)
        self.tenant_service: Floats = np.zeros(0)
        self.app_index: dict[str, int] = {}
        self.live_count = 0
        self._live: Indices = np.empty(_FIRST_CAPACITY, dtype=np.intp)
        self._static = _static_columns(_FIRST_CAPACITY)
        self._tenant_index: dict[str, int] = {}
        self._placement_index: dict[tuple[tuple[int, int], ...], int] = {}
        self._frozen: ref[Columns] | None = None

    def freeze(self, now: Seconds) -> Columns:
        """Return the live jobs as columns; they keep showing this moment."""
        self.secure()
        columns = Columns(now, self._live[: self.live_count].copy(), self._static, self.floats, self.ints)
        self._frozen = ref(columns)
        return columns

    def secure(self) -> None:
        """Prepare for a change: if the last frozen columns are still in use, gather the rows they have not read yet."""
        columns = self._frozen() if self._frozen is not None else None
        if columns is not None:
            columns.secure()
        self._frozen = None

    def add(self, at: Seconds, spec: JobSpec, speeds: Floats) -> None:
        """Append a job, live and without GPUs; ``speeds`` are its rates by kind."""
        register, slot = self.register, len(self.register.ids)
        if spec.id in register.numbers:
            raise JournalError(f"job {spec.id!r} was submitted twice")
        if slot == len(self._static.gpus):
            self._grow()
        register.ids.append(spec.id)
        register.specs.append(spec)
        register.numbers[spec.id] = slot
        static, ints = self._static, self.ints
        static.submitted[slot] = at
        static.gpus[slot] = spec.gpus
        static.min_gpus[slot] = spec.min_gpus
        static.max_gpus[slot] = spec.max_gpus
        static.weight[slot] = spec.weight
        static.work[slot] = np.inf if spec.work is None else spec.work
        static.deadline[slot] = np.inf if spec.deadline is None else spec.deadline
        static.tenant[slot] = self._tenant_number(spec.tenant)
        static.app[slot] = self.app_index.setdefault(spec.app or f"\0{spec.id}", len(self.app_index))
        self.floats[FloatRow.SPEEDS :, slot] = speeds
        ints[IntRow.KIND, slot] = ints[IntRow.SEATS, slot] = ints[IntRow.PARTNER, slot] = -1
        ints[IntRow.MEASURED, slot] = -1
        ints[IntRow.BATCH, slot] = spec.batch_size or 0
        self._live[self.live_count] = slot
        self.live_count += 1

    def reshape(self, slot: int, spec: JobSpec) -> None:
        """Replace a job's specification. Snapshots share the tables, so the changed ones are new."""
        specs = list(self.register.specs)
        specs[slot] = spec
        self.register = replace(self.register, specs=specs)
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

    def app(self, slot: int) -> int:
        """Return the number of a job's app."""
        return self._static.app.item(slot)

    def charge(self, slot: int) -> None:
        """Add an ended job's GPU-seconds to those of its tenant."""
        self.tenant_service[self._static.tenant[slot]] += self.floats[FloatRow.ATTAINED, slot]

    def placement(self, slot: int) -> Placement | None:
        """Return the seats a job holds."""
        number = self.ints.item(IntRow.SEATS, slot)
        return self.register.placements[number] if number >= 0 else None

    def placement_number(self, placement: Placement) -> int:
        """Return the index of a placement in the register, where it is added if new."""
        number = self._placement_index.setdefault(placement.seats, len(self.register.placements))
        if number == len(self.register.placements):
            self.register.placements.append(placement)
        return number

    def _tenant_number(self, tenant: str) -> int:
        number = self._tenant_index.setdefault(tenant, len(self._tenant_index))
        if number == len(self.register.tenants):
            self.register.tenants.append(tenant)
            self.tenant_service = np.append(self.tenant_service, 0.0)
        return number

    def _grow(self) -> None:
        """Double every column into new buffers; snapshots keep the old ones."""
        size = 2 * len(self._static.gpus)
        old, self._static = self._static, _static_columns(size)
        for name in StaticColumns.__slots__:
            getattr(self._static, name)[: size // 2] = getattr(old, name)
        self.floats = np.concatenate([self.floats, np.zeros_like(self.floats)], axis=1)
        self.ints = np.concatenate([self.ints, np.zeros_like(self.ints)], axis=1)
        self._live = np.concatenate([self._live, np.zeros_like(self._live)])


def _static_columns(size: int) -> StaticColumns:
    columns: dict[str, Any] = {
        column.name: np.zeros(size, dtype=np.float64 if column.type is Floats else np.int32)
        for column in fields(StaticColumns)
    }
    return StaticColumns(**columns)
