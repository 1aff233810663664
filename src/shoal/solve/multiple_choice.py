"""The multiple-choice knapsack: at most one option a row, each taking units of one pool, for the most worth.

    maximise   Σ_i worth[i, c_i]  over one column c_i (or none) for each row i
    subject to Σ_{i: pool of c_i = k} units[i, c_i] ≤ capacity_k.

Prices on the pools give a bound (Lagrangian relaxation); repairing and filling the choices at these prices gives a
value; options that would lose more than bound − value are excluded, and the rest is solved exactly by dynamic
programming where that is small enough (`LARGEST_SEARCH`). The answer always carries its bound.

References: Sinha and Zoltners (1979) for the problem; Pisinger (1995) for the core; Fisher (1981) for the bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heapreplace
from typing import TypeAlias

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices
from shoal.solve.few_choices import FewChoices, Option, best_of_few
from shoal.solve.knapsack import best_options_apart
from shoal.solve.pool_prices import PoolOptions, clearing_prices

_STEPS = 60
"""Subgradient steps with several pools."""
LARGEST_SEARCH = 6_000_000
"""Limit on states × options of the exact search, for the time of a decision."""
_TIE = 1e-12
_ALIKE = 1e-5
"""Where prices are given: fraction of an option's price by which it may miss the best choice and still be as good."""
FEW = 240
"""Options up to which a loop is faster than array operations."""
_OUTDATED = 16
"""Outdated gains that are recomputed one by one before all are."""
_Change: TypeAlias = tuple[float, int, int]
"""Of a row: the least loss per unit freed by another choice, the row, and that choice (−1: none)."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """By row the column chosen, −1 for none; the total worth, and a bound on the best total worth."""

    picks: Indices
    value: float
    bound: float
    exact: bool
    """Whether the value is proven to be the optimum."""
    prices: Floats = field(default_factory=lambda: np.zeros(0))
    """By pool: the price of a unit at which the bound was found."""

    @property
    def gap(self) -> float:
        """How far the value may be below the best, as a fraction of the bound; never below 0."""
        return max(self.bound - self.value, 0.0) / self.bound if self.bound > 0 else 0.0


@dataclass(frozen=True, slots=True)
class ChoiceTable:
    """Options (rows × columns): worth over none (−inf: no option), units (≥ 1), pool; ``capacity`` by pool."""

    worth: Floats
    units: Indices
    pools: Indices
    capacity: Indices

    def priced(self, prices: Floats) -> Floats:
        """Return the worth of each option minus the price of its units."""
        net: Floats = self.worth - prices[self.pools] * self.units
        return net

    def used(self, picks: Indices) -> Indices:
        """Units taken by pool."""
        rows = np.flatnonzero(picks >= 0)
        pools, units = self.pools[rows, picks[rows]], self.units[rows, picks[rows]]
        return np.bincount(pools, weights=units, minlength=len(self.capacity)).astype(np.intp)

    def value(self, picks: Indices) -> float:
        """The total worth of the choices."""
        rows = np.flatnonzero(picks >= 0)
        return float(self.worth[rows, picks[rows]].sum())


def best_choices(
    worth: Floats,
    units: Indices,
    pools: Indices,
    capacity: Sequence[int],
    tolerance: float = 0.0,
    prices: Floats | None = None,
) -> Chosen:
    """The choices of most worth within the capacity of each pool; options worth 0 or less are never chosen.

    The search ends as soon as the value is within ``tolerance`` of the bound, as a fraction of it. If the ``prices`` of
    the pools are given, no others are tried.
    """
    pool_units = np.asarray(capacity, dtype=np.intp)
    rows, columns = worth.shape
    if not rows or not columns or not len(pool_units):
        return Chosen(np.full(rows, -1, dtype=np.intp), 0.0, 0.0, True)
    useful = np.where((worth > 0) & (units <= pool_units[pools]), worth, -np.inf)
    able = np.flatnonzero((useful > 0).any(axis=1))
    if not len(able):
        return Chosen(np.full(rows, -1, dtype=np.intp), 0.0, 0.0, True, np.zeros(len(pool_units)))
    if (tolerance or prices is not None) and len(able) < rows:  # rows without an option cost as much as others
        found = best_choices(worth[able], units[able], pools[able], capacity, tolerance, prices)
        picks = np.full(rows, -1, dtype=np.intp)
        picks[able] = found.picks
        return replace(found, picks=picks)
    options = ChoiceTable(useful, units, pools, pool_units)
    row, column = np.nonzero(useful > 0)
    given = prices is not None
    if prices is None:
        if len(row) <= FEW:
            return _best_of_few(options, row, column, tolerance)
        prices = _prices(options, tolerance)
    asked = _fitting_at(options, prices) if given else _at_prices(options, prices)
    picks = _filled(options, _repaired(options, asked, prices if given else None))
    value, bound = options.value(picks), _bound(options, prices)
    if given or bound - value <= tolerance * bound:
        return Chosen(picks, value, max(bound, value), bound <= value, prices)
    if len(pool_units) > 1 and not _apart(options):  # else the prices of the pools are the best ones already
        prices = _polished(options, prices, options.value(picks))
        other = _filled(options, _repaired(options, _at_prices(options, prices)))
        picks = other if options.value(other) > options.value(picks) else picks
    bound = _bound(options, prices)
    return replace(_searched(options, prices, picks, bound), prices=prices)


def _best_of_few(options: ChoiceTable, row: Indices, column: Indices, tolerance: float) -> Chosen:
    """As `best_choices` in plain numbers, for the useful options, which are in these rows and columns."""
    rows: list[list[Option]] = [[] for _ in options.worth]
    numbers = (options.worth[row, column], options.units[row, column], options.pools[row, column], column)
    for i, *option in zip(row.tolist(), *(of.tolist() for of in numbers), strict=True):
        rows[i].append(tuple(option))
    found = best_of_few(FewChoices(rows, options.capacity.tolist()), tolerance, LARGEST_SEARCH)
    picks = np.array([-1 if pick is None else pick[3] for pick in found.picks], dtype=np.intp)
    return Chosen(picks, found.value, found.bound, found.exact, np.array(found.prices))


def _apart(options: ChoiceTable) -> bool:
    """Whether no row has options of two pools."""
    able = options.worth > 0
    first = np.take_along_axis(options.pools, able.argmax(axis=1)[:, None], 1)
    return not (able & (options.pools != first)).any()


def _at_prices(options: ChoiceTable, prices: Floats) -> Indices:
    net = options.priced(prices)
    picks: Indices = net.argmax(axis=1)
    picks[net[np.arange(len(net)), picks] <= 0] = -1
    return picks


def _fitting_at(options: ChoiceTable, prices: Floats) -> Indices:
    """Return the choices at these prices; of equally good options column 0, else the first that fits.

    Rows for which nothing is equally good choose after the others, and only options that fit.
    """
    net = options.priced(prices)
    top, slack = net.max(axis=1), _ALIKE * prices[options.pools] * options.units
    good = net >= np.maximum(top[:, None], 0.0) - slack
    picks = np.where(good[:, 0], 0, -1)
    free = options.capacity - options.used(picks)
    for sure in (True, False):
        asking = (picks < 0) & ((top > 0.0) == sure)
        for pool in range(len(free)):
            here = good & (options.pools == pool) & asking[:, None]
            rows = here.any(axis=1).nonzero()[0]
            column = here[rows].argmax(axis=1)
            units = options.units[rows, column]
            fits = np.cumsum(units) <= free[pool]
            picks[rows[fits]] = column[fits]
            asking[rows[fits]] = False
            free[pool] -= units[fits].sum()
        if sure:
            picks[asking] = net[asking].argmax(axis=1)
            free = np.maximum(options.capacity - options.used(picks), 0)
    return picks


def _bound(options: ChoiceTable, prices: Floats) -> float:
    net = options.priced(prices)
    return float(net.max(axis=1, initial=0.0).sum() + prices @ options.capacity)


# ── prices ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _prices(options: ChoiceTable, tolerance: float) -> Floats:
    """Prices by coordinate descent: for each pool the lowest price at which demand fits, the others fixed."""
    flat = np.flatnonzero(options.worth > 0)
    pool, units = options.pools.ravel()[flat], options.units.ravel()[flat].astype(np.float64)
    row, worth = flat // options.worth.shape[1], options.worth.ravel()[flat]
    highest = float(np.max(worth / units, initial=0.0))
    capacity = options.capacity.tolist()
    of_pool = [(pool == k).nonzero()[0] for k in range(len(capacity))] if len(capacity) > 1 else [slice(None)]
    by_pool = [PoolOptions(row[own], worth[own], units[own]) for own in of_pool]
    return clearing_prices(by_pool, len(options.worth), capacity, highest, tolerance)


def _polished(options: ChoiceTable, prices: Floats, value: float) -> Floats:
    """Return prices that give a lower bound on the best value, by Polyak's subgradient steps towards ``value``."""
    best, lowest, patience = prices, _bound(options, prices), 1.0
    at, rows = prices.copy(), np.arange(len(options.worth)) * options.worth.shape[1]
    pools, units = options.pools.ravel(), options.units.ravel().astype(np.float64)
    for _ in range(_STEPS):
        net = options.priced(at)
        picks = net.argmax(axis=1) + rows
        top = np.maximum(net.ravel().take(picks), 0.0)
        taken = np.bincount(pools.take(picks), weights=units.take(picks) * (top > 0), minlength=len(at))
        slack = options.capacity - taken
        steepness = float(slack @ slack)
        bound = float(top.sum() + at @ options.capacity)
        if bound < lowest:
            best, lowest = at.copy(), bound
        else:
            patience *= 0.9
        if steepness == 0 or bound <= value:
            break
        at = np.maximum(at - patience * (bound - value) / steepness * slack, 0.0)
    return best


