"""Branch and bound over the patterns of seats that a plan better than the known one could use.

At the prices of `prices` a plan loses with every pattern below the dearest, every step above its price not taken and
every one below taken. A plan better than the known one loses less than bound − known; where that leaves few patterns,
the program in counts is solved in whole numbers by HiGHS. The solver's dual bound, raised by its tolerance, is the new
bound.

References: Gilmore and Gomory (1961); Dantzig, Fulkerson and Johnson (1954) for fixing by reduced costs.
"""

import numpy as np
from highspy import Highs, HighsVarType

from shoal.core.arrays import Floats, Int64s
from shoal.solve.linear_program import quiet_highs
from shoal.solve.window.classes import Classes
from shoal.solve.window.prices import Priced

_PATTERNS, _STEPS, _BEGUN, _NODES = 60, 600, 2000, 300
"""Limits on patterns, steps, partial patterns and nodes of the tree; counts, so that a bound is the same on every
machine."""

_SAFE = 1e-6
"""The solver's bound is raised by this part of the possible gain; its own tolerances are smaller."""


def in_whole_rounds(classes: Classes, priced: Priced, known: float) -> tuple[float, Int64s] | None:
    """A bound on every plan worth more than ``known``, and the best seats found; None where it is too large."""
    # Allows for rounding, or the known plan would itself be excluded.
    slack = priced.bound - known + _SAFE * (priced.bound - classes.base)
    steps = [_open(steps, p, slack) for steps, p in zip(classes.steps, priced.price.tolist(), strict=True)]
    if sum(len(adds) for _, adds in steps) > _STEPS:
        return None
    patterns = _near(classes, priced.price, slack)
    if patterns is None:
        return None
    # Worth in units of a price: a solver's tolerances are for numbers near 1.
    unit = float(priced.price.max(initial=0.0)) or 1.0
    highs = _program(classes, patterns, steps, unit)
    highs.run()
    whole = np.rint(highs.getSolution().col_value[: len(patterns)]).astype(np.int64)
    if whole.sum() != classes.rounds:
        return None
    sure = sum(float(sums[n]) for sums, (n, _) in zip(classes.sums, steps, strict=True))
    above = sure - unit * float(highs.getInfo().mip_dual_bound)
    bound = classes.base + above + _SAFE * (priced.bound - classes.base)
    return bound, np.repeat(patterns, whole, axis=0)


def _program(classes: Classes, patterns: Int64s, steps: list[tuple[int, Floats]], unit: float) -> Highs:
    """The program: rounds of each pattern, and open steps taken, no more than there are seats for."""
    highs = quiet_highs(mip_max_nodes=_NODES, mip_rel_gap=0.0)
    many, rounds = len(patterns), float(classes.rounds)
    for p in range(many):
        highs.addVar(0.0, rounds)
        highs.changeColIntegrality(p, HighsVarType.kInteger)
    highs.addRow(rounds, rounds, many, np.arange(many), np.ones(many))
    for s, (sure, adds) in enumerate(steps):
        begin = highs.getNumCol()
        for at, add in enumerate(adds.tolist(), begin):
            highs.addVar(0.0, 1.0)
            highs.changeColCost(at, -add / unit)
        index = np.concatenate([np.arange(many), np.arange(begin, begin + len(adds))])
        value = np.concatenate([patterns[:, s].astype(float), -np.ones(len(adds))])
        highs.addRow(float(classes.forced[s] + sure), 1e30, len(index), index, value)
    return highs


def _open(steps: Floats, price: float, slack: float) -> tuple[int, Floats]:
    """Return the number of steps that every better plan takes, and the further steps that it may take."""
    above = int(np.searchsorted(-steps, -price))
    without = np.cumsum((steps[:above] - price)[::-1])
    below = np.cumsum(price - steps[above:])
    first = above - int(np.searchsorted(without, slack, side="right"))
    return first, steps[first : above + int(np.searchsorted(below, slack, side="right"))]


def _near(classes: Classes, price: Floats, slack: float) -> Int64s | None:
    """The full patterns within ``slack`` of the dearest; None where there are too many."""
    widths, most, prices = classes.widths.tolist(), classes.most.tolist(), price.tolist()
    ahead = _ahead(classes, price)
    least = ahead[0][classes.capacity] - slack
    found: list[tuple[int, ...]] = []
    waiting: list[tuple[int, int, float, tuple[int, ...]]] = [(0, classes.capacity, 0.0, ())]
    begun = 0
    while waiting:
        s, free, cost, seats = waiting.pop()
        begun += 1
        if len(found) > _PATTERNS or begun > _BEGUN:
            return None
        if s == len(widths):
            if not any(n < m and w <= free for n, m, w in zip(seats, most, widths, strict=True)):
                found.append(seats)
            continue
        for n in range(min(most[s], free // widths[s]) + 1):
            left = free - n * widths[s]
            if cost + n * prices[s] + ahead[s + 1][left] >= least:
                waiting.append((s + 1, left, cost + n * prices[s], (*seats, n)))
    return np.array(found, dtype=np.int64) if found else None


def _ahead(classes: Classes, price: Floats) -> list[list[float]]:
    """Return, by class and GPUs, the cost of the dearest seats of this class and later ones on that many GPUs."""
    best = np.zeros(classes.capacity + 1)
    tables = [best.tolist()]
    for s in reversed(range(len(price))):
        width, before = int(classes.widths[s]), best
        best = before.copy()
        for n in range(1, int(classes.most[s]) + 1):
            np.maximum(best[n * width :], before[: len(best) - n * width] + n * price[s], out=best[n * width :])
        tables.append(best.tolist())
    return tables[::-1]
