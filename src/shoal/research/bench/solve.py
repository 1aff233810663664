"""Benchmarks of `shoal.solve`: Gavel's programs at large sizes, compared with the same problem in cvxpy.

cvxpy is not a dependency: without it its column stays empty. Both solve the same arrays in one process, and only the
solving is timed. Water filling in cvxpy is one program per level, with up to as many levels as jobs: it stops after
`CVXPY_SECONDS` CPU seconds, and the figures give the number of jobs settled by then. Space sharing in cvxpy has a
variable for every pair of jobs and is therefore run with fewer jobs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from time import process_time
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices
from shoal.research.bench.timing import best_of

if TYPE_CHECKING:
    from shoal.solve.job_classes import JobClasses


CVXPY_SECONDS = 20.0
"""CPU seconds after which cvxpy is given no further level."""
_CVXPY_PAIR_JOBS = 256
"""Most jobs for space sharing in cvxpy: 32,640 pairs on 3 types."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A random instance: different jobs, many of which can use only some types, and unequal numbers of GPUs by type."""

    speeds: Floats
    gangs: Floats
    capacity: Floats
    weights: Floats
    steps: Floats
    elapsed: Floats
    prices: Floats

    @classmethod
    def of(cls, jobs: int, types: int, seed: int = 3) -> "Instance":
        """Return the instance of a seed."""
        rng = np.random.default_rng(seed)
        speeds = rng.uniform(1, 10, (jobs, 1)) * rng.uniform(0.2, 1, (jobs, types))
        able = rng.random((jobs, types)) < 0.6
        able[np.arange(jobs), rng.integers(0, types, jobs)] = True
        speeds[~able] = 0.0
        gangs = rng.choice([1.0, 1.0, 1.0, 2.0, 4.0, 8.0], jobs)
        parts = np.arange(1.0, types + 1)
        capacity = np.ceil(gangs.sum() * 0.6 * parts / parts.sum())
        steps, elapsed = rng.lognormal(8, 1.5, jobs), rng.uniform(0, 5000, jobs)
        prices = np.array([3.0, 1.5, 0.5, 0.7, 2.0, 1.0])[:types]
        return cls(speeds, gangs, capacity, rng.choice([1.0, 2.0, 5.0], jobs), steps, elapsed, prices)


def filling(objective: str, jobs: int, types: int) -> dict[str, float]:
    """Time a program of the price-space solver, and the same program in cvxpy."""
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
        "tree": lambda: prices.hierarchical(*where, _share_tree(jobs), it.weights),
    }
    solvers[objective]()  # compilation and imports of the first call are not timed
    seconds, found = best_of(3, solvers[objective])
    stages = float(len(found.stages))
    figures = {"seconds": seconds, "gap": found.gap, "residual": found.residual, "stages": stages}
    if objective in ("max-min", "makespan"):
        figures.update(_cvxpy(it, found.objective, _least_level(it, demands if objective == "max-min" else it.steps)))
    elif objective == "ftf":
        figures.update(_cvxpy(it, 1.0 / found.objective, _worst_rho(it, alone)))
    else:
        rates = _flat_rates(demands) if objective == "flat" else _tree_rates(it)
        figures.update(_fill_by_cvxpy(_single_columns(it), rates, found.levels))
    return figures


def cvxpy_cell(more: Mapping[str, float]) -> str:
    """Format cvxpy's figures: its seconds, the jobs settled if it was stopped, and whether it had fewer jobs."""
    if "cvxpy_seconds" not in more:
        return "–"
    seconds = f"{more['cvxpy_seconds']:.3g}"
    settled, jobs = int(more.get("cvxpy_settled", 0)), int(more.get("cvxpy_jobs", 0))
    if settled < jobs:
        return f"> {seconds}, {settled:,} of {jobs:,} jobs settled"
    return f"{seconds}, {jobs:,} jobs only" if "cvxpy_fewer" in more else seconds


def _entities(jobs: int) -> list[tuple[float, bool, Indices]]:
    """Return twenty entities of about equal numbers of jobs: weight, whether it is FIFO, and its jobs."""
    groups = np.array_split(np.arange(jobs), 20)
    return [(1.0 + i % 3, bool(i % 2), group) for i, group in enumerate(groups)]


def _share_tree(jobs: int) -> Any:
    from shoal.solve.prices import ShareNode

    entities = _entities(jobs)
    return ShareNode(
        tuple(ShareNode(tuple(g.tolist()), weight, "fifo" if line else "fair") for weight, line, g in entities)
    )


def _flat_rates(weights: Floats) -> Callable[[Flags], Floats]:
    """Rates at which levels rise: the weight of each job that is not frozen."""
    return lambda frozen: np.where(frozen, 0.0, weights)


