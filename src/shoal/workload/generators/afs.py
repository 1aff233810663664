"""Workloads of AFS's models: the jobs of a trace that names no models, or synthetic jobs.

Each job trains one of the nine models of AFS's Table 4, drawn uniformly from those whose throughput still rises at the
gang the job asks for; a gang too large for all of them is reduced to the largest that any can use. The work is set so
that the job's run time on that gang stays the trace's, and the job can run on 1 GPU up to its model's peak.

Synthetic jobs have Poisson arrivals, gangs of 1, 2, 4, 8 or 16 GPUs and lognormal run times, similar to Philly's.

Reference: Hwang et al., "Elastic Resource Sharing for Distributed Deep Learning", NSDI 2021, §5.1 and Appendix F.
"""

import math
from dataclasses import dataclass, replace

import msgspec

from shoal.perf.afs_profiles import AFS_MODELS
from shoal.workload.generators.randomness import RandomStream, poisson_arrivals, random_stream
from shoal.workload.schema import Job, Workload

_WIDEST = max(profile.peak_gpus for profile in AFS_MODELS.values())
_GANGS = (1, 2, 4, 8, 16)
_MIX = (0.75, 0.05, 0.12, 0.06, 0.02)
_MEDIAN_SECONDS, _SIGMA = 1200.0, 2.0
_LONGEST = 14 * 86400.0


@dataclass(frozen=True, slots=True)
class AfsOptions:
    """Mean seconds between arrivals; the default keeps 64 GPUs about 80 % busy with the requested gangs."""

    interarrival: float = 350.0


def generate(rng: RandomStream, count: int, options: AfsOptions) -> list[Job]:
    """Generate synthetic jobs of AFS's models."""
    rows = []
    for i, submitted in enumerate(poisson_arrivals(rng, count, options.interarrival)):
        seconds = min(_MEDIAN_SECONDS * math.exp(_SIGMA * rng.normal()), _LONGEST)
        rows.append(Job(id=str(i), submitted=submitted, gpus=rng.pick(_GANGS, _MIX), work=max(seconds, 1.0)))
    return [_with_drawn_model(rng, row) for row in rows]


def _with_drawn_model(rng: RandomStream, job: Job) -> Job:
    gpus = min(job.gpus, _WIDEST)
    model = rng.pick([name for name, profile in AFS_MODELS.items() if profile.peak_gpus >= gpus])
    profile = AFS_MODELS[model]
    seconds_to_samples = profile.speedup(gpus)
    return msgspec.structs.replace(
        job,
        gpus=gpus,
        min_gpus=1,
        max_gpus=profile.peak_gpus,
        work=job.work * seconds_to_samples,
        declared_work=None if job.declared_work is None else job.declared_work * seconds_to_samples,
        model=model,
        batch_size=profile.batch_size,
    )


def with_models(workload: Workload, seed: int = 0) -> Workload:
    """Return the workload with a model of Table 4 drawn for each job that names none; run times are unchanged.

    The ``work`` of those jobs must be in seconds of the requested gang.
    """
    rng = random_stream(seed)
    return replace(workload, jobs=tuple(_with_drawn_model(rng, j) if j.model is None else j for j in workload.jobs))


def widest(workload: Workload) -> Workload:
    """Return the workload with each job asking for its most GPUs, as non-elastic policies may in AFS's figure 6."""
    change = msgspec.structs.replace
    return replace(workload, jobs=tuple(change(j, gpus=j.max_gpus or j.gpus) for j in workload.jobs))


def misjudged(workload: Workload, factor: float, seed: int = 0) -> Workload:
    """Return the workload with each job declaring its work times or divided by ``factor``, with equal chances."""
    rng, change = random_stream(seed), msgspec.structs.replace
    wrong = [j.work * factor if rng.chance(0.5) else j.work / factor for j in workload.jobs]
    return replace(workload, jobs=tuple(change(j, declared_work=w) for j, w in zip(workload.jobs, wrong, strict=True)))
