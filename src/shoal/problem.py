"""One decision on a written-down problem: jobs, speeds and capacities in a JSON file; shares, objective and gap out.

The file holds one problem or a list of them. Shares are fractions of time by job and GPU type. Jobs that cannot run
are refused one by one, with the numbers; a field that makes no sense is an error that names it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from shoal.core.errors import InputError, nearest
from shoal.policy.registry import POLICIES, parse_policy
from shoal.solve import fractional, lp, prices, sharing
from shoal.solve.crowd import Crowd

Floats: TypeAlias = NDArray[np.float64]
Answer: TypeAlias = dict[str, Any]


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job of a problem: progress per second of its whole gang by GPU type, and what the policies ask for."""

    id: str
    throughput: dict[str, float]
    gpus: int = 1
    weight: float = 1.0
    steps_left: float | None = None
    elapsed: float = 0.0
    isolated_elapsed: float = 0.0
    arrived: float = 0.0
    entity: str | None = None
    slo: float | None = None


class Entity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A group of jobs that shares as one: its weight, and whether its jobs share alike or first come, first served."""

    weight: float = 1.0
    policy: Literal["fair", "fifo"] = "fair"


class Pair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Two jobs on the same GPUs: the throughput of each, by type."""

    jobs: tuple[str, str]
    throughput: dict[str, tuple[float, float]]


class Problem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A problem as it is written down; times are seconds, prices dollars per GPU-hour."""

    cluster: dict[str, int]
    jobs: list[Job]
    prices: dict[str, float] = {}
    entities: dict[str, Entity] = {}
    pairs: list[Pair] = []
    gpus_per_node: dict[str, int] = {}
    now: float = 0.0


@dataclass(frozen=True, slots=True)
class Posed:
    """A problem as arrays: rows are the jobs that can run, columns the types."""

    problem: Problem
    jobs: tuple[Job, ...]
    speeds: Floats
    true_speeds: Floats
    gangs: Floats
    capacity: Floats
    weights: Floats

    def column(self, name: str) -> Floats:
        """A field of every job; one that is missing or not above 0 is an error."""
        values = [getattr(job, name) for job in self.jobs]
        for job, value in zip(self.jobs, values, strict=True):
            if value is None or not 0 < value < float("inf"):
                raise InputError(f"job {job.id}, {name}", value, "must be a number above 0 for this policy")
        return np.array(values, dtype=np.float64)

    def demands(self) -> Floats:
        """The throughput at which each job has its equal share: weight · throughput(equal) / gang (Gavel §4.1)."""
        return self.weights * prices.equal_share_speed(self.speeds, self.capacity) / self.gangs

    def floors(self) -> tuple[Floats, dict[str, str]]:
        """The throughput each SLO needs, and which are past."""
        floors, missed = np.zeros(len(self.jobs)), {}
        for row, job in enumerate(self.jobs):
            if job.slo is None:
                continue
            left = job.arrived + job.slo - self.problem.now
            steps = job.steps_left if job.steps_left is not None else 0.0
            if left <= 0:
                missed[job.id] = f"its SLO of {job.slo:g} s was missed {-left:g} s ago; it is dropped"
            else:
                floors[row] = steps / left
        return floors, missed

    def costs(self) -> Floats:
        """The price of every type."""
        kinds = list(self.problem.cluster)
        for kind in kinds:
            if not self.problem.prices.get(kind, 0.0) > 0:
                raise InputError(f"prices.{kind}", self.problem.prices.get(kind), "must be a price above 0")
        return np.array([self.problem.prices[kind] for kind in kinds])

    def tree(self) -> prices.Node:
        """The entities and their jobs; a job without an entity stands beside them."""
        groups: dict[str | None, list[int]] = {name: [] for name in self.problem.entities}
        for row, job in sorted(enumerate(self.jobs), key=lambda pair: pair[1].arrived):
            if job.entity is not None and job.entity not in groups:
                hint = nearest(job.entity, self.problem.entities)
                raise InputError(f"job {job.id}, entity", job.entity, hint)
            groups.setdefault(job.entity, []).append(row)
        nodes: list[prices.Node | int] = list(groups.pop(None, []))
        for name, rows in groups.items():
            entity = self.problem.entities[str(name)]
            if rows:
                nodes.append(prices.Node(tuple(rows), entity.weight, entity.policy))
        return prices.Node(tuple(nodes))

    def crowd(self) -> Crowd:
        """The jobs, one kind each, with the pairs that may share."""
        rows = {job.id: row for row, job in enumerate(self.jobs)}
        known = {job.id for job in self.problem.jobs}
        pairs, speeds = [], []
        for pair in self.problem.pairs:
            for name in pair.jobs:
                if name not in known:
                    raise InputError("pairs, job", name, nearest(name, known))
            if all(name in rows for name in pair.jobs):
                pairs.append([rows[name] for name in pair.jobs])
                both = [pair.throughput.get(kind, (0.0, 0.0)) for kind in self.problem.cluster]
                speeds.append(np.array(both, dtype=np.float64).T)
        count = len(self.jobs)
        return Crowd(
            kinds=np.arange(count),
            speed=self.speeds,
            gangs=self.gangs,
            capacity=self.capacity,
            pairs=np.array(pairs, dtype=np.intp).reshape(-1, 2),
            pair_speed=np.array(speeds).reshape(-1, 2, len(self.capacity)),
        )


def read_problems(path: Path) -> list[Problem]:
    """The problems in a file."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InputError("problem", str(path), f"cannot be read: {error.strerror}") from error
    try:
        if text.lstrip()[:1] == b"[":
            return msgspec.json.decode(text, type=list[Problem])
        return [msgspec.json.decode(text, type=Problem)]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError("problem", str(path), f"is not a problem file: {error}") from error


