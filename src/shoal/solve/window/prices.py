"""A bound on the window's worth from a price for a seat of each class, which respects which gangs fit side by side.

    minimise over prices p ≥ 0:  base + Σ_s max_n (adds_s(n) − p_s · n) + rounds · max over patterns of p · seats.

A pattern is a set of seats that fits in one round; the dearest is a bounded knapsack. Every p gives a valid bound.
Kelley's cutting planes lower it, at most `_MOST` prices; the duals of the cuts are how many rounds each pattern would
have if rounds could be split.

References: Kelley (1960) for cutting planes; Gilmore and Gomory (1961) for patterns and the knapsack that finds them.
"""

from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Floats, Int64s
from shoal.solve.knapsack import doubling, zero_one
from shoal.solve.linear_program import quiet_highs
from shoal.solve.window.classes import Classes

_CUTS, _FEWEST, _MOST = 400, 10, 60
"""Prices tried at most: the first divided by the number of classes, within the others. Counts, so that a bound is the
same on every machine."""

_GUESSES = np.array([0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.4, 1.7, 2.2, 3.0])
"""Multiples of the first price at which every class is cut before the search."""


@dataclass(frozen=True, slots=True, eq=False)
class Priced:
    """No plan is worth more than ``bound``, as ``price`` for a seat of each class shows.

    ``patterns`` is patterns × classes in seats, and ``shares`` the rounds each would have if rounds could be split.
    """

    bound: float
    price: Floats
    patterns: Int64s
    shares: Floats


def priced(classes: Classes, per_gpu: float, close: float) -> Priced:
    """Return the least bound found from one price per GPU on; the search ends ``close`` to the least possible."""
    # Worth in units of that price: a solver's tolerances are for numbers near 1.
    unit = per_gpu if per_gpu > 0.0 else max((float(s[0]) for s in classes.steps if len(s)), default=1.0)
    master = _Master(classes, unit)
    price: Floats = classes.widths * np.float64(unit)
    best, at = np.inf, price
    for _ in range(min(max(_CUTS // len(classes.widths), _FEWEST), _MOST)):
        taken = classes.taken(price)
        dear, seats = _dearest(classes, price)
        bound = classes.base + float(classes.adds(taken).sum() - price @ taken) + classes.rounds * dear
        if bound < best:
            best, at = bound, price
        floor, price = master.cut(taken, seats)
        if best - (classes.base + floor) <= close:
            break
    patterns, shares = master.mixture()
    return Priced(best, at, patterns, shares)


class _Master:
    """The master program: prices, the gain of each class, and the dearest pattern, under the cuts so far."""

    def __init__(self, classes: Classes, unit: float) -> None:
        self._classes, self._unit, self._many = classes, unit, len(classes.widths)
        self._highs = quiet_highs(presolve="off")
        # Forced rounds are taken at any price; no price need exceed the worth they displace.
        top = np.array([float(s[0]) if len(s) else 0.0 for s in classes.steps]) / unit
        round_worth = classes.capacity * float(np.max(top / classes.widths, initial=1.0))
        top = np.where(classes.forced > 0, 2.0 * round_worth, top)
        for most in top.tolist():
            self._highs.addVar(0.0, most)
        for s in range(self._many):
            self._highs.addVar(-1e30, 1e30)
            self._highs.changeColCost(self._many + s, 1.0)
        self._highs.addVar(0.0, 1e30)
        self._highs.changeColCost(2 * self._many, float(classes.rounds))
        self._rows, self._row_of, self._known = 0, dict[tuple[int, ...], int](), set[tuple[int, int]]()
        self._cut_classes(classes.taken(np.outer(_GUESSES, classes.widths * unit)))

    def _cut_classes(self, taken: Int64s) -> None:
        """Add cuts: a class gains at least the worth of these seats less their price."""
        adds = self._classes.adds(taken) / self._unit
        of_each = np.broadcast_to(np.arange(self._many), taken.shape).ravel().tolist()
        pairs = zip(of_each, taken.ravel().tolist(), strict=True)
        new = {one: worth for one, worth in zip(pairs, adds.ravel().tolist(), strict=True) if one not in self._known}
        if not new:
            return
        self._known |= new.keys()
        of, count = np.array(list(new), dtype=np.int32).T
        index = np.stack([of, self._many + of], axis=1).ravel()
        value = np.stack([count.astype(float), np.ones(len(of))], axis=1).ravel()
        start = np.arange(0, 2 * len(of), 2, dtype=np.int32)
        least, most = np.array(list(new.values())), np.full(len(of), 1e30)
        self._highs.addRows(len(of), least, most, 2 * len(of), start, index, value)
        self._rows += len(of)

    def cut(self, taken: Int64s, seats: Int64s) -> tuple[float, Floats]:
        """Add the cuts of one allotment, solve again, and return the lower bound above the base with its prices."""
        self._cut_classes(taken)
        pattern = tuple(seats.tolist())
        if pattern not in self._row_of:
            used = np.flatnonzero(seats)
            index, value = np.append(used, 2 * self._many), np.append(-seats[used].astype(float), 1.0)
            self._highs.addRow(0.0, 1e30, len(index), index, value)
            self._row_of[pattern], self._rows = self._rows, self._rows + 1
        self._highs.run()
        found = np.array(self._highs.getSolution().col_value)
        floor = float(self._highs.getInfo().objective_function_value)
        return floor * self._unit, np.maximum(found[: self._many], 0.0) * self._unit

    def mixture(self) -> tuple[Int64s, Floats]:
        """The patterns found, and the rounds each would have."""
        dual = np.array(self._highs.getSolution().row_dual)
        return np.array(list(self._row_of), dtype=np.int64), np.maximum(dual[list(self._row_of.values())], 0.0)


def _dearest(classes: Classes, price: Floats) -> tuple[float, Int64s]:
    """The cost and the seats of the pattern that costs most."""
    blocks = [(s, size) for s, most in enumerate(classes.most.tolist()) for size in doubling(most)]
    of, sizes = np.array(blocks, dtype=np.int64).reshape(-1, 2).T
    chosen, cost = zero_one((sizes * classes.widths[of]).tolist(), (sizes * price[of]).tolist(), classes.capacity)
    seats = np.bincount(of[chosen], sizes[chosen], len(price)).astype(np.int64)
    return cost, seats
