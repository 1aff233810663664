"""The live jobs as arrays: declared values, values that change, and values derived from both.

Every array is read-only. A column is gathered or computed when it is first read.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from shoal.core.arrays import Flags, Floats, Indices, Int32s
from shoal.core.cached import cached
from shoal.core.units import Seconds

_A = TypeVar("_A", bound=NDArray[Any])


@dataclass(slots=True)
class StaticColumns:
    """Declared values of all jobs of the state, by slot; rows are only appended."""

    submitted: Floats
    gpus: Int32s
    min_gpus: Int32s
    max_gpus: Int32s
    weight: Floats
    work: Floats
    deadline: Floats
    tenant: Int32s
    app: Int32s
    preemptible: Int32s
    length_class: Int32s
    length_scale: Floats


class FloatRow:
    """Rows of the state's block of changing floats; from ``SPEEDS`` on there is a row for each kind."""

    ATTAINED, RUN, DONE, SINCE, PROGRESS_SINCE, RATE, SAFE, SPEEDS = range(8)


class IntRow:
    """Rows of the state's block of changing integers; ``COUNT`` is their number."""

    STATE, HELD, KIND, INCARNATION, SEATS, PARTNER, STARTS, CRASHES, BATCH, MEASURED, SAVES, COUNT = range(12)


class Saves:
    """Values of ``Columns.saves``: whether a job is known to save checkpoints."""

    UNKNOWN, ONCE, WHEN_WARNED = range(3)


def sealed(array: _A) -> _A:
    """Make an array read-only and return it."""
    array.setflags(False)  # type: ignore[call-arg]  # named, ``write`` takes twice as long
    return array


class _LiveRows(Generic[_A]):
    """Rows of a block of the state for the live jobs only, each gathered when it is first read."""

    __slots__ = ("_block", "_columns", "_live")

    def __init__(self, block: _A, live: Indices) -> None:
        self._block: _A | None = block
        self._live = live
        self._columns: dict[int, _A] = {}

    def __getitem__(self, row: int) -> _A:
        column = self._columns.get(row)
        if column is None:
            assert self._block is not None
            column = self._columns[row] = self._block[row].take(self._live)
            column.setflags(False)
        return column

    def __len__(self) -> int:
        return len(self._columns) if self._block is None else len(self._block)

    def at(self, row: int, position: int) -> Any:
        """Return one entry of a row as a plain number, without gathering the row."""
        column = self._columns.get(row)
        if column is not None:
            return column.item(position)
        assert self._block is not None
        return self._block.item(row, self._live.item(position))

    def from_row(self, row: int) -> _A:
        """Return the rows from this one on as one array, jobs × rows."""
        if self._block is not None:
            return cast(_A, self._block[row:].take(self._live, axis=1).T.copy())
        return cast(_A, np.array([self[k] for k in range(row, len(self))]).T.copy())

    def take(self, keep: Indices) -> "_LiveRows[_A]":
        """Return the rows of some of the jobs, by position."""
        other = copy(self)
        other._block = None
        other._columns = {row: cast(_A, sealed(self[row].take(keep))) for row in range(len(self))}
        return other

    def replace(self, row: int, column: _A) -> None:
        """Use this column in place of a row of the block."""
        self._columns[row] = sealed(column)

    def secure(self) -> None:
        """Gather every row; afterwards the block may change."""
        for row in range(len(self)):
            self[row]
        self._block = None


class _Declared(Generic[_A]):
    """A static column, gathered for the live jobs when it is first read."""

    def __init__(self, doc: str) -> None:
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, columns: "Columns", owner: type | None = None) -> _A:
        column: _A = getattr(columns._static, self._name).take(columns._slots)
        column.setflags(False)  # type: ignore[call-arg]
        columns.__dict__[self._name] = column  # found there by later reads
        return column


class _Int:
    """A row of the block of changing integers."""

    def __init__(self, row: int, doc: str) -> None:
        self._row = row
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, columns: "Columns", owner: type | None = None) -> Int32s:
        column = columns.__dict__[self._name] = columns._ints[self._row]  # found there by later reads
        return column