def pose(problem: Problem, *, aware: bool = True) -> tuple[Posed, dict[str, str]]:
    """The problem as arrays, and which jobs are refused and why; agnostic policies see every usable type alike."""
    _check(problem)
    kinds = list(problem.cluster)
    capacity = np.array([problem.cluster[kind] for kind in kinds], dtype=np.float64)
    refused: dict[str, str] = {}
    jobs, rows = [], []
    for job in problem.jobs:
        row = [job.throughput.get(kind, 0.0) for kind in kinds]
        wide = [speed if job.gpus <= gpus else 0.0 for speed, gpus in zip(row, capacity, strict=True)]
        if not any(row):
            refused[job.id] = f"has no throughput on any of {', '.join(kinds)}"
        elif not any(wide):
            most = max(int(gpus) for speed, gpus in zip(row, capacity, strict=True) if speed)
            refused[job.id] = f"needs {job.gpus} GPUs of one type; the most it can use is {most}"
        else:
            jobs.append(job)
            rows.append(wide)
    true_speeds = np.array(rows, dtype=np.float64).reshape(-1, len(kinds))
    seen = true_speeds if aware else (true_speeds > 0).astype(np.float64)
    gangs = np.array([job.gpus for job in jobs], dtype=np.float64)
    weights = np.array([job.weight for job in jobs], dtype=np.float64)
    return Posed(problem, tuple(jobs), seen, true_speeds, gangs, capacity, weights), refused


def _check(problem: Problem) -> None:
    if not problem.cluster:
        raise InputError("cluster", problem.cluster, "name at least one GPU type and how many there are")
    for kind, gpus in problem.cluster.items():
        if gpus < 0:
            raise InputError(f"cluster.{kind}", gpus, "must be at least 0")
    seen: set[str] = set()
    for job in problem.jobs:
        if job.id in seen:
            raise InputError("job, id", job.id, "is given twice")
        seen.add(job.id)
        if job.gpus < 1:
            raise InputError(f"job {job.id}, gpus", job.gpus, "must be at least 1")
        if not 0 < job.weight < float("inf"):
            raise InputError(f"job {job.id}, weight", job.weight, "must be above 0")
        for kind, speed in job.throughput.items():
            if kind not in problem.cluster:
                raise InputError(f"job {job.id}, throughput", kind, nearest(kind, problem.cluster))
            if not 0 <= speed < float("inf"):
                raise InputError(f"job {job.id}, throughput.{kind}", speed, "must be a number of at least 0")
    for name, entity in problem.entities.items():
        if not 0 < entity.weight < float("inf"):
            raise InputError(f"entities.{name}.weight", entity.weight, "must be above 0")


def solve(problem: Problem, spec: str) -> Answer:
    """The policy's shares for a problem, with the objective, the gap and the CPU seconds it took."""
    policy = parse_policy(spec)
    name = spec.partition(":")[0]
    solver = _SOLVERS.get(name)
    if solver is None:
        known = [n for n in POLICIES if n in _SOLVERS]
        raise InputError("policy", name, f"cannot be solved on a problem file; choose one of {', '.join(known)}")
    posed, refused = pose(problem, aware=bool(getattr(policy, "aware", True)))
    begin = process_time()
    found = solver(posed, policy)
    seconds = process_time() - begin
    notes = dict(found.pop("notes", {}))
    return {"policy": spec, **found, "seconds": seconds, "refused": refused, "notes": notes}


def _table(posed: Posed, shares: Floats) -> dict[str, dict[str, float]]:
    kinds = list(posed.problem.cluster)
    return {job.id: dict(zip(kinds, row, strict=True)) for job, row in zip(posed.jobs, shares.tolist(), strict=True)}


def _answer(posed: Posed, shares: Floats, objective: float, gap: float, residual: float, **more: Any) -> Answer:
    levels = (posed.true_speeds * shares).sum(axis=1)
    return {
        "objective": objective,
        "allocation": _table(posed, shares),
        "levels": dict(zip((job.id for job in posed.jobs), levels.tolist(), strict=True)),
        "gap": gap,
        "residual": residual,
        **more,
    }


def _filled(posed: Posed, filling: prices.Filling, objective: float) -> Answer:
    certificate = [dict(zip(posed.problem.cluster, stage.prices.tolist(), strict=True)) for stage in filling.stages]
    return _answer(posed, filling.X, objective, filling.gap, filling.residual, prices=certificate)


