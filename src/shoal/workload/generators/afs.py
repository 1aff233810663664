"""Jobs that train AFS's models: drawn onto the jobs of a trace that names none, or onto jobs made up here.

Each job gets one of the nine models of AFS's Table 4, all alike among those whose throughput still rises at the gang it
asked for; a gang too wide for all of them is cut to what the widest can use. Its work is such that it runs as long on
that gang as the trace says, and it can run on anything from one GPU to its model's peak.

Without a trace: Poisson arrivals; gangs of 1, 2, 4, 8 and 16 and lognormal run times, about as Philly's are.

Reference: Hwang et al., "Elastic Resource Sharing for Distributed Deep Learning", NSDI 2021, §5.1 and Appendix F.
"""

import math
from dataclasses import dataclass, replace

import msgspec

from shoal.perf.afs_profiles import AFS_MODELS
from shoal.workload.generators.randomness import Dice, dice, poisson_arrivals
from shoal.workload.schema import Job, Workload

_WIDEST = max(profile.peak_gpus for profile in AFS_MODELS.values())
_GANGS = (1, 2, 4, 8, 16)
_MIX = (0.75, 0.05, 0.12, 0.06, 0.02)
_MEDIAN_SECONDS, _SIGMA = 1200.0, 2.0
_LONGEST = 14 * 86400.0


@dataclass(frozen=True, slots=True)
class AfsOptions:
    """Options: mean seconds between arrivals; the default keeps 64 GPUs about four fifths busy at the gangs asked."""

    interarrival: float = 350.0


def generate(roll: Dice, count: int, options: AfsOptions) -> list[Job]:
    """Jobs of AFS's models without a trace."""
    rows = []
    for i, submitted in enumerate(poisson_arrivals(roll, count, options.interarrival)):
        seconds = min(_MEDIAN_SECONDS * math.exp(_SIGMA * _normal(roll)), _LONGEST)
        rows.append(Job(id=str(i), submitted=submitted, gpus=roll.pick(_GANGS, _MIX), work=max(seconds, 1.0)))
    return [_training(roll, row) for row in rows]


def _normal(roll: Dice) -> float:
    """A standard normal number, from two uniform ones (Box and Muller)."""
    radius = math.sqrt(-2.0 * math.log1p(-roll.uniform()))
    return radius * math.cos(2.0 * math.pi * roll.uniform())


def _training(roll: Dice, job: Job) -> Job:
    gpus = min(job.gpus, _WIDEST)
    model = roll.pick([name for name, profile in AFS_MODELS.items() if profile.peak_gpus >= gpus])
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
    """The same jobs, each training a model of Table 4 that the seed draws; their run times are kept.

    ``work`` must be in seconds of the requested gang, as in a trace that names no models; a job that names one stays
    as it is.
    """
    roll = dice(seed)
    return replace(workload, jobs=tuple(_training(roll, j) if j.model is None else j for j in workload.jobs))


def widest(workload: Workload) -> Workload:
    """The same jobs, each asking for the most GPUs it can use: what non-elastic policies are allowed in figure 6."""
    change = msgspec.structs.replace
    return replace(workload, jobs=tuple(change(j, gpus=j.max_gpus or j.gpus) for j in workload.jobs))


def misjudged(workload: Workload, factor: float, seed: int = 0) -> Workload:
    """The same jobs, each declaring ``factor`` times its work or that part of it, as a coin falls."""
    roll, change = dice(seed), msgspec.structs.replace
    wrong = [j.work * factor if roll.chance(0.5) else j.work / factor for j in workload.jobs]
    return replace(workload, jobs=tuple(change(j, declared_work=w) for j, w in zip(workload.jobs, wrong, strict=True)))
