"""The format ``philly``: Microsoft's Philly trace, flat or as published.

- The flat CSV ``timestamp,duration,num_gpus,gpu_time,cluster``, one row per job in any order. The job of the n-th row,
  counted from 0, has the id ``philly-00000n``.
- The published JSON ``cluster_job_log``, a list of jobs with their attempts. The run time is the sum over the attempts
  with a start and an end; the gang is that of the first attempt with GPUs. Jobs keep their ids.

Submissions are seconds since the earliest one; the tenant is the virtual cluster. Jobs are kept whatever their final
state (passed, killed, failed), since they held their GPUs; jobs that never held any are left out and counted.

Published by: Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", ATC 2019.
"""

from collections.abc import Mapping

from shoal.core.errors import InputError
from shoal.workload.importers.rows import (
    NEVER_RAN,
    ConvertRow,
    Format,
    LeftOut,
    ParsedFile,
    Source,
    clock,
    collect,
    collect_table,
    column,
    elements,
    member,
    number,
    rebased,
    whole,
)
from shoal.workload.schema import Job

_NO_GPU = LeftOut("jobs that never held a GPU")


def read(source: Source) -> ParsedFile:
    """Read the published JSON if the text begins with a bracket or a brace, else the flat CSV."""
    if source.first_line.lstrip()[:1] in ("[", "{"):
        return rebased(collect(source, elements(source, source.document, "jobs"), _published))
    return rebased(collect_table(source, _table))


def _table(columns: Mapping[str, int]) -> ConvertRow:
    at, run, gang, vc = (column(columns, name) for name in ("timestamp", "duration", "num_gpus", "cluster"))

    def convert(count: int, row: list[str]) -> Job | LeftOut:
        duration = number("duration", row[run], least=0.0)
        gpus = whole("num_gpus", row[gang])
        if gpus == 0:
            return _NO_GPU
        if duration == 0.0:
            return NEVER_RAN
        return Job(
            id=f"philly-{count:06d}",
            submitted=clock("timestamp", row[at]),
            gpus=gpus,
            work=duration,
            tenant=row[vc] or "default",
        )

    return convert


def _published(row: object) -> Job | LeftOut:
    attempts = member(row, "attempts")
    if not isinstance(attempts, list):
        raise InputError("attempts", attempts, "must be a list")
    gpus, duration = 0, 0.0
    for attempt in attempts:
        held = _gpus(attempt)
        gpus = gpus or held
        start, end = member(attempt, "start_time"), member(attempt, "end_time")
        if held and _known(start) and _known(end):
            duration += max(0.0, clock("end_time", str(end)) - clock("start_time", str(start)))
    if gpus == 0:
        return _NO_GPU
    if duration == 0.0:
        return NEVER_RAN
    return Job(
        id=str(member(row, "jobid")),
        submitted=clock("submitted_time", str(member(row, "submitted_time"))),
        gpus=gpus,
        work=duration,
        tenant=str(member(row, "vc")) or "default",
    )


def _gpus(attempt: object) -> int:
    detail = member(attempt, "detail")
    if not isinstance(detail, list):
        raise InputError("detail", detail, "must be a list")
    count = 0
    for machine in detail:
        gpus = member(machine, "gpus")
        if not isinstance(gpus, list):
            raise InputError("gpus", gpus, "must be a list")
        count += len(gpus)
    return count


def _known(time: object) -> bool:
    return time not in (None, "", "None")


def claims(source: Source) -> bool:
    """Whether the file is certainly in this format."""
    if source.suffix == ".json":
        head = source.text[:65536]
        return head.lstrip().startswith("[") and '"attempts"' in head and '"vc"' in head
    return {"timestamp", "duration", "num_gpus", "cluster"} <= source.header


FORMAT = Format("philly", "Microsoft Philly: the flat CSV or the published cluster_job_log JSON", read, claims)
