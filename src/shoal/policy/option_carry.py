"""The options of the last decision, carried so that only jobs that changed are listed again.

A job's options are valid as long as it has the same basis: what it asks for, its batch size, its measurements and its
report. Options do not depend on other jobs, except that all jobs have the same columns: where the columns change, a
job's rates move to other columns.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices, Int32s
from shoal.core.goodput import GoodputReport
from shoal.core.interfaces import PerfModel
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Topology
from shoal.policy.carried_rows import match_rows


@dataclass(frozen=True, slots=True)
class OptionSettings:
    """How options are listed.

    With ``memory`` a job of a declared model starts from the reports of earlier jobs of that model. Unless ``aware``
    all kinds count as fast as the one the job is on, or was measured on most. With ``every`` any number of GPUs on one
    node and on several is an option, and not only those that pack well. With ``whole_share`` the fair share of a job is
    not limited to twice the GPUs that the job was measured on.
    """

    memory: bool
    aware: bool
    every: bool = False
    whole_share: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class OptionGrid:
    """The options of one kind: their GPUs, their distance, and those that any job may have (``common``)."""

    sizes: Indices
    apart: Indices
    common: Flags

    @property
    def labels(self) -> list[tuple[int, int]]:
        """GPUs and distance of each option."""
        return list(zip(self.sizes.tolist(), self.apart.tolist(), strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class OptionBasis:
    """What the options of each job were computed from; ``values`` and ``speeds`` are jobs × values.

    ``reports`` are by admission number of each job whose batch size may be adapted.
    """

    perf: PerfModel
    cluster: Topology
    settings: OptionSettings
    rows: Indices
    values: Int32s
    speeds: Floats
    reports: Mapping[int, GoodputReport | None]

    @classmethod
    def of(
        cls, snapshot: Snapshot, reports: Mapping[int, GoodputReport | None], settings: OptionSettings
    ) -> "OptionBasis":
        """The basis of every live job."""
        columns = snapshot.columns
        values = [columns.gpus, columns.min_gpus, columns.max_gpus, columns.batch_size, columns.measured]
        if not settings.aware:
            values.append(columns.kind)
        numbers = columns.rows[list(reports)].tolist() if reports else []
        by_number = dict(zip(numbers, reports.values(), strict=True))
        stacked = np.stack(values, axis=1)
        return cls(snapshot.perf, snapshot.cluster, settings, columns.rows, stacked, columns.speeds, by_number)

    def like(self, other: "OptionBasis") -> bool:
        """Whether jobs with equal values have equal options."""
        same = self.perf is other.perf and self.settings == other.settings and len(other.rows) > 0
        return same and (self.cluster is other.cluster or self.cluster == other.cluster)

    def matched(self, before: "OptionBasis") -> tuple[Indices, Flags]:
        """By job its position in ``before``, and whether its options there are still valid."""
        at, same = match_rows(before.rows, self.rows)
        same &= (before.values[at] == self.values).all(axis=1)
        same &= (before.speeds[at] == self.speeds).all(axis=1)
        for number, report in self.reports.items():
            if number not in before.reports or before.reports[number] != report:
                same[np.searchsorted(self.rows, number)] = False
        return at, same


@dataclass(frozen=True, slots=True, eq=False)
class CarriedSeats:
    """By job: the number of its seats (−1: none or shared), the rate there, their node (−1: none or several)."""

    numbers: Int32s
    rates: Floats
    node: Indices


@dataclass(frozen=True, slots=True, eq=False)
class OptionsCarry:
    """The options of the last decision; ``rates`` are jobs × columns, all else by job.

    The first column is for the seats held, of the jobs marked ``there``; then come the columns of each kind's grid.
    """

    basis: OptionBasis
    grids: tuple[OptionGrid, ...]
    share: int
    rates: Floats
    fair: Floats
    adapting: Flags
    held: CarriedSeats
    there: Flags

    @property
    def known(self) -> Flags:
        """By job, False where the rates are only a guess at its scaling."""
        known = ~self.adapting
        known[self.adapting] = [report is not None for report in self.basis.reports.values()]
        return known

    @property
    def columns(self) -> tuple[Indices, Indices]:
        """GPUs and kind of each column after the first."""
        sizes = np.concatenate([np.zeros(0, dtype=np.intp), *(grid.sizes for grid in self.grids)])
        return sizes, np.repeat(np.arange(len(self.grids)), [len(grid.sizes) for grid in self.grids])

    def rates_at(self, at: Indices, same: Flags, grids: tuple[OptionGrid, ...]) -> Floats:
        """Return the rates of the jobs at these positions in the columns of ``grids``; 0 unless marked ``same``."""
        old, new = _labels(self.grids), _labels(grids)
        if old == new:
            rates = self.rates.take(at, axis=0)
        else:
            place = {label: column for column, label in enumerate(old)}
            rates = np.zeros((len(at), len(new)))
            columns = [(column, place[label]) for column, label in enumerate(new) if label in place]
            to, of = np.array(columns, dtype=np.intp).T
            rates[:, to] = self.rates[at[:, None], of]
        rates[~same] = 0.0
        return rates


def _labels(grids: tuple[OptionGrid, ...]) -> list[tuple[int, tuple[int, int]]]:
    """Return, by column, its kind, and its GPUs and distance; the first stands for the seats held."""
    return [(-1, (0, 0)), *((k, label) for k, grid in enumerate(grids) for label in grid.labels)]
