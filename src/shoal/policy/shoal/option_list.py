"""The options of all jobs one after the other: most jobs have few of the options that some job has."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from shoal.core.arrays import Flags, Floats, Indices
from shoal.solve.listed_options import first_options, highest

T = TypeVar("T", np.intp, np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class OptionList:
    """Options in order of jobs and columns: position of the job, column, GPUs, kind, rate.

    ``begin`` is by job the number of its first option, and at its end the number of options.
    """

    begin: Indices
    job: Indices
    column: Indices
    gpus: Indices
    kind: Indices
    rate: Floats

    @classmethod
    def of(cls, jobs: int, job: Indices, column: Indices, gpus: Indices, kind: Indices, rate: Floats) -> "OptionList":
        """The options of this number of jobs."""
        return cls(first_options(jobs, job), job, column, gpus, kind, rate)

    def __len__(self) -> int:
        return len(self.job)

    @property
    def jobs(self) -> int:
        """The number of jobs."""
        return len(self.begin) - 1

    def without(self, column: int) -> "OptionList":
        """The options that are not in a column."""
        return self.where(self.column != column)

    def where(self, kept: Flags) -> "OptionList":
        """Some of the options."""
        at = kept.nonzero()[0]
        columns = (self.column[at], self.gpus[at], self.kind[at], self.rate[at])
        return OptionList.of(self.jobs, self.job[at], *columns)

    def top(self, values: Floats, none: float) -> Floats:
        """By job the most of these values, which are by option; ``none`` without an option."""
        return highest(values, self.begin, none)

    def of_jobs(self, jobs: Indices) -> "OptionList":
        """The options of these jobs, which are numbered from 0."""
        count = self.begin[jobs + 1] - self.begin[jobs]
        begin = np.zeros(len(jobs) + 1, dtype=np.intp)
        np.cumsum(count, out=begin[1:])
        at = np.arange(int(begin[-1])) + np.repeat(self.begin[jobs] - begin[:-1], count)
        job = np.repeat(np.arange(len(jobs)), count)
        return OptionList(begin, job, self.column[at], self.gpus[at], self.kind[at], self.rate[at])

    @classmethod
    def merged(cls, jobs: int, *parts: tuple["OptionList", Indices]) -> "OptionList":
        """Return the options of all parts by job; a part is a list of options and, by its jobs, their numbers here."""
        job = np.concatenate([numbers[part.job] for part, numbers in parts])
        order = job.argsort(kind="stable")
        column = np.concatenate([part.column for part, _ in parts])
        gpus = np.concatenate([part.gpus for part, _ in parts])
        kind = np.concatenate([part.kind for part, _ in parts])
        rate = np.concatenate([part.rate for part, _ in parts])
        return cls.of(jobs, job[order], column[order], gpus[order], kind[order], rate[order])

    def spliced(self, other: "OptionList", begin: Indices, end: Indices) -> "OptionList":
        """Return, by job, options ``begin`` to ``end``; those of ``other`` are numbered from ``len(self) + 1`` on."""
        own, starts = len(self) + 1, np.zeros(len(begin) + 1, dtype=np.intp)
        np.cumsum(end - begin, out=starts[1:])
        used = (end > begin).nonzero()[0]
        if not len(used):
            return no_options(len(begin))
        first, last = begin[used], end[used]
        breaks = (first[1:] != last[:-1]).nonzero()[0]  # parts that follow each other are copied at once
        runs = list(zip(first[[0, *(breaks + 1)]].tolist(), last[[*breaks, -1]].tolist(), strict=True))

        def joined(mine: NDArray[T], others: NDArray[T]) -> NDArray[T]:
            return np.concatenate([mine[a:b] if a < own else others[a - own : b - own] for a, b in runs])

        return OptionList(
            starts,
            np.repeat(np.arange(len(begin)), end - begin),
            joined(self.column, other.column),
            joined(self.gpus, other.gpus),
            joined(self.kind, other.kind),
            joined(self.rate, other.rate),
        )


def no_options(jobs: int) -> OptionList:
    """No option of any of this number of jobs."""
    empty = np.zeros(0, dtype=np.intp)
    return OptionList(np.zeros(jobs + 1, dtype=np.intp), empty, empty, empty, empty, np.zeros(0))
