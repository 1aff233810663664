"""The allocations that each job could have, and its rate on each: the choices of goodput policies.

All jobs have one form. A job whose batch size may be adapted has the goodput that its agent reports, at the best batch
for each allocation, and at most twice the GPUs it has ever had; a job that is only elastic has the rates of its curve;
a job of fixed size has its speed. Allocations are single nodes, in part or whole, and several whole nodes, of one kind;
a gang that is none of these may still have what it requested. The seats that a job holds are one more option.

References: Qiao et al., OSDI 2021, §3 and §4.2; Jayaram Subramanya et al., SOSP 2023 (kinds).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices
from shoal.core.batch_limits import BatchLimits
from shoal.core.decision import Numbers, Refusal, Verdict, Verdicts
from shoal.core.goodput import GoodputReport, StepFit
from shoal.core.job import ADAPTIVE, JobSpec
from shoal.core.lifecycle import JobState
from shoal.core.reasons import STOPPING, Reason, ReasonTemplate
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Locality, Placement, Topology
from shoal.perf.goodput import best_of_many
from shoal.policy.base import infeasible_refusals
from shoal.policy.tuning import constant
from shoal.solve.allotment import Allotment, AllotmentOptions
from shoal.solve.node_packing import Seats

ALLOTTED = ReasonTemplate(
    14,
    "ALLOTTED",
    "runs on {GPUs granted:,.0f} GPUs: {goodput over that of a fair share:,.4g} times the goodput of its fair "
    "share, {GPUs of a fair share:,.4g} GPUs; its weight is {weight:,.4g}",
)
WORTH_LESS = ReasonTemplate(
    34,
    "WORTH_LESS",
    "waits: {GPUs of its best option:,.0f} GPUs would give it {goodput there over that of a fair share:,.4g} times "
    "the goodput of its fair share, worth {worth of that option:,.4g} at weight {weight:,.4g}; the "
    "{jobs served:,.0f} jobs that have {GPUs of those:,.0f} GPUs are worth more in all",
)


@dataclass(frozen=True, slots=True)
class OptionsTuning:
    """Constants of the options."""

    most_whole_nodes: int = constant(16, "whole nodes up to which every number is an option; beyond, every 4/3")


OPTIONS = OptionsTuning()


@dataclass(frozen=True, slots=True)
class GoodputOptions:
    """By job and option: the rate of progress (0: no option), GPUs and kind.

    Option ``STAY`` is the seats that the job holds (``seats``, by job). ``node_units`` is by kind: GPUs by node.
    ``fair`` is a job's rate on a share of ``fair_gpus``; ``known`` is False for a job whose rates are only a guess at
    its scaling.
    """

    rates: Floats
    gpus: Indices
    kinds: Indices
    seats: Sequence[Seats | None]
    node_units: Sequence[Mapping[int, int]]
    spread: Flags
    """By option: whether it spans several nodes; meaningless for ``STAY``."""
    fair: Floats
    fair_gpus: float
    known: Flags

    def valued(self, worth: Floats) -> AllotmentOptions:
        """Return the options with these worths (jobs × options); those with a rate of 0 cannot be chosen."""
        return AllotmentOptions(
            np.where(self.rates > 0, worth, -np.inf), self.gpus, self.kinds, self.seats, self.node_units
        )

    @property
    def speedups(self) -> Floats:
        """Rates over that of a fair share; 0 where there is no option."""
        return self.rates / np.where(self.fair > 0, self.fair, 1.0)[:, None]


def adapts(spec: JobSpec) -> bool:
    """Whether the job's batch size may be adapted: it declares limits, and its own script does not adapt it."""
    return spec.limits is not None and spec.adaptation is None