# ── a good answer ─────────────────────────────────────────────────────────────────────────────────────────────────


def _repaired(options: ChoiceTable, picks: Indices, prices: Floats | None = None) -> Indices:
    """Return choices that fit into every pool: those that lose least for each unit they free are changed first.

    If ``prices`` are given, a unit of another pool costs that pool's price.
    """
    charges = np.zeros(len(options.capacity)) if prices is None else prices
    picks = picks.copy()
    free = options.capacity - options.used(picks)
    heaps: dict[int, list[_Change]] = {}
    while (free < 0).any():
        pool = int(free.argmin())
        if pool not in heaps:
            rows = np.flatnonzero(picks >= 0)
            rows = rows[options.pools[rows, picks[rows]] == pool]
            heaps[pool] = _changes(options, rows, picks, pool, free, charges)
            heapify(heaps[pool])
        heap = heaps[pool]
        _, row, to = heap[0]
        there = int(options.pools[row, to]) if to >= 0 else -1
        if to >= 0 and there != pool and options.units[row, to] > free[there]:  # units there were taken since
            heaps[pool] = _changes_again(options, heap, picks, pool, free, charges)
            continue
        free[pool] += options.units[row, picks[row]]
        picks[row] = to
        if to >= 0:
            free[there] -= options.units[row, to]
        if there == pool:
            heapreplace(heap, *_changes(options, np.array([row]), picks, pool, free, charges))
        else:
            heappop(heap)
        if free[pool] >= 0:  # others may now change to it
            heaps.clear()
    return picks


