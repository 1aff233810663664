"""A linear program that can be changed and solved again from its last vertex, with a bound independent of the solver.

    maximise gain · x  subject to lower ≤ A x ≤ upper,  0 ≤ x ≤ reach.

HiGHS runs on one thread without a time limit, so answers are repeatable. `LpSession.bound` recomputes the bound in
numpy: every column has a finite reach, so by weak duality any row prices give a valid bound, optimal ones a tight one.

References: Huangfu and Hall (2018) for HiGHS.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from highspy import Highs, HighsModelStatus, MatrixFormat, ObjSense

from shoal.core.arrays import Flags, Floats, Indices

Status = Literal["optimal", "inaccurate", "unsolved"]

ACCURATE = 1e-7
"""Relative: an answer whose gap and residual stay below this is called optimal."""
_FEASIBLE = 1e-10
_PRIMAL, _DUAL = 4, 1
_STEPS_PER_ROW = (3, 30)
"""Simplex steps per row allowed at first and on the second try: most programs need about one. Steps, not seconds, so
that the answer is the same on every machine."""


@dataclass(frozen=True, slots=True)
class Program:
    """Maximise over ``lower ≤ A x ≤ upper``, ``0 ≤ x ≤ reach``; A holds ``values`` at (``rows``, ``columns``).

    No place of A may be named twice, and every reach must be finite.
    """

    rows: Indices
    columns: Indices
    values: Floats
    lower: Floats
    upper: Floats
    reach: Floats


@dataclass(frozen=True, slots=True)
class Vertex:
    """The solver's last vertex: x, a price on every row, and whether it claims the optimum."""

    x: Floats
    prices: Floats
    solved: bool


class LpSession:
    """A loaded program: maximise, change, maximise again from the last vertex."""

    def __init__(self, program: Program) -> None:
        """Load a program; the arrays that may change later are copied."""
        self._rows, self._columns, self._values = program.rows, program.columns, program.values.copy()
        self._lower, self._upper, self._reach = program.lower.copy(), program.upper.copy(), program.reach.copy()
        self._highs = quiet_highs(
            presolve="off",
            simplex_scale_strategy=0,  # programs come scaled; tolerances then apply to the given rows
            primal_feasibility_tolerance=_FEASIBLE,
            dual_feasibility_tolerance=_FEASIBLE,
        )
        # The rows limit the activities already; bounds by their reach as well would only make more ties.
        columns = len(program.reach)
        load(self._highs, program, np.zeros(columns), np.full(columns, np.inf), integer=False)

    def maximise(self, gain: Floats) -> Vertex:
        """The vertex with the most ``gain``, starting from the last one; where that fails, once more from scratch."""
        if not len(gain):
            return Vertex(gain, np.zeros(len(self._lower)), solved=True)
        everything = np.arange(len(gain), dtype=np.int32)
        scale = float(np.abs(gain).max(initial=0.0)) or 1.0
        self._highs.changeColsCost(len(gain), everything, gain / scale)
        # Every program here starts at, or is warmed to, a feasible point, where the primal method is 3 to 5 times as
        # fast as the dual; but it may cycle where many vertices are tied.
        solved = self._run(_PRIMAL, _STEPS_PER_ROW[0])
        if not solved:
            self._highs.clearSolver()
            solved = self._run(_DUAL, _STEPS_PER_ROW[1])
        found = self._highs.getSolution()
        x, prices = np.array(found.col_value), scale * np.array(found.row_dual)
        if not solved or len(x) != len(gain) or not (np.isfinite(x).all() and np.isfinite(prices).all()):
            return Vertex(np.zeros(len(gain)), np.zeros(len(self._lower)), solved=False)
        return Vertex(x, prices, solved=True)

    def _run(self, method: int, steps_per_row: int) -> bool:
        self._highs.setOptionValue("simplex_strategy", method)
        self._highs.setOptionValue("simplex_iteration_limit", 1000 + steps_per_row * len(self._lower))
        self._highs.run()
        return bool(self._highs.getModelStatus() == HighsModelStatus.kOptimal)

    def limit(self, columns: Indices, reach: Floats) -> None:
        """Bound these columns by 0 and ``reach``."""
        self._reach[columns] = reach
        self._highs.changeColsBounds(len(columns), columns.astype(np.int32), np.zeros(len(columns)), reach)

    def tighten(self, tight: Flags, prices: Floats) -> None:
        """Fix each row marked ``tight`` at the limit its price belongs to: the upper one if positive."""
        for row in np.flatnonzero(tight).tolist():
            at = float(self._upper[row] if prices[row] > 0 else self._lower[row])
            self._highs.changeRowBounds(row, at, at)
            self._lower[row] = self._upper[row] = at

    def raise_floors(self, rows: Indices, floors: Floats) -> None:
        """Give these rows new lower limits."""
        self._lower[rows] = floors
        for row, floor in zip(rows.tolist(), floors.tolist(), strict=True):
            self._highs.changeRowBounds(row, floor, float(self._upper[row]))

    def detach(self, rows: Indices, column: int) -> None:
        """Set the coefficients of ``column`` in these rows to 0."""
        self._values[(self._columns == column) & np.isin(self._rows, rows)] = 0.0
        for row in rows.tolist():
            self._highs.changeCoeff(row, column, 0.0)

    def worth(self, gain: Floats, prices: Floats) -> Floats:
        """The reduced gain of each column: its gain less its cost at these row prices."""
        paid = np.bincount(self._columns, self._values * prices[self._rows], minlength=len(gain))
        left: Floats = gain - paid
        return left

    def bound(self, gain: Floats, prices: Floats) -> float:
        """An upper bound on the gain of every feasible x, valid for any ``prices``."""
        # A price of the wrong sign, or on a side where the row has no limit, proves nothing: it counts as 0.
        side = np.where(prices > 0, self._upper, self._lower)
        clean = np.where(np.isfinite(side), prices, 0.0)
        rows = float(np.where(clean != 0, clean * np.where(np.isfinite(side), side, 0.0), 0.0).sum())
        return rows + float((self._reach * np.maximum(self.worth(gain, clean), 0.0)).sum())


