"""The demonstration's workload: varied jobs for the cluster ``v100:4x4,p100:4x4,k80:4x4``.

Every job can run on all three kinds. The load keeps that cluster contended but stable for any number of jobs, since the
span grows with the number: 200 jobs are submitted within 20 hours, more by day than by night, and FIFO needs about a
day and a half for them. Four teams submit. Some jobs are elastic, some change their batch size, a few have deadlines or
double weight, and some declare wrong work or none.
"""

import math
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

import msgspec

from shoal.core.units import DAY
from shoal.perf.catalog import ModelType
from shoal.workload.batch_schedules import batch_schedule
from shoal.workload.generators.gavel import SIZES, measured_types, rate, whole_steps
from shoal.workload.generators.randomness import RandomStream
from shoal.workload.schema import Job

_KINDS = ("v100", "p100", "k80")
_MIX = (0.55, 0.20, 0.17, 0.08)
_TEAMS = {"vision": 0.4, "language": 0.3, "ranking": 0.2, "robotics": 0.1}
_MODELS = {
    "vision": ("ResNet-18", "ResNet-50"),
    "language": ("LM", "Transformer"),
    "ranking": ("Recommendation", "ResNet-50", "Transformer"),
    "robotics": ("A3C", "ResNet-18"),
}
_HOURS = (0.15, 5.0)
_SLOWEST = 6.0


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Mean seconds between arrivals; fractions of jobs that are elastic, change their batch size, have a deadline."""

    interarrival: float = 360.0
    elastic: float = 0.35
    adaptive: float = 0.3
    deadlines: float = 0.1


def generate(rng: RandomStream, count: int, options: DemoOptions) -> list[Job]:
    """Generate the jobs, in order of submission."""
    times = _daily_arrivals(rng, count, count * options.interarrival)
    requests = rng.shuffled(_gangs_and_hours(rng, count))
    return [
        _job(rng, f"demo-{i:03d}", at, request, options)
        for i, (at, request) in enumerate(zip(times, requests, strict=True))
    ]


def _gangs_and_hours(rng: RandomStream, count: int) -> list[tuple[int, float]]:
    """Gangs and their hours on V100s, stratified over mix and range so that the load hardly depends on the seed."""
    ends = [round(count * share) for share in accumulate(_MIX)]
    low, high = (math.log(hours) for hours in _HOURS)
    requests = []
    for gpus, start, end in zip(SIZES, [0, *ends], ends, strict=False):
        size = end - start
        requests += [(gpus, math.exp(low + (high - low) * (i + rng.uniform()) / size)) for i in range(size)]
    return requests


def _daily_arrivals(rng: RandomStream, count: int, span: float) -> list[float]:
    """Submission times from 0 on, with a rate that varies over the day by ±67 %; the clock starts at 9 a.m."""
    times: list[float] = []
    while len(times) < count:
        at = rng.uniform(0.0, span)
        if rng.chance(0.6 + 0.4 * math.sin(2.0 * math.pi * (at / DAY + 0.125))):
            times.append(at)
    first = min(times)
    return sorted(at - first for at in times)


def _job(rng: RandomStream, name: str, submitted: float, request: tuple[int, float], options: DemoOptions) -> Job:
    team = rng.pick(tuple(_TEAMS), tuple(_TEAMS.values()))
    gpus, seconds = request[0], 3600.0 * request[1]
    model_type = rng.pick(_types(team, gpus))
    work = whole_steps(model_type, "v100", gpus, seconds)
    mode = rng.pick(("gns", "accordion")) if rng.chance(options.adaptive) else "static"
    sizes = [t.batch_size for t in _types(team, gpus) if t.model == model_type.model]
    job = Job(
        id=name,
        submitted=submitted,
        gpus=gpus,
        work=work,
        tenant=team,
        app=f"{team}-{rng.pick('abc')}",
        model=model_type.model,
        batch_size=model_type.batch_size,
        batch_schedule=batch_schedule(mode, work, model_type.batch_size, sizes),
        weight=2.0 if rng.chance(0.08) else 1.0,
        deadline=submitted + rng.uniform(2.0, 5.0) * seconds if rng.chance(options.deadlines) else None,
    )
    if rng.chance(options.elastic) and _gangs(model_type) == SIZES:
        job = msgspec.structs.replace(job, min_gpus=max(1, gpus // 2), max_gpus=min(SIZES[-1], 2 * gpus))
    return _misjudged(rng, job)


def _misjudged(rng: RandomStream, job: Job) -> Job:
    """Make one owner in eight declare work wrong by up to a factor of two, and one in sixteen declare none."""
    draw, factor = rng.uniform(), rng.log_uniform(0.5, 2.0)
    if draw < 1 / 16:
        return msgspec.structs.replace(job, declares_work=False)
    if draw < 3 / 16:
        return msgspec.structs.replace(job, declared_work=float(round(job.work * factor)))
    return job


@cache
def _types(team: str, gpus: int) -> tuple[ModelType, ...]:
    """Types that a team trains on this many GPUs: they run on every kind with all their gangs on V100s.

    This excludes the largest batch of ResNet-50, which does not fit several K80s. Types that are more than six times
    slower on K80s are excluded too: one long job of those, badly placed, would outlast all the others by days.
    """
    types = [t for t in measured_types("v100", gpus) if t.model in _MODELS[team]]
    types = [t for t in types if all(rate(t, kind, gang) > 0.0 for kind in _KINDS for gang in _gangs(t))]
    return tuple(t for t in types if all(_SLOWEST * rate(t, kind, gpus) >= rate(t, "v100", gpus) for kind in _KINDS))


def _gangs(model_type: ModelType) -> tuple[int, ...]:
    return tuple(gpus for gpus in SIZES if rate(model_type, "v100", gpus) > 0.0)