def goodput_options(
    snapshot: Snapshot, *, memory: bool, aware: bool, every: bool = False, whole_share: bool = False
) -> GoodputOptions:
    """The options of every live job.

    With ``memory`` a job of a declared model starts from the reports of earlier jobs of that model. Unless ``aware``
    all kinds count as fast as the one the job is on, or was measured on most. With ``every`` any number of GPUs on one
    node and on several is an option, and not only those that pack well. With ``whole_share`` the fair share of a job is
    not limited to twice the GPUs that the job was measured on.
    """
    specs, kinds = snapshot.specs, snapshot.cluster.kinds
    reports = {i: joined_report(snapshot, i, memory) for i, spec in enumerate(specs) if adapts(spec)}
    most = _most(snapshot, reports)
    blocks = [_block(snapshot, k, most, reports, every=every, aware=aware) for k in range(len(kinds))]
    stay_rates, stay_gpus, stay_kinds, seats = _stays(snapshot, blocks, reports, aware)
    rates = np.concatenate([stay_rates[:, None], *(b.rates for b in blocks)], axis=1)
    sizes = np.concatenate([stay_gpus[:, None], *(np.tile(b.sizes, (len(specs), 1)) for b in blocks)], axis=1)
    of_kind = np.concatenate(
        [stay_kinds[:, None], *(np.full(b.rates.shape, k) for k, b in enumerate(blocks))], axis=1, dtype=np.intp
    )
    rates[snapshot.columns.state == int(JobState.STOPPING)] = 0.0
    spread = np.concatenate([[False], *(b.apart > int(Locality.SAME_NODE) for b in blocks)])
    share = ceil(snapshot.cluster.total_gpus / max(len(specs), 1))
    if whole_share:
        usable = np.maximum(snapshot.columns.max_gpus, snapshot.columns.min_gpus).astype(np.intp)
        for i, spec in enumerate(specs):
            if spec.limits is not None:
                usable[i] = _usable(spec)
        within = np.minimum(usable, np.maximum(share, snapshot.columns.min_gpus))
        blocks = [_block(snapshot, k, within, reports, every=False, aware=aware) for k in range(len(kinds))]
    fair = _fair(snapshot, blocks, share)
    known = np.array([i not in reports or reports[i] is not None for i in range(len(specs))], dtype=bool)
    return GoodputOptions(rates, sizes, of_kind, seats, node_units(snapshot.cluster), spread, fair, float(share), known)


# ── what is known ─────────────────────────────────────────────────────────────────────────────────────────────────


def joined_report(snapshot: Snapshot, i: int, memory: bool) -> GoodputReport | None:
    """The report of the job's agent, with ``memory`` completed by the kept report on its model."""
    job = snapshot.jobs.at(i)
    own = snapshot.perf.goodput(job)
    model = job.spec.model
    past = snapshot.model_reports.get(model) if memory and model is not None else None
    if own is None or past is None:
        return own or past
    fits: dict[str, StepFit] = dict(past.fits)
    for kind, fit in own.fits:
        if kind not in fits or fit.gpus >= fits[kind].gpus:
            fits[kind] = fit
    return replace(own, fits=tuple(fits.items()), seen_gpus=max(own.seen_gpus, past.seen_gpus))


def _most(snapshot: Snapshot, reports: Mapping[int, GoodputReport | None]) -> Indices:
    """Return, by job, the most GPUs it may get: what it can use, and at most twice the most it was measured on."""
    most = snapshot.columns.max_gpus.astype(np.intp)
    for i, report in reports.items():
        most[i] = most_explored(snapshot.specs[i], report)
    return most


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


# ── one kind ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Block:
    """Options of one kind: sizes and localities by option, which job may have which, and its rate there."""

    sizes: Indices
    apart: Indices
    allowed: Flags
    rates: Floats

    @classmethod
    def of(cls, snapshot: Snapshot, kind: int, most: Indices, every: bool) -> "_Block":
        columns, cluster = snapshot.columns, snapshot.cluster
        capacity, node, name = cluster.capacity[kind], cluster.node_size[kind], cluster.kinds[kind]
        reach = min(capacity, int(most.max(initial=0)))
        common = {n for n in (range(1, capacity + 1) if every else option_sizes(node, capacity)) if n <= reach}
        fewest, asked = columns.min_gpus.astype(np.intp), columns.gpus.astype(np.intp)
        own = {n for n in {*fewest.tolist(), *asked.tolist()} if 0 < n <= capacity} - common
        sizes = np.array(sorted(common | own), dtype=np.intp)
        apart = np.where(sizes <= node, int(Locality.SAME_NODE), int(farthest(cluster, kind)))
        if every:  # as many over several nodes, too
            several = sizes[(sizes > 1) & (sizes <= node)]
            sizes = np.concatenate([sizes, several])
            apart = np.concatenate([apart, np.full(len(several), int(farthest(cluster, kind)))])
        open_to = np.isin(sizes, sorted(common))[None, :] | (sizes == fewest[:, None]) | (sizes == asked[:, None])
        may = np.array([spec.kinds is None or name in spec.kinds for spec in snapshot.specs], dtype=bool)
        allowed = open_to & may[:, None] & (sizes >= fewest[:, None]) & (sizes <= most[:, None])
        return cls(sizes, apart, allowed, np.zeros(allowed.shape))