def relative_gap(objective: float, bound: float) -> float:
    """The distance of a value to its bound as a fraction of the larger; 0 for both 0, infinite without a bound."""
    if not (np.isfinite(objective) and np.isfinite(bound)):
        return float("inf")
    size = max(abs(objective), abs(bound))
    return abs(bound - objective) / size if size > 0 else 0.0


def judged(solved: bool, gap: float, residual: float) -> Status:
    """The status of an answer from its recomputed gap and residual."""
    if not solved:
        return "unsolved"
    return "optimal" if gap <= ACCURATE and residual <= ACCURATE else "inaccurate"


def quiet_highs(**options: str | float) -> Highs:
    """A HiGHS instance without output on one thread, so that its answers are repeatable, with these options."""
    highs = Highs()  # type: ignore[no-untyped-call]
    for name, value in {"output_flag": False, "threads": 1, **options}.items():
        highs.setOptionValue(name, value)
    return highs


def load(highs: Highs, program: Program, gain: Floats, most: Floats, *, integer: bool) -> None:
    """Give HiGHS the maximisation of ``gain`` · x over the program's rows and 0 ≤ x ≤ ``most``."""
    order = np.lexsort((program.rows, program.columns))
    starts = np.zeros(len(gain) + 1, dtype=np.int32)
    np.cumsum(np.bincount(program.columns, minlength=len(gain)), out=starts[1:])
    highs.passModel(
        len(gain),
        len(program.lower),
        len(program.values),
        int(MatrixFormat.kColwise),
        int(ObjSense.kMaximize),
        0.0,
        gain,
        np.zeros(len(gain)),
        most,
        program.lower,
        program.upper,
        starts,
        program.rows[order].astype(np.int32),
        program.values[order],
        np.full(len(gain), int(integer), dtype=np.int32),
    )
