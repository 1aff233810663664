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
from shoal.core.decision import Numbers, Refusal, Verdict, Verdicts
from shoal.core.goodput import GoodputReport, StepFit
from shoal.core.job import ADAPTIVE
from shoal.core.lifecycle import JobState
from shoal.core.reasons import STOPPING, Reason, ReasonTemplate
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Locality, Placement, Topology
from shoal.policy.base import infeasible_refusals
from shoal.policy.carried_rows import match_rows
from shoal.policy.option_carry import CarriedSeats, OptionBasis, OptionsCarry, OptionSettings
from shoal.policy.option_rates import (
    OPTIONS,
    OptionRates,
    OptionsTuning,
    adapts,
    farthest,
    kind_fit,
    most_explored,
    option_sizes,
)
from shoal.solve.allotment import STAY, Allotment, AllotmentOptions
from shoal.solve.node_packing import Seats, SeatTable

__all__ = [
    "ALLOTTED",
    "OPTIONS",
    "WORTH_LESS",
    "GoodputOptions",
    "OptionsTuning",
    "adapts",
    "allotted",
    "carried_options",
    "farthest",
    "goodput_options",
    "joined_report",
    "kind_fit",
    "most_explored",
    "node_units",
    "option_sizes",
    "tabled",
]

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
    carry: OptionsCarry
    """What the next decision takes over."""

    def valued(self, worth: Floats) -> AllotmentOptions:
        """Return the options with these worths (jobs × options); those with a rate of 0 cannot be chosen."""
        return AllotmentOptions(
            np.where(self.rates > 0, worth, -np.inf), self.gpus, self.kinds, self.seats, self.node_units
        )

    @property
    def speedups(self) -> Floats:
        """Rates over that of a fair share; 0 where there is no option."""
        return self.rates / np.where(self.fair > 0, self.fair, 1.0)[:, None]


def goodput_options(
    snapshot: Snapshot,
    *,
    memory: bool,
    aware: bool,
    every: bool = False,
    whole_share: bool = False,
    before: OptionsCarry | None = None,
) -> GoodputOptions:
    """The options of every live job in tables, by `carried_options`."""
    settings = OptionSettings(memory, aware, every, whole_share)
    return tabled(snapshot, carried_options(snapshot, settings, before))


def carried_options(snapshot: Snapshot, settings: OptionSettings, before: OptionsCarry | None) -> OptionsCarry:
    """The options of every live job; those of jobs that did not change are taken from ``before``."""
    count, adapting = len(snapshot.columns), _adapting(snapshot, before)
    reports = {i: joined_report(snapshot, i, settings.memory) for i in adapting.nonzero()[0].tolist()}
    basis = OptionBasis.of(snapshot, reports, settings)
    rates_of = OptionRates(snapshot, reports, _most(snapshot, reports), every=settings.every, aware=settings.aware)
    share = ceil(snapshot.cluster.total_gpus / max(count, 1))
    if before is None or not basis.like(before.basis):
        before, at, same = None, np.zeros(count, dtype=np.intp), np.zeros(count, dtype=bool)
        rates, fair, unfair = np.zeros((count, rates_of.width)), np.zeros(count), np.arange(count)
    else:
        at, same = basis.matched(before.basis)
        rates, fair = before.rates_at(at, same, rates_of.grids), before.fair[at]
        unfair = (~same).nonzero()[0] if before.share == share else np.arange(count)
    rates_of.fill(rates, (~same).nonzero()[0])
    fair[unfair] = rates_of.fair(rates, unfair, share, whole=settings.whole_share)
    held = rates_of.held(rates, None if before is None else before.held, at, same)
    there = _apart_held(snapshot, held)
    rates[:, STAY] = np.where(there, held.rates, 0.0)
    return OptionsCarry(basis, rates_of.grids, share, rates, fair, adapting, held, there)


def _adapting(snapshot: Snapshot, before: OptionsCarry | None) -> Flags:
    """By job whether its batch size may be adapted, which never changes."""
    if before is None or not len(before.adapting):
        return np.array([adapts(spec) for spec in snapshot.specs], dtype=bool)
    at, same = match_rows(before.basis.rows, snapshot.columns.rows)
    adapting: Flags = before.adapting[at]
    for i in (~same).nonzero()[0].tolist():
        adapting[i] = adapts(snapshot.spec(i))
    return adapting


def tabled(snapshot: Snapshot, carry: OptionsCarry) -> GoodputOptions:
    """The options gathered in a carry, in tables; a job that is being stopped has none."""
    columns, held, there = snapshot.columns, carry.held, carry.there
    rates, sizes, kinds = carry.rates, *(np.empty(carry.rates.shape, dtype=np.intp) for _ in range(2))
    stopping = columns.state == int(JobState.STOPPING)
    if stopping.any():
        rates = np.where(stopping[:, None], 0.0, rates)
    sizes[:, 1:], kinds[:, 1:] = carry.columns
    sizes[:, STAY], kinds[:, STAY] = np.where(there, columns.held, 1), np.where(there, columns.kind, 0)
    spread = np.concatenate([[False], *(grid.apart > int(Locality.SAME_NODE) for grid in carry.grids)])
    stays = there & (held.rates > 0)
    placements, several = snapshot.register.placements, (stays & (held.node < 0)).nonzero()[0].tolist()
    wide = {i: placements[held.numbers[i]].seats for i in several}
    return GoodputOptions(
        rates,
        sizes,
        kinds,
        SeatTable(np.where(stays, held.node, -1), columns.held, wide),
        node_units(snapshot.cluster),
        spread,
        carry.fair,
        float(carry.share),
        carry.known,
        carry,
    )


def _apart_held(snapshot: Snapshot, held: CarriedSeats) -> Flags:
    """By job, whether it may keep its seats: of jobs that span nodes and share one of these, only the first may."""
    there: Flags = held.numbers >= 0
    spanned: set[int] = set()
    for i in (there & (held.node < 0)).nonzero()[0].tolist():
        nodes = snapshot.register.placements[held.numbers[i]].nodes
        there[i] = spanned.isdisjoint(nodes)
        if there[i]:
            spanned.update(nodes)
    return there


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


# ── nodes and verdicts ────────────────────────────────────────────────────────────────────────────────────────────────


def node_units(cluster: Topology) -> Sequence[Mapping[int, int]]:
    """By kind: the GPUs that jobs may hold on each node that has any."""
    units: list[dict[int, int]] = [{} for _ in cluster.kinds]
    for n, gpus in enumerate(cluster.usable):
        if gpus:
            units[cluster.node_kind[n]][n] = gpus
    return units


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