def _changes(
    options: ChoiceTable, rows: Indices, picks: Indices, pool: int, free: Indices, charges: Floats
) -> list[_Change]:
    """Return, by row that takes units of a pool, its cheapest change."""
    loss, column = _cheapest_changes(options, rows, picks, pool, free, charges)
    return list(zip(loss.tolist(), rows.tolist(), column.tolist(), strict=True))


def _changes_again(
    options: ChoiceTable, heap: list[_Change], picks: Indices, pool: int, free: Indices, charges: Floats
) -> list[_Change]:
    """Return a heap of changes in which those that no longer fit are found again."""
    columns = zip(*heap, strict=True)
    loss, rows, to = np.array(next(columns)), np.array(next(columns)), np.array(next(columns))
    there = options.pools[rows, to]
    outdated = ((to >= 0) & (there != pool) & (options.units[rows, to] > free[there])).nonzero()[0]
    loss[outdated], to[outdated] = _cheapest_changes(options, rows[outdated], picks, pool, free, charges)
    found = list(zip(loss.tolist(), rows.tolist(), to.tolist(), strict=True))
    heapify(found)
    return found


def _cheapest_changes(
    options: ChoiceTable, rows: Indices, picks: Indices, pool: int, free: Indices, charges: Floats
) -> tuple[Floats, Indices]:
    """Return, by row that takes units of a pool, the least loss per unit freed by another choice, and that choice.

    ``charges`` are by pool, for each unit of another pool; the choice is −1 for none.
    """
    held, worth = options.units[rows, picks[rows]], options.worth[rows, picks[rows]]
    units, pools = options.units[rows], options.pools[rows]
    same = pools == pool
    freed = np.where(same, held[:, None] - units, held[:, None])
    fits = np.where(same, freed > 0, units <= free[pools])
    lost = worth[:, None] - options.worth[rows] + np.where(same, 0.0, charges[pools] * units)
    loss = np.where(fits, lost / np.maximum(freed, 1), np.inf)
    cheapest, none = loss.argmin(axis=1), worth / held
    least = np.minimum(loss[np.arange(len(rows)), cheapest], none)
    return least, np.where(none <= least, -1, cheapest)


