r"""The format ``sacct``: a cluster's Slurm history, in any form that ``sacct`` prints (see ``sacct_rows``).

Required: ``JobID``, ``Submit``, one of ``ElapsedRaw``, ``Elapsed`` or both ``Start`` and ``End``, and one of
``AllocTRES``, ``ReqTRES``, ``AllocGRES`` or ``ReqGRES``. Used where present: ``State``, ``Account`` or else ``User``
(the tenant), ``Timelimit`` or ``TimelimitRaw``, ``Eligible``, ``Partition``, ``JobName``, ``NodeList``, ``NNodes`` and,
on steps, ``TRESUsageInAve`` (GPU utilization). A good command is::

    sacct -a -P -S 2024-01-01 -E 2024-02-01 -o JobID,JobName,User,Account,Partition,State,Submit,Eligible,Start,End,\
    ElapsedRaw,Timelimit,ReqTRES,AllocTRES,NodeList

- Work is the elapsed time in seconds. Declared work is the time limit, or none where that is unlimited or the
  partition's; without a column for it, it is the true work.
- GPUs are the allocated ones, or else those requested. A kind that is requested by name limits the kinds; where no
  field of the job names a kind, a partition such as ``gpu-a100`` does. Tasks of one job array, and parts of one
  heterogeneous job, share an ``app``.
- Steps, jobs without a GPU, jobs that have not ended or never started and earlier runs of requeued jobs are left out
  and counted. Broken lines are skipped and counted: a month of history has some.

Times become seconds since the earliest submission kept.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from shoal.core.errors import InputError
from shoal.workload.importers.rows import NEVER_RAN, NO_GPU, PROGRESS_EVERY, Format, LeftOut, ParsedFile, Source
from shoal.workload.importers.sacct_rows import SacctRow, is_sacct, sacct_rows
from shoal.workload.importers.slurm_fields import (
    ENDED,
    NO_GPUS,
    REQUEUED,
    STATES,
    Gpus,
    gres_gpus,
    kind_in,
    limit,
    moment,
    span,
    state_of,
    tres_gpus,
)
from shoal.workload.schema import Job

_STEP = LeftOut("steps of jobs")
_OPEN = LeftOut("jobs that have not ended")
_REQUEUED = LeftOut("earlier runs of requeued jobs")
_REPEATED = LeftOut("repeated lines")
_AGAIN = ("NODE_FAIL", "PREEMPTED", *REQUEUED)
_GPU_COLUMNS = ("alloctres", "reqtres", "allocgres", "reqgres")


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """A job and Slurm's record of it; times in seconds on the clock of ``job.submitted``.

    ``kind`` is the kind of GPU it ran on, where known; ``gpu_use`` the mean utilization of its GPUs, from 0 to 1.
    """

    job: Job
    eligible: float
    started: float | None
    ended: float | None
    kind: str | None
    state: str
    user: str
    name: str
    partition: str
    nodes: str
    gpu_use: float | None = None


@dataclass(frozen=True, slots=True)
class RecordedHistory:
    """The jobs of a history in order of submission; ``origin`` is their time 0 in seconds since 1970."""

    jobs: tuple[RecordedJob, ...]
    origin: float
    skipped: tuple[str, ...]
    left_out: tuple[tuple[str, int], ...]


def read(source: Source) -> ParsedFile:
    """Read output of ``sacct`` as a workload."""
    history = read_history(source)
    return ParsedFile([recorded.job for recorded in history.jobs], history.skipped, history.left_out)


def read_history(source: Source, columns: Sequence[str] | None = None) -> RecordedHistory:
    """Read output of ``sacct`` in any form; ``columns`` names the columns of a file without a header."""
    found: dict[str, RecordedJob] = {}
    left_out, skipped, use = Counter[str](), list[str](), dict[str, float]()
    checked = False
    for count, (place, row) in enumerate(sacct_rows(source, columns or source.columns)):
        if source.progress is not None and not count % PROGRESS_EVERY:
            source.progress(count)
        try:
            if isinstance(row, InputError):
                raise row
            checked = checked or _check_columns(row, source)
            left = _take(row, found, use)
            if left is not None:
                left_out[left.reason] += 1
        except InputError as error:
            if error.where:
                raise
            skipped.append(str(InputError(error.field, error.value, error.hint, where=f"{source.path}{place}")))
    if not found and skipped:
        raise InputError(
            "workload", str(source.path), f"holds no job: {len(skipped)} broken rows, the first {skipped[0]}"
        )
    return _rebased(found, use, tuple(skipped), tuple(sorted(left_out.items())))


def _take(row: SacctRow, found: dict[str, RecordedJob], use: dict[str, float]) -> LeftOut | None:
    outcome = _convert(row)
    if outcome is _STEP:
        _note_use(row, use)
    return outcome if isinstance(outcome, LeftOut) else _admit(outcome, found)


def _check_columns(row: SacctRow, source: Source) -> bool:
    header, where = "|".join(row), str(source.path)
    for name in ("jobid", "submit"):
        if name not in row and not (name == "jobid" and "jobidraw" in row):
            raise InputError("header", header, f"has no column {'JobID' if name == 'jobid' else 'Submit'}", where=where)
    if not any(name in row for name in _GPU_COLUMNS):
        hint = "has no column AllocTRES, ReqTRES, AllocGRES or ReqGRES, so no number of GPUs"
        raise InputError("header", header, hint, where=where)
    if not ("elapsedraw" in row or "elapsed" in row or {"start", "end"} <= row.keys()):
        raise InputError("header", header, "has no column ElapsedRaw or Elapsed, nor both Start and End", where=where)
    return True


def _convert(row: SacctRow) -> RecordedJob | LeftOut:
    name, get = row.get("jobid") or row.get("jobidraw", ""), row.get
    if "." in name:
        return _STEP
    got, asked = _gpus(row, "alloc"), _gpus(row, "req")
    if not (got.count or asked.count):
        return NO_GPU
    state = state_of(get("state", ""))
    if state in STATES and state not in (*ENDED, *REQUEUED):
        return _OPEN
    started, ended = moment("Start", get("start", "")), moment("End", get("end", ""))
    seconds = _elapsed(row, started, ended)
    if not seconds:
        return _REQUEUED if state in REQUEUED else NEVER_RAN
    submitted = moment("Submit", row["submit"])
    if submitted is None:
        raise InputError("Submit", row["submit"], "is not a time like 2017-10-09 07:01:55")
    if started is None and ended is not None:
        started = ended - seconds
    declared, declares = _limit(row)
    hint = None if got.kinds or asked.kinds else kind_in(get("partition", ""))
    job = Job(
        id=name,
        submitted=submitted,
        gpus=got.count or asked.count,
        work=seconds,
        declared_work=declared,
        declares_work=declared is not None or not declares,
        tenant=get("account") or get("user") or "default",
        app=name.replace("+", "_").split("_")[0] if "_" in name or "+" in name else None,
        kinds=tuple(asked.kinds) or ((hint,) if hint else None),
        user=get("user", ""),
        name=get("jobname", ""),
    )
    ran_on = got.kinds or asked.kinds
    return RecordedJob(
        job,
        max(submitted, moment("Eligible", get("eligible", "")) or submitted),
        started,
        None if started is None else started + seconds,
        max(ran_on, key=lambda kind: ran_on[kind]) if ran_on else hint,
        state,
        get("user", ""),
        get("jobname", ""),
        get("partition", ""),
        get("nodelist", ""),
    )


def _gpus(row: SacctRow, which: str) -> Gpus:
    title = "Alloc" if which == "alloc" else "Req"
    found = tres_gpus(f"{title}TRES", row.get(f"{which}tres", ""))
    if found.count or f"{which}gres" not in row:
        return found
    text = row[f"{which}gres"]
    nodes = row.get("nnodes") or row.get("allocnodes") or row.get("reqnodes") or "1"
    return gres_gpus(f"{title}GRES", text, int(nodes) if nodes.isdigit() and which == "req" else 1) if text else NO_GPUS


def _elapsed(row: SacctRow, started: float | None, ended: float | None) -> float | None:
    raw, text = row.get("elapsedraw"), row.get("elapsed")
    if raw is not None:
        if raw and not raw.replace(".", "", 1).isdigit():
            raise InputError("ElapsedRaw", raw, "is not a number")
        return float(raw) if raw else None
    if text is not None:
        return span("Elapsed", text) if text and text.upper() not in ("INVALID", "UNKNOWN", "NONE") else None
    if started is None or ended is None:
        return None
    if ended < started:
        raise InputError("End", row["end"], f"is before Start, {row['start']}")
    return ended - started


def _limit(row: SacctRow) -> tuple[float | None, bool]:
    """The time limit in seconds, and whether the file has a column for it."""
    if "timelimitraw" in row:
        return limit("TimelimitRaw", row["timelimitraw"], 60.0), True
    return (limit("Timelimit", row["timelimit"]), True) if "timelimit" in row else (None, False)


def _admit(new: RecordedJob, found: dict[str, RecordedJob]) -> LeftOut | None:
    """Keep a job; of several runs of a requeued one keep the last, submitted when the first was."""
    name, runs = new.job.id, 1
    while f"{new.job.id}~{runs + 1}" in found:
        runs += 1
        name = f"{new.job.id}~{runs}"
    old = found.get(name)
    if old is None:
        found[name] = new
        return None
    new = replace(new, job=msgspec.structs.replace(new.job, id=name))
    if (old.job, old.state) == (new.job, new.state):
        return _REPEATED
    if old.state in _AGAIN or new.state in _AGAIN or old.job.submitted == new.job.submitted:
        last = max(old, new, key=lambda run: (run.state not in REQUEUED, run.ended or run.job.submitted))
        since = min(old.job.submitted, new.job.submitted)
        job = msgspec.structs.replace(last.job, submitted=since)
        found[name] = replace(last, job=job, eligible=min(old.eligible, new.eligible))
        return _REQUEUED
    # Slurm counts its job ids anew.
    again = f"{name.split('~')[0]}~{runs + 1}"
    found[again] = replace(new, job=msgspec.structs.replace(new.job, id=again))
    return None


def _note_use(row: SacctRow, use: dict[str, float]) -> None:
    """Record the highest GPU utilization of a job's steps, which sacct gives in percent of one GPU."""
    for part in row.get("tresusageinave", "").split(","):
        key, _, value = part.partition("=")
        if key.startswith("gres/gpuutil") and value.isdigit():
            name = row.get("jobid", "").split(".")[0]
            use[name] = max(use.get(name, 0.0), min(float(value) / 100.0, 1.0))


def _rebased(
    found: dict[str, RecordedJob],
    use: dict[str, float],
    skipped: tuple[str, ...],
    left_out: tuple[tuple[str, int], ...],
) -> RecordedHistory:
    origin = min((recorded.job.submitted for recorded in found.values()), default=0.0)
    jobs = []
    for recorded in sorted(found.values(), key=lambda recorded: recorded.job.submitted):
        job, started, ended = recorded.job, recorded.started, recorded.ended
        jobs.append(
            replace(
                recorded,
                job=msgspec.structs.replace(job, submitted=job.submitted - origin),
                eligible=recorded.eligible - origin,
                started=None if started is None else started - origin,
                ended=None if ended is None else ended - origin,
                gpu_use=use.get(job.id),
            )
        )
    return RecordedHistory(tuple(jobs), origin, skipped, left_out)


FORMAT = Format(
    "sacct", "Slurm history: any form of sacct with JobID, Submit, Elapsed(Raw), AllocTRES or ReqTRES", read, is_sacct
)
