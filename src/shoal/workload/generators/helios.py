"""Recurring jobs of many users, like those of Helios's cluster Venus; owners declare no work.

From the published summary of Venus (125,303 GPU jobs in half a year): a job every 126 s, a median run time of 204 s and
a mean of 13,041 s, 6.7 GPUs in the mean with a median of 1, 53 % of jobs completed, 27 % cancelled and 20 % failed.
Ours, since the trace itself is not at hand: 200 users of whom the n-th submits in proportion to 1/n; each works on a
project with a name, a gang and a typical length, from which run times differ by a lognormal factor; a user changes to a
new project or back to an old one now and then, and submits sweeps of jobs that follow each other by seconds. Failed
jobs end early, cancelled ones at a uniform part of their length.

Reference: Hu et al., "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters",
SC 2021; summary by cluster in the repository HeliosArtifact (helios_cluster_summary.csv).
"""

import math
from dataclasses import dataclass

from shoal.workload.generators.randomness import RandomStream
from shoal.workload.schema import Job

_GANGS = (1, 2, 4, 8, 16, 32, 64)
_MIX = (0.55, 0.07, 0.07, 0.19, 0.05, 0.045, 0.025)
_MEDIAN_SECONDS, _BETWEEN, _WITHIN = 390.0, 2.8, 0.7
"""Median of projects' typical lengths, and σ of the logarithm between projects and within one."""
_LONGEST = 30 * 86_400.0
_FAILED, _CANCELLED = 0.202, 0.272
_NEW_PROJECT, _OLD_PROJECT, _SWEEP, _SWEEP_JOBS = 0.06, 0.1, 0.25, 6.0


@dataclass(frozen=True, slots=True)
class HeliosOptions:
    """Mean seconds between jobs, and the number of users."""

    interarrival: float = 126.0
    users: int = 200


@dataclass(frozen=True, slots=True)
class _Project:
    name: str
    gpus: int
    seconds: float


def generate(rng: RandomStream, count: int, options: HeliosOptions) -> list[Job]:
    """Generate jobs of recurring projects."""
    weights = [1.0 / (rank + 1) for rank in range(options.users)]
    users = [f"u{rank:03d}" for rank in range(options.users)]
    projects: dict[str, list[_Project]] = {user: [] for user in users}
    submissions = 1.0 + _SWEEP * (_SWEEP_JOBS - 1.0)  # jobs of one submission in the mean
    rows: list[Job] = []
    at = 0.0
    while len(rows) < count:
        user = rng.pick(users, weights)
        project = _project(rng, user, projects[user])
        jobs = 1 + int(rng.exponential(_SWEEP_JOBS - 1.0)) if rng.chance(_SWEEP) else 1
        for member in range(min(jobs, count - len(rows))):
            name = f"{project.name}-{member}" if jobs > 1 else project.name
            seconds = _run_time(rng, project.seconds)
            rows.append(
                Job(
                    id=str(len(rows)),
                    submitted=at + 2.0 * member,
                    gpus=project.gpus,
                    work=seconds,
                    declares_work=False,
                    tenant=user,
                    name=name,
                )
            )
        at += rng.exponential(options.interarrival * submissions)
    return rows


def _project(rng: RandomStream, user: str, own: list[_Project]) -> _Project:
    """The project of a user's next submission; the last in ``own`` is the present one."""
    if own and rng.chance(_OLD_PROJECT):
        own.append(own.pop(int(rng.uniform() * len(own))))
    elif not own or rng.chance(_NEW_PROJECT):
        seconds = _MEDIAN_SECONDS * math.exp(_BETWEEN * rng.normal())
        letters = "".join(chr(97 + int(digit)) for digit in str(len(own)))
        own.append(_Project(f"{user}-{letters}", rng.pick(_GANGS, _MIX), seconds))
    return own[-1]


def _run_time(rng: RandomStream, typical: float) -> float:
    whole = typical * math.exp(_WITHIN * rng.normal())
    outcome = rng.uniform()
    if outcome < _FAILED:
        whole *= math.exp(-rng.exponential(1.5))
    elif outcome < _FAILED + _CANCELLED:
        whole *= rng.uniform(0.02, 1.0)
    return min(max(whole, 1.0), _LONGEST)
