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
from shoal.policy.shoal.option_list import OptionList
from shoal.solve.allotment import STAY

ELASTIC, ADAPTIVE, SCRIPTED, IN_APP, NEAR = 1, 2, 4, 8, 16
"""Bits of ``RateTable.traits``: can be resized; batch size may be adapted; its own script changes its batch size; trial
of an app; slower across nodes."""

_SEATS = 6
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

    def width(self, flexible: bool) -> int:
        """Return the number of columns, with that of the seats held."""
        return 1 + sum(2 + len(sizes) if flexible else 1 for sizes in self.sizes)

    def first_columns(self, flexible: bool) -> list[int]:
        """Return, by kind, its first column, for the gang asked for; without ``flexible`` jobs a kind has no other."""
        widths = [2 + len(sizes) if flexible else 1 for sizes in self.sizes]
        return [1 + sum(widths[:k]) for k in range(len(widths))]


@dataclass(frozen=True, slots=True, eq=False)
class Traits:
    """By job: its traits, and the values by which a later snapshot checks whether they are still valid.

    ``seats`` are by kind and GPUs those near together and far apart on this cluster (`one_node.kept_across_nodes`).
    """

    perf: PerfModel
    cluster: Topology
    rows: Indices
    bits: Int32s
    basis: Int32s
    seats: dict[tuple[int, int], tuple[Placement, ...]]


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
    seats = before.seats.copy() if before is not None and before.cluster is snapshot.cluster else {}
    for i in (~same).nonzero()[0].tolist():
        bits[i] = _traits(snapshot, i, seats)
    return Traits(snapshot.perf, snapshot.cluster, columns.rows, bits, basis, seats)


@dataclass(frozen=True, slots=True, eq=False)
class RateTable:
    """The options of all jobs with a rate above 0, and by job its traits.

    ``node`` is by job the node on which it holds all its GPUs, −1 if there is none. ``known`` is False for a job whose
    rates are only a guess at its scaling. Rates were computed from ``perf``, ``kinds``, ``basis``, ``speeds`` and
    ``reports``, which show which rows are still valid. ``origin`` is by job its position in the table before if it had
    the same options there, otherwise −1. ``width`` is the number of columns.
    """

    perf: PerfModel
    kinds: _Kinds
    width: int
    rows: Indices
    traits: Int32s
    basis: Int32s
    speeds: Floats
    reports: Mapping[int, GoodputReport | None]
    options: OptionList
    node: Indices
    known: Flags
    origin: Indices

    @property
    def size(self) -> int:
        """The number of jobs times that of columns."""
        return len(self.rows) * self.width

    def like(self, perf: PerfModel, kinds: _Kinds, width: int) -> bool:
        """Whether it has these columns, and rates from this source."""
        return self.perf is perf and self.kinds == kinds and self.width == width and len(self.rows) > 0


def updated(snapshot: Snapshot, traits: Int32s, before: RateTable | None, *, memory: bool) -> RateTable:
    """The table for a snapshot; rows of ``before`` whose basis is the same are taken from it."""
    columns, count = snapshot.columns, len(snapshot.columns)
    flexible = bool((traits & (ELASTIC | ADAPTIVE)).any())
    widest = int(columns.max_gpus.max(where=(traits & (ELASTIC | ADAPTIVE)) > 0, initial=0))
    kinds = _Kinds.of(snapshot.cluster, widest, None if before is None else before.kinds)
    width = kinds.width(flexible)
    adaptive = np.flatnonzero(traits & ADAPTIVE).tolist()
    reports = {int(columns.rows[i]): joined_report(snapshot, i, memory) for i in adaptive}
    alone = np.where((columns.held > 0) & (columns.partner < 0), columns.seats, -1)
    shape = (columns.batch_size, columns.measured, columns.gpus, columns.min_gpus, columns.max_gpus)
    basis = np.stack([*shape, traits, alone])
    at, same = np.zeros(count, dtype=np.intp), np.zeros(count, dtype=bool)
    seated, old = same, None
    node, known = np.full(count, -1, dtype=np.intp), np.ones(count, dtype=bool)
    if before is not None and before.like(snapshot.perf, kinds, width):
        at, same = match_rows(before.rows, columns.rows)
        alike = before.basis[:, at] == basis
        same = same & alike[:_SEATS].all(axis=0) & (before.speeds[at] == columns.speeds).all(axis=1)
        for i in adaptive:
            row = int(columns.rows[i])
            same[i] &= before.reports.get(row) == reports[row]
        seated, old = same & alike[_SEATS], before.options
        node, known = np.where(seated, before.node[at], -1), np.where(same, before.known[at], True)
    new = (~seated).nonzero()[0]
    own = None
    if len(new) or old is None:
        kept, fresh = same[new].nonzero()[0], (~same[new]).nonzero()[0]
        rates = _FreshRates(snapshot, kinds, traits, reports, new[fresh])
        own = rates.options(flexible)
        known[new[fresh]] = rates.known
        if old is not None and len(kept):
            own = OptionList.merged(len(new), (old.of_jobs(at[new[kept]]).without(STAY), kept), (own, fresh))
        stays, node[new] = _stays(snapshot, kinds, traits, reports, new, own)
        every = np.arange(len(new))
        own = OptionList.merged(len(new), (stays, every), (own, every))
    origin = np.where(seated, at, -1)
    options = _spliced(old, own, origin, new)
    return RateTable(
        snapshot.perf, kinds, width, columns.rows, traits, basis, columns.speeds, reports, options, node, known, origin
    )


