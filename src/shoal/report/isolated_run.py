"""The run time of each job alone in the cluster, against which fairness is measured.

Speeds are those of the model's profile for the requested gang, seated well; a job without a model has its declared run
time. The noise of a simulation's true speeds is not counted. A total that was neither reached nor declared, or a gang
that fits no kind, gives NaN.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from shoal.core.arrays import Floats, Int64s
from shoal.core.topology import Locality
from shoal.perf.catalog import Catalog
from shoal.perf.model import ProfiledModel
from shoal.report.history import History, JobType


@dataclass(frozen=True, slots=True)
class Alone:
    """Run times in seconds by admission number, along the batch sizes the job went through.

    ``exclusive`` is on the kind that takes the least time in total; ``spread`` on all kinds in proportion to their
    GPUs, as an exact 1/n of the cluster is composed. Both agree on a cluster of one kind.
    """

    exclusive: Floats
    spread: Floats


def run_alone(history: History, catalog: Catalog) -> Alone:
    """The run times of every job alone in the cluster."""
    model = ProfiledModel(history.topology, catalog)
    seconds = [_seconds_per_work(model, kind) for kind in history.types]
    table = np.array(seconds).reshape(len(history.types), 2)
    exclusive, spread = (history.work * column[history.type] for column in table.T)
    for job, changes in history.trajectories.items():
        exclusive[job], spread[job] = _along(model, history.types[history.type[job]], changes, float(history.work[job]))
    return Alone(*(np.where(np.isfinite(seconds), seconds, np.nan) for seconds in (exclusive, spread)))


def _seconds_per_work(model: ProfiledModel, kind: JobType) -> tuple[float, float]:
    speeds = model.speeds(kind.spec(), None)
    return _inverse(float(speeds.max())), _inverse(float(speeds @ _weights(model)))


def _weights(model: ProfiledModel) -> Floats:
    installed = np.array(model.topology.installed, dtype=np.float64)
    weights: Floats = installed / installed.sum()
    return weights


def _inverse(rate: float) -> float:
    return 1.0 / rate if rate > 0 else np.inf


def _along(model: ProfiledModel, kind: JobType, changes: list[tuple[float, int]], work: float) -> tuple[float, float]:
    """Return the exclusive and the spread run time, summed over the work between changes of the batch size."""
    by_kind = np.zeros(len(model.topology.kinds))
    spread = 0.0
    stretches = [(0.0, None), *changes, (work, None)]
    for (start, size), (end, _) in pairwise(stretches):
        speeds = model.speeds(kind.spec(), size)
        with np.errstate(divide="ignore"):
            by_kind += np.where(speeds > 0, (end - start) / speeds, np.inf)
        spread += (end - start) * _inverse(float(speeds @ _weights(model)))
    return float(by_kind.min()), spread


def single_gpu_rates(history: History, catalog: Catalog, types: Int64s, sizes: Int64s, kinds: Int64s) -> Floats:
    """Return the rate on one GPU for each (job type, batch size, kind).

    Batch size 0 means the declared one; kind −1 the kind on which one GPU is fastest. If the job cannot run on one GPU,
    it is the best rate of the requested gang divided by its GPUs.
    """
    model = ProfiledModel(history.topology, catalog)
    span = len(model.topology.kinds) + 1
    most = int(sizes.max(initial=0)) + 1
    keys, where = np.unique((types * most + sizes) * span + kinds + 1, return_inverse=True)
    rates = [
        _single(model, history.types[key // span // most], key // span % most or None, key % span - 1)
        for key in keys.tolist()
    ]
    return np.array(rates, dtype=np.float64)[where]


def _single(model: ProfiledModel, kind: JobType, batch_size: int | None, on: int) -> float:
    spec = kind.spec()
    profile, size = model.profile(spec), batch_size or kind.batch_size
    names = model.topology.kinds if on < 0 else (model.topology.kinds[on],)
    allowed = (name for name in names if spec.kinds is None or name in spec.kinds)
    one = max((profile.rate(name, 1, Locality.SAME_NODE, size) for name in allowed), default=0.0)
    return one or float(model.speeds(spec, batch_size).max()) / kind.gpus
