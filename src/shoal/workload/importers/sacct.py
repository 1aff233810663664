"""The format ``sacct``: a cluster's own Slurm history, as ``sacct -a -P -o …`` prints it.

Pipe-separated with a header. Needed: ``JobID``, ``Submit``, one of ``ElapsedRaw``, ``Elapsed`` or both ``Start`` and
``End``, and ``AllocTRES`` or ``ReqTRES``. Used where there: ``State``, ``Account`` or else ``User`` (the tenant),
``Timelimit``. A good command is::

    sacct -a -P -X -S 2024-01-01 -o JobID,Submit,ElapsedRaw,AllocTRES,ReqTRES,Account,State,Timelimit

- Work is the elapsed time in seconds; what the owner declared is the time limit, and nothing where that is unlimited
  or the partition's. Without the column the declared work is the true one.
- GPUs are those of ``gres/gpu`` in what was allocated, or else requested; a kind that was requested by name limits the
  kinds. Tasks of one job array share an ``app``.
- Steps, jobs without a GPU and jobs that have not ended or never started are left out and counted.

Submissions become seconds since the earliest job kept.
"""

import re
from collections.abc import Callable, Mapping

from shoal.core.errors import InputError
from shoal.workload.importers.rows import (
    ConvertRow,
    Format,
    ImportResult,
    LeftOut,
    Source,
    clock,
    collect_table,
    column,
    number,
    rebased,
)
from shoal.workload.schema import Job

_STEP = LeftOut("steps of jobs")
_NO_GPU = LeftOut("jobs without a GPU")
_OPEN = LeftOut("jobs that have not ended")
_NO_TIME = LeftOut("jobs that never ran")
_UNENDED = ("PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "RESIZING", "CONFIGURING", "COMPLETING")
_GPU = re.compile(r"^gres/gpu(?::(?P<kind>[^=]+))?=(?P<count>[0-9]+)$")
_SPAN = re.compile(r"^(?:(?P<d>[0-9]+)-)?(?:(?P<h>[0-9]+):)?(?P<m>[0-9]+):(?P<s>[0-9]+(?:\.[0-9]+)?)$")
_UNLIMITED = ("", "UNLIMITED", "PARTITION_LIMIT", "INVALID")


def read(source: Source) -> ImportResult:
    """Read the output of ``sacct -P`` (or ``-p``)."""
    return rebased(collect_table(source, _table, delimiter="|"))


def _table(columns: Mapping[str, int]) -> ConvertRow:
    name, submit = column(columns, "JobID"), column(columns, "Submit")
    elapsed = _elapsed(columns)
    allocated, requested = columns.get("AllocTRES"), columns.get("ReqTRES")
    if allocated is None and requested is None:
        raise InputError("header", "|".join(columns), "has no column AllocTRES or ReqTRES, so no number of GPUs")
    tenant = columns.get("Account", columns.get("User"))
    state, limit = columns.get("State"), columns.get("Timelimit")

    def convert(_: int, row: list[str]) -> Job | LeftOut:
        if "." in row[name]:
            return _STEP
        got = _gpus("AllocTRES", row, allocated)[0]
        asked, kinds = _gpus("ReqTRES", row, requested)
        if not (got or asked):
            return _NO_GPU
        if state is not None and row[state].upper().startswith(_UNENDED):
            return _OPEN
        seconds = elapsed(row)
        if not seconds:
            return _NO_TIME
        declared = None if limit is None else _limit(row[limit])
        return Job(
            id=row[name],
            submitted=clock("Submit", row[submit]),
            gpus=got or asked,
            work=seconds,
            declared_work=declared,
            declares_work=limit is None or declared is not None,
            tenant=(row[tenant] if tenant is not None else "") or "default",
            app=row[name].split("_")[0] if "_" in row[name] else None,
            kinds=kinds,
        )

    return convert


def _elapsed(columns: Mapping[str, int]) -> Callable[[list[str]], float | None]:
    raw, text, start, end = (columns.get(name) for name in ("ElapsedRaw", "Elapsed", "Start", "End"))
    if raw is not None:
        return lambda row: number("ElapsedRaw", row[raw], least=0.0) if row[raw] else None
    if text is not None:
        return lambda row: span("Elapsed", row[text]) if row[text] else None
    if start is None or end is None:
        raise InputError("header", "|".join(columns), "has no column ElapsedRaw or Elapsed, nor both Start and End")

    def between(row: list[str]) -> float | None:
        if not {row[start], row[end]}.isdisjoint({"", "None", "Unknown"}):
            return None
        seconds = clock("End", row[end]) - clock("Start", row[start])
        if seconds < 0.0:
            raise InputError("End", row[end], f"is before Start, {row[start]}")
        return seconds

    return between


def _gpus(field: str, row: list[str], place: int | None) -> tuple[int, tuple[str, ...] | None]:
    """The GPUs that a TRES string names, and their kinds where it names them."""
    plain, typed = 0, dict[str, int]()
    for part in row[place].split(",") if place is not None else ():
        match = _GPU.match(part)
        if match is None:
            if part.startswith(("gres/gpu=", "gres/gpu:")):
                raise InputError(field, row[place or 0], f"{part!r} is not gres/gpu=N or gres/gpu:KIND=N")
            continue
        if match["kind"] is None:
            plain = int(match["count"])
        else:
            typed[match["kind"].lower()] = int(match["count"])
    # Slurm prints the total beside the kinds where both are accounted; either alone is the whole.
    return plain or sum(typed.values()), tuple(typed) or None


def _limit(text: str) -> float | None:
    return None if text.upper() in _UNLIMITED else span("Timelimit", text)


def span(field: str, text: str) -> float:
    """Seconds in a Slurm span of time: ``[days-][hours:]minutes:seconds``."""
    match = _SPAN.match(text)
    if match is None:
        raise InputError(field, text, "is not a span of time like 1-02:03:04")
    days, hours, minutes = (int(match[part] or 0) for part in "dhm")
    return float(days * 86400 + hours * 3600 + minutes * 60) + float(match["s"])


def claims(source: Source) -> bool:
    """Whether a file is surely of this format."""
    names = source.first_line.split("|")
    return "JobID" in names and "Submit" in names


FORMAT = Format("sacct", "Slurm history: sacct -P with JobID, Submit, Elapsed(Raw), AllocTRES or ReqTRES", read, claims)
