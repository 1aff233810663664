"""The rates of jobs on single nodes, in part or whole, and on several nodes, of one kind after the other.

Every rate depends on its own job only. `goodput_options` lists the options of all jobs and carries those that did not
change to the next decision.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices
from shoal.core.batch_limits import BatchLimits
from shoal.core.goodput import GoodputReport, StepFit
from shoal.core.job import JobSpec
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Locality, Placement, Topology
from shoal.perf.goodput import best_of_many
from shoal.policy.option_carry import CarriedSeats, OptionGrid
from shoal.policy.tuning import constant


@dataclass(frozen=True, slots=True)
class OptionsTuning:
    """Constants of the options."""

    most_whole_nodes: int = constant(16, "whole nodes up to which every number is an option; beyond, every 4/3")


OPTIONS = OptionsTuning()


def adapts(spec: JobSpec) -> bool:
    """Whether the job's batch size may be adapted: it declares limits, and its own script does not adapt it."""
    return spec.limits is not None and spec.adaptation is None


def most_explored(spec: JobSpec, report: GoodputReport | None) -> int:
    """The most GPUs of a job whose batch size is adapted: at most twice the most it was measured on."""
    if spec.limits is None:
        return spec.max_gpus
    tried = 2 * report.seen_gpus if report is not None else 1
    return max(min(_usable(spec), max(tried, 1)), spec.min_gpus)


def _usable(spec: JobSpec) -> int:
    """Return the most GPUs that a job may have and for which its batch limits leave a sample each."""
    useful = spec.limits.most // max(spec.limits.least_local, 1) if spec.limits is not None else spec.max_gpus
    return max(min(spec.max_gpus, useful), spec.min_gpus)