def _spliced(old: OptionList | None, own: OptionList | None, origin: Indices, new: Indices) -> OptionList:
    """Return the options of all jobs: by origin those in ``old``, and the ``own`` options of new jobs."""
    if own is not None and (old is None or len(new) == len(origin)):
        return own
    assert old is not None
    if own is None and len(origin) == old.jobs:
        return old
    begin, end = old.begin[origin], old.begin[origin + 1]
    if own is not None:
        begin[new], end[new] = len(old) + 1 + own.begin[:-1], len(old) + 1 + own.begin[1:]
    return old.spliced(own or old, begin, end)


def _traits(snapshot: Snapshot, i: int, seats: dict[tuple[int, int], tuple[Placement, ...]]) -> int:
    spec, job = snapshot.spec(i), snapshot.jobs.at(i)
    traits = ELASTIC * spec.elastic | ADAPTIVE * adapts(spec) | IN_APP * (spec.app is not None)
    traits |= SCRIPTED * (spec.adaptation is not None or bool(spec.batch_schedule))
    if spec.gpus > 1 and spec.model is not None and not traits & (ELASTIC | ADAPTIVE):
        able = [k for k, speed in enumerate(snapshot.columns.speeds[i].tolist()) if speed > 0]
        traits |= NEAR * any(kept_across_nodes(snapshot, job, k, spec.gpus, seats) < 1.0 for k in able)
    return traits


class _FreshRates:
    """The rates of some jobs, jobs × columns, except on the seats they hold; 0 where a job has no such option."""

    def __init__(
        self,
        snapshot: Snapshot,
        kinds: _Kinds,
        traits: Int32s,
        reports: Mapping[int, GoodputReport | None],
        jobs: Indices,
    ) -> None:
        self._snapshot, self._kinds, self._reports = snapshot, kinds, reports
        self._jobs, self._traits = jobs, traits[jobs]
        self.known = np.ones(len(jobs), dtype=bool)

    def options(self, flexible: bool) -> OptionList:
        """Their options with a rate above 0; without ``flexible`` jobs only gangs are columns."""
        columns, kinds, jobs = self._snapshot.columns, self._kinds, self._jobs
        first, width = kinds.first_columns(flexible), kinds.width(flexible)
        gpus, kind = np.ones((len(jobs), width), dtype=np.intp), np.zeros(width, dtype=np.intp)
        rates = np.zeros(gpus.shape)
        for k, (begin, end) in enumerate(zip(first, [*first[1:], width], strict=False)):
            kind[begin:end] = k
            gpus[:, begin] = columns.gpus[jobs]
            if flexible:
                gpus[:, begin + 1] = columns.min_gpus[jobs]
                gpus[:, begin + 2 : end] = kinds.sizes[k]
        rigid = ((self._traits & (ELASTIC | ADAPTIVE)) == 0).nonzero()[0]
        if len(rigid):
            rates[rigid[:, None], first] = columns.speeds[jobs[rigid]]
        self._fill_elastic(first, gpus, rates)
        adaptive = ((self._traits & ADAPTIVE) > 0).nonzero()[0].tolist()
        if adaptive:
            for k, begin in enumerate(first):
                end = begin + 2 + len(kinds.sizes[k])
                rates[adaptive, begin:end] = self._adaptive_rates(k, gpus[adaptive, begin:end], adaptive)
        row, column = (rates > 0).nonzero()
        return OptionList.of(len(jobs), row, column, gpus[row, column], kind[column], rates[row, column])

    def _fill_elastic(self, first: list[int], gpus: Indices, rates: Floats) -> None:
        snapshot, kinds = self._snapshot, self._kinds
        elastic = ((self._traits & (ELASTIC | ADAPTIVE)) == ELASTIC).nonzero()[0]
        for row, i in zip(elastic.tolist(), self._jobs[elastic].tolist(), strict=True):
            job, spec = snapshot.jobs.at(i), snapshot.spec(i)
            for k, column in enumerate(first):
                curve = snapshot.perf.curve(job, kinds.names[k])
                sizes = gpus[row, column : column + 2 + len(kinds.sizes[k])]
                able = (sizes >= spec.min_gpus) & (sizes <= spec.max_gpus) & (sizes <= kinds.installed[k])
                rates[row, column : column + len(sizes)] = np.where(able, curve[np.minimum(sizes, len(curve) - 1)], 0.0)

    def _adaptive_rates(self, kind: int, gpus: Indices, adaptive: list[int]) -> Floats:
        """The rates of these jobs, whose batch size may be adapted, with their numbers of GPUs of a kind."""
        kinds, snapshot, jobs = self._kinds, self._snapshot, self._jobs[adaptive].tolist()
        common, name = kinds.sizes[kind], kinds.names[kind]
        sizes = np.array(sorted({*common.tolist(), *gpus[:, :2].ravel().tolist()}), dtype=np.intp)
        joined = [self._reports[int(snapshot.columns.rows[i])] for i in jobs]
        measured = [row for row, report in enumerate(joined) if report is not None]
        rates = np.tile(sizes.astype(np.float64), (len(jobs), 1))  # of a job never measured: perfect scaling
        if measured:
            known = [(jobs[row], report) for row in measured if (report := joined[row]) is not None]
            fits = [kind_fit(snapshot, i, kind, report, True) for i, report in known]
            limits = [limits for i, _ in known if (limits := snapshot.spec(i).limits) is not None]
            noises = np.array([report.noise for _, report in known])
            rates[measured] = best_of_many(fits, limits, noises, sizes, kinds.distance(kind, sizes))
        found = np.zeros(gpus.shape)
        for row, (i, report) in enumerate(zip(jobs, joined, strict=True)):
            spec, wide = snapshot.spec(i), gpus[row]
            self.known[adaptive[row]] = report is not None
            able = (wide >= spec.min_gpus) & (wide <= most_explored(spec, report)) & (wide <= kinds.installed[kind])
            able &= spec.kinds is None or name in spec.kinds
            found[row] = np.where(able, rates[row, np.searchsorted(sizes, wide)], 0.0)
        return found


