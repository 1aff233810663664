"""The format ``helios``: SenseTime's Helios trace, the ``cluster_log.csv`` of one of its clusters.

Columns used: ``job_id``, ``vc`` (the tenant), ``gpu_num``, ``submit_time``, ``duration`` (run time in seconds,
unchanged) and, where present, ``user``. Times are ``YYYY-mm-dd HH:MM:SS``; submissions become seconds since the
earliest GPU job. Jobs are kept whatever their final state, except that CPU jobs and jobs that never ran are left out
and counted.

Published by: Hu et al., "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters",
SC 2021.
"""

from collections.abc import Mapping

from shoal.workload.importers.rows import (
    NEVER_RAN,
    NO_GPU,
    ConvertRow,
    Format,
    LeftOut,
    ParsedFile,
    Source,
    clock,
    collect_table,
    column,
    number,
    rebased,
    whole,
)
from shoal.workload.schema import Job


def read(source: Source) -> ParsedFile:
    """Read a ``cluster_log.csv``."""
    return rebased(collect_table(source, _table))


def _table(columns: Mapping[str, int]) -> ConvertRow:
    name, vc, gang, at, run = (column(columns, c) for c in ("job_id", "vc", "gpu_num", "submit_time", "duration"))
    user = columns.get("user")

    def convert(_: int, row: list[str]) -> Job | LeftOut:
        gpus = whole("gpu_num", row[gang])
        if gpus == 0:
            return NO_GPU
        duration = number("duration", row[run], least=0.0)
        if duration == 0.0:
            return NEVER_RAN
        submitted = clock("submit_time", row[at])
        return Job(
            id=row[name],
            submitted=submitted,
            gpus=gpus,
            work=duration,
            tenant=row[vc] or "default",
            user=row[user] if user is not None else "",
        )

    return convert


def claims(source: Source) -> bool:
    """Whether the file is certainly in this format."""
    return {"job_id", "vc", "gpu_num", "submit_time", "duration"} <= source.header


FORMAT = Format("helios", "SenseTime Helios: cluster_log.csv", read, claims)