class OptionRates:
    """Rates on the options of all kinds, for jobs at given positions.

    ``most`` is by job the most GPUs it may get; ``grids`` are by kind, their columns follow that of ``STAY``.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        reports: Mapping[int, GoodputReport | None],
        most: Indices,
        *,
        every: bool,
        aware: bool,
    ) -> None:
        self.snapshot, self.reports, self.most, self.every, self.aware = snapshot, reports, most, every, aware
        columns, kinds = snapshot.columns, range(len(snapshot.cluster.kinds))
        self._asked = {*np.unique(columns.min_gpus).tolist(), *np.unique(columns.gpus).tolist()}
        self.grids = tuple(_grid(snapshot.cluster, k, self._asked, int(most.max(initial=0)), every) for k in kinds)
        widths = [len(grid.sizes) for grid in self.grids]
        self.firsts = [1 + sum(widths[:k]) for k in kinds]
        self.width = 1 + sum(widths)

    def fill(self, rates: Floats, at: Indices) -> None:
        """Fill in the rates of the jobs at these positions."""
        if not len(at):
            return
        for k, (first, grid) in enumerate(zip(self.firsts, self.grids, strict=True)):
            rates[at, first : first + len(grid.sizes)] = self._of_kind(k, grid, at, self.most[at])

    def _of_kind(self, kind: int, grid: OptionGrid, at: Indices, most: Indices) -> Floats:
        """Return the rates of the jobs at these positions on options of one kind; 0 on options they may not have."""
        columns, name, sizes = self.snapshot.columns, self.snapshot.cluster.kinds[kind], grid.sizes
        fewest, asked = columns.min_gpus[at][:, None], columns.gpus[at][:, None]
        spec = self.snapshot.spec
        may = np.array([(kinds := spec(i).kinds) is None or name in kinds for i in at.tolist()], dtype=bool)
        allowed = (grid.common | (sizes == fewest) | (sizes == asked)) & may[:, None]
        allowed &= (sizes >= fewest) & (sizes <= most[:, None])
        rates = np.zeros(allowed.shape)
        self._fill_adaptive(kind, grid, at, rates)
        self._fill_others(kind, grid, at, rates)
        rates[~allowed] = 0.0
        return rates

    def _fill_adaptive(self, kind: int, grid: OptionGrid, at: Indices, rates: Floats) -> None:
        """Goodput at the best batch; a job of which nothing is known is assumed to scale perfectly."""
        rows: list[int] = []
        fits: list[StepFit] = []
        limits: list[BatchLimits] = []
        noises: list[float] = []
        for row, i in enumerate(at.tolist()) if self.reports else ():
            bounds = self.snapshot.spec(i).limits
            if i not in self.reports:
                continue
            report = self.reports[i]
            if report is None or bounds is None:
                rates[row] = grid.sizes
                continue
            rows.append(row)
            fits.append(kind_fit(self.snapshot, i, kind, report, self.aware))
            limits.append(bounds)
            noises.append(report.noise)
        if rows and len(grid.sizes):
            rates[rows] = best_of_many(fits, limits, np.array(noises), grid.sizes, grid.apart)

    def _fill_others(self, kind: int, grid: OptionGrid, at: Indices, rates: Floats) -> None:
        """Rates of jobs of fixed batch size or without reports: by curve if they are elastic, otherwise by speed."""
        snapshot, columns, name = self.snapshot, self.snapshot.columns, self.snapshot.cluster.kinds[kind]
        fixed = np.ones(len(columns), dtype=bool)
        fixed[list(self.reports)] = False
        elastic = columns.min_gpus[at] < columns.max_gpus[at]
        rigid = (fixed[at] & ~elastic).nonzero()[0]
        rates[rigid] = columns.speeds[at[rigid], kind, None]
        alike: dict[int, tuple[Floats, list[int]]] = {}
        for row in (fixed[at] & elastic).nonzero()[0].tolist():
            curve = snapshot.perf.curve(snapshot.jobs.at(int(at[row])), name)
            alike.setdefault(id(curve), (curve, []))[1].append(row)  # jobs that are alike share one
        for curve, rows in alike.values():
            rates[rows] = curve[np.minimum(grid.sizes, len(curve) - 1)]

    # ── fair shares and seats held ────────────────────────────────────────────────────────────────────────────────

    def fair(self, rates: Floats, at: Indices, share: int, *, whole: bool) -> Floats:
        """Return the best rate within a fair share, as the mean over the usable kinds, weighted by their GPUs.

        A gang that needs more than the share has its rate in proportion, as if it took turns. With ``whole`` the share
        is not limited to twice the GPUs that a job was measured on.
        """
        fewest = self.snapshot.columns.min_gpus[at].astype(float)
        within = np.maximum(share, fewest)
        total, weight = np.zeros(len(at)), np.zeros(len(at))
        turns = np.minimum(1.0, share / np.maximum(fewest, 1.0))
        spec = self.snapshot.spec
        limited = np.array([whole and (self.every or spec(i).limits is not None) for i in at.tolist()], dtype=bool)
        for k, capacity in enumerate(self.snapshot.cluster.capacity):
            grid, first = self.grids[k], self.firsts[k]
            here = _best_within(grid, rates[at, first : first + len(grid.sizes)], within)
            if limited.any():
                here[limited] = self._best_unexplored(k, at[limited], share)
            total += capacity * here * turns
            weight += capacity * (here > 0)
        return np.divide(total, weight, out=np.zeros(len(at)), where=weight > 0)

    def _best_unexplored(self, kind: int, at: Indices, share: int) -> Floats:
        """Return the best rate of these jobs within the share and what they can use, whatever was measured."""
        fewest = self.snapshot.columns.min_gpus[at].astype(np.intp)
        usable = np.array([_usable(self.snapshot.spec(i)) for i in at.tolist()], dtype=np.intp)
        within = np.minimum(usable, np.maximum(share, fewest))
        grid = _grid(self.snapshot.cluster, kind, self._asked, int(within.max(initial=0)), every=False)
        rates: Floats = self._of_kind(kind, grid, at, within).max(axis=1, initial=0.0)
        return rates

    def held(self, rates: Floats, before: CarriedSeats | None, at: Indices, same: Flags) -> CarriedSeats:
        """Return the seats held; jobs marked ``same`` on the same seats have the rates of ``before`` at ``at``."""
        columns, placements = self.snapshot.columns, self.snapshot.register.placements
        numbers = np.where((columns.held > 0) & (columns.partner < 0), columns.seats, np.int32(-1))
        new, there, node = numbers >= 0, np.zeros(len(numbers)), np.full(len(numbers), -1, dtype=np.intp)
        if before is not None:
            kept = same & new & (before.numbers[at] == numbers)
            there, node = np.where(kept, before.rates[at], 0.0), np.where(kept, before.node[at], -1)
            new &= ~kept
        alike: dict[tuple[int, int, int], list[int]] = {}
        for i in new.nonzero()[0].tolist():
            placement = placements[numbers[i]]
            if len(placement.seats) == 1:
                node[i] = placement.seats[0][0]
            apart = int(self.snapshot.cluster.locality(placement))
            alike.setdefault((columns.kind.item(i), placement.gpus, apart), []).append(i)
        for (kind, gpus, apart), jobs in alike.items():
            grid = self.grids[kind]
            for option in ((grid.sizes == gpus) & (grid.apart >= apart)).nonzero()[0].tolist()[::-1]:
                here = rates[jobs, self.firsts[kind] + option]
                there[jobs] = np.where(here > 0, here, there[jobs])  # in the end that of the first such option
            for i in [i for i in jobs if not there[i] > 0]:
                there[i] = _rate_there(self.snapshot, i, placements[numbers[i]], self.reports.get(i), self.aware)
        return CarriedSeats(numbers, there, node)


def _best_within(grid: OptionGrid, rates: Floats, gpus: Floats) -> Floats:
    """Return, by job, the best of its rates on at most this number of GPUs."""
    best: Floats = np.where(grid.sizes <= gpus[:, None], rates, 0.0).max(axis=1, initial=0.0)
    return best


def _grid(cluster: Topology, kind: int, asked: set[int], most: int, every: bool) -> OptionGrid:
    """The options of one kind up to ``most`` GPUs, and those that some job ``asked`` for."""
    capacity, node, far = cluster.capacity[kind], cluster.node_size[kind], int(farthest(cluster, kind))
    common = {n for n in (range(1, capacity + 1) if every else option_sizes(node, capacity)) if n <= most}
    own = {n for n in asked if 0 < n <= capacity} - common
    sizes = np.array(sorted(common | own), dtype=np.intp)
    apart = np.where(sizes <= node, int(Locality.SAME_NODE), far)
    if every:  # as many over several nodes, too
        several = sizes[(sizes > 1) & (sizes <= node)]
        sizes, apart = np.concatenate([sizes, several]), np.concatenate([apart, np.full(len(several), far)])
    return OptionGrid(sizes, apart, np.isin(sizes, sorted(common)))


def option_sizes(node: int, capacity: int) -> list[int]:
    """Numbers of GPUs: parts of a node, a node, and several whole nodes."""
    if not node:
        return []
    nodes = capacity // node
    whole = list(range(2, min(nodes, OPTIONS.most_whole_nodes) + 1))
    while whole and OPTIONS.most_whole_nodes <= whole[-1] <= nodes * 3 // 4:
        whole.append(whole[-1] * 4 // 3)
    return [*range(1, min(node, capacity) + 1), *(n * node for n in whole)]


def farthest(cluster: Topology, kind: int) -> Locality:
    """The locality of several nodes of a kind; they share a rack only if all nodes of the kind do."""
    name = cluster.kinds[kind]
    racks = {node.rack for node in cluster.nodes if node.kind == name}
    return Locality.CROSS_RACK if len(racks) > 1 else Locality.CROSS_NODE


def kind_fit(snapshot: Snapshot, i: int, kind: int, report: GoodputReport, aware: bool) -> StepFit:
    """Return the fit for a kind; without one, or unless ``aware``, that of the kind measured on the most GPUs."""
    fits, names = dict(report.fits), snapshot.cluster.kinds
    if aware and names[kind] in fits:
        return fits[names[kind]]
    held = int(snapshot.columns.kind[i])
    if not aware and held >= 0 and names[held] in fits:
        return fits[names[held]]
    return max(fits.items(), key=lambda item: (item[1].gpus, item[0]))[1]


def _rate_there(snapshot: Snapshot, i: int, placement: Placement, report: GoodputReport | None, aware: bool) -> float:
    """Return the model's rate on the seats a job holds, for which it has no option with as many GPUs as far apart."""
    job, gpus, apart = snapshot.jobs.at(i), placement.gpus, int(snapshot.cluster.locality(placement))
    if not job.spec.min_gpus <= gpus <= job.spec.max_gpus:
        return 0.0
    if job.spec.limits is None or not adapts(job.spec):
        return snapshot.perf.rate(job, placement).value
    if report is None:
        return float(gpus)
    fit = kind_fit(snapshot, job.position, snapshot.cluster.kind_of(placement), report, aware)
    rates = best_of_many([fit], [job.spec.limits], np.array([report.noise]), np.array([gpus]), np.array([apart]))
    return float(rates[0, 0])
