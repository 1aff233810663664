"""Shockwave's synthetic traces: shorter jobs, many of which change their batch size while they train.

Gangs of 1, 2, 4 or 8 GPUs with probabilities 0.6, 0.3, 0.09, 0.01 (from the public traces' file names); run times of
0.2 to 5 hours; Small (0.2 to 8 GPU-hours), Medium (8 to 16), Large (16 to 72) and Extra Large (over 72) jobs with
weights 0.72, 0.2, 0.05, 0.03; each job static, accordion or gns; Poisson arrivals.

Our choices where the paper leaves them open: the gang is drawn first, then the class by weight among those the gang can
reach within 5 hours, then GPU-hours log-uniformly within the reachable part of the class. 8 GPUs cannot reach Extra
Large in 5 hours, nor small gangs Medium and Large; those weights go to the other classes. The type is one of Table 2's
that trains on the gang. Run times are at the initial batch size on one kind of GPU; a job of a dynamic mode has a
schedule from `shoal.workload.batch_schedules` and therefore ends sooner.

Reference: Zheng et al., "Shockwave: Fair and Efficient Cluster Scheduling for Dynamic Adaptation in Machine Learning",
NSDI 2023, §8.1 and Table 2.
"""

from dataclasses import dataclass

from shoal.core.errors import InputError
from shoal.perf.catalog import ModelType
from shoal.workload.batch_schedules import MODES, batch_schedule
from shoal.workload.generators.gavel import SIZES, measured_types, whole_steps
from shoal.workload.generators.randomness import RandomStream, poisson_arrivals
from shoal.workload.importers.gavel import batch_sizes
from shoal.workload.schema import Job

_MIX = (0.6, 0.3, 0.09, 0.01)
_CLASSES = ((0.2, 8.0), (8.0, 16.0), (16.0, 72.0), (72.0, float("inf")))
_WEIGHTS = (0.72, 0.2, 0.05, 0.03)
_SHORTEST, _LONGEST = 0.2, 5.0
_MODELS = ("ResNet-50", "ResNet-18", "LM", "Transformer", "Recommendation")


@dataclass(frozen=True, slots=True)
class ShockwaveOptions:
    """Mean seconds between arrivals, weights of the three modes, and the kind of GPU for which run times are drawn."""

    interarrival: float = 40.0
    static: float = 0.0
    accordion: float = 0.5
    gns: float = 0.5
    kind: str = "v100"


def generate(rng: RandomStream, count: int, options: ShockwaveOptions) -> list[Job]:
    """Generate the jobs of a trace."""
    modes = (options.static, options.accordion, options.gns)
    if min(modes) < 0.0 or not sum(modes) > 0.0:
        raise InputError("static, accordion, gns", modes, "must be weights of at least 0, not all 0")
    types = {gpus: _types(options.kind, gpus) for gpus in SIZES}
    times = poisson_arrivals(rng, count, options.interarrival)
    return [_job(rng, str(i), at, types, options) for i, at in enumerate(times)]


def _types(kind: str, gpus: int) -> list[ModelType]:
    found = [t for t in measured_types(kind, gpus) if t.model in _MODELS]
    if not found:
        raise InputError("kind", kind, f"no model of Table 2 was measured on {gpus} GPUs of it; try v100 or rtx5000")
    return found


def _job(rng: RandomStream, name: str, at: float, types: dict[int, list[ModelType]], options: ShockwaveOptions) -> Job:
    gpus = rng.pick(SIZES, _MIX)
    picked = rng.pick(types[gpus])
    work = whole_steps(picked, options.kind, gpus, 3600.0 * _gpu_hours(rng, gpus) / gpus)
    mode = rng.pick(MODES, (options.static, options.accordion, options.gns))
    return Job(
        id=name,
        submitted=at,
        gpus=gpus,
        work=work,
        model=picked.model,
        batch_size=picked.batch_size,
        batch_schedule=batch_schedule(mode, work, picked.batch_size, batch_sizes(picked.model)),
    )


def _gpu_hours(rng: RandomStream, gpus: int) -> float:
    ranges = [(max(low, _SHORTEST * gpus), min(high, _LONGEST * gpus)) for low, high in _CLASSES]
    weights = [w if low < high else 0.0 for (low, high), w in zip(ranges, _WEIGHTS, strict=True)]
    return rng.log_uniform(*rng.pick(ranges, weights))
