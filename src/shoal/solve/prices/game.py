"""A zero-sum game of few rows and growing columns: the small linear program solved in every stage.

    minimise   v + R·Σ a        over λ, a ≥ 0, v
    subject to Σ_i λ_i g_ij ≤ v          for every row j that is scored,
               Σ_i λ_i g_ij ≤ a_j        for every row j that is only to be met,
               Σ_i λ_i = 1.

Its duals are prices q: they sum to one over the scored rows and stay within [0, R] on the others. A new column enters
the last basis and a few pivots follow. With at most a dozen rows the basis is inverted anew each time, so errors do not
accumulate and the answer is exact to rounding.
"""

from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Flags, Floats

_TOLERANCE = 1e-13
"""Reduced costs above minus this are taken for zero, times the largest price where that is above one."""
_PIVOT = 1e-9
"""Smaller pivots are refused: the basis would be ill-conditioned, and the next response gives a better column."""
_PATIENCE = 60
"""Pivots after which the first eligible column enters instead of the best, a rule that cannot cycle but by rounding;
after as many again, gains that may be rounding no longer count."""


@dataclass(frozen=True, slots=True)
class Solution:
    """The value of the game, the prices that prove it, the mix of columns that reaches it, and the largest a_j."""

    value: float
    prices: Floats
    mix: Floats
    unmet: float


class Game:
    """The columns added so far and the last basis."""

    __slots__ = ("_basis", "_columns", "_cost", "_count", "_first", "_rows", "_scored")

    def __init__(self, scored: Flags, reach: float) -> None:
        rows = len(scored)
        self._rows, self._scored = rows, scored
        self._first = 1 + 2 * rows
        self._columns = np.zeros((rows + 1, self._first + 64))
        self._cost = np.zeros(self._first + 64)
        self._columns[:rows, 0] = scored
        self._cost[0] = 1.0
        self._columns[:rows, 1 : 1 + rows] = -np.eye(rows)
        self._columns[:rows, 1 + rows : self._first] = np.eye(rows)
        self._cost[1 + rows : self._first] = np.where(scored, np.inf, reach)
        self._count = 0
        self._basis: list[int] = []

    def add(self, column: Floats) -> None:
        """Add a column g; the basis stays feasible."""
        at = self._first + self._count
        if at == self._columns.shape[1]:
            self._columns = np.concatenate([self._columns, np.zeros_like(self._columns)], axis=1)
            self._cost = np.concatenate([self._cost, np.zeros_like(self._cost)])
        self._columns[: self._rows, at] = -column
        self._columns[self._rows, at] = 1.0
        self._count += 1
        if not self._basis:
            tight = int(np.where(self._scored, column, -np.inf).argmax())
            met = [1 + j if self._scored[j] or column[j] <= 0 else 1 + self._rows + j for j in range(self._rows)]
            self._basis = [0, at, *(met[:tight]), *(met[tight + 1 :])]

    def extend(self, reach: float) -> None:
        """Set R, the largest price, for the rows that were not scored."""
        artificial = slice(1 + self._rows, self._first)
        self._cost[artificial] = np.where(self._scored, np.inf, reach)

    def solve(self) -> Solution:
        """The optimum over the columns added so far."""
        rows, end = self._rows, self._first + self._count
        columns, cost = self._columns[:, :end], self._cost[:end]
        for pivot in range(3 * _PATIENCE):
            inverse = np.linalg.inv(columns[:, self._basis])
            duals = cost[self._basis] @ inverse
            reduced = cost - duals @ columns
            reduced[self._basis] = 0.0
            patience = 1.0 if pivot < 2 * _PATIENCE else 1e3
            worth_it = -_TOLERANCE * patience * max(1.0, float(np.abs(duals).max()))
            enter = int(reduced.argmin() if pivot < _PATIENCE else (reduced < worth_it).argmax())
            if reduced[enter] >= worth_it:
                break
            step, at = inverse @ columns[:, enter], inverse[:, rows]
            rising = step > _PIVOT
            rising[0] = False  # v is free: it never leaves
            if not rising.any():
                break
            ratio = np.full(rows + 1, np.inf)
            np.divide(np.maximum(at, 0.0), step, out=ratio, where=rising)
            # Of the rows that block together the largest pivot keeps the basis well conditioned.
            close = ratio <= ratio.min() + 1e-15
            self._basis[int(np.where(close, step, -np.inf).argmax())] = enter
        at = inverse[:, rows]
        mix, unmet = np.zeros(self._count), 0.0
        for k, x in zip(self._basis, at.tolist(), strict=True):
            if k >= self._first:
                mix[k - self._first] = max(x, 0.0)
            elif k > rows:
                unmet = max(unmet, x)
        return Solution(float(duals[rows]), np.maximum(duals[:rows], 0.0), mix, unmet)
