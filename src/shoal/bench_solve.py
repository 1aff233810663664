"""Benches of the solve room: Gavel's programs at large sizes, some beside the same problem through cvxpy.

cvxpy is not a dependency: where it is not installed its column stays empty. Both solve the same arrays in one process,
and only the solving is timed, as people would call it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from time import process_time
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Instance:
    """A random instance: unlike jobs, many of which can use only some types, and more of one type than of another."""

    speeds: Floats
    gangs: Floats
    capacity: Floats
    weights: Floats
    steps: Floats
    elapsed: Floats
    prices: Floats

    @classmethod
    def of(cls, jobs: int, types: int, seed: int = 3) -> "Instance":
        """An instance that is the same each time."""
        chance = np.random.default_rng(seed)
        speeds = chance.uniform(1, 10, (jobs, 1)) * chance.uniform(0.2, 1, (jobs, types))
        able = chance.random((jobs, types)) < 0.6
        able[np.arange(jobs), chance.integers(0, types, jobs)] = True
        speeds[~able] = 0.0
        gangs = chance.choice([1.0, 1.0, 1.0, 2.0, 4.0, 8.0], jobs)
        parts = np.arange(1.0, types + 1)
        capacity = np.ceil(gangs.sum() * 0.6 * parts / parts.sum())
        steps, elapsed = chance.lognormal(8, 1.5, jobs), chance.uniform(0, 5000, jobs)
        prices = np.array([3.0, 1.5, 0.5, 0.7, 2.0, 1.0])[:types]
        return cls(speeds, gangs, capacity, chance.choice([1.0, 2.0, 5.0], jobs), steps, elapsed, prices)


def _best_of(times: int, solve: Callable[[], Any]) -> tuple[float, Any]:
    seconds, answer = float("inf"), None
    for _ in range(times):
        begin = process_time()
        answer = solve()
        seconds = min(seconds, process_time() - begin)
    return seconds, answer


def filling(objective: str, jobs: int, types: int) -> dict[str, float]:
    """A program of the price-space solver, and the same through cvxpy."""
    from shoal.solve import prices

    it = Instance.of(jobs, types)
    alone = it.elapsed * 0.8 + it.steps / prices.isolated_speed(it.speeds, it.gangs, it.capacity)
    demands = it.weights * prices.equal_share_speed(it.speeds, it.capacity) / it.gangs
    where = (it.speeds, it.gangs, it.capacity)
    solvers: dict[str, Callable[[], prices.Filling]] = {
        "max-min": lambda: prices.max_min(*where, demands, water_filling=False),
        "makespan": lambda: prices.makespan(*where, it.steps, water_filling=False),
        "ftf": lambda: prices.finish_time_fairness(*where, it.steps, it.elapsed, alone, water_filling=False),
        "flat": lambda: prices.max_min(*where, demands),
        "tree": lambda: prices.hierarchical(*where, _tree(jobs), it.weights),
    }
    solvers[objective]()  # what is compiled or imported on first use is not the solve
    seconds, found = _best_of(3, solvers[objective])
    stages = float(len(found.stages))
    figures = {"seconds": seconds, "gap": found.gap, "residual": found.residual, "stages": stages}
    if objective in ("max-min", "makespan"):
        figures.update(_cvxpy(it, found.objective, _least_level(it, demands if objective == "max-min" else it.steps)))
    elif objective == "ftf":
        figures.update(_cvxpy(it, 1.0 / found.objective, _worst_rho(it, alone)))
    return figures


def _tree(jobs: int) -> Any:
    from shoal.solve.prices import Node

    groups = np.array_split(np.arange(jobs), 20)
    return Node(tuple(Node(tuple(g.tolist()), 1.0 + i % 3, "fifo" if i % 2 else "fair") for i, g in enumerate(groups)))


Posed: TypeAlias = Callable[[Any, Any], tuple[Any, list[Any]]]
"""From cvxpy and its variable X to an objective and limits beyond those every X has."""


def _least_level(it: Instance, targets: Floats) -> Posed:
    return lambda cp, x: (cp.Maximize(cp.min(cp.multiply(_levels(cp, it, x), 1.0 / targets))), [])


def _worst_rho(it: Instance, alone: Floats) -> Posed:
    def posed(cp: Any, x: Any) -> tuple[Any, list[Any]]:
        finish = it.elapsed + cp.multiply(it.steps, cp.inv_pos(_levels(cp, it, x)))
        return cp.Minimize(cp.max(cp.multiply(finish, 1.0 / alone))), []

    return posed


def _levels(cp: Any, it: Instance, x: Any) -> Any:
    return cp.sum(cp.multiply(it.speeds, x), axis=1)


def _cvxpy(it: Instance, ours: float, posed: Posed) -> dict[str, float]:
    """The same by cvxpy with its default solver: CPU seconds, and how far its answer is from ours."""
    try:
        cp: Any = import_module("cvxpy")
    except ImportError:
        return {}

    def solve() -> float:
        x = cp.Variable(it.speeds.shape, nonneg=True)
        objective, limits = posed(cp, x)
        limits = [*limits, cp.sum(x, axis=1) <= 1, it.gangs @ x <= it.capacity]
        return float(cp.Problem(objective, limits).solve())

    seconds, objective = _best_of(1, solve)
    return {"cvxpy_seconds": seconds, "cvxpy_difference": abs(objective - ours) / ours}


def cost(jobs: int, types: int) -> dict[str, float]:
    """Least cost, every job counted in its own best steps per dollar."""
    from shoal.solve import fractional

    it = Instance.of(jobs, types)
    weights = it.gangs / (it.speeds / it.prices).max(axis=1)
    seconds, found = _best_of(3, lambda: fractional.cheapest(it.speeds, it.gangs, it.capacity, it.prices, weights))
    figures = {"seconds": seconds, "gap": found.gap, "residual": found.residual}
    return {**figures, **_cost_by_cvxpy(it, weights, found.objective)}


def _cost_by_cvxpy(it: Instance, weights: Floats, ours: float) -> dict[str, float]:
    """The ratio as one linear program (Charnes and Cooper): y = t · X, the money spent being 1."""
    try:
        cp: Any = import_module("cvxpy")
    except ImportError:
        return {}

    def solve() -> float:
        y, t = cp.Variable(it.speeds.shape, nonneg=True), cp.Variable(nonneg=True)
        spent = cp.sum(cp.multiply(np.outer(it.gangs, it.prices), y))
        limits = [spent == 1, cp.sum(y, axis=1) <= t, it.gangs @ y <= it.capacity * t]
        return float(cp.Problem(cp.Maximize(weights @ _levels(cp, it, y)), limits).solve())

    seconds, objective = _best_of(1, solve)
    return {"cvxpy_seconds": seconds, "cvxpy_difference": abs(objective - ours) / ours}


def sharing(jobs: int) -> dict[str, float]:
    """Space sharing among jobs of the catalogue's kinds, water-filled."""
    from shoal.core.topology import Locality
    from shoal.perf.catalog import catalog
    from shoal.solve.crowd import Crowd
    from shoal.solve.sharing import shared_max_min

    known, kinds = catalog(), ("v100", "p100", "k80")
    types = [t for t in known.types() if set(kinds) <= set(t.kinds)]
    speeds = np.array(
        [[known.profile(t.model).rate(k, 1, Locality.SAME_NODE, t.batch_size) for k in kinds] for t in types]
    )
    pairs = np.array([(a, b) for a in range(len(types)) for b in range(a, len(types))])
    kept = [known.colocated(types[a].model, types[a].batch_size, types[b].model, types[b].batch_size) for a, b in pairs]
    fractions = np.array(kept)
    pair_speed = np.stack([speeds[pairs[:, i]] * fractions[:, i : i + 1] for i in (0, 1)], axis=1)
    capacity = np.full(3, jobs / 8)
    of_job = np.random.default_rng(3).integers(0, len(types), jobs)
    demands = (speeds @ capacity / capacity.sum())[of_job]
    crowd = Crowd(of_job, speeds, np.ones(len(types)), capacity, pairs, pair_speed)
    seconds, found = _best_of(3, lambda: shared_max_min(crowd, demands))
    return {"seconds": seconds, "gap": found.gap, "residual": found.residual}
