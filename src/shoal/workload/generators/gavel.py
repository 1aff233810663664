"""Gavel's synthetic traces.

The duration of a job on V100s is 10^x minutes, x uniform in [1.5, 3] with probability 0.8 and in [3, 4] with 0.2; its
type is one of the 26 of the catalogue, all alike; its steps are that duration times the type's rate on V100s, so that
work comes out in whole steps. Arrivals are Poisson, or all at 0 in the static trace.

Our reading where the paper leaves a choice: the gang is drawn first (70 % one GPU, 25 % two or four alike, since three
were never measured, 5 % eight) and the type from those measured on that many; the rate is that of the whole gang on one
node.

Reference: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020,
§7.1.
"""

from dataclasses import dataclass
from functools import cache

from shoal.core.topology import Locality
from shoal.perf.catalog import ModelType, catalog
from shoal.workload.generators.randomness import Dice, poisson_arrivals
from shoal.workload.schema import Job

SIZES = (1, 2, 4, 8)
"""The gangs that were measured."""

_DAYS = (0.5, 1.0, 2.0, 4.0, 8.0)
_PATIENCE = (1.2, 2.0, 10.0)
_MULTIPLE = (0.70, 0.125, 0.125, 0.05)
_SINGLE = (1.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Static:
    """Options of the static trace: whether a part of the jobs asks for several GPUs."""

    multiple: bool = True


@dataclass(frozen=True, slots=True)
class Single:
    """Options of the continuous-single trace: mean seconds between arrivals (Figure 9: 5.6 jobs an hour)."""

    interarrival: float = 3600 / 5.6


@dataclass(frozen=True, slots=True)
class Multiple:
    """Options of the continuous-multiple trace: mean seconds between arrivals (Figure 10: 2.6 jobs an hour)."""

    interarrival: float = 3600 / 2.6


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Options of the workload with deadlines: mean seconds between arrivals, which the paper does not say."""

    interarrival: float = 7200.0


def static(roll: Dice, count: int, options: Static) -> list[Job]:
    """All jobs at 0."""
    mix = _MULTIPLE if options.multiple else _SINGLE
    return [_job(roll, str(i), 0.0, mix) for i in range(count)]


def continuous_single(roll: Dice, count: int, options: Single) -> list[Job]:
    """Poisson arrivals, every job on one GPU."""
    return [_job(roll, str(i), t, _SINGLE) for i, t in enumerate(poisson_arrivals(roll, count, options.interarrival))]


def continuous_multiple(roll: Dice, count: int, options: Multiple) -> list[Job]:
    """Poisson arrivals, jobs of one to eight GPUs."""
    return [_job(roll, str(i), t, _MULTIPLE) for i, t in enumerate(poisson_arrivals(roll, count, options.interarrival))]


def deadlines(roll: Dice, count: int, options: Deadlines) -> list[Job]:
    """ResNet-50 and A3C on one GPU, days long, each with a deadline at a multiple of its run time on a V100 (§7.3)."""
    types = [t for t in measured_types("v100", 1) if t.model == "A3C" or (t.model, t.batch_size) == ("ResNet-50", 64)]
    jobs = []
    for i, submitted in enumerate(poisson_arrivals(roll, count, options.interarrival)):
        kind, seconds = roll.pick(types), 86400.0 * roll.pick(_DAYS)
        jobs.append(
            Job(
                id=str(i),
                submitted=submitted,
                gpus=1,
                work=whole_steps(kind, "v100", 1, seconds),
                model=kind.model,
                batch_size=kind.batch_size,
                deadline=submitted + roll.pick(_PATIENCE) * seconds,
                restart_seconds=5.0,
            )
        )
    return jobs


def _job(roll: Dice, name: str, submitted: float, mix: tuple[float, ...]) -> Job:
    gpus = roll.pick(SIZES, mix)
    kind = roll.pick(measured_types("v100", gpus))
    minutes = 10 ** (roll.uniform(1.5, 3.0) if roll.chance(0.8) else roll.uniform(3.0, 4.0))
    return Job(
        id=name,
        submitted=submitted,
        gpus=gpus,
        work=whole_steps(kind, "v100", gpus, 60.0 * minutes),
        model=kind.model,
        batch_size=kind.batch_size,
    )


@cache
def measured_types(kind: str, gpus: int) -> tuple[ModelType, ...]:
    """The types of the measured tables that train on so many GPUs of this kind on one node."""
    tables = (t for t in catalog().types() if t.per_gpu_batch and kind in t.kinds)
    return tuple(t for t in tables if rate(t, kind, gpus) > 0.0)


def rate(model_type: ModelType, kind: str, gpus: int) -> float:
    """Samples per second of a gang on one node."""
    return catalog().profile(model_type.model).rate(kind, gpus, Locality.SAME_NODE, model_type.batch_size)


def whole_steps(model_type: ModelType, kind: str, gpus: int, seconds: float) -> float:
    """The samples of the whole steps, at least one, that fit a run time."""
    steps = int(rate(model_type, kind, gpus) * seconds / model_type.batch_size)
    return float(max(steps, 1) * model_type.batch_size)