def _tree_rates(it: Instance) -> Callable[[Flags], Floats]:
    """Rates at which levels rise under the entity tree, as a function of the frozen jobs."""
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
class ProgramColumns:
    """Columns of the allocation program, as sparse matrices: jobs × columns, GPU types × columns, jobs × columns.

    ``time`` marks the jobs a column occupies, ``used_gpus`` counts its GPUs by type, ``gain`` is its throughput by job.
    """

    time: Any
    used_gpus: Any
    gain: Any
    capacity: Floats


def _single_columns(it: Instance) -> ProgramColumns:
    """Return a column for every job and type."""
    from scipy.sparse import csr_array

    job, kind = np.nonzero(it.speeds)
    column, (jobs, types) = np.arange(len(job)), it.speeds.shape
    return ProgramColumns(
        csr_array((np.ones(len(job)), (job, column)), shape=(jobs, len(job))),
        csr_array((it.gangs[job], (kind, column)), shape=(types, len(job))),
        csr_array((it.speeds[job, kind], (job, column)), shape=(jobs, len(job))),
        it.capacity,
    )


def _fill_by_cvxpy(columns: ProgramColumns, rates: Callable[[Flags], Floats], ours: Floats) -> dict[str, float]:
    """Fill levels by a sequence of programs.

    Raise all levels, freeze jobs that are full or whose level has a price, repeat.

    Uses the simplex method, since the prices of an interior point do not show which jobs are frozen. The program is
    compiled once, with parameters.
    """
    try:
        cp: Any = import_module("cvxpy")
    except ImportError:
        return {}
    begin, jobs = process_time(), columns.gain.shape[0]
    fastest = columns.gain.max(axis=1).toarray().ravel()
    x, t = cp.Variable(columns.gain.shape[1], nonneg=True), cp.Variable(nonneg=True)
    base, rate = cp.Parameter(jobs, nonneg=True), cp.Parameter(jobs, nonneg=True)
    reached = columns.gain.multiply(1.0 / fastest[:, None]).tocsr() @ x >= base + rate * t
    problem = cp.Problem(cp.Maximize(t), [columns.time @ x <= 1, columns.used_gpus @ x <= columns.capacity, reached])
    levels, frozen = np.zeros(jobs), np.zeros(jobs, dtype=bool)
    while not frozen.all() and process_time() - begin < CVXPY_SECONDS:
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


Formulation: TypeAlias = Callable[[Any, Any], tuple[Any, list[Any]]]
"""Takes cvxpy and its variable X; returns an objective and constraints beyond those every X has."""


def _least_level(it: Instance, targets: Floats) -> Formulation:
    return lambda cp, x: (cp.Maximize(cp.min(cp.multiply(_levels(cp, it, x), 1.0 / targets))), [])


def _worst_rho(it: Instance, alone: Floats) -> Formulation:
    def formulate(cp: Any, x: Any) -> tuple[Any, list[Any]]:
        finish = it.elapsed + cp.multiply(it.steps, cp.inv_pos(_levels(cp, it, x)))
        return cp.Minimize(cp.max(cp.multiply(finish, 1.0 / alone))), []

    return formulate


def _levels(cp: Any, it: Instance, x: Any) -> Any:
    return cp.sum(cp.multiply(it.speeds, x), axis=1)


def _cvxpy(it: Instance, ours: float, formulate: Formulation) -> dict[str, float]:
    """Solve in cvxpy with its default solver; returns CPU seconds and the relative difference of the objectives."""

    def solve(cp: Any) -> float:
        x = cp.Variable(it.speeds.shape, nonneg=True)
        objective, limits = formulate(cp, x)
        limits = [*limits, cp.sum(x, axis=1) <= 1, it.gangs @ x <= it.capacity]
        return float(cp.Problem(objective, limits).solve())

    return _time_cvxpy(solve, ours)


def _time_cvxpy(solve: Callable[[Any], float], ours: float) -> dict[str, float]:
    try:
        cp: Any = import_module("cvxpy")
    except ImportError:
        return {}
    seconds, objective = best_of(1, lambda: solve(cp))
    return {"cvxpy_seconds": seconds, "cvxpy_difference": abs(objective - ours) / ours}


def cost(jobs: int, types: int) -> dict[str, float]:
    """Time the program of least cost; each job's rate is weighted by one over its most steps per dollar."""
    from shoal.solve import ratio_program

    it = Instance.of(jobs, types)
    weights = it.gangs / (it.speeds / it.prices).max(axis=1)
    seconds, found = best_of(3, lambda: ratio_program.cheapest(it.speeds, it.gangs, it.capacity, it.prices, weights))
    figures = {"seconds": seconds, "gap": found.gap, "residual": found.residual}
    return {**figures, **_cost_by_cvxpy(it, weights, found.objective)}


