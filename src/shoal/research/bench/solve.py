"""Benches of the solve room: Gavel's programs at large sizes, each beside the same problem through cvxpy.

cvxpy is not a dependency: where it is not installed its column stays empty. Both solve the same arrays in one process,
and only the solving is timed, as people would call it. Water filling through cvxpy is a program for each level, and
there may be as many levels as jobs: it is stopped after `PATIENCE` CPU seconds, and the figures then say how many jobs
were settled by then. Space sharing through cvxpy, which has a variable for every two jobs, is tried with fewer jobs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from time import process_time
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices

if TYPE_CHECKING:
    from shoal.solve.job_classes import JobClasses


PATIENCE = 20.0
"""CPU seconds after which no further level is asked of cvxpy."""
_PAIRED = 256
"""Jobs of the space sharing that cvxpy is given: 32,640 pairs on 3 types."""


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
    else:
        rates = _weighted(demands) if objective == "flat" else _passed_on(it)
        figures.update(_filled_by_cvxpy(_alone(it), rates, found.levels))
    return figures


def beside(more: Mapping[str, float]) -> str:
    """The figures of cvxpy in words: its seconds, whether it was stopped, and whether it had fewer jobs to do."""
    if "cvxpy_seconds" not in more:
        return "–"
    seconds = f"{more['cvxpy_seconds']:.3g}"
    settled, jobs = int(more.get("cvxpy_settled", 0)), int(more.get("cvxpy_jobs", 0))
    if settled < jobs:
        return f"> {seconds}, {settled:,} of {jobs:,} jobs settled"
    return f"{seconds}, {jobs:,} jobs only" if "cvxpy_fewer" in more else seconds


def _entities(jobs: int) -> list[tuple[float, bool, Indices]]:
    """Twenty entities of about as many jobs each: weight, whether first come first served, and jobs."""
    groups = np.array_split(np.arange(jobs), 20)
    return [(1.0 + i % 3, bool(i % 2), group) for i, group in enumerate(groups)]


def _tree(jobs: int) -> Any:
    from shoal.solve.prices import ShareNode

    entities = _entities(jobs)
    return ShareNode(
        tuple(ShareNode(tuple(g.tolist()), weight, "fifo" if line else "fair") for weight, line, g in entities)
    )


def _weighted(weights: Floats) -> Callable[[Flags], Floats]:
    """All that are not frozen rise by weight."""
    return lambda frozen: np.where(frozen, 0.0, weights)


def _passed_on(it: Instance) -> Callable[[Flags], Floats]:
    """How fast each job rises under the same tree, by who is frozen."""
    entities = _entities(len(it.gangs))

    def rates(frozen: Flags) -> Floats:
        rate = np.zeros(len(frozen))
        for weight, line, group in entities:
            able = group[~frozen[group]]
            able = able[:1] if line else able
            rate[able] = weight * (1.0 if line else it.weights[able] / it.weights[able].sum())
        return rate

    return rates


@dataclass(frozen=True, slots=True)
class Ways:
    """What can be done and what it takes: by way the jobs it occupies, the machines, and the throughput it gives."""

    time: Any
    room: Any
    gain: Any
    capacity: Floats


def _alone(it: Instance) -> Ways:
    """A way for every job and type."""
    from scipy.sparse import csr_array

    job, kind = np.nonzero(it.speeds)
    way, (jobs, types) = np.arange(len(job)), it.speeds.shape
    return Ways(
        csr_array((np.ones(len(job)), (job, way)), shape=(jobs, len(job))),
        csr_array((it.gangs[job], (kind, way)), shape=(types, len(job))),
        csr_array((it.speeds[job, kind], (job, way)), shape=(jobs, len(job))),
        it.capacity,
    )


def _filled_by_cvxpy(ways: Ways, rates: Callable[[Flags], Floats], ours: Floats) -> dict[str, float]:
    """Water filling as a sequence of programs: raise all, freeze who is full or whose level has a price, and again.

    The simplex method, since prices of an interior point do not tell who is frozen; compiled once, with parameters.
    """
    try:
        cp: Any = import_module("cvxpy")
    except ImportError:
        return {}
    begin, jobs = process_time(), ways.gain.shape[0]
    fastest = ways.gain.max(axis=1).toarray().ravel()
    x, t = cp.Variable(ways.gain.shape[1], nonneg=True), cp.Variable(nonneg=True)
    base, rate = cp.Parameter(jobs, nonneg=True), cp.Parameter(jobs, nonneg=True)
    reached = ways.gain.multiply(1.0 / fastest[:, None]).tocsr() @ x >= base + rate * t
    problem = cp.Problem(cp.Maximize(t), [ways.time @ x <= 1, ways.room @ x <= ways.capacity, reached])
    levels, frozen = np.zeros(jobs), np.zeros(jobs, dtype=bool)
    while not frozen.all() and process_time() - begin < PATIENCE:
        rise = rates(frozen) / fastest
        base.value, rate.value = levels * (1 - 1e-9), rise / rise.max()
        problem.solve(solver=cp.HIGHS)
        if t.value is None:
            break
        levels = np.minimum(levels + rate.value * float(t.value), 1.0)
        frozen |= (reached.dual_value * rate.value > 1e-7) | (levels >= 1.0 - 1e-7)
    apart = np.abs(levels - ours / fastest)[frozen].max(initial=0.0)
    seconds, settled = process_time() - begin, float(frozen.sum())
    figures = {"cvxpy_seconds": seconds, "cvxpy_settled": settled, "cvxpy_jobs": float(jobs)}
    return {**figures, "cvxpy_difference": float(apart)}


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
    from shoal.solve import ratio_program

    it = Instance.of(jobs, types)
    weights = it.gangs / (it.speeds / it.prices).max(axis=1)
    seconds, found = _best_of(3, lambda: ratio_program.cheapest(it.speeds, it.gangs, it.capacity, it.prices, weights))
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
    """Space sharing among jobs of the catalogue's kinds, water-filled; through cvxpy with fewer of them."""
    from shoal.solve.space_sharing import shared_max_min

    crowd, demands = _crowd(jobs)
    seconds, found = _best_of(3, lambda: shared_max_min(crowd, demands))
    figures = {"seconds": seconds, "gap": found.gap, "residual": found.residual}
    fewer, wanted = _crowd(min(jobs, _PAIRED))
    ours = shared_max_min(fewer, wanted).throughput
    beside = _filled_by_cvxpy(_paired(fewer), _weighted(wanted), ours)
    return {**figures, **beside, **({"cvxpy_fewer": 1.0} if beside and jobs > _PAIRED else {})}