def _filled(options: ChoiceTable, picks: Indices) -> Indices:
    """The choices raised as long as units are free, each time where a unit gains most."""
    picks = picks.copy()
    free = options.capacity - options.used(picks)
    at, served = np.arange(len(picks)), picks >= 0
    worth, most = np.where(served, options.worth[at, picks], 0.0), options.worth.max(axis=1, initial=-np.inf)
    held = np.where(served, options.units[at, picks], 0)
    pool = np.where(served, options.pools[at, picks], -1)

    def raises(rows: Indices) -> tuple[Indices, Floats]:
        """By row and option the further units it takes, and the gain for each; −inf without a gain."""
        more = options.units[rows] - np.where(options.pools[rows] == pool[rows, None], held[rows, None], 0)
        gain = options.worth[rows] - worth[rows, None]
        return more, np.where(gain > 0, gain / np.maximum(more, 0.5), -np.inf)

    candidates = np.flatnonzero(most > worth)
    (more, density), pools = raises(candidates), options.pools[candidates]

    left = np.arange(len(candidates))  # a candidate that once fits nowhere never fits again
    heap, outdated = _gains(more, density, pools, free, left), 0
    while heap:
        before, j = heap[0]
        fitting = np.where(more[j] <= free[pools[j]], density[j], -np.inf)
        column = int(fitting.argmax())
        if -fitting[column] != before:  # fewer units are free than when this was computed
            _replace_first(heap, fitting.item(column), j)
            outdated += 1
            if outdated > _OUTDATED:
                left, outdated = np.array([at for _, at in heap], dtype=np.intp), 0
                heap = _gains(more, density, pools, free, left)
            continue
        row, to, units = int(candidates[j]), int(pools[j, column]), int(options.units[candidates[j], column])
        freed = int(held[row]) if pool[row] >= 0 else 0
        grows = freed > 0 and (pool[row] != to or freed > units)
        if grows:
            left = np.array([at for _, at in _gains(more, density, pools, free, left)], dtype=np.intp)
        if pool[row] >= 0:
            free[pool[row]] += freed
        picks[row], worth[row] = column, options.worth[row, column]
        held[row], pool[row] = units, to
        free[to] -= units
        density[j] = -np.inf
        if worth[row] < most[row]:
            more[[j]], density[[j]] = raises(candidates[[j]])
        outdated = 0
        if grows:
            heap = _gains(more, density, pools, free, left)
        else:
            _replace_first(heap, float(np.where(more[j] <= free[pools[j]], density[j], -np.inf).max()), j)
    return picks


