"""A written-down problem as arrays: jobs, speeds and capacities read from a JSON file, and what is wrong with them.

The file holds one problem or a list of them. Jobs that cannot run are refused one by one, with the numbers; a field
that makes no sense is an error that names it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from shoal.core.errors import InputError, nearest
from shoal.solve import prices
from shoal.solve.consolidation import Localities
from shoal.solve.crowd import Crowd

Floats: TypeAlias = NDArray[np.float64]


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job of a problem: progress per second of its whole gang by GPU type, and what the policies ask for.

    ``unconsolidated`` is the same for a gang spread over several nodes, where that is slower; ``by_gpus`` that of an
    elastic job by type and number of GPUs, from ``min_gpus`` to ``max_gpus``.
    """

    id: str
    throughput: dict[str, float] = {}
    unconsolidated: dict[str, float] = {}
    by_gpus: dict[str, dict[int, float]] = {}
    gpus: int = 1
    min_gpus: int | None = None
    max_gpus: int | None = None
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


class MachineRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """GPUs by machine (``TYPE-0`` is the first of a type), and the ρ an app would have with them."""

    gpus: dict[str, int]
    rho: float


class AppBid(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an app bids at auction: its ρ by number of GPUs, or with none (``"0"``) and by machines."""

    app: str
    rho: dict[int, float]
    machines: list[MachineRow] = []


class Problem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A problem as it is written down; times are seconds, prices dollars per GPU-hour."""

    cluster: dict[str, int]
    jobs: list[Job] = []
    prices: dict[str, float] = {}
    entities: dict[str, Entity] = {}
    pairs: list[Pair] = []
    bids: list[AppBid] = []
    gpus_per_node: dict[str, int] = {}
    now: float = 0.0


@dataclass(frozen=True, slots=True)
class Posed:
    """A problem as arrays: rows are the jobs that can run, columns the types.

    ``speeds`` are those of gangs seated as well as they can be; ``places`` tells both, if a job is slower apart.
    """

    problem: Problem
    jobs: tuple[Job, ...]
    speeds: Floats
    true_speeds: Floats
    gangs: Floats
    capacity: Floats
    weights: Floats
    places: Localities | None = None

    def scarce(self, shares: Floats) -> Localities | None:
        """Both speeds of every gang, if some would have to sit apart and go slower for these shares; else nothing."""
        return None if self.places is None or self.places.fit(shares) else self.places

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
    check(problem)
    kinds = list(problem.cluster)
    capacity = np.array([problem.cluster[kind] for kind in kinds], dtype=np.float64)
    refused: dict[str, str] = {}
    jobs, rows = [], []
    for job in problem.jobs:
        row = [_seated_well(problem, job, kind) for kind in kinds]
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
    places = _places(problem, jobs, true_speeds, gangs, capacity) if aware else None
    return Posed(problem, tuple(jobs), seen, true_speeds, gangs, capacity, weights, places), refused


def _seated_well(problem: Problem, job: Job, kind: str) -> float:
    """The throughput on one node, or on several if the gang is larger than one."""
    together = job.throughput.get(kind, 0.0)
    return job.unconsolidated.get(kind, together) if job.gpus > problem.gpus_per_node.get(kind, job.gpus) else together


def _places(problem: Problem, jobs: list[Job], best: Floats, gangs: Floats, capacity: Floats) -> Localities | None:
    """What differs between one node and several; nothing, if no job's throughput does."""
    if not any(job.unconsolidated for job in jobs):
        return None
    nodes = []
    for kind, gpus in problem.cluster.items():
        size = problem.gpus_per_node.get(kind, max(gpus, 1))
        nodes.append([size] * (gpus // size) + [gpus % size] * (gpus % size > 0))
    apart = np.array([[job.unconsolidated.get(kind, np.inf) for kind in problem.cluster] for job in jobs])
    largest = np.array([max(sizes, default=0) for sizes in nodes])
    consolidated = np.where(gangs[:, None] <= largest, best, 0.0)
    return Localities(consolidated, np.minimum(apart, best), gangs, capacity, nodes)


def check(problem: Problem) -> None:
    """Refuse a problem with a field that makes no sense."""
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
        _check_unconsolidated(problem, job)
        _check_by_gpus(problem, job)
    for kind, size in problem.gpus_per_node.items():
        if kind not in problem.cluster:
            raise InputError("gpus_per_node", kind, nearest(kind, problem.cluster))
        if size < 1:
            raise InputError(f"gpus_per_node.{kind}", size, "must be at least 1")
    for name, entity in problem.entities.items():
        if not 0 < entity.weight < float("inf"):
            raise InputError(f"entities.{name}.weight", entity.weight, "must be above 0")


def _check_by_gpus(problem: Problem, job: Job) -> None:
    for kind, rates in job.by_gpus.items():
        if kind not in problem.cluster:
            raise InputError(f"job {job.id}, by_gpus", kind, nearest(kind, problem.cluster))
        for gpus, speed in rates.items():
            if gpus < 1:
                raise InputError(f"job {job.id}, by_gpus.{kind}", gpus, "must be a number of GPUs, at least 1")
            if not 0 <= speed < float("inf"):
                raise InputError(f"job {job.id}, by_gpus.{kind}.{gpus}", speed, "must be a number of at least 0")
    if job.steps_left is not None and not 0 <= job.steps_left < float("inf"):
        raise InputError(f"job {job.id}, steps_left", job.steps_left, "must be a number of at least 0")
    if not 0 <= job.arrived < float("inf"):
        raise InputError(f"job {job.id}, arrived", job.arrived, "must be a number of seconds, at least 0")


def _check_unconsolidated(problem: Problem, job: Job) -> None:
    for kind, speed in job.unconsolidated.items():
        field, together = f"job {job.id}, unconsolidated.{kind}", job.throughput.get(kind, 0.0)
        if kind not in problem.cluster:
            raise InputError(f"job {job.id}, unconsolidated", kind, nearest(kind, problem.cluster))
        if not 0 <= speed <= together:
            raise InputError(field, speed, f"must be from 0 to its throughput on one node, {together:g}")
        if kind not in problem.gpus_per_node:
            raise InputError(field, speed, f"say in gpus_per_node.{kind} how many GPUs a node has")
        if job.gpus == 1:
            raise InputError(field, speed, "one GPU is always on one node; leave it out")
