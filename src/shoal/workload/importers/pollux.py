"""The formats ``pollux`` and ``sia``: ``name,time,application,num_replicas,batch_size``.

The files of both papers have the same columns. ``application`` is a model of the catalogue, and the work is its whole
training; ``batch_size`` is in samples of the whole gang. The jobs are elastic, from one GPU to the 64 of the cluster
these workloads were made for (or their own number, if larger), except that ncf keeps the requested number, as in the
authors' simulators. Policies may adapt batch sizes within the authors' limits and the memory of a GPU. Arrival times
are unchanged. A job of ``sia`` has the restart time of the authors' simulator; one of ``pollux`` has none of its own,
so the default of 30 s applies, which is what its authors charge.

Published by: Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI 2021;
Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster scheduling", SOSP 2023.
"""

from collections.abc import Mapping

from shoal.core.errors import InputError, nearest
from shoal.perf.catalog import catalog
from shoal.workload.importers.rows import ConvertRow, Format, ParsedFile, Source, collect_table, column, number, whole
from shoal.workload.schema import Job

APPLICATIONS = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")
"""Models of these workloads."""

LARGEST_GANG = 64
"""Number of GPUs of the cluster that these workloads were made for."""

LIMITS: Mapping[str, tuple[int, int, int]] = {
    "bert": (12, 384, 4),
    "cifar10": (128, 4096, 32),
    "deepspeech2": (20, 640, 10),
    "imagenet": (200, 12800, 20),
    "ncf": (256, 32768, 32),
    "yolov3": (8, 512, 4),
}
"""Samples: the authors' initial and largest batch size, and the least that was measured on a GPU."""

SIA_RESTARTS: Mapping[str, float] = {
    "bert": 120.0,
    "cifar10": 50.0,
    "deepspeech2": 25.0,
    "imagenet": 250.0,
    "ncf": 15.0,
    "yolov3": 80.0,
}
"""Seconds of a restart in Sia's simulator."""

_COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")


def read(source: Source) -> ParsedFile:
    """Read a workload file of Pollux."""
    return collect_table(source, lambda columns: _table(columns, {}))


def read_sia(source: Source) -> ParsedFile:
    """Read a workload file of Sia."""
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
    """Return a job that is a whole training of one of these models."""
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
    """Whether the file is certainly in this format."""
    return set(_COLUMNS) <= source.header


def _never(source: Source) -> bool:
    # The files of both formats look the same; they are read as Pollux's unless the user names the format ``sia``.
    return False


FORMAT = Format("pollux", "Pollux workloads: name,time,application,num_replicas,batch_size", read, claims)
SIA = Format("sia", "Sia workloads: written like Pollux's, with restart times of their own", read_sia, _never)