def _crowd(jobs: int) -> tuple["JobClasses", Floats]:
    """So many jobs of the catalogue's kinds, on an eighth as many GPUs of each type, and what they demand."""
    from shoal.core.topology import Locality
    from shoal.perf.catalog import catalog
    from shoal.solve.job_classes import JobClasses

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
    return JobClasses(of_job, speeds, np.ones(len(types)), capacity, pairs, pair_speed), demands


def _paired(crowd: "JobClasses") -> Ways:
    """A way for every job and type, and for every two jobs and type on which both get on."""
    from scipy.sparse import csr_array

    named = {frozenset(pair): i for i, pair in enumerate(crowd.pairs.tolist())}
    members: list[tuple[tuple[int, float], ...]] = [
        ((m, s),) for m, k in enumerate(crowd.kinds) for s in crowd.speed[k]
    ]
    count, types = len(crowd.kinds), len(crowd.capacity)
    for m in range(count):
        for n in range(m + 1, count):
            a, b = int(crowd.kinds[m]), int(crowd.kinds[n])
            speed = crowd.pair_speed[named[frozenset((a, b))]]
            first, second = speed if crowd.pairs[named[frozenset((a, b))], 0] == a else speed[::-1]
            members += [((m, x), (n, y)) for x, y in zip(first, second, strict=True)]
    way = np.array([k for k, who in enumerate(members) for _ in who])
    job = np.array([m for who in members for m, _ in who])
    speed = np.array([s for who in members for _, s in who])
    # Ways come type after type, and every gang is one GPU.
    kind = np.arange(len(members)) % types
    return Ways(
        csr_array((np.ones(len(way)), (job, way)), shape=(count, len(members))),
        csr_array((np.ones(len(members)), (kind, np.arange(len(members)))), shape=(types, len(members))),
        csr_array((speed, (job, way)), shape=(count, len(members))),
        crowd.capacity,
    )
