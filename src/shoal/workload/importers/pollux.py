"""The formats ``pollux`` and ``sia``: ``name,time,application,num_replicas,batch_size``.

Both papers write their workloads alike, so one reader serves both. ``application`` is a model of the catalogue, whose
full training is the work; ``batch_size`` counts the samples of the whole gang. The jobs are elastic, from one GPU to
the 64 of the cluster these workloads were made for (or their own number, if larger); ncf alone stays at the number of
GPUs asked for, as in the authors' simulators. Their batch sizes may be adapted, within the authors' limits; the memory
of a GPU bounds them further. Arrival times are kept as they are. A job of ``sia`` takes as long to restart as in the
authors' simulator; one of ``pollux`` says nothing, and so takes the 30 s that its authors charge.

Published by: Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI 2021;
Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster scheduling", SOSP 2023.
"""

from collections.abc import Mapping

from shoal.core.errors import InputError, nearest
from shoal.perf.catalog import catalog
from shoal.workload.importers.rows import (
    ConvertRow,
    Format,
    ImportResult,
    Source,
    collect_table,
    column,
    number,
    whole,
)
from shoal.workload.schema import Job

APPLICATIONS = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")
"""The models of these workloads."""

LARGEST_GANG = 64
"""The GPUs of the cluster that these workloads were made for."""

LIMITS: Mapping[str, tuple[int, int, int]] = {
    "bert": (12, 384, 4),
    "cifar10": (128, 4096, 32),
    "deepspeech2": (20, 640, 10),
    "imagenet": (200, 12800, 20),
    "ncf": (256, 32768, 32),
    "yolov3": (8, 512, 4),
}
"""The initial and the largest batch size that were trained at, and the smallest on a GPU that was measured."""

SIA_RESTARTS: Mapping[str, float] = {
    "bert": 120.0,
    "cifar10": 50.0,
    "deepspeech2": 25.0,
    "imagenet": 250.0,
    "ncf": 15.0,
    "yolov3": 80.0,
}
"""Seconds that a restart takes in Sia's simulator."""

_COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")


def read(source: Source) -> ImportResult:
    """Read a workload file of Pollux's."""
    return collect_table(source, lambda columns: _table(columns, {}))


def read_sia(source: Source) -> ImportResult:
    """Read a workload file of Sia's."""
    return collect_table(source, lambda columns: _table(columns, SIA_RESTARTS))


def _table(columns: Mapping[str, int], restarts: Mapping[str, float]) -> ConvertRow:
    name, time, application, replicas, batch = (column(columns, c) for c in _COLUMNS)

    def convert(_: int, row: list[str]) -> Job:
        model = row[application]
        if model not in APPLICATIONS:
            raise InputError("application", model, nearest(model, APPLICATIONS))
        size, gpus = whole("batch_size", row[batch], least=1), whole("num_replicas", row[replicas], least=1)
        if size < gpus:
            raise InputError("batch_size", size, f"is less than a sample for each of {gpus} GPUs")
        submitted = number("time", row[time], least=0.0)
        return training_job(row[name], submitted, model, gpus, size, restarts.get(model))

    return convert


def training_job(
    name: str, submitted: float, model: str, gpus: int, batch_size: int, restart_seconds: float | None = None
) -> Job:
    """A job that trains one of these models to its end."""
    work = catalog().work(model)
    if work is None:
        raise InputError("model", model, "the catalogue does not say how much work a whole training is")
    elastic = model != "ncf"
    initial, most, least_local = LIMITS[model]
    return Job(
        id=name,
        submitted=submitted,
        gpus=gpus,
        work=work,
        min_gpus=1 if elastic else None,
        max_gpus=max(LARGEST_GANG, gpus) if elastic else None,
        model=model,
        batch_size=batch_size,
        restart_seconds=restart_seconds,
        limits=(initial, most, least_local, most),
    )


def claims(source: Source) -> bool:
    """Whether a file is surely of this format."""
    return set(_COLUMNS) <= source.header


def _never(source: Source) -> bool:
    # The two formats are written alike; where a file is not said to be Sia's it is read as Pollux's.
    return False


FORMAT = Format("pollux", "Pollux workloads: name,time,application,num_replicas,batch_size", read, claims)
SIA = Format("sia", "Sia workloads: written like Pollux's, with restart times of their own", read_sia, _never)