def _gains(more: Indices, density: Floats, pools: Indices, free: Indices, among: Indices) -> list[tuple[float, int]]:
    """Return, as a heap, the most that each of these candidates gains per unit within the free units."""
    best = np.where(more[among] <= free[pools[among]], density[among], -np.inf).max(axis=1)
    heap = [(-gain, j) for gain, j in zip(best.tolist(), among.tolist(), strict=True) if gain > -np.inf]
    heapify(heap)
    return heap


def _replace_first(heap: list[tuple[float, int]], gain: float, candidate: int) -> None:
    """Replace the gain of the heap's first candidate; without a gain the candidate leaves the heap."""
    if gain > -np.inf:
        heapreplace(heap, (-gain, candidate))
    else:
        heappop(heap)


# ── the exact search ──────────────────────────────────────────────────────────────────────────────────────────────


def _searched(options: ChoiceTable, prices: Floats, picks: Indices, bound: float) -> Chosen:
    """Return the best choice among the options that a better answer could have; ``picks`` where these are too many."""
    value = options.value(picks)
    slack = bound - value
    if slack <= _TIE * max(bound, 1.0):
        return Chosen(picks, value, max(bound, value), True)
    net = options.priced(prices)
    top = net.max(axis=1, initial=0.0)
    kept = top[:, None] - net <= slack * (1.0 + 1e-9)
    none = top <= slack * (1.0 + 1e-9)
    core = np.flatnonzero(kept.sum(axis=1) + none > 1)
    fixed = picks.copy()
    sure = np.flatnonzero(kept.sum(axis=1) + none == 1)
    fixed[sure] = np.where(none[sure], -1, kept[sure].argmax(axis=1))
    fixed[core] = -1
    free_units = options.capacity - options.used(fixed)
    search = _PoolSearch(options, core, kept, none, free_units)
    if not len(core) or search.cost > LARGEST_SEARCH:
        return Chosen(picks, value, bound, not len(core))
    found = fixed.copy()
    found[core] = search.run()
    best = options.value(found)
    if best <= value:
        return Chosen(picks, value, bound, True)
    return Chosen(found, best, bound, True)


class _PoolSearch:
    """Dynamic programming over the units left of each pool; rows that must choose take their least units first."""

    def __init__(self, options: ChoiceTable, core: Indices, kept: Flags, none: Flags, free_units: Indices) -> None:
        self.options, self.core = options, core
        self.kept, self.none = kept[core], none[core]
        units, pools = options.units[core], options.pools[core]
        first = pools[np.arange(len(core)), self.kept.argmax(axis=1)]
        must = ~self.none & ((pools == first[:, None]) | ~self.kept).all(axis=1)
        least = np.where(must, np.where(self.kept, units, np.iinfo(np.intp).max).min(axis=1, initial=2**31), 0)
        self.least: list[int] = least.tolist()
        free = free_units - np.bincount(first, weights=least, minlength=len(free_units)).astype(np.intp)
        extra = np.where(self.kept, units - least[:, None], 0)
        reach = [int(np.where(pools == k, extra, 0).max(axis=1, initial=0).sum()) for k in range(len(free))]
        self.free_units = np.minimum(free, reach)
        states = float(np.prod(np.maximum(self.free_units + 1, 1), dtype=float))
        options_left = int(self.kept.sum()) + len(core)
        self.cost = states * options_left if (self.free_units >= 0).all() else np.inf

    def run(self) -> Indices:
        """Return the column chosen for each row of the core, −1 for none."""
        table, every = self.options, [np.flatnonzero(kept).tolist() for kept in self.kept]
        options = [
            [(int(table.pools[i, c]), int(table.units[i, c]) - least, float(table.worth[i, c])) for c in columns]
            for i, least, columns in zip(self.core.tolist(), self.least, every, strict=True)
        ]
        taken = best_options_apart(options, self.none.tolist(), self.free_units.tolist())
        picks = [columns[at] if at >= 0 else -1 for columns, at in zip(every, taken, strict=True)]
        return np.array(picks, dtype=np.intp)
