"""The format ``alibaba``: the pods of Alibaba's 2023 GPU-sharing trace (``openb_pod_list_*.csv``).

A pod is a job submitted at ``creation_time`` (seconds, kept as they are) that ran from ``scheduled_time`` to
``deletion_time``. Shoal does not cut GPUs, so a pod with a share of one GPU (``gpu_milli`` under 1000) becomes a job of
one whole GPU. ``gpu_spec`` such as ``V100M16|V100M32`` limits the kinds, in lower case and in that order; ``qos`` is
the tenant. Pods without a GPU, and pods never scheduled or gone at once, are left out and counted.

Published by: Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent", ATC 2023.
"""

from collections.abc import Mapping

from shoal.core.errors import InputError
from shoal.workload.importers.rows import (
    ConvertRow,
    Format,
    ImportResult,
    LeftOut,
    Source,
    collect_table,
    column,
    number,
    whole,
)
from shoal.workload.schema import Job

_NO_GPU = LeftOut("pods without a GPU")
_NO_TIME = LeftOut("pods that never ran")
_COLUMNS = (
    "name",
    "num_gpu",
    "gpu_milli",
    "gpu_spec",
    "qos",
    "creation_time",
    "deletion_time",
    "scheduled_time",
)


def read(source: Source) -> ImportResult:
    """Read a list of pods."""
    return collect_table(source, _table)


def _table(columns: Mapping[str, int]) -> ConvertRow:
    name, gang, milli, spec, qos, created, deleted, scheduled = (column(columns, c) for c in _COLUMNS)

    def convert(_: int, row: list[str]) -> Job | LeftOut:
        gpus = whole("num_gpu", row[gang])
        if gpus == 0:
            return _NO_GPU
        if not 1 <= whole("gpu_milli", row[milli]) <= 1000:
            raise InputError("gpu_milli", row[milli], "must be from 1 to 1000 where num_gpu is not 0")
        if not row[scheduled]:
            return _NO_TIME
        duration = number("deletion_time", row[deleted]) - number("scheduled_time", row[scheduled])
        if duration < 0.0:
            raise InputError("deletion_time", row[deleted], f"is before scheduled_time, {row[scheduled]}")
        if duration == 0.0:
            return _NO_TIME
        return Job(
            id=row[name],
            submitted=number("creation_time", row[created], least=0.0),
            gpus=gpus,
            work=duration,
            tenant=row[qos] or "default",
            kinds=tuple(dict.fromkeys(row[spec].lower().split("|"))) if row[spec] else None,
        )

    return convert


def claims(source: Source) -> bool:
    """Whether a file is surely of this format."""
    return set(_COLUMNS) <= source.header


FORMAT = Format("alibaba", "Alibaba GPU v2023: openb_pod_list CSV", read, claims)
