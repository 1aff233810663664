"""Pollux's synthetic workload: 160 jobs in the busiest 8 hours of a day, with well-tuned gangs and batch sizes.

A job's category is Small, Medium, Large or XLarge by GPU-time, and its model is drawn from the category's, which gives
Table 1's fractions: cifar10 and ncf 36 % each, deepspeech2 and bert 10 % each, yolov3 6 %, imagenet 2 %. A number of
GPUs is *valid* if its speed at its best batch size is 50 to 80 % of linear scaling from one GPU at the best batch size
there. A job gets one of the valid numbers, with its best batch size. A model without valid numbers, and ncf always (as
in the authors' simulator), trains on one GPU.

Our choices where the paper leaves them open: the hourly arrival weights are rounded from the public workloads, with a
peak in the sixth hour three times as busy as the third; numbers of GPUs are 1, 2, 3, 4, 6, 8, 12 and so on up to the
size of the cluster; gangs larger than a node are spread over nodes.

Reference: Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI 2021, §5.1
and Table 1.
"""

from dataclasses import dataclass

from shoal.core.errors import InputError
from shoal.core.topology import Locality
from shoal.perf.catalog import catalog
from shoal.workload.generators.randomness import RandomStream
from shoal.workload.importers.pollux import LARGEST_GANG, training_job
from shoal.workload.schema import Job

CATEGORIES: dict[str, tuple[float, tuple[str, ...]]] = {
    "small": (0.72, ("cifar10", "ncf")),
    "medium": (0.20, ("deepspeech2", "bert")),
    "large": (0.06, ("yolov3",)),
    "xlarge": (0.02, ("imagenet",)),
}
"""Fraction of jobs in each category, and its models, which are equally likely."""

_HOURLY = (1.1, 1.1, 0.7, 1.1, 1.5, 2.2, 1.1, 1.0)
_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True, slots=True)
class PolluxOptions:
    """Hours during which jobs arrive; the kind of GPU and the GPUs per node that the jobs are tuned for."""

    hours: float = 8.0
    kind: str = "t4"
    node_gpus: int = 4


def generate(rng: RandomStream, count: int, options: PolluxOptions) -> list[Job]:
    """Generate the jobs, in order of submission, with ids that begin with their models."""
    names = list(CATEGORIES)
    weights = [share for share, _ in CATEGORIES.values()]
    tuned = {m: tuned_settings(m, options.kind, options.node_gpus) for _, ms in CATEGORIES.values() for m in ms}
    eighth = options.hours * 3600.0 / len(_HOURLY)
    times = sorted(eighth * (rng.pick(range(8), _HOURLY) + rng.uniform()) for _ in range(count))
    jobs = []
    for number, at in enumerate(times):
        model = rng.pick(CATEGORIES[rng.pick(names, weights)][1])
        gpus, batch = rng.pick(tuned[model])
        jobs.append(training_job(f"{model}-{number}", at, model, gpus, batch))
    return jobs


def tuned_settings(model: str, kind: str, node_gpus: int) -> list[tuple[int, int]]:
    """Valid numbers of GPUs for a model, each with its best batch size; never empty."""
    best = {gpus: _best_batch(model, kind, gpus, node_gpus) for gpus in _COUNTS if gpus <= LARGEST_GANG}
    alone, batch = best[1]
    if not alone > 0.0:
        raise InputError("kind", kind, f"the catalogue has no figures for {model} on it")
    valid = [(gpus, size) for gpus, (speed, size) in best.items() if 0.5 <= speed / (gpus * alone) <= 0.8]
    return valid if valid and model != "ncf" else [(1, batch)]


def _best_batch(model: str, kind: str, gpus: int, node_gpus: int) -> tuple[float, int]:
    profile = catalog().profile(model)
    where = Locality.SAME_NODE if gpus <= node_gpus else Locality.CROSS_NODE
    sizes = [t.batch_size for t in catalog().types() if t.model == model]
    return max(((profile.rate(kind, gpus, where, size), size) for size in sizes), key=lambda best: (best[0], -best[1]))
