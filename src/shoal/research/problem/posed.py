"""A written-down problem as arrays: jobs, speeds and capacities; jobs that cannot run are refused, with the numbers."""

from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.errors import InputError, nearest
from shoal.research.problem.written import WrittenJob, WrittenProblem, check
from shoal.solve import prices
from shoal.solve.consolidation import Localities
from shoal.solve.job_classes import JobClasses


@dataclass(frozen=True, slots=True)
class Posed:
    """A problem as arrays: rows are the jobs that can run, columns the types.

    ``speeds`` are those of gangs seated as well as they can be; ``places`` tells both, if a job is slower apart.
    """

    problem: WrittenProblem
    jobs: tuple[WrittenJob, ...]
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

    def tree(self) -> prices.ShareNode:
        """The entities and their jobs; a job without an entity stands beside them."""
        groups: dict[str | None, list[int]] = {name: [] for name in self.problem.entities}
        for row, job in sorted(enumerate(self.jobs), key=lambda pair: pair[1].arrived):
            if job.entity is not None and job.entity not in groups:
                hint = nearest(job.entity, self.problem.entities)
                raise InputError(f"job {job.id}, entity", job.entity, hint)
            groups.setdefault(job.entity, []).append(row)
        nodes: list[prices.ShareNode | int] = list(groups.pop(None, []))
        for name, rows in groups.items():
            entity = self.problem.entities[str(name)]
            if rows:
                nodes.append(prices.ShareNode(tuple(rows), entity.weight, entity.policy))
        return prices.ShareNode(tuple(nodes))

    def crowd(self) -> JobClasses:
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
        return JobClasses(
            kinds=np.arange(count),
            speed=self.speeds,
            gangs=self.gangs,
            capacity=self.capacity,
            pairs=np.array(pairs, dtype=np.intp).reshape(-1, 2),
            pair_speed=np.array(speeds).reshape(-1, 2, len(self.capacity)),
        )


def pose(problem: WrittenProblem, *, aware: bool = True) -> tuple[Posed, dict[str, str]]:
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


def _seated_well(problem: WrittenProblem, job: WrittenJob, kind: str) -> float:
    """The throughput on one node, or on several if the gang is larger than one."""
    together = job.throughput.get(kind, 0.0)
    return job.unconsolidated.get(kind, together) if job.gpus > problem.gpus_per_node.get(kind, job.gpus) else together


def _places(
    problem: WrittenProblem, jobs: list[WrittenJob], best: Floats, gangs: Floats, capacity: Floats
) -> Localities | None:
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
