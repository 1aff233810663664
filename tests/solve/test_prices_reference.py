"""Water filling by prices against linear programs written down literally, on random problems."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import csr_array, hstack

from shoal.core.arrays import Flags, Floats
from shoal.solve.prices import (
    ShareNode,
    finish_time_fairness,
    hierarchical,
    isolated_speed,
    makespan,
    max_min,
)

Problem = tuple[Floats, Floats, Floats]
_TIGHT = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10, "presolve": False}
"""Presolve now and then calls a program infeasible whose only feasible point is the one it was made from."""


def problem(chance: np.random.Generator, rows: int | None = None) -> Problem:
    """1 to 80 rows, 1 to 6 types, gangs of 1 to 8; speeds smooth, wide, small whole numbers or a few repeated rows."""
    rows = int(chance.integers(1, 81)) if rows is None else rows
    while True:
        types = int(chance.integers(1, 7))
        speeds = [
            chance.uniform(0.1, 1.0, (rows, types)),
            np.exp(chance.uniform(-3.0, 3.0, (rows, types))),
            chance.integers(1, 4, (rows, types)).astype(float),
            chance.integers(1, 5, (3, types)).astype(float)[chance.integers(0, 3, rows)],
        ][chance.integers(0, 4)]
        speeds = speeds * (chance.random((rows, types)) < chance.choice([0.6, 1.0]))
        gangs = chance.choice([1.0, 1.0, 2.0, 4.0, 8.0] if chance.random() < 0.5 else np.arange(1.0, 9.0), rows)
        plenty = max(2, int(gangs.sum() / types * chance.choice([0.3, 1.0, 2.0])))
        capacity = chance.integers(0, plenty + 1, types).astype(float)
        served = ((speeds > 0) & (gangs[:, None] <= capacity)).any(axis=1)
        if served.any():
            return speeds[served], gangs[served], capacity


class Written:
    """The program every answer obeys, over (row, type) that can be used; levels in units of a row's fastest type."""

    def __init__(self, problem: Problem) -> None:
        speeds, self.gangs, self.capacity = problem
        self.rows, self.types = speeds.shape
        usable = np.where(self.gangs[:, None] <= self.capacity, speeds, 0.0)
        self.fastest = usable.max(axis=1)
        self.part = usable / self.fastest[:, None]
        row, kind = self.used = np.nonzero(usable)
        place = np.concatenate([row, self.rows + kind, self.rows + self.types + row])
        values = np.concatenate([np.ones(len(row)), self.gangs[row], -self.part[row, kind]])
        shape = (2 * self.rows + self.types, len(row))
        self.limits = csr_array((values, (place, np.tile(np.arange(len(row)), 3))), shape=shape)

    def raised(self, base: Floats, rate: Floats) -> tuple[float, Floats, Floats]:
        """The largest t with levels ≥ base + t · rate, levels that are surely reached so, and what each row's costs.

        The answer is a vertex: a row whose level has a price is at it whatever the others do.
        """
        size, scale = self.limits.shape[1], float(rate.max())
        rising = csr_array(np.concatenate([np.zeros(self.rows + self.types), rate / scale])[:, None])
        answer = linprog(  # type: ignore[call-overload]
            np.append(np.zeros(size), -1.0),
            hstack([self.limits, rising], format="csr"),
            np.concatenate([np.ones(self.rows), self.capacity, -base]),
            method="highs-ds",
            options=_TIGHT,
        )
        assert answer.status == 0, answer.message
        shares = np.zeros(self.part.shape)
        shares[self.used] = np.maximum(answer.x[:-1], 0.0)
        shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1.0)
        shares *= np.minimum(1.0, self.capacity / np.maximum(self.gangs @ shares, 1e-300))
        prices = -answer.ineqlin.marginals[self.rows + self.types :] * rate / scale
        return float(answer.x[-1]) / scale, (self.part * shares).sum(axis=1), prices


def best(problem: Problem, rate: Floats) -> float:
    """The largest t with levels ≥ t · rate."""
    written = Written(problem)
    return written.raised(np.zeros(written.rows), rate / written.fastest)[0]


def literal_levels(problem: Problem, rates: Callable[[Flags], Floats]) -> Floats:
    """Raise all that still rise, freeze who is full or whose level has a price, and again, until all are frozen."""
    written = Written(problem)
    levels, frozen = np.zeros(written.rows), np.zeros(written.rows, dtype=bool)
    while not frozen.all():
        rate = rates(frozen) / written.fastest
        risen, reached, prices = written.raised(levels, rate)
        # Never above what is reached, or the next program would begin infeasible by this one's tolerance.
        levels = np.minimum(np.minimum(levels + rate * risen, 1.0), reached)
        frozen |= (prices > 1e-7) | (levels >= 1 - 1e-9)
    reached_by_all: Floats = levels * written.fastest
    return reached_by_all


def check_shares(problem: Problem, shares: Floats, levels: Floats) -> None:
    speeds, gangs, capacity = problem
    assert (shares >= 0).all()
    assert (shares.sum(axis=1) <= 1).all()
    assert (gangs @ shares <= capacity).all()
    assert not shares[(speeds == 0) | (gangs[:, None] > capacity)].any()
    np.testing.assert_allclose((speeds * shares).sum(axis=1), levels, rtol=1e-8)


