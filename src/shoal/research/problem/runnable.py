"""The jobs of a problem file that can run, as arrays; the others are refused, with the numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from shoal.core.arrays import Floats
from shoal.research.problem.problem_file import Problem, ProblemJob

_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class RunnableJobs:
    """Jobs that can run, in order of arrival, and the reasons by name why others cannot.

    ``speeds`` (jobs × ``kinds``) are those of gangs on as few nodes as possible, 0 where a type has too few GPUs.
    ``capacity`` is GPUs by type; ``gangs``, ``weights`` and ``elapsed`` (seconds since arrival) are by job.
    """

    problem: Problem
    kinds: tuple[str, ...]
    capacity: Floats
    jobs: tuple[ProblemJob, ...]
    speeds: Floats
    gangs: Floats
    weights: Floats
    elapsed: Floats
    refused: dict[str, str]

    def by_job(self, values: Mapping[str, _V]) -> dict[str, _V]:
        """Values by name, in the order of the file."""
        return {job.id: values[job.id] for job in self.problem.jobs if job.id in values}

    def column(self, values: Floats) -> dict[str, float]:
        """Numbers by row as numbers by name."""
        return self.by_job(dict(zip((job.id for job in self.jobs), values.tolist(), strict=True)))


def runnable(problem: Problem) -> RunnableJobs:
    """The jobs of a problem that some type of GPU can run."""
    kinds, capacity = tuple(problem.cluster), tuple(problem.cluster.values())
    jobs, speeds, refused = [], [], {}
    for job in sorted(problem.jobs, key=lambda job: job.arrived):
        row = [_best_seated(problem, job, kind) for kind in kinds]
        fitting = [speed if job.gpus <= gpus else 0.0 for speed, gpus in zip(row, capacity, strict=True)]
        if any(fitting):
            jobs.append(job)
            speeds.append(fitting)
        elif any(row):
            most = max(gpus for speed, gpus in zip(row, capacity, strict=True) if speed)
            refused[job.id] = f"needs {job.gpus} GPUs of one type; the most it can use is {most}"
        else:
            refused[job.id] = f"has no throughput on any of {', '.join(kinds)}"
    ages = [max(problem.now - job.arrived, 0.0) if job.elapsed is None else job.elapsed for job in jobs]
    return RunnableJobs(
        problem,
        kinds,
        capacity=np.array(capacity, dtype=np.float64),
        jobs=tuple(jobs),
        speeds=np.array(speeds, dtype=np.float64).reshape(-1, len(kinds)),
        gangs=np.array([job.gpus for job in jobs], dtype=np.float64),
        weights=np.array([job.weight for job in jobs], dtype=np.float64),
        elapsed=np.array(ages, dtype=np.float64),
        refused=refused,
    )


def _best_seated(problem: Problem, job: ProblemJob, kind: str) -> float:
    """The throughput on one node, or on several if the gang is larger than one."""
    together = job.throughput.get(kind, 0.0)
    return job.unconsolidated.get(kind, together) if job.gpus > problem.gpus_per_node.get(kind, job.gpus) else together
