"""Bids: the worth of each job's options, and the allotment of most worth among them, with the bid that each job makes.

Few options are allotted in plain numbers, which gives the same answer in less time. Of thousands of jobs only those
that can matter are allotted anew (`solve.core_allotment`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Floats, Indices, Int32s
from shoal.core.decision import Verdict
from shoal.core.snapshot import Snapshot
from shoal.policy.goodput_options import node_units
from shoal.policy.shoal.option_list import OptionList
from shoal.policy.shoal.rate_table import RateTable
from shoal.policy.shoal.resumptions import resumptions
from shoal.policy.shoal.tuning import TUNING
from shoal.solve.allotment import STAY, AllotmentOptions, Option, allot, allot_plainly
from shoal.solve.core_allotment import HeldSeats, Nodes, allot_core
from shoal.solve.listed_options import ListedOptions
from shoal.solve.multiple_choice import FEW
from shoal.solve.node_packing import Seats

MANY = 2_000
"""Live jobs from which on only those that can matter are allotted anew."""


@dataclass(frozen=True, slots=True, eq=False)
class Offers:
    """The options that jobs have now, and their worth."""

    options: OptionList
    worth: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Sold:
    """By job: GPUs granted, their kind (of its best option if none), GPUs wanted, its bid for a GPU, a GPU's price.

    ``seats`` are by job served; with thousands of jobs, those that stay on their seats are left out. ``gap`` is how far
    the choice may be below the best; ``verdicts`` are those of jobs that are or were suspended.
    """

    gpus: Int32s
    kinds: Indices
    wanted: Int32s
    bids: Floats
    prices: Floats
    seats: Mapping[int, Seats]
    gap: float
    verdicts: Mapping[int, Verdict]


def sold(snapshot: Snapshot, table: RateTable, offers: Offers) -> Sold:
    """Allot the GPUs to the offers."""
    if len(snapshot.columns) >= MANY and not snapshot.suspensions.runs:
        return _sold_core(snapshot, table, offers)
    options = offers.options
    seats = _seats(snapshot, options.job[options.column == STAY].tolist())
    if len(options) <= FEW and not snapshot.suspensions.runs:
        return _sold_few(snapshot, table, offers, seats)
    return _sold_many(snapshot, table, offers, seats)


def _sold_few(snapshot: Snapshot, table: RateTable, offers: Offers, seats: Sequence[Seats | None]) -> Sold:
    options, columns = offers.options, snapshot.columns
    gangs: list[list[Option]] = [[] for _ in seats]
    numbers = (offers.worth, options.gpus, options.kind, options.column)
    for job, *option in zip(options.job.tolist(), *(of.tolist() for of in numbers), strict=True):
        if option[3] != STAY or seats[job] is not None:
            gangs[job].append(tuple(option))
    tolerance = TUNING.tolerance if table.size > TUNING.large else 0.0
    found = allot_plainly(gangs, seats, node_units(snapshot.cluster), tolerance)
    gpus, kinds, wanted, bids = list[int](), list[int](), list[int](), list[float]()
    for job, gang in enumerate(gangs):
        best = found.picks.get(job) or max(gang, key=_density, default=None)
        gpus.append(best[1] if best and job in found.picks else 0)
        kinds.append(best[2] if best else max(columns.kind.item(job), 0))
        wanted.append(best[1] if best else max(columns.held.item(job), 1))
        bids.append(_density(best) if best else -np.inf)
    return Sold(
        np.array(gpus, dtype=np.int32),
        np.array(kinds, dtype=np.intp),
        np.array(wanted, dtype=np.int32),
        np.array(bids),
        np.array([found.prices[kind] for kind in kinds]),
        found.seats,
        found.gap,
        {},
    )


def _density(option: Option) -> float:
    return option[0] / option[1]


def _sold_many(snapshot: Snapshot, table: RateTable, offers: Offers, seats: list[Seats | None]) -> Sold:
    columns, listed = snapshot.columns, offers.options
    at = listed.job, listed.column
    worth = np.full((len(columns), table.width), -np.inf)
    gpus, pools = np.ones(worth.shape, dtype=np.intp), np.zeros(worth.shape, dtype=np.intp)
    worth[at], gpus[at], pools[at] = offers.worth, listed.gpus, listed.kind
    gpus[:, STAY], pools[:, STAY] = np.maximum(columns.held, 1), np.maximum(columns.kind, 0)
    worth[[there is None for there in seats], STAY] = -np.inf
    resumed = resumptions(snapshot, worth, gpus, pools, seats)
    options = AllotmentOptions(worth, gpus, pools, seats, resumed.node_units)
    allotment = allot(options, TUNING.tolerance if worth.size > TUNING.large else 0.0)
    rows, picks = np.arange(len(columns)), allotment.picks
    served = picks >= 0
    density = np.full(worth.shape, -np.inf)
    able = np.nonzero(np.isfinite(worth))
    density[able] = worth[able] / gpus[able]
    best = np.where(served, picks, density.argmax(axis=1))
    kinds = pools[rows, best]
    wanted = gpus[rows, best].astype(np.int32)
    prices = allotment.prices[kinds]
    bids = density[rows, best]
    granted = np.where(served, wanted, 0).astype(np.int32)
    return Sold(granted, kinds, wanted, bids, prices, allotment.seats, allotment.gap, resumed.verdicts)


def _sold_core(snapshot: Snapshot, table: RateTable, offers: Offers) -> Sold:
    """Allot among thousands of jobs; ``seats`` of the result are those of jobs that may have new ones."""
    columns, listed, worth = snapshot.columns, offers.options, offers.worth
    stays = listed.column == STAY
    wide = _wide_seats(snapshot, listed.job[stays & (table.node[listed.job] < 0)].tolist())
    barred = _barred(wide)
    if len(barred):
        kept = ~stays | ~np.isin(listed.job, barred)
        listed, worth, stays = listed.where(kept), worth[kept], stays[kept]
        wide = wide[~np.isin(wide[:, 0], barred)]

    def seats_of(job: int) -> Seats | None:
        there = snapshot.placement(job)
        return None if there is None else there.seats

    options = ListedOptions(listed.job, worth, listed.gpus.astype(np.float64), listed.kind, stays, listed.begin)
    cluster = snapshot.cluster
    nodes = Nodes(np.array(cluster.usable, dtype=np.intp), np.array(cluster.node_kind, dtype=np.intp))
    found = allot_core(options, HeldSeats(table.node, seats_of, wide), nodes, len(cluster.kinds), TUNING.tolerance)
    density = worth / options.units
    best = np.where(found.picks >= 0, found.picks, options.first_at(density, options.top(density)))
    offered, served = best >= 0, found.picks >= 0
    kinds = np.where(offered, listed.kind[best], np.maximum(columns.kind, 0))
    wanted = np.where(offered, listed.gpus[best], np.maximum(columns.held, 1)).astype(np.int32)
    return Sold(
        np.where(served, wanted, 0).astype(np.int32),
        kinds,
        wanted,
        np.where(offered, density[best], -np.inf),
        found.prices[kinds],
        {job: seats for job, seats in found.seats.items() if not stays[found.picks[job]]},
        found.gap,
        {},
    )


def _wide_seats(snapshot: Snapshot, jobs: list[int]) -> Indices:
    """Return the seats of these jobs (seats × job, node, GPUs)."""
    placements = [(i, placement) for i in jobs if (placement := snapshot.placement(i)) is not None]
    seats = [(i, node, gpus) for i, placement in placements for node, gpus in placement.seats]
    return np.array(seats, dtype=np.intp).reshape(len(seats), 3)


def _barred(wide: Indices) -> Indices:
    """Return the jobs that may not stay on these seats: those that span a node of an earlier job that may stay."""
    if not len(wide) or np.bincount(wide[:, 1]).max() <= 1:
        return wide[:0, 0]
    spanned: set[int] = set()
    barred: list[int] = []
    for i in np.unique(wide[:, 0]).tolist():
        nodes = wide[wide[:, 0] == i, 1].tolist()
        if spanned.isdisjoint(nodes):
            spanned.update(nodes)
        else:
            barred.append(i)
    return np.array(barred, dtype=np.intp)


def _seats(snapshot: Snapshot, stays: Sequence[int]) -> list[Seats | None]:
    """By job the seats it may stay on; of two gangs that span the same node only the first may."""
    held = snapshot.all_placements
    seats: list[Seats | None] = [None] * len(held)
    spanned: set[int] = set()
    for i in stays:
        placement = held[i]
        if placement is None or (len(placement.seats) > 1 and not spanned.isdisjoint(placement.nodes)):
            continue
        if len(placement.seats) > 1:
            spanned.update(placement.nodes)
        seats[i] = placement.seats
    return seats