@pytest.mark.parametrize("block", range(6))
def test_objectives_match_one_linear_program_each(block: int) -> None:
    for seed in range(50 * block, 50 * block + 50):
        chance = np.random.default_rng(seed)
        given = problem(chance)
        weights = chance.uniform(0.3, 3.0, len(given[0]))
        steps = np.exp(chance.uniform(0.0, 8.0, len(given[0])))
        least, shortest = best(given, weights), best(given, steps)
        for answer, expected in (
            (max_min(*given, weights), least),
            (max_min(*given, weights, water_filling=False), least),
            (makespan(*given, steps), shortest),
        ):
            assert answer.objective == pytest.approx(expected, rel=1e-6)
            assert answer.gap <= 1e-8
            assert answer.residual <= 1e-8
            check_shares(given, answer.X, answer.levels)


@pytest.mark.parametrize("block", range(6))
def test_finish_time_fairness_matches_a_sequence_of_linear_programs(block: int) -> None:
    for seed in range(50 * block, 50 * block + 50):
        chance = np.random.default_rng(seed)
        given = problem(chance)
        steps = np.exp(chance.uniform(0.0, 8.0, len(given[0])))
        usable = np.where(given[1][:, None] <= given[2], given[0], 0.0)
        apart = steps / isolated_speed(usable, given[1], given[2])
        elapsed = apart * chance.uniform(0.0, 2.0, len(steps)) * chance.integers(0, 2)
        alone = elapsed * chance.uniform(0.2, 1.5, len(steps)) + apart
        answer = finish_time_fairness(*given, steps, elapsed, alone)
        rho = 1.0 / answer.objective
        assert rho == pytest.approx(float(((elapsed + steps / answer.levels) / alone).max()), rel=1e-9)
        check_shares(given, answer.X, answer.levels)
        # A ρ can be had if and only if the levels it asks for can be scaled by 1: a little more can, a little less not.
        for factor, reached in ((1 + 1e-6, True), (1 - 1e-6, False)):
            left = factor * rho * alone - elapsed
            possible = bool((left > 0).all()) and best(given, steps / left) >= 1 - 1e-9
            assert possible is reached


@pytest.mark.parametrize("block", range(6))
def test_flat_water_filling_matches_a_program_per_level(block: int) -> None:
    for seed in range(50 * block, 50 * block + 50):
        chance = np.random.default_rng(1000 + seed)
        given = problem(chance)
        weights = chance.choice([0.5, 1.0, 2.0, 3.0], len(given[0]))
        expected = literal_levels(given, lambda frozen, w=weights: np.where(frozen, 0.0, w))  # type: ignore[misc]
        answer = max_min(*given, weights)
        assert (np.abs(answer.levels - expected) <= 1e-6 * given[0].max(axis=1)).all()
        check_shares(given, answer.X, answer.levels)


def random_tree(chance: np.random.Generator, rows: list[int], depth: int) -> ShareNode:
    policy = chance.choice(["fair", "fifo"])
    if depth == 1 or len(rows) == 1:
        return ShareNode(rows, float(chance.integers(1, 4)), policy)
    parts = np.array_split(chance.permutation(rows), int(chance.integers(1, min(3, len(rows)) + 1)))
    children: list[ShareNode | int] = [
        int(part[0]) if len(part) == 1 and chance.random() < 0.5 else random_tree(chance, part.tolist(), depth - 1)
        for part in parts
    ]
    return ShareNode(children, float(chance.integers(1, 4)), policy)


def shared_out(root: ShareNode, weights: Floats) -> Callable[[Flags], Floats]:
    """How fast each row rises when every node passes its rate on to those under it who still can."""

    def alive(entry: ShareNode | int, frozen: Flags) -> bool:
        return (
            any(alive(child, frozen) for child in entry.children) if isinstance(entry, ShareNode) else not frozen[entry]
        )

    def weight(entry: ShareNode | int) -> float:
        return entry.weight if isinstance(entry, ShareNode) else float(weights[entry])

    def give(entry: ShareNode | int, rate: float, frozen: Flags, rates: Floats) -> None:
        if not isinstance(entry, ShareNode):
            rates[entry] = rate
            return
        able = [child for child in entry.children if alive(child, frozen)]
        if entry.policy == "fifo":
            able = able[:1]
        for child in able:
            give(child, rate * weight(child) / sum(map(weight, able)), frozen, rates)

    def rates(frozen: Flags) -> Floats:
        out = np.zeros(len(weights))
        able = [child for child in root.children if alive(child, frozen)]
        if root.policy == "fifo":
            give(root, 1.0, frozen, out)
            return out
        for child in able:
            give(child, weight(child), frozen, out)
        return out

    return rates


@pytest.mark.parametrize("block", range(6))
def test_trees_of_depth_one_to_three_match_a_program_per_level(block: int) -> None:
    for seed in range(50 * block, 50 * block + 50):
        chance = np.random.default_rng(2000 + seed)
        # A program for each row that fills up in turn: even in the logarithm, or the widest would take all the time.
        given = problem(chance, rows=int(81 ** chance.uniform()))
        weights = chance.choice([0.5, 1.0, 2.0, 3.0], len(given[0]))
        root = random_tree(chance, list(range(len(weights))), 1 + seed % 3)
        expected = literal_levels(given, shared_out(root, weights))
        answer = hierarchical(*given, root, weights)
        assert (np.abs(answer.levels - expected) <= 1e-6 * given[0].max(axis=1)).all()
        check_shares(given, answer.X, answer.levels)
