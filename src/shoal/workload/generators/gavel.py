"""Gavel's synthetic traces.

A job's duration on V100s is 10^x minutes, x uniform in [1.5, 3] with probability 0.8 and in [3, 4] with 0.2. Its type
is drawn uniformly from the catalogue's 26, and its work is the whole steps that fit the duration at the type's rate on
V100s. Arrivals are Poisson; in the static trace all jobs arrive at 0.

Our choices where the paper leaves them open: the gang is drawn first (70 % 1 GPU, 12.5 % each 2 and 4, since 3 were
never measured, 5 % 8 GPUs), then the type from those measured on that many GPUs; the rate is that of the gang on one
node.

Reference: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020,
§7.1.
"""

from dataclasses import dataclass
from functools import cache

from shoal.core.topology import Locality
from shoal.perf.catalog import ModelType, catalog
from shoal.workload.generators.randomness import RandomStream, poisson_arrivals
from shoal.workload.schema import Job

SIZES = (1, 2, 4, 8)
"""Measured gang sizes."""

_DAYS = (0.5, 1.0, 2.0, 4.0, 8.0)
_DEADLINE_FACTORS = (1.2, 2.0, 10.0)
_MULTIPLE = (0.70, 0.125, 0.125, 0.05)
_SINGLE = (1.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Static:
    """Options of the static trace: whether some jobs ask for several GPUs."""

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
    """Options of the trace with deadlines: mean seconds between arrivals, which the paper does not give."""

    interarrival: float = 7200.0


def static(rng: RandomStream, count: int, options: Static) -> list[Job]:
    """Generate jobs that all arrive at 0."""
    mix = _MULTIPLE if options.multiple else _SINGLE
    return [_job(rng, str(i), 0.0, mix) for i in range(count)]


def continuous_single(rng: RandomStream, count: int, options: Single) -> list[Job]:
    """Generate jobs of one GPU with Poisson arrivals."""
    return [_job(rng, str(i), t, _SINGLE) for i, t in enumerate(poisson_arrivals(rng, count, options.interarrival))]


def continuous_multiple(rng: RandomStream, count: int, options: Multiple) -> list[Job]:
    """Generate jobs of one to eight GPUs with Poisson arrivals."""
    return [_job(rng, str(i), t, _MULTIPLE) for i, t in enumerate(poisson_arrivals(rng, count, options.interarrival))]


def deadlines(rng: RandomStream, count: int, options: Deadlines) -> list[Job]:
    """Generate ResNet-50 and A3C jobs of one GPU and 0.5 to 8 days, with deadlines at multiples of that time (§7.3)."""
    types = [t for t in measured_types("v100", 1) if t.model == "A3C" or (t.model, t.batch_size) == ("ResNet-50", 64)]
    jobs = []
    for i, submitted in enumerate(poisson_arrivals(rng, count, options.interarrival)):
        model_type, seconds = rng.pick(types), 86400.0 * rng.pick(_DAYS)
        jobs.append(
            Job(
                id=str(i),
                submitted=submitted,
                gpus=1,
                work=whole_steps(model_type, "v100", 1, seconds),
                model=model_type.model,
                batch_size=model_type.batch_size,
                deadline=submitted + rng.pick(_DEADLINE_FACTORS) * seconds,
                restart_seconds=5.0,
            )
        )
    return jobs


def _job(rng: RandomStream, name: str, submitted: float, mix: tuple[float, ...]) -> Job:
    gpus = rng.pick(SIZES, mix)
    model_type = rng.pick(measured_types("v100", gpus))
    minutes = 10 ** (rng.uniform(1.5, 3.0) if rng.chance(0.8) else rng.uniform(3.0, 4.0))
    return Job(
        id=name,
        submitted=submitted,
        gpus=gpus,
        work=whole_steps(model_type, "v100", gpus, 60.0 * minutes),
        model=model_type.model,
        batch_size=model_type.batch_size,
    )


@cache
def measured_types(kind: str, gpus: int) -> tuple[ModelType, ...]:
    """Types with measured rates that can train on this number of GPUs of this kind on one node."""
    tables = (t for t in catalog().types() if t.per_gpu_batch and kind in t.kinds)
    return tuple(t for t in tables if rate(t, kind, gpus) > 0.0)


def rate(model_type: ModelType, kind: str, gpus: int) -> float:
    """Samples per second of a gang of this size on one node."""
    return catalog().profile(model_type.model).rate(kind, gpus, Locality.SAME_NODE, model_type.batch_size)


def whole_steps(model_type: ModelType, kind: str, gpus: int, seconds: float) -> float:
    """Samples in the whole steps, at least one, that fit into ``seconds``."""
    steps = int(rate(model_type, kind, gpus) * seconds / model_type.batch_size)
    return float(max(steps, 1) * model_type.batch_size)
