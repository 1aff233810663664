"""The demonstration's workload: a mixed bag for a mixed cluster, made for ``v100:4x4,p100:4x4,k80:4x4``.

Every job runs on all three of those kinds. The load keeps that cluster contended without drowning it, whatever the
number of jobs, since their span grows with it: 200 jobs come in 20 hours, more by day than by night, and first come
first served needs about a day and a half for them. Four teams submit; some jobs are elastic, some change their batch
size, a few have deadlines or a double weight, and some owners misjudge their job's work or do not state it, as people
do.
"""

import math
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

import msgspec

from shoal.perf.catalog import ModelType
from shoal.workload.batch_schedules import batch_schedule
from shoal.workload.generators.gavel import SIZES, measured_types, rate, whole_steps
from shoal.workload.generators.randomness import Dice
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
_DAY = 86400.0


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Mean seconds between arrivals, and the shares of jobs that are elastic, change their batch, have a deadline."""

    interarrival: float = 360.0
    elastic: float = 0.35
    adaptive: float = 0.3
    deadlines: float = 0.1


def generate(roll: Dice, count: int, options: DemoOptions) -> list[Job]:
    """The jobs, in order of submission."""
    times = _by_day(roll, count, count * options.interarrival)
    asks = roll.shuffled(_asks(roll, count))
    return [_job(roll, f"demo-{i:03d}", at, ask, options) for i, (at, ask) in enumerate(zip(times, asks, strict=True))]


def _asks(roll: Dice, count: int) -> list[tuple[int, float]]:
    """Gangs and their hours on V100s, spread evenly over mix and range so that all seeds bring about the same load."""
    ends = [round(count * share) for share in accumulate(_MIX)]
    low, high = (math.log(hours) for hours in _HOURS)
    asks = []
    for gpus, start, end in zip(SIZES, [0, *ends], ends, strict=False):
        many = end - start
        asks += [(gpus, math.exp(low + (high - low) * (i + roll.uniform()) / many)) for i in range(many)]
    return asks


def _by_day(roll: Dice, count: int, span: float) -> list[float]:
    """Times of submission from 0, up to twice as many by day as the mean; the clock starts at nine in the morning."""
    times: list[float] = []
    while len(times) < count:
        at = roll.uniform(0.0, span)
        if roll.chance(0.6 + 0.4 * math.sin(2.0 * math.pi * (at / _DAY + 0.125))):
            times.append(at)
    first = min(times)
    return sorted(at - first for at in times)


def _job(roll: Dice, name: str, submitted: float, ask: tuple[int, float], options: DemoOptions) -> Job:
    team = roll.pick(tuple(_TEAMS), tuple(_TEAMS.values()))
    gpus, seconds = ask[0], 3600.0 * ask[1]
    kind = roll.pick(_types(team, gpus))
    work = whole_steps(kind, "v100", gpus, seconds)
    mode = roll.pick(("gns", "accordion")) if roll.chance(options.adaptive) else "static"
    sizes = [t.batch_size for t in _types(team, gpus) if t.model == kind.model]
    job = Job(
        id=name,
        submitted=submitted,
        gpus=gpus,
        work=work,
        tenant=team,
        app=f"{team}-{roll.pick('abc')}",
        model=kind.model,
        batch_size=kind.batch_size,
        batch_schedule=batch_schedule(mode, work, kind.batch_size, sizes),
        weight=2.0 if roll.chance(0.08) else 1.0,
        deadline=submitted + roll.uniform(2.0, 5.0) * seconds if roll.chance(options.deadlines) else None,
    )
    if roll.chance(options.elastic) and _gangs(kind) == SIZES:
        job = msgspec.structs.replace(job, min_gpus=max(1, gpus // 2), max_gpus=min(SIZES[-1], 2 * gpus))
    return _misjudged(roll, job)


def _misjudged(roll: Dice, job: Job) -> Job:
    """One owner in eight is off by up to a factor of two, and one in sixteen says nothing."""
    luck, factor = roll.uniform(), roll.log_uniform(0.5, 2.0)
    if luck < 1 / 16:
        return msgspec.structs.replace(job, declares_work=False)
    if luck < 3 / 16:
        return msgspec.structs.replace(job, declared_work=float(round(job.work * factor)))
    return job


@cache
def _types(team: str, gpus: int) -> tuple[ModelType, ...]:
    """What a team trains on so many GPUs: only what runs on every kind, in every gang that it runs in on V100s.

    That leaves out the largest batch of ResNet-50, which does not fit several K80s. Types that a K80 slows down more
    than sixfold are left out too: one long job of those, badly placed, would outlast all the others by days.
    """
    types = [t for t in measured_types("v100", gpus) if t.model in _MODELS[team]]
    types = [t for t in types if all(rate(t, kind, gang) > 0.0 for kind in _KINDS for gang in _gangs(t))]
    return tuple(t for t in types if all(_SLOWEST * rate(t, kind, gpus) >= rate(t, "v100", gpus) for kind in _KINDS))


def _gangs(model_type: ModelType) -> tuple[int, ...]:
    return tuple(gpus for gpus in SIZES if rate(model_type, "v100", gpus) > 0.0)
