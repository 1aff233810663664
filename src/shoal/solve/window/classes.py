"""A bound on the window's worth that knows which gangs fit side by side: a price for a seat of each width.

At any prices no plan is worth more than what every gang gains beyond the price of its rounds, plus the dearest set of
gangs that fits in one round, once for every round. Cutting planes lower that bound; it is tight where rounds are many
or few widths differ, and it is a bound wherever the search for prices ends.

References: Kelley (1960) for cutting planes; Gilmore and Gomory (1961) for sets that fit side by side.
"""

import numpy as np
from highspy import Highs
from numpy.typing import NDArray

from shoal.solve.window.ladder import Claims, Floats, Ints

_CUTS = 40
"""Prices tried at most; a count, so that the bound is the same on every machine."""
_MOVED = 1e-7
"""Relative: cuts that promise less than this are not worth another."""


def class_bound(claims: Claims, envelope: Floats, capacity: int, forced: Ints) -> float:
    """The least bound found; every plan with at least ``forced`` rounds for each gang is worth no more."""
    widths, who, many = np.unique(claims.widths, return_inverse=True, return_counts=True)
    steps = np.arange(claims.rounds + 1)
    open_to = np.where(steps[None, :] >= forced[:, None], envelope, -np.inf)
    top = np.zeros(len(widths))
    np.maximum.at(top, who, (np.diff(envelope, axis=1)).max(axis=1, initial=0.0))
    master = _Master(top)
    best, price = np.inf, top / 2
    for _ in range(_CUTS):
        gains = open_to - price[who][:, None] * steps
        counts = gains.argmax(axis=1)
        by_class: Floats = np.bincount(who, gains[np.arange(len(who)), counts], len(widths)).astype(np.float64)
        taken: Floats = np.bincount(who, counts, len(widths)).astype(np.float64)
        dear, seats = _dearest(widths, many, price, capacity)
        best = min(best, float(by_class.sum()) + claims.rounds * dear)
        floor, price = master.cut(price, by_class, taken, seats, claims.rounds)
        if best - floor <= _MOVED * (1.0 + abs(best)):
            break
    return best


class _Master:
    """Prices, and what the cuts so far leave of the bound: the gain of each width's gangs and the dearest round."""

    def __init__(self, top: Floats) -> None:
        self._many = len(top)
        self._highs = Highs()  # type: ignore[no-untyped-call]
        for option, value in (("output_flag", False), ("threads", 1), ("presolve", "off")):
            self._highs.setOptionValue(option, value)
        for most in top.tolist():
            self._highs.addVar(0.0, most)
        for _ in range(self._many):
            self._highs.addVar(-1e30, 1e30)
            self._highs.changeColCost(self._highs.getNumCol() - 1, 1.0)
        self._highs.addVar(0.0, 1e30)

    def cut(
        self, price: Floats, gains: Floats, taken: Floats, seats: NDArray[np.int64], rounds: int
    ) -> tuple[float, Floats]:
        """Add what was seen at these prices; the least bound the cuts allow, and where."""
        many = self._many
        for s in range(many):
            level = float(gains[s] + taken[s] * price[s])
            self._highs.addRow(level, 1e30, 2, np.array([s, many + s]), np.array([float(taken[s]), 1.0]))
        self._highs.changeColCost(2 * many, float(rounds))
        used = np.flatnonzero(seats)
        self._highs.addRow(
            0.0, 1e30, len(used) + 1, np.append(used, 2 * many), np.append(-seats[used].astype(float), 1.0)
        )
        self._highs.run()
        found = np.array(self._highs.getSolution().col_value)
        return float(self._highs.getInfo().objective_function_value), np.maximum(found[:many], 0.0)


def _dearest(widths: Ints, many: NDArray[np.intp], price: Floats, capacity: int) -> tuple[float, NDArray[np.int64]]:
    """The set of gangs that fits in a round and costs most: its cost, and how many of each width are in it."""
    best = np.zeros(capacity + 1)
    blocks: list[tuple[int, int, NDArray[np.bool_]]] = []
    for s, width in enumerate(widths.tolist()):
        rest, size = min(int(many[s]), capacity // width), 1
        while rest:
            size = min(size, rest)
            shift = size * width
            with_it = best[: capacity + 1 - shift] + size * price[s]
            better = np.zeros(capacity + 1, dtype=bool)
            better[shift:] = with_it > best[shift:]
            best[better] = with_it[better[shift:]]
            blocks.append((s, size, better))
            rest, size = rest - size, 2 * size
    seats, room = np.zeros(len(widths), dtype=np.int64), capacity
    for s, size, better in reversed(blocks):
        if better[room]:
            seats[s] += size
            room -= size * int(widths[s])
    return float(best[capacity]), seats