def _cost_by_cvxpy(it: Instance, weights: Floats, ours: float) -> dict[str, float]:
    """Solve the ratio as one linear program (Charnes and Cooper): y = t · X, with the money spent equal to 1."""

    def solve(cp: Any) -> float:
        y, t = cp.Variable(it.speeds.shape, nonneg=True), cp.Variable(nonneg=True)
        spent = cp.sum(cp.multiply(np.outer(it.gangs, it.prices), y))
        limits = [spent == 1, cp.sum(y, axis=1) <= t, it.gangs @ y <= it.capacity * t]
        return float(cp.Problem(cp.Maximize(weights @ _levels(cp, it, y)), limits).solve())

    return _time_cvxpy(solve, ours)


def sharing(jobs: int) -> dict[str, float]:
    """Time water-filled space sharing among jobs of the catalogue's models; cvxpy gets fewer jobs."""
    from shoal.solve.space_sharing import shared_max_min

    classes, demands = _sharing_jobs(jobs)
    seconds, found = best_of(3, lambda: shared_max_min(classes, demands))
    figures = {"seconds": seconds, "gap": found.gap, "residual": found.residual}
    fewer, wanted = _sharing_jobs(min(jobs, _CVXPY_PAIR_JOBS))
    ours = shared_max_min(fewer, wanted).throughput
    theirs = _fill_by_cvxpy(_pair_columns(fewer), _flat_rates(wanted), ours)
    return {**figures, **theirs, **({"cvxpy_fewer": 1.0} if theirs and jobs > _CVXPY_PAIR_JOBS else {})}


def _sharing_jobs(jobs: int) -> tuple["JobClasses", Floats]:
    """Return ``jobs`` jobs of the catalogue's models on ``jobs`` / 8 GPUs of each type, and their demands."""
    from shoal.core.topology import Locality
    from shoal.perf.catalog import catalog
    from shoal.solve.job_classes import JobClasses

    known, kinds = catalog(), ("v100", "p100", "k80")
    types = [t for t in known.types() if set(kinds) <= set(t.kinds)]
    speeds = np.array(
        [[known.profile(t.model).rate(k, 1, Locality.SAME_NODE, t.batch_size) for k in kinds] for t in types]
    )
    pairs = np.array([(a, b) for a in range(len(types)) for b in range(a, len(types))])
    fractions = np.array(
        [known.colocated(types[a].model, types[a].batch_size, types[b].model, types[b].batch_size) for a, b in pairs]
    )
    pair_speed = np.stack([speeds[pairs[:, i]] * fractions[:, i : i + 1] for i in (0, 1)], axis=1)
    capacity = np.full(3, jobs / 8)
    of_job = np.random.default_rng(3).integers(0, len(types), jobs)
    demands = (speeds @ capacity / capacity.sum())[of_job]
    return JobClasses(of_job, speeds, np.ones(len(types)), capacity, pairs, pair_speed), demands


def _pair_columns(classes: "JobClasses") -> ProgramColumns:
    """Return a column for every job and type, and for every pair of jobs and type."""
    from scipy.sparse import csr_array

    named = {frozenset(pair): i for i, pair in enumerate(classes.pairs.tolist())}
    members: list[tuple[tuple[int, float], ...]] = [
        ((m, s),) for m, k in enumerate(classes.kinds) for s in classes.speed[k]
    ]
    count, types = len(classes.kinds), len(classes.capacity)
    for m in range(count):
        for n in range(m + 1, count):
            a, b = int(classes.kinds[m]), int(classes.kinds[n])
            speed = classes.pair_speed[named[frozenset((a, b))]]
            first, second = speed if classes.pairs[named[frozenset((a, b))], 0] == a else speed[::-1]
            members += [((m, x), (n, y)) for x, y in zip(first, second, strict=True)]
    column = np.array([k for k, jobs in enumerate(members) for _ in jobs])
    job = np.array([m for jobs in members for m, _ in jobs])
    speed = np.array([s for jobs in members for _, s in jobs])
    # Columns cycle through the types, and every gang is one GPU.
    kind = np.arange(len(members)) % types
    return ProgramColumns(
        csr_array((np.ones(len(column)), (job, column)), shape=(count, len(members))),
        csr_array((np.ones(len(members)), (kind, np.arange(len(members)))), shape=(types, len(members))),
        csr_array((speed, (job, column)), shape=(count, len(members))),
        classes.capacity,
    )