class Columns:
    """The live jobs as arrays, in order of admission.

    Columns are gathered from the state's own blocks. While these columns are in use, the state calls ``secure`` before
    it changes a block, so a snapshot keeps showing its moment.
    """

    def __init__(
        self, now: Seconds, rows: Indices, slots: Indices, static: StaticColumns, floats: Floats, ints: Int32s
    ) -> None:
        self.now = now
        self.rows = rows
        """Admission numbers, ascending."""
        rows.setflags(False)  # type: ignore[call-arg]
        self._slots = slots
        self._static = static
        self._floats = _LiveRows(floats, slots)
        self._ints = _LiveRows(ints, slots)

    def secure(self) -> None:
        """Gather all columns not yet read; afterwards the state's blocks may change."""
        self._floats.secure()
        self._ints.secure()

    def __len__(self) -> int:
        return len(self.rows)

    @cached
    def int_at(self) -> Callable[[int, int], int]:
        """Function that returns the entry of a row of `IntRow` at a position; cheaper than the row if few are read."""
        return self._ints.at

    def keep_totals(self, demand: int, widest: int, all_able: bool, unserved: Sequence[int] | None) -> None:
        """Set the totals, which the state keeps, so that they need not be computed; ``unserved`` unless it is None."""
        kept = self.__dict__
        kept["demand"], kept["widest"], kept["all_able"] = demand, widest, all_able
        if unserved is not None:
            kept["unserved"] = unserved

    def subset(self, keep: Indices) -> "Columns":
        """Return the columns of the jobs at these positions, ascending; a job whose partner is left out has none."""
        other = copy(self)
        other.__dict__ = {"now": self.now, "rows": sealed(self.rows[keep]), "_static": self._static}
        other._slots = self._slots[keep]
        other._floats, other._ints = self._floats.take(keep), self._ints.take(keep)
        partner = other._ints[IntRow.PARTNER]
        other._ints.replace(IntRow.PARTNER, np.where(np.isin(partner, other.rows), partner, -1).astype(np.int32))
        return other

    def with_work(self, work: Floats) -> "Columns":
        """Return these columns with another total work declared for each job."""
        other = copy(self)
        for derived in ("remaining", "remaining_seconds"):
            other.__dict__.pop(derived, None)
        other.__dict__["work"] = sealed(work.copy())
        return other

    submitted = _Declared[Floats]("Time of submission, seconds.")
    gpus = _Declared[Int32s]("GPUs of the requested gang.")
    min_gpus = _Declared[Int32s]("Fewest GPUs the job can run on.")
    max_gpus = _Declared[Int32s]("Most GPUs the job can use.")
    weight = _Declared[Floats]("The job's weight.")
    work = _Declared[Floats]("Declared total work, in the job's own unit; infinity if not declared.")
    deadline = _Declared[Floats]("Time by which the job should be done; infinity if not declared.")
    tenant = _Declared[Int32s]("Index of the job's tenant.")
    app = _Declared[Int32s]("Index of the job's app; a job outside any app has an index of its own.")
    preemptible = _Declared[Int32s]("Index into ``core.job.PREEMPTIBLE``: 0 if the job may always be stopped.")
    length_class = _Declared[Int32s]("Class of the job in the history of lengths; −1 if it declares its work.")
    length_scale = _Declared[Floats]("Work of a second in which the history counts the job's length.")

    state = _Int(IntRow.STATE, "The job's ``JobState``.")
    held = _Int(IntRow.HELD, "GPUs held now; 0 while waiting.")
    kind = _Int(IntRow.KIND, "Index of the kind held now; −1 while waiting.")
    incarnation = _Int(IntRow.INCARNATION, "Number of times the job was started or resized.")
    seats = _Int(IntRow.SEATS, "Index into the table of placements; −1 while waiting.")
    partner = _Int(IntRow.PARTNER, "Admission number of the job GPUs are shared with; −1 for none.")
    starts = _Int(IntRow.STARTS, "Number of times the job was started.")
    crashes = _Int(IntRow.CRASHES, "Crashes in a row that the job is to blame for (see ``core.retry``).")
    batch_size = _Int(IntRow.BATCH, "Batch size as last reported, samples; 0 if unknown.")
    measured = _Int(IntRow.MEASURED, "Head of the job's chain of measurements; −1 for none.")

    saves = _Int(IntRow.SAVES, "Whether the job never saved, has saved, or saves when warned (``Saves``).")

    @cached
    def since(self) -> Floats:
        """Time at which the job got the GPUs it holds; meaningless for a waiting job."""
        return self._floats[FloatRow.SINCE]

    @cached
    def rate(self) -> Floats:
        """Measured progress per second; 0 unless running."""
        return self._floats[FloatRow.RATE]

    @cached
    def attained(self) -> Floats:
        """GPU-seconds held until now."""
        return self._until_now(FloatRow.ATTAINED, self.held)

    @cached
    def run_seconds(self) -> Floats:
        """Seconds with GPUs until now."""
        return self._until_now(FloatRow.RUN, self.held > 0)

    def _until_now(self, row: int, per_second: Int32s | Flags) -> Floats:
        column: Floats = self._floats[row] + per_second * (self.now - self.since)
        return sealed(column)

    @cached
    def unsaved(self) -> Floats:
        """Seconds of run that a stop now would lose: since the last save or the start of the run.

        0 for a waiting job and for one that saves when it is stopped.
        """
        safe = (self.preemptible == 0) | (self.saves == Saves.WHEN_WARNED) | (self.held == 0)
        lost: Floats = np.where(safe, 0.0, np.maximum(self.run_seconds - self._floats[FloatRow.SAFE], 0.0))
        return sealed(lost)

    @cached
    def done(self) -> Floats:
        """Progress until now, in the job's own unit, extrapolated at the last measured rate."""
        done: Floats = self._floats[FloatRow.DONE] + self.rate * (self.now - self._floats[FloatRow.PROGRESS_SINCE])
        return sealed(done)

    @cached
    def speeds(self) -> Floats:
        """Jobs × kinds: estimated rate of the requested gang; 0 where the job cannot run."""
        return sealed(self._floats.from_row(FloatRow.SPEEDS))

    @cached
    def best_speed(self) -> Floats:
        """Estimated rate of the requested gang on the job's best kind; 0 if it can run on none."""
        if len(self._floats) == FloatRow.SPEEDS + 1:
            return self._floats[FloatRow.SPEEDS]
        best = np.zeros(len(self))
        for k in range(FloatRow.SPEEDS, len(self._floats)):  # faster than a maximum over a short axis
            np.maximum(best, self._floats[k], out=best)
        return sealed(best)

    @cached
    def demand(self) -> int:
        """GPUs that all jobs together ask for."""
        return int(np.add.reduce(self.gpus))

    @cached
    def widest(self) -> int:
        """GPUs of the widest gang that a job asks for; 0 without jobs."""
        return int(self.gpus.max(initial=0))

    @cached
    def all_able(self) -> bool:
        """Whether every job can run on some kind."""
        return bool(self.best_speed.all())

    @cached
    def unserved(self) -> Sequence[int]:
        """Positions of the jobs that hold another number of GPUs than the requested gang's, ascending."""
        unserved: list[int] = (self.gpus != self.held).nonzero()[0].tolist()
        return unserved

    @cached
    def remaining(self) -> Floats:
        """Declared work not yet done, never negative; infinity if not declared."""
        left: Floats = np.maximum(self.work - self.done, 0.0)
        return sealed(left)

    @cached
    def remaining_seconds(self) -> Floats:
        """Estimated run time left with the requested gang on the best kind; infinity if unknown or impossible."""
        speed = self.best_speed
        if self.all_able:  # several times as fast as a division with a mask
            return sealed(self.remaining / speed)
        left = np.full(len(self), np.inf)
        np.divide(self.remaining, speed, out=left, where=speed > 0)
        return sealed(left)
