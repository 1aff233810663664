"""The allocations that each job could have, and its rate on each; rows of jobs that did not change are kept.

Columns: the seats a job holds (``STAY``), then for each kind the gang asked for, the fewest GPUs, and the common sizes
(parts of a node, whole nodes). A rigid job has only its gang. A job whose batch size may be adapted has the goodput
that its agent reports, at the best batch for each size, and at most twice the GPUs it has ever had; an elastic job has
the rates of its curve.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices, Int32s
from shoal.core.goodput import GoodputReport
from shoal.core.interfaces import PerfModel
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Locality, Placement, Topology
from shoal.perf.goodput import best_of_many
from shoal.policy.carried_rows import match_rows
from shoal.policy.goodput_options import adapts, farthest, joined_report, kind_fit, most_explored, option_sizes
from shoal.policy.one_node import kept_across_nodes
from shoal.solve.allotment import STAY

ELASTIC, ADAPTIVE, SCRIPTED, IN_APP, NEAR = 1, 2, 4, 8, 16
"""Bits of ``RateTable.traits``: can be resized; batch size may be adapted; its own script changes its batch size; trial
of an app; slower across nodes."""

_SEATS = 5
"""The row of ``RateTable.basis`` on which only the rate of the seats held depends."""


@dataclass(frozen=True, slots=True)
class _Kinds:
    """The kinds of a cluster as installed, each with its common sizes up to ``most`` and the distance of those."""

    names: tuple[str, ...]
    installed: tuple[int, ...]
    node_size: tuple[int, ...]
    most: int
    sizes: tuple[Indices, ...] = field(compare=False)
    far: tuple[int, ...] = field(compare=False)
    """By kind, the distance of GPUs on several nodes."""

    @classmethod
    def of(cls, cluster: Topology, widest: int, before: "_Kinds | None") -> "_Kinds":
        """Return the kinds of a cluster for jobs of at most ``widest`` GPUs; ``before`` itself if it still holds."""
        most = 1 << max(widest - 1, 0).bit_length()  # so that few new jobs change it
        installed = (cluster.kinds, cluster.installed, cluster.node_size, most)
        if before is not None and (before.names, before.installed, before.node_size, before.most) == installed:
            return before
        sizes = [
            np.array([size for size in option_sizes(node, gpus) if size <= most], dtype=np.intp)
            for gpus, node in zip(cluster.installed, cluster.node_size, strict=True)
        ]
        return cls(*installed, tuple(sizes), tuple(int(farthest(cluster, k)) for k in range(len(cluster.kinds))))

    def distance(self, kind: int, sizes: Indices) -> Indices:
        """Return, by number of GPUs of a kind, how far apart they are on as few nodes as possible."""
        return np.where(sizes <= self.node_size[kind], int(Locality.SAME_NODE), self.far[kind])

    def first_columns(self, flexible: bool) -> list[int]:
        """Return, by kind, its first column, for the gang asked for; without ``flexible`` jobs a kind has no other."""
        widths = [2 + len(sizes) if flexible else 1 for sizes in self.sizes]
        return [1 + sum(widths[:k]) for k in range(len(widths))]


@dataclass(frozen=True, slots=True, eq=False)
class Traits:
    """By job: its traits, and the values by which a later snapshot checks whether they are still valid."""

    perf: PerfModel
    rows: Indices
    bits: Int32s
    basis: Int32s


def traits_of(snapshot: Snapshot, before: Traits | None) -> Traits:
    """The traits of all jobs; those of jobs with the same basis are taken from ``before``."""
    columns = snapshot.columns
    if before is not None and before.perf is not snapshot.perf:
        before = None
    basis = np.stack([columns.gpus, columns.min_gpus, columns.max_gpus, columns.measured])
    bits, same = np.zeros(len(columns), dtype=np.int32), np.zeros(len(columns), dtype=bool)
    if before is not None and len(before.rows):
        at, same = match_rows(before.rows, columns.rows)
        same &= (before.basis[:, at] == basis).all(axis=0)
        bits = np.where(same, before.bits[at], 0)
    seats: dict[tuple[int, int], tuple[Placement, ...]] = {}
    for i in (~same).nonzero()[0].tolist():
        bits[i] = _traits(snapshot, i, seats)
    return Traits(snapshot.perf, columns.rows, bits, basis)


@dataclass(frozen=True, slots=True, eq=False)
class RateTable:
    """By job: traits, and the rate on each option; 0 where it has no such option.

    ``rates`` and ``gpus`` are jobs × columns, ``pools`` is the kind of each column; that of ``STAY`` differs by job.
    ``known`` is False for a job whose rates are only a guess at its scaling. Rates were computed from ``basis``,
    ``reports``, ``perf`` and ``kinds``, which show which rows are still valid.
    """

    perf: PerfModel
    kinds: _Kinds
    rows: Indices
    traits: Int32s
    basis: Int32s
    reports: Mapping[int, GoodputReport | None]
    rates: Floats
    gpus: Indices
    pools: Indices
    known: Flags

    def like(self, other: "RateTable") -> bool:
        """Whether both have the same columns and rates from the same source."""
        same = self.perf is other.perf and self.kinds == other.kinds
        return same and len(self.rows) > 0 and self.rates.shape[1] == other.rates.shape[1]

    @property
    def flexible(self) -> bool:
        """Whether any job has more options than its gang on each kind."""
        return bool((self.traits & (ELASTIC | ADAPTIVE)).any())


def updated(snapshot: Snapshot, traits: Int32s, before: RateTable | None, *, memory: bool) -> RateTable:
    """The table for a snapshot; rows of ``before`` whose basis is the same are taken from it."""
    columns = snapshot.columns
    widest = int(columns.max_gpus.max(where=(traits & (ELASTIC | ADAPTIVE)) > 0, initial=0))
    kinds = _Kinds.of(snapshot.cluster, widest, None if before is None else before.kinds)
    adaptive = np.flatnonzero(traits & ADAPTIVE).tolist()
    reports = {int(columns.rows[i]): joined_report(snapshot, i, memory) for i in adaptive}
    table, first = _empty(snapshot, traits, kinds, reports)
    same = seated = np.zeros(len(columns), dtype=bool)
    if before is not None and before.like(table):
        at, same = match_rows(before.rows, columns.rows)
        alike = before.basis[:, at] == table.basis
        same = same & alike[:_SEATS].all(axis=0)
        for i in adaptive:
            row = int(columns.rows[i])
            same[i] &= before.reports.get(row) == reports[row]
        table.rates[same] = before.rates[at[same]]
        table.known[same] = before.known[at[same]]
        seated = same & alike[_SEATS]
    _fill(snapshot, table, first, ~same)
    rigid = ((traits & (ELASTIC | ADAPTIVE)) == 0).nonzero()[0]
    if len(rigid):
        table.rates[rigid[:, None], first] = columns.speeds[rigid]
    _fill_stays(snapshot, table, first, ~seated)
    return table


def _empty(
    snapshot: Snapshot, traits: Int32s, kinds: _Kinds, reports: Mapping[int, GoodputReport | None]
) -> tuple[RateTable, list[int]]:
    """A table without rates, and by kind its first column."""
    columns = snapshot.columns
    flexible = bool((traits & (ELASTIC | ADAPTIVE)).any())
    first = kinds.first_columns(flexible)
    stops = [*first[1:], *([first[-1] + (2 + len(kinds.sizes[-1]) if flexible else 1)] if first else [])]
    width = stops[-1] if stops else 1
    gpus, pools = np.ones((len(columns), width), dtype=np.intp), np.zeros(width, dtype=np.intp)
    for k, (column, stop) in enumerate(zip(first, stops, strict=True)):
        pools[column:stop] = k
        gpus[:, column] = columns.gpus
        if flexible:
            gpus[:, column + 1] = columns.min_gpus
            gpus[:, column + 2 : stop] = kinds.sizes[k]
    basis = (columns.batch_size, columns.measured, columns.gpus, columns.min_gpus, columns.max_gpus, columns.seats)
    rates, known = np.zeros(gpus.shape), np.ones(len(columns), dtype=bool)
    table = RateTable(
        snapshot.perf, kinds, columns.rows, traits, np.stack(basis), reports, rates, gpus, pools, known
    )  # fmt: skip
    return table, first


def _traits(snapshot: Snapshot, i: int, seats: dict[tuple[int, int], tuple[Placement, ...]]) -> int:
    spec, job = snapshot.specs[i], snapshot.jobs.at(i)
    traits = ELASTIC * spec.elastic | ADAPTIVE * adapts(spec) | IN_APP * (spec.app is not None)
    traits |= SCRIPTED * (spec.adaptation is not None or bool(spec.batch_schedule))
    if spec.gpus > 1 and spec.model is not None and not traits & (ELASTIC | ADAPTIVE):
        able = [k for k, speed in enumerate(snapshot.columns.speeds[i].tolist()) if speed > 0]
        traits |= NEAR * any(kept_across_nodes(snapshot, job, k, spec.gpus, seats) < 1.0 for k in able)
    return traits


def _fill(snapshot: Snapshot, table: RateTable, first: list[int], wanted: Flags) -> None:
    """Fill in the rates of the wanted elastic and adaptive jobs, except on the seats they hold."""
    if not wanted.any():
        return
    for i in np.flatnonzero(wanted & ((table.traits & (ELASTIC | ADAPTIVE)) == ELASTIC)).tolist():
        job, spec = snapshot.jobs.at(i), snapshot.specs[i]
        for k, column in enumerate(first):
            curve = snapshot.perf.curve(job, table.kinds.names[k])
            sizes = table.gpus[i, column : column + 2 + len(table.kinds.sizes[k])]
            rates = curve[np.minimum(sizes, len(curve) - 1)]
            able = (sizes >= spec.min_gpus) & (sizes <= spec.max_gpus) & (sizes <= table.kinds.installed[k])
            table.rates[i, column : column + len(sizes)] = np.where(able, rates, 0.0)
    adaptive = np.flatnonzero(wanted & ((table.traits & ADAPTIVE) > 0)).tolist()
    if adaptive:
        for k, column in enumerate(first):
            _fill_adaptive(snapshot, table, k, column, adaptive)


def _fill_adaptive(snapshot: Snapshot, table: RateTable, kind: int, column: int, jobs: list[int]) -> None:
    common, name = table.kinds.sizes[kind], table.kinds.names[kind]
    stop = column + 2 + len(common)
    own = {int(g) for i in jobs for g in table.gpus[i, column : column + 2]}
    sizes = np.array(sorted({*common.tolist(), *own}), dtype=np.intp)
    measured = [i for i in jobs if table.reports[int(table.rows[i])] is not None]
    rates = np.tile(sizes.astype(np.float64), (len(jobs), 1))  # of a job never measured: perfect scaling
    if measured:
        reports = [table.reports[int(table.rows[i])] for i in measured]
        fits = [kind_fit(snapshot, i, kind, r, True) for i, r in zip(measured, reports, strict=True) if r is not None]
        noises = np.array([r.noise for r in reports if r is not None])
        limits = [snapshot.specs[i].limits for i in measured]
        apart = table.kinds.distance(kind, sizes)
        at = [jobs.index(i) for i in measured]
        rates[at] = best_of_many(fits, [x for x in limits if x is not None], noises, sizes, apart)
    for row, i in enumerate(jobs):
        spec, report = snapshot.specs[i], table.reports[int(table.rows[i])]
        table.known[i] = report is not None
        wide = table.gpus[i, column:stop]
        there = rates[row, np.searchsorted(sizes, wide)]
        able = (wide >= spec.min_gpus) & (wide <= most_explored(spec, report)) & (wide <= table.kinds.installed[kind])
        able &= spec.kinds is None or name in spec.kinds
        table.rates[i, column:stop] = np.where(able, there, 0.0)


def _fill_stays(snapshot: Snapshot, table: RateTable, first: list[int], wanted: Flags) -> None:
    """Fill in rates and GPUs of the seats held, where these are wanted."""
    columns = snapshot.columns
    runs = (columns.held > 0) & (columns.partner < 0)
    table.rates[~runs, STAY] = 0.0
    table.gpus[:, STAY] = np.maximum(columns.held, 1)
    for i in np.flatnonzero(wanted & runs).tolist():
        table.rates[i, STAY] = _rate_there(snapshot, table, i, first[int(columns.kind[i])])


def _rate_there(snapshot: Snapshot, table: RateTable, i: int, column: int) -> float:
    """Return the rate on the seats a job holds, if possible that of an option with as many GPUs, no nearer together."""
    placement, spec, kind = snapshot.placement(i), snapshot.specs[i], int(snapshot.columns.kind[i])
    if placement is None or not spec.min_gpus <= placement.gpus <= spec.max_gpus:
        return 0.0
    apart = int(snapshot.cluster.locality(placement))
    if not table.traits[i] & ADAPTIVE and not table.traits[i] & NEAR and spec.model is None:
        apart = int(Locality.SAME_NODE)  # nothing says that distance matters
    stop = column + 2 + len(table.kinds.sizes[kind]) if table.flexible else column + 1
    sizes = table.gpus[i, column:stop]
    like = (sizes == placement.gpus) & (table.kinds.distance(kind, sizes) >= apart) & (table.rates[i, column:stop] > 0)
    if like.any():
        return float(table.rates[i, column:stop][like.argmax()])
    report, limits = table.reports.get(int(table.rows[i])), spec.limits
    if not table.traits[i] & ADAPTIVE or limits is None:
        return snapshot.perf.rate(snapshot.jobs.at(i), placement).value
    if report is None:
        return float(placement.gpus)
    fit = kind_fit(snapshot, i, kind, report, True)
    return float(
        best_of_many([fit], [limits], np.array([report.noise]), np.array([placement.gpus]), np.array([apart]))[0, 0]
    )