def _timed(posed: Posed, found: lp.TimeShares, notes: Mapping[str, str] | None = None) -> Answer:
    return _answer(
        posed, found.shares, found.objective, found.gap, found.residual, status=found.status, notes=notes or {}
    )


def _shared(posed: Posed, found: sharing.SharedShares, notes: Mapping[str, str] | None = None) -> Answer:
    kinds, names = list(posed.problem.cluster), [job.id for job in posed.jobs]
    together = [
        {"jobs": [names[a], names[b]], "fraction": dict(zip(kinds, row, strict=True))}
        for (a, b), row in zip(found.pairs.tolist(), found.together.tolist(), strict=True)
    ]
    answer = _answer(posed, found.alone, found.objective, found.gap, found.residual, status=found.status)
    levels = dict(zip(names, found.throughput.tolist(), strict=True))
    return {**answer, "levels": levels, "pairs": together, "notes": notes or {}}


def _max_min(posed: Posed, policy: Any) -> Answer:
    demands, filling = posed.demands(), bool(policy.water_filling)
    if policy.space_sharing:
        return _shared(posed, sharing.shared_max_min(posed.crowd(), demands, water_filling=filling))
    found = prices.max_min(posed.speeds, posed.gangs, posed.capacity, demands, water_filling=filling)
    return _filled(posed, found, found.objective)


def _makespan(posed: Posed, policy: Any) -> Answer:
    steps = posed.column("steps_left")
    if policy.space_sharing:
        return _shared(posed, sharing.shared_makespan(posed.crowd(), steps))
    found = prices.makespan(posed.speeds, posed.gangs, posed.capacity, steps)
    return _filled(posed, found, 1.0 / found.objective)


def _ftf(posed: Posed, policy: Any) -> Answer:
    del policy
    steps = posed.column("steps_left")
    elapsed = np.array([job.elapsed for job in posed.jobs])
    isolated = np.array([job.isolated_elapsed for job in posed.jobs])
    alone = isolated + steps / prices.isolated_speed(posed.speeds, posed.gangs, posed.capacity)
    found = prices.finish_time_fairness(posed.speeds, posed.gangs, posed.capacity, steps, elapsed, alone)
    return _filled(posed, found, 1.0 / found.objective)


def _fifo(posed: Posed, policy: Any) -> Answer:
    del policy
    order = np.argsort([job.arrived for job in posed.jobs], kind="stable")
    return _timed(posed, lp.fifo(posed.speeds, posed.gangs, posed.capacity, order))


def _sjf(posed: Posed, policy: Any) -> Answer:
    del policy
    return _timed(posed, lp.shortest_job_first(posed.speeds, posed.gangs, posed.capacity, posed.column("steps_left")))


def _throughput(posed: Posed, policy: Any) -> Answer:
    if policy.space_sharing:
        return _shared(posed, sharing.shared_throughput(posed.crowd(), posed.weights))
    return _timed(posed, lp.maximise_throughput(posed.speeds, posed.gangs, posed.capacity, posed.weights))


def _cost(posed: Posed, policy: Any) -> Answer:
    costs = posed.costs()
    if policy.space_sharing:
        return _shared(posed, sharing.shared_cheapest(posed.crowd(), costs, posed.weights))
    return _timed(posed, fractional.cheapest(posed.speeds, posed.gangs, posed.capacity, costs, posed.weights))


def _cost_slo(posed: Posed, policy: Any) -> Answer:
    costs = posed.costs()
    floors, notes = posed.floors()
    if policy.space_sharing:
        shared = sharing.shared_cheapest(posed.crowd(), costs, posed.weights, floors)
        return _shared(posed, shared, {**notes, **_short(posed, shared)})
    found = fractional.cheapest(posed.speeds, posed.gangs, posed.capacity, costs, posed.weights, floors)
    return _timed(posed, found, {**notes, **_short(posed, found)})


def _short(posed: Posed, found: lp.TimeShares | sharing.SharedShares) -> dict[str, str]:
    """Which SLOs are not kept, and by how much."""
    notes = {}
    for row in np.flatnonzero((found.shortfall > 1e-9) | found.unattainable).tolist():
        why = "cannot be met even alone" if found.unattainable[row] else "cannot be met together with the others'"
        notes[posed.jobs[row].id] = f"its SLO {why}: {found.shortfall[row]:.6g} steps/s short"
    return notes


def _hierarchical(posed: Posed, policy: Any) -> Answer:
    del policy
    equal = prices.equal_share_speed(posed.speeds, posed.capacity) / posed.gangs
    found = prices.hierarchical(posed.speeds / equal[:, None], posed.gangs, posed.capacity, posed.tree(), posed.weights)
    return _filled(posed, found, found.objective)


_SOLVERS: dict[str, Callable[[Posed, Any], Answer]] = {
    "gavel.max-min": _max_min,
    "gavel.makespan": _makespan,
    "gavel.ftf": _ftf,
    "gavel.fifo": _fifo,
    "gavel.sjf": _sjf,
    "gavel.throughput": _throughput,
    "gavel.cost": _cost,
    "gavel.cost-slo": _cost_slo,
    "gavel.hierarchical": _hierarchical,
}