def _block(
    snapshot: Snapshot,
    kind: int,
    most: Indices,
    reports: Mapping[int, GoodputReport | None],
    *,
    every: bool,
    aware: bool,
) -> _Block:
    """The options of one kind with their rates."""
    block = _Block.of(snapshot, kind, most, every)
    _fill_adaptive(snapshot, kind, block, reports, aware)
    _fill_others(snapshot, kind, block, reports)
    return block


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


def _fill_adaptive(
    snapshot: Snapshot, kind: int, block: _Block, reports: Mapping[int, GoodputReport | None], aware: bool
) -> None:
    """Goodput at the best batch; a job of which nothing is known is assumed to scale perfectly."""
    at: list[int] = []
    fits: list[StepFit] = []
    limits: list[BatchLimits] = []
    noises: list[float] = []
    for i, report in reports.items():
        bounds = snapshot.specs[i].limits
        if report is None or bounds is None:
            block.rates[i] = block.sizes
            continue
        at.append(i)
        fits.append(kind_fit(snapshot, i, kind, report, aware))
        limits.append(bounds)
        noises.append(report.noise)
    if at and len(block.sizes):
        block.rates[at] = best_of_many(fits, limits, np.array(noises), block.sizes, block.apart)
    block.rates[~block.allowed] = 0.0


def kind_fit(snapshot: Snapshot, i: int, kind: int, report: GoodputReport, aware: bool) -> StepFit:
    """Return the fit for a kind; without one, or unless ``aware``, that of the kind measured on the most GPUs."""
    fits, names = dict(report.fits), snapshot.cluster.kinds
    if aware and names[kind] in fits:
        return fits[names[kind]]
    held = int(snapshot.columns.kind[i])
    if not aware and held >= 0 and names[held] in fits:
        return fits[names[held]]
    return max(fits.items(), key=lambda item: (item[1].gpus, item[0]))[1]


def _fill_others(snapshot: Snapshot, kind: int, block: _Block, reports: Mapping[int, GoodputReport | None]) -> None:
    """Rates of jobs of fixed batch size, those without reports: by curve if they are elastic, otherwise by speed."""
    columns, name = snapshot.columns, snapshot.cluster.kinds[kind]
    elastic, rigid = columns.min_gpus < columns.max_gpus, columns.min_gpus >= columns.max_gpus
    elastic[list(reports)] = rigid[list(reports)] = False
    block.rates[rigid] = columns.speeds[rigid, kind, None]
    for i in np.flatnonzero(elastic).tolist():
        curve = snapshot.perf.curve(snapshot.jobs.at(i), name)
        block.rates[i] = curve[np.minimum(block.sizes, len(curve) - 1)]
    block.rates[~block.allowed] = 0.0


# ── seats held, nodes, fair shares ────────────────────────────────────────────────────────────────────────────────


