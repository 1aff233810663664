"""The live jobs as arrays: what never changes about them, what does, and what follows from both.

Every array refuses to be written. A column is gathered, or computed, when it is first read.
"""

from copy import copy
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shoal.core.arrays import Flags, Floats, Indices, Int32s
from shoal.core.units import Seconds


@dataclass(slots=True)
class StaticColumns:
    """What a person declared of a job, by admission number; only ever appended to."""

    submitted: Floats
    gpus: Int32s
    min_gpus: Int32s
    max_gpus: Int32s
    weight: Floats
    work: Floats
    deadline: Floats
    tenant: Int32s
    app: Int32s


F_ATTAINED, F_RUN, F_DONE, F_SINCE, F_PROGRESS_SINCE, F_RATE, F_SPEEDS = range(7)
"""Rows of the block of changing floats; the speeds by kind follow."""

I_STATE, I_HELD, I_KIND, I_INCARNATION, I_SEATS, I_PARTNER, I_STARTS, I_CRASHES, I_BATCH, I_MEASURED, I_ROWS = range(11)
"""Rows of the block of changing integers."""


def sealed(array: NDArray[np.generic]) -> None:
    """Make an array read-only."""
    array.flags.writeable = False


class Columns:
    """The live jobs as arrays, in order of admission. A column is gathered, or computed, when it is first read.

    Until then it is read off the state's own blocks; the state calls ``secure`` before it changes them if anyone
    still holds these columns, so a snapshot shows its moment for as long as it is kept.
    """

    def __init__(self, now: Seconds, rows: Indices, static: StaticColumns, floats: Floats, ints: Int32s) -> None:
        sealed(rows)
        self.now = now
        self.rows = rows
        """Admission numbers, ascending."""
        self._static = static
        self._float_block: Floats | None = floats
        self._int_block: Int32s | None = ints
        self._float_rows: list[Floats | None] = [None] * len(floats)
        self._int_rows: list[Int32s | None] = [None] * len(ints)

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
            sealed(column)
            self._float_rows[row] = column
        return column

    def _int(self, row: int) -> Int32s:
        column = self._int_rows[row]
        if column is None:
            assert self._int_block is not None
            column = self._int_block[row].take(self.rows)
            sealed(column)
            self._int_rows[row] = column
        return column

    def __len__(self) -> int:
        return len(self.rows)

    def with_work(self, work: Floats) -> "Columns":
        """The same jobs at the same moment, had they declared so much work in all."""
        other, work = copy(self), work.copy()
        sealed(work)
        for follows in ("remaining", "remaining_seconds"):
            other.__dict__.pop(follows, None)
        other.__dict__["work"] = work
        return other

    def _gather(self, column: NDArray[np.generic]) -> NDArray[np.generic]:
        gathered = column[self.rows]
        sealed(gathered)
        return gathered

    @cached_property
    def submitted(self) -> Floats:
        """When each was submitted."""
        return self._gather(self._static.submitted)  # type: ignore[return-value]

    @cached_property
    def gpus(self) -> Int32s:
        """The gang each asked for."""
        return self._gather(self._static.gpus)  # type: ignore[return-value]

    @cached_property
    def min_gpus(self) -> Int32s:
        """The fewest GPUs each can run on."""
        return self._gather(self._static.min_gpus)  # type: ignore[return-value]

    @cached_property
    def max_gpus(self) -> Int32s:
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
    def tenant(self) -> Int32s:
        """Index of each job's tenant."""
        return self._gather(self._static.tenant)  # type: ignore[return-value]

    @cached_property
    def app(self) -> Int32s:
        """Index of each job's app; jobs outside any app have one of their own."""
        return self._gather(self._static.app)  # type: ignore[return-value]

    @property
    def state(self) -> Int32s:
        """Each job's ``JobState``."""
        return self._int(I_STATE)

    @property
    def held(self) -> Int32s:
        """GPUs held now; 0 when waiting."""
        return self._int(I_HELD)

    @property
    def kind(self) -> Int32s:
        """Index of the kind held now; −1 when waiting."""
        return self._int(I_KIND)

    @property
    def incarnation(self) -> Int32s:
        """How often each has been started or resized."""
        return self._int(I_INCARNATION)

    @property
    def seats(self) -> Int32s:
        """Index into the table of placements; −1 when waiting."""
        return self._int(I_SEATS)

    @property
    def partner(self) -> Int32s:
        """Admission number of the job GPUs are shared with; −1 for none."""
        return self._int(I_PARTNER)

    @property
    def starts(self) -> Int32s:
        """How often each was started."""
        return self._int(I_STARTS)

    @property
    def crashes(self) -> Int32s:
        """How often in a row each crashed through its own fault without getting further in between."""
        return self._int(I_CRASHES)

    @property
    def batch_size(self) -> Int32s:
        """The batch size each runs at, as last reported; 0 when unknown."""
        return self._int(I_BATCH)

    @property
    def measured(self) -> Int32s:
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

    def _until_now(self, row: int, speed: Int32s | Flags) -> Floats:
        column: Floats = self._float(row) + speed * (self.now - self._float(F_SINCE))
        sealed(column)
        return column

    @cached_property
    def done(self) -> Floats:
        """Progress until now, in the job's own unit, going on at the last measured rate."""
        done: Floats = self._float(F_DONE) + self.rate * (self.now - self._float(F_PROGRESS_SINCE))
        sealed(done)
        return done

    @cached_property
    def speeds(self) -> Floats:
        """By job and kind: estimated rate of the requested gang; 0 where the job cannot run."""
        kinds = range(F_SPEEDS, len(self._float_rows))
        table: Floats = np.stack([self._float(k) for k in kinds], axis=1) if kinds else np.zeros((len(self), 0))
        sealed(table)
        return table

    @cached_property
    def best_speed(self) -> Floats:
        """The estimated rate of the requested gang on the kind that suits the job best; 0 if none does."""
        if len(self._float_rows) == F_SPEEDS + 1:
            return self._float(F_SPEEDS)
        best: Floats = self.speeds.max(axis=1, initial=0.0)
        sealed(best)
        return best

    @cached_property
    def remaining(self) -> Floats:
        """Declared work not yet done, never negative; infinity when not declared."""
        left: Floats = np.maximum(self.work - self.done, 0.0)
        sealed(left)
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
        sealed(left)
        return left
