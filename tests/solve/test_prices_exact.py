"""Water filling at speeds twelve decades apart, against the same in rational numbers, which round nothing."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import lcm

import numpy as np
import pytest

from shoal.core.arrays import Flags, Floats
from shoal.solve.prices import Filling, ShareNode, hierarchical, max_min

Problem = tuple[Floats, Floats, Floats]
Line = list[Fraction]


class Tableau:
    """A simplex tableau of whole numbers over one common denominator: A x + s = b with x, s ≥ 0, from x = 0 on."""

    def __init__(self, rows: Sequence[Line], right: Line, gains: Sequence[Line]) -> None:
        self.count, self.slack = len(rows), len(gains[0])
        self.lines = [
            _whole([*row, *(Fraction(i == k) for k in range(self.count)), end])
            for i, (row, end) in enumerate(zip(rows, right, strict=True))
        ]
        # A slack is one whatever its row was multiplied by: only its sign and whether it is 0 are ever looked at.
        self.lines += [_whole([*(-g for g in gain), *([Fraction(0)] * (self.count + 1))]) for gain in gains]
        self.basis = [self.slack + i for i in range(self.count)]
        for i in range(self.count):
            self.lines[i][self.slack + i] = 1
        self.denominator = 1

    def maximise(self) -> None:
        """The first gain, then the next among all that has the most of it, and so on."""
        allowed = list(range(self.slack + self.count))
        for goal in range(self.count, len(self.lines)):
            turns = 0
            while (enter := self._entering(goal, allowed, turns)) is not None:
                self._pivot(self._leaving(enter), enter)
                turns += 1
            allowed = [k for k in allowed if self.lines[goal][k] == 0]

    def _entering(self, goal: int, allowed: list[int], turns: int) -> int | None:
        worth = self.lines[goal]
        if turns > 50:  # a rule that never cycles
            return next((k for k in allowed if worth[k] < 0), None)
        best = min(allowed, key=lambda k: worth[k])
        return best if worth[best] < 0 else None

    def _leaving(self, enter: int) -> int:
        open_to = [i for i in range(self.count) if self.lines[i][enter] > 0]
        return min(open_to, key=lambda i: (Fraction(self.lines[i][-1], self.lines[i][enter]), self.basis[i]))

    def _pivot(self, row: int, enter: int) -> None:
        by, pivot = self.lines[row], self.lines[row][enter]
        for i, line in enumerate(self.lines):
            if i != row:
                factor = line[enter]
                self.lines[i] = [(x * pivot - factor * y) // self.denominator for x, y in zip(line, by, strict=True)]
        self.denominator, self.basis[row] = pivot, enter

    def value(self, column: int) -> Fraction:
        if column not in self.basis:
            return Fraction(0)
        return Fraction(self.lines[self.basis.index(column)][-1], self.denominator)

    def priced(self, row: int) -> bool:
        """Whether a row is at its limit in every optimum."""
        return any(line[self.slack + row] > 0 for line in self.lines[self.count :])


def _whole(line: Line) -> list[int]:
    scale = lcm(*(x.denominator for x in line))
    return [int(x * scale) for x in line]


def exact_levels(problem: Problem, rates: Callable[[Flags], Line]) -> tuple[Line, list[int]]:
    """Raise all that still rise, freeze whose level has a price, repeat; and the turn at which each was frozen."""
    speeds, gangs, capacity = (array.tolist() for array in problem)
    count, zero = len(speeds), Fraction(0)
    ways = [(m, j) for m in range(count) for j, c in enumerate(capacity) if speeds[m][j] > 0 and gangs[m] <= c]
    rows = [[Fraction(k == m) for k, _ in ways] + [zero, zero] for m in range(count)]
    rows += [[Fraction(gangs[k] * (j == i)) for k, j in ways] + [zero, zero] for i in range(len(capacity))]
    rows += [[zero] * len(ways) + [Fraction(1), zero]]
    right = [Fraction(1)] * count + [Fraction(c) for c in capacity] + [Fraction(1)]
    levels, turns, frozen = [zero] * count, [0] * count, np.zeros(count, dtype=bool)
    turn = 0
    while not frozen.all():
        rate = rates(frozen)
        # Throughput ≥ base · z + rate · t: first z up to 1, then t as far as it goes.
        kept = [[Fraction(-speeds[k][j] * (k == m)) for k, j in ways] + [levels[m], rate[m]] for m in range(count)]
        gains = [[Fraction(k == len(ways) + i) for k in range(len(ways) + 2)] for i in (0, 1)]
        tableau = Tableau([*rows, *kept], [*right, *([zero] * count)], gains)
        tableau.maximise()
        assert tableau.value(len(ways)) == 1
        risen = tableau.value(len(ways) + 1)
        for m in np.flatnonzero(~frozen).tolist():
            # Down at the 200th bit after the point, or the numbers would grow from turn to turn.
            levels[m] = Fraction(int((levels[m] + rate[m] * risen) * 2**200), 2**200)
            if rate[m] and tableau.priced(len(rows) + m):
                frozen[m], turns[m] = True, turn
        turn += 1
    return levels, turns


def adversary(chance: np.random.Generator) -> tuple[Problem, Floats]:
    """Speeds 1e-6 to 1e6, weights 1e-3 to 1e3, capacities 0 to 1e4; equal rows, ties, and near ties."""
    while True:
        rows, types = int(chance.integers(1, 8)), int(chance.integers(1, 5))
        speeds = [
            10.0 ** chance.uniform(-6, 6, (rows, types)),
            10.0 ** chance.integers(-6, 7, (rows, types)),
            10.0 ** chance.uniform(-6, 6, (rows, 1)) * chance.choice([1.0, 2.0, 3.0], (rows, types)),
            (10.0 ** chance.uniform(-6, 6, (3, types)))[chance.integers(0, 3, rows)],
            chance.choice([1.0, 1.0 + 1e-7, 1.00001, 2.0, 1e6, 1e-6], (rows, types)),
            np.outer(*(10.0 ** chance.uniform(-3, 3, n) for n in (rows, types)))
            * chance.choice([1.0, 1 + 1e-7], (rows, types)),
        ][chance.integers(0, 6)]
        speeds = speeds * (chance.random((rows, types)) < chance.choice([0.6, 1.0]))
        gangs = chance.integers(1, 9, rows).astype(float)
        capacity = chance.choice([0.0, 1.0, 2.0, 4.0, 8.0, 8.0, 100.0, 1e4], types)
        weights = [np.ones(rows), 10.0 ** chance.uniform(-3, 3, rows)][chance.integers(0, 2)]
        served = ((speeds > 0) & (gangs[:, None] <= capacity)).any(axis=1)
        if served.any():
            return (speeds[served], gangs[served], capacity), weights[served]


def wrong(answer: Filling, problem: Problem, exact: tuple[Line, list[int]]) -> float:
    """By how much the first level to differ is too low, relative to the row's fastest type; 0 if it is not.

    Where a level too low by 1e-12 lets another rise by half, both fillings are as good, and all later levels differ.
    """
    speeds, gangs, capacity = problem
    fastest = np.where(gangs[:, None] <= capacity, speeds, 0.0).max(axis=1)
    levels, turns = np.array([float(x) for x in exact[0]]), np.array(exact[1])
    off = (answer.levels - levels) / fastest
    differs = np.abs(answer.levels - levels) > np.maximum(1e-8 * levels, 1e-9 * fastest)
    return -float(off[differs & (turns == turns[differs].min())].min()) if differs.any() else 0.0


@pytest.mark.parametrize("block", range(4))
def test_an_answer_that_is_not_exact_says_so(block: int) -> None:
    flagged = 0
    for seed in range(30 * block, 30 * block + 30):
        chance = np.random.default_rng(seed)
        given, weights = adversary(chance)
        shares = [Fraction(w) for w in weights.tolist()]
        cut = int(chance.integers(0, len(weights) + 1))
        first, second = list(range(cut)), list(range(cut, len(weights)))
        in_turn = ShareNode([ShareNode(part, policy="fair") for part in (first, second) if part], policy="fifo")

        def flat(frozen: Flags, shares: Line = shares) -> Line:
            return [Fraction(0) if done else w for done, w in zip(frozen, shares, strict=True)]

        def turns(frozen: Flags, first: list[int] = first, second: list[int] = second, shares: Line = shares) -> Line:
            served = second if frozen[first].all() else first
            total = sum((shares[m] for m in served if not frozen[m]), Fraction(0))
            return [shares[m] / total if m in served and not frozen[m] else Fraction(0) for m in range(len(shares))]

        for answer, rates in ((max_min(*given, weights), flat), (hierarchical(*given, in_turn, weights), turns)):
            doubt = max(answer.residual, answer.gap)
            assert wrong(answer, given, exact_levels(given, rates)) <= max(10 * doubt, 1e-7)
            flagged += doubt > 1e-7
    assert flagged <= 2