def _stays(
    snapshot: Snapshot, blocks: Sequence[_Block], reports: Mapping[int, GoodputReport | None], aware: bool
) -> tuple[Floats, Indices, Indices, Sequence[Seats | None]]:
    """Return, by job, the rate on the seats it holds (0 without any), their number of GPUs, their kind, the seats."""
    columns, count = snapshot.columns, len(snapshot.columns)
    rates, gpus, kinds = np.zeros(count), np.ones(count, dtype=np.intp), np.zeros(count, dtype=np.intp)
    seats: list[Seats | None] = [None] * count
    spanned: set[int] = set()
    alike: dict[tuple[int, int, int], list[int]] = {}
    for i in np.flatnonzero((columns.held > 0) & (columns.partner < 0)).tolist():
        placement = snapshot.all_placements[i]
        if placement is None or (len(placement.seats) > 1 and not spanned.isdisjoint(placement.nodes)):
            continue
        if len(placement.seats) > 1:
            spanned.update(placement.nodes)
        gpus[i], kinds[i], seats[i] = placement.gpus, columns.kind[i], placement.seats
        apart = int(snapshot.cluster.locality(placement))
        alike.setdefault((kinds.item(i), placement.gpus, apart), []).append(i)
    for (kind, held, apart), jobs in alike.items():
        block = blocks[kind]
        for option in np.flatnonzero((block.sizes == held) & (block.apart >= apart)).tolist()[::-1]:
            there = block.rates[jobs, option]
            rates[jobs] = np.where(there > 0, there, rates[jobs])  # in the end that of the first such option
        for i in [i for i in jobs if not rates[i] > 0]:
            placement = snapshot.all_placements[i]
            rates[i] = 0.0 if placement is None else _rate_there(snapshot, i, placement, reports.get(i), aware)
            if not rates[i] > 0:
                seats[i] = None
    return rates, gpus, kinds, seats


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


def node_units(cluster: Topology) -> Sequence[Mapping[int, int]]:
    """By kind: the GPUs that jobs may hold on each node that has any."""
    units: list[dict[int, int]] = [{} for _ in cluster.kinds]
    for n, gpus in enumerate(cluster.usable):
        if gpus:
            units[cluster.node_kind[n]][n] = gpus
    return units


def _fair(snapshot: Snapshot, blocks: Sequence[_Block], share: int) -> Floats:
    """Return the best rate within a fair share, as the mean over the usable kinds, weighted by their GPUs.

    A gang that needs more than the share has its rate in proportion, as if it took turns.
    """
    fewest = snapshot.columns.min_gpus.astype(float)
    total, weight = np.zeros(len(fewest)), np.zeros(len(fewest))
    for block, capacity in zip(blocks, snapshot.cluster.capacity, strict=True):
        within = np.where(block.sizes <= np.maximum(share, fewest)[:, None], block.rates, 0.0)
        here = within.max(axis=1, initial=0.0)
        total += capacity * here * np.minimum(1.0, share / np.maximum(fewest, 1.0))
        weight += capacity * (here > 0)
    return np.divide(total, weight, out=np.zeros(len(fewest)), where=weight > 0)


# ── verdicts ─────────────────────────────────────────────────────────────────────────────────────────────────────


def allotted(
    snapshot: Snapshot, found: GoodputOptions, options: AllotmentOptions, allotment: Allotment, weights: Floats
) -> Verdicts:
    """Verdicts for an allotment: seats for each job served; the reason of a refusal gives the job's best option."""
    rows, picks = np.arange(len(weights)), allotment.picks
    served = picks >= 0
    gpus = np.where(served, found.gpus[rows, picks], 0).astype(np.int32)
    density = np.where(np.isfinite(options.worth), options.worth / options.units, -inf)
    best_option = density.argmax(axis=1) if density.shape[1] else np.zeros(len(weights), dtype=np.intp)
    numbers: Numbers = {
        ALLOTTED: (gpus, found.speedups[rows, picks], found.fair_gpus, weights),
        WORTH_LESS: (
            found.gpus[rows, best_option].astype(np.int32),
            found.speedups[rows, best_option],
            np.maximum(options.worth[rows, best_option], 0.0),
            weights,
            int(served.sum()),
            int(gpus.sum()),
        ),
    }
    chosen = np.flatnonzero(served).tolist()
    verdicts = Verdicts(
        snapshot,
        gpus=gpus,
        codes=np.where(served, ALLOTTED.code, WORTH_LESS.code),
        numbers=numbers,
        kinds=np.where(served, found.kinds[rows, picks], -1).astype(np.int8),
        batches={i: ADAPTIVE for i in chosen if adapts(snapshot.specs[i])},
        placements={i: Placement(allotment.seats[i]) for i in chosen},
    )
    refusals: dict[int, Verdict] = dict(infeasible_refusals(snapshot, gpus))
    for i in np.flatnonzero(snapshot.columns.state == int(JobState.STOPPING)).tolist():
        refusals[i] = Refusal(Reason(STOPPING))
    return verdicts.overruled(refusals)