def _stays(
    snapshot: Snapshot,
    kinds: _Kinds,
    traits: Int32s,
    reports: Mapping[int, GoodputReport | None],
    jobs: Indices,
    others: OptionList,
) -> tuple[OptionList, Indices]:
    """The options of these jobs on the seats they hold, and the node of each that holds one; ``others`` without seats.

    The rate is if possible that of an option with as many GPUs, no nearer together.
    """
    columns, node = snapshot.columns, np.full(len(jobs), -1, dtype=np.intp)
    held, kind = columns.held[jobs], columns.kind[jobs].astype(np.intp)
    runs = (held > 0) & (columns.partner[jobs] < 0)
    able = runs & (held >= columns.min_gpus[jobs]) & (held <= columns.max_gpus[jobs])
    like = ((others.kind == kind[others.job]) & (others.gpus == held[others.job])).nonzero()[0][::-1]
    rate = np.zeros(len(jobs))
    rate[others.job[like]] = others.rate[like]  # of several of a job the last is kept, which is its first option
    for row, i in zip(runs.nonzero()[0].tolist(), jobs[runs].tolist(), strict=True):
        placement = snapshot.placement(i)
        if placement is not None and len(placement.seats) == 1:
            node[row] = placement.seats[0][0]
    far = runs & ((node < 0) | (rate == 0.0))
    for row in far.nonzero()[0].tolist():
        rate[row] = _rate_there(snapshot, kinds, int(traits[jobs[row]]), reports, int(jobs[row]), others, row)
    stay = (able & (rate > 0)).nonzero()[0]
    zero = np.full(len(stay), STAY)
    return OptionList.of(len(jobs), stay, zero, held[stay].astype(np.intp), kind[stay], rate[stay]), node


def _rate_there(
    snapshot: Snapshot,
    kinds: _Kinds,
    traits: int,
    reports: Mapping[int, GoodputReport | None],
    i: int,
    others: OptionList,
    row: int,
) -> float:
    """Return the rate on the seats that a job holds; ``others`` has its other options at ``row``."""
    placement, spec, kind = snapshot.placement(i), snapshot.spec(i), int(snapshot.columns.kind[i])
    if placement is None or not spec.min_gpus <= placement.gpus <= spec.max_gpus:
        return 0.0
    apart = int(snapshot.cluster.locality(placement))
    if not traits & (ADAPTIVE | NEAR) and spec.model is None:
        apart = int(Locality.SAME_NODE)  # nothing says that distance matters
    own = slice(others.begin[row], others.begin[row + 1])
    sizes = others.gpus[own]
    like = (others.kind[own] == kind) & (sizes == placement.gpus) & (kinds.distance(kind, sizes) >= apart)
    if like.any():
        return float(others.rate[own][like.argmax()])
    report, limits = reports.get(int(snapshot.columns.rows[i])), spec.limits
    if not traits & ADAPTIVE or limits is None:
        return snapshot.perf.rate(snapshot.jobs.at(i), placement).value
    if report is None:
        return float(placement.gpus)
    fit = kind_fit(snapshot, i, kind, report, True)
    return float(
        best_of_many([fit], [limits], np.array([report.noise]), np.array([placement.gpus]), np.array([apart]))[0, 0]
    )
