"""Water filling by prices against linear programs written down literally, on random problems."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linprog

from shoal.solve.prices import (
    Node,
    feasible,
    finish_time_fairness,
    hierarchical,
    isolated_speed,
    makespan,
    max_min,
)

Floats = NDArray[np.float64]
Problem = tuple[Floats, Floats, Floats]
_TIGHT = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


def problem(chance: np.random.Generator, most: int) -> Problem:
    """Speeds smooth, wide, small whole numbers or a few repeated rows; gangs 1 to 8; capacities from none up."""
    while True:
        rows, types = int(chance.integers(1, most + 1)), int(chance.integers(1, 7))
        speeds = [
            chance.uniform(0.1, 1.0, (rows, types)),
            np.exp(chance.uniform(-3.0, 3.0, (rows, types))),
            chance.integers(1, 4, (rows, types)).astype(float),
            chance.integers(1, 5, (3, types)).astype(float)[chance.integers(0, 3, rows)],
        ][chance.integers(0, 4)]
        speeds = speeds * (chance.random((rows, types)) < chance.choice([0.6, 1.0]))
        gangs = chance.choice([1.0, 1.0, 2.0, 4.0, 8.0], rows)
        plenty = max(2, int(gangs.sum() / types * chance.choice([0.3, 1.0, 2.0])))
        capacity = chance.integers(0, plenty + 1, types).astype(float)
        served = ((speeds > 0) & (gangs[:, None] <= capacity)).any(axis=1)
        if served.any():
            return speeds[served], gangs[served], capacity


def best(problem: Problem, base: Floats, rate: Floats, row: int | None = None) -> float:
    """The largest t with levels ≥ base + t·rate; or, with t = 0, the highest level of one row. NaN where not solved."""
    speeds, gangs, capacity = problem
    rows, types = speeds.shape
    speeds = np.where(gangs[:, None] <= capacity, speeds, 0.0)
    size = speeds.max(axis=1)
    time = np.hstack([np.kron(np.eye(rows), np.ones(types)), np.zeros((rows, 1))])
    room = np.hstack([np.kron(gangs, np.eye(types)), np.zeros((types, 1))])
    reach = np.hstack(
        [-(np.eye(rows)[:, :, None] * (speeds / size[:, None])[:, None, :]).reshape(rows, -1), np.zeros((rows, 1))]
    )
    reach[:, -1] = rate / size
    goal = np.zeros(rows * types + 1)
    if row is None:
        goal[-1] = -1.0
    else:
        goal[row * types : (row + 1) * types] = -speeds[row]
    upper = np.append((speeds > 0).astype(float).ravel(), np.inf if row is None else 0.0)
    answer = linprog(
        goal,
        np.vstack([time, room, reach]),
        np.concatenate([np.ones(rows), capacity, -base / size]),
        bounds=np.stack([np.zeros_like(upper), upper], axis=1),
        method="highs",
        options=_TIGHT,
    )
    return -float(answer.fun) if answer.status == 0 else np.nan


def literal_levels(problem: Problem, rates: Callable[[NDArray[np.bool_]], Floats]) -> Floats | None:
    """Raise, ask each row whether it could rise alone, freeze, repeat; None where the reference itself gives out."""
    speeds, gangs, capacity = problem
    fastest = np.where(gangs[:, None] <= capacity, speeds, 0.0).max(axis=1)
    levels, frozen = np.zeros(len(speeds)), np.zeros(len(speeds), dtype=bool)
    while not frozen.all():
        rate = rates(frozen)
        risen = best(problem, levels * (1 - 1e-10), rate)
        if np.isnan(risen):
            return None
        levels = np.minimum(levels + rate * max(risen, 0.0), fastest)
        tops = {
            m: best(problem, levels * (1 - 1e-9), np.zeros(len(levels)), m)
            for m in np.flatnonzero(~frozen & (rate > 0)).tolist()
        }
        stuck = [m for m, top in tops.items() if top <= levels[m] + 3e-7 * fastest[m]]
        if not stuck or np.isnan(list(tops.values())).any():
            return None
        frozen[stuck] = True
    return levels


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
        given = problem(chance, 80 if seed % 5 == 0 else 20)
        weights = chance.uniform(0.3, 3.0, len(given[0]))
        steps = np.exp(chance.uniform(0.0, 8.0, len(given[0])))
        nothing = np.zeros(len(given[0]))
        for answer, rate in ((max_min(*given, weights), weights), (makespan(*given, steps), steps)):
            expected = best(given, nothing, rate)
            assert answer.objective == pytest.approx(expected, rel=1e-6)
            assert answer.gap <= 1e-8
            assert answer.residual <= 1e-8
            check_shares(given, answer.X, answer.levels)
        first = max_min(*given, weights, water_filling=False)
        assert first.objective == pytest.approx(best(given, nothing, weights), rel=1e-6)
        check_shares(given, first.X, first.levels)


@pytest.mark.parametrize("block", range(6))
def test_finish_time_fairness_matches_a_sequence_of_linear_programs(block: int) -> None:
    for seed in range(50 * block, 50 * block + 50):
        chance = np.random.default_rng(seed)
        given = problem(chance, 80 if seed % 10 == 0 else 12)
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
            possible = bool((left > 0).all()) and best(given, np.zeros(len(steps)), steps / left) >= 1 - 1e-9
            assert possible is reached


@pytest.mark.parametrize("block", range(6))
def test_flat_water_filling_matches_a_program_per_level_and_row(block: int) -> None:
    given_up = 0
    for seed in range(50 * block, 50 * block + 50):
        chance = np.random.default_rng(1000 + seed)
        given = problem(chance, 10 if seed % 10 == 0 else 4)
        weights = chance.choice([0.5, 1.0, 2.0, 3.0], len(given[0]))
        expected = literal_levels(given, lambda frozen, w=weights: np.where(frozen, 0.0, w))  # type: ignore[misc]
        if expected is None:
            given_up += 1
            continue
        answer = max_min(*given, weights)
        assert (np.abs(answer.levels - expected) <= 1e-6 * given[0].max(axis=1)).all()
        check_shares(given, answer.X, answer.levels)
    assert given_up <= 3


def random_tree(chance: np.random.Generator, rows: list[int], depth: int) -> Node:
    policy = chance.choice(["fair", "fifo"])
    if depth == 1 or len(rows) == 1:
        return Node(rows, float(chance.integers(1, 4)), policy)
    parts = np.array_split(chance.permutation(rows), int(chance.integers(1, min(3, len(rows)) + 1)))
    children: list[Node | int] = [
        int(part[0]) if len(part) == 1 and chance.random() < 0.5 else random_tree(chance, part.tolist(), depth - 1)
        for part in parts
    ]
    return Node(children, float(chance.integers(1, 4)), policy)


def shared_out(root: Node, weights: Floats) -> Callable[[NDArray[np.bool_]], Floats]:
    """How fast each row rises when every node passes its rate on to those under it who still can."""

    def alive(entry: Node | int, frozen: NDArray[np.bool_]) -> bool:
        return any(alive(child, frozen) for child in entry.children) if isinstance(entry, Node) else not frozen[entry]

    def weight(entry: Node | int) -> float:
        return entry.weight if isinstance(entry, Node) else float(weights[entry])

    def give(entry: Node | int, rate: float, frozen: NDArray[np.bool_], rates: Floats) -> None:
        if not isinstance(entry, Node):
            rates[entry] = rate
            return
        able = [child for child in entry.children if alive(child, frozen)]
        if entry.policy == "fifo":
            able = able[:1]
        for child in able:
            give(child, rate * weight(child) / sum(map(weight, able)), frozen, rates)

    def rates(frozen: NDArray[np.bool_]) -> Floats:
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
def test_trees_of_depth_one_to_three_match_a_program_per_level_and_row(block: int) -> None:
    given_up = 0
    for seed in range(50 * block, 50 * block + 50):
        chance = np.random.default_rng(2000 + seed)
        given = problem(chance, 10 if seed % 10 == 0 else 4)
        weights = chance.choice([0.5, 1.0, 2.0, 3.0], len(given[0]))
        root = random_tree(chance, list(range(len(weights))), 1 + seed % 3)
        expected = literal_levels(given, shared_out(root, weights))
        if expected is None:
            given_up += 1
            continue
        answer = hierarchical(*given, root, weights)
        assert (np.abs(answer.levels - expected) <= 1e-6 * given[0].max(axis=1)).all()
        check_shares(given, answer.X, answer.levels)
    assert given_up <= 3


@pytest.mark.parametrize("block", range(6))
def test_levels_fit_when_a_linear_program_says_so(block: int) -> None:
    for seed in range(50 * block, 50 * block + 50):
        chance = np.random.default_rng(3000 + seed)
        given = problem(chance, 30)
        usable = np.where(given[1][:, None] <= given[2], given[0], 0.0)
        goals = usable.max(axis=1) * chance.uniform(0.0, 1.0, len(usable)) * (chance.random(len(usable)) < 0.8)
        if not goals.any():
            continue
        most = best(given, np.zeros(len(goals)), goals)
        fits = feasible(*given, goals * most * 0.999)
        assert fits.feasible
        assert ((usable * fits.X).sum(axis=1) >= goals * most * 0.999 * (1 - 1e-8)).all()
        too_much = feasible(*given, goals * most * 1.001)
        assert not too_much.feasible
        assert too_much.fraction == pytest.approx(1 / 1.001, rel=1e-6)
