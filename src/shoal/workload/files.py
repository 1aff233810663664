"""Workloads in files: read any known format, write the house one.

Reading never changes a number; writing is deterministic, so equal workloads give equal bytes (Parquet bytes also name
the version of the library that wrote them). What is written and read again is the same, job for job.
"""

import gzip
import io
import math
from pathlib import Path
from typing import Any

import msgspec

from shoal.core.errors import InputError, nearest
from shoal.workload.importers import FORMATS
from shoal.workload.importers.rows import Format, Source
from shoal.workload.schema import Job, Workload


def read_workload(
    path: str | Path,
    format: str | None = None,
    *,
    skip_bad: bool = False,
    window: tuple[float, float] | None = None,
    name: str | None = None,
) -> Workload:
    """Read a workload of a known format.

    Without ``format`` it is recognised by the file's extension and first lines, if only one format fits. A broken row
    is an ``InputError`` that names file, line, field and value; with ``skip_bad`` such rows are passed over and their
    messages kept in ``Workload.skipped``. ``window=(A, B)`` keeps the jobs submitted in ``[A, B)`` seconds and starts
    the clock at A. A file in which no job is left is an error too.
    """
    source = Source(Path(path), skip_bad)
    form = _format(source, format)
    reading = form.read(source)
    workload = Workload(
        name=name or _stem(source.path),
        jobs=tuple(reading.jobs),
        format=form.name,
        source=str(source.path),
        skipped=reading.skipped,
        left_out=reading.left_out,
    )
    if not workload.jobs:
        reasons = [f"{count} {reason}" for reason, count in workload.left_out]
        reasons += [f"{len(workload.skipped)} broken rows"] if workload.skipped else []
        raise InputError("workload", str(path), f"holds no job: {', '.join(reasons) or 'it has no rows'}")
    if window is not None:
        workload = workload.window(*window)
        if not workload.jobs:
            raise InputError("window", f"{window[0]:g}:{window[1]:g}", "no job is submitted in it", where=str(path))
    return workload


def parse_window(text: str) -> tuple[float, float]:
    """Read ``A:B``, seconds with 0 <= A < B; either side may be left out."""
    start, colon, end = text.partition(":")
    try:
        window = (float(start) if start else 0.0, float(end) if end else math.inf)
    except ValueError:
        window = (math.nan, math.nan)
    if not colon or not 0.0 <= window[0] < window[1]:
        raise InputError("window", text, "must be A:B in seconds with 0 <= A < B, e.g. 0:86400")
    return window


def write_workload(workload: Workload, path: str | Path) -> None:
    """Write the jobs as JSON lines (``.jsonl``, ``.jsonl.gz``) or Parquet (``.parquet``), by the path's extension."""
    target = Path(path)
    if target.name.endswith(".jsonl"):
        data = to_jsonl(workload)
    elif target.name.endswith(".jsonl.gz"):
        data = _gzipped(to_jsonl(workload))
    elif target.name.endswith(".parquet"):
        data = to_parquet(workload)
    else:
        raise InputError("out", str(path), "must end in .jsonl, .jsonl.gz or .parquet")
    try:
        target.write_bytes(data)
    except OSError as error:
        raise InputError("out", str(path), f"cannot be written: {error.strerror or error}") from None


def to_jsonl(workload: Workload) -> bytes:
    """The jobs as JSON lines, fields at their defaults left out."""
    encode = msgspec.json.Encoder().encode
    return b"".join(encode(_said(job)) + b"\n" for job in workload.jobs)


_REQUIRED = ("id", "submitted", "gpus", "work")
_DEFAULTS = tuple((f.name, f.default) for f in msgspec.structs.fields(Job) if f.name not in _REQUIRED)


def _said(job: Job) -> dict[str, object]:
    """The fields to write: those that must be there and those not at their defaults.

    Equal jobs must be written alike, so what may have been made from a whole number is written as the float it stands
    for, and defaults are left out by value (msgspec's own omission goes by identity).
    """
    said: dict[str, object] = {"id": job.id, "submitted": float(job.submitted), "gpus": job.gpus}
    said["work"] = float(job.work)
    for name, default in _DEFAULTS:
        value = getattr(job, name)
        if value != default:
            said[name] = float(value) if name in _FLOATS else value
    if job.batch_schedule:
        said["batch_schedule"] = [(float(progress), size) for progress, size in job.batch_schedule]
    return said


_FLOATS = frozenset(("declared_work", "weight", "deadline", "restart_seconds", "checkpoint_gb", "loss", "pace"))


def _gzipped(data: bytes) -> bytes:
    # No file name and no time in the header: equal workloads must give equal bytes.
    out = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=out, mode="wb", mtime=0) as packed:
        packed.write(data)
    return out.getvalue()


def to_parquet(workload: Workload) -> bytes:
    """The jobs as a Parquet file with one column per field."""
    import pyarrow as pa
    from pyarrow import parquet

    change = pa.struct([pa.field("progress", pa.float64(), False), pa.field("batch_size", pa.int64(), False)])
    special: dict[str, Any] = {
        "batch_schedule": pa.list_(change),
        "kinds": pa.list_(pa.string()),
        "declares_work": pa.bool_(),
    }
    special["limits"] = pa.list_(pa.int64())
    texts = {"id", "tenant", "app", "model", "search", "adaptation"}
    counts = {"gpus", "min_gpus", "max_gpus", "batch_size"}
    columns = {}
    for field in Job.__struct_fields__:
        values = [getattr(job, field) for job in workload.jobs]
        if field == "batch_schedule":
            values = [[{"progress": p, "batch_size": b} for p, b in schedule] for schedule in values]
        plain = pa.string() if field in texts else pa.int64() if field in counts else pa.float64()
        columns[field] = pa.array(values, special.get(field, plain))
    out = io.BytesIO()
    parquet.write_table(pa.table(columns), out, compression="zstd")
    return out.getvalue()


def _format(source: Source, name: str | None) -> Format:
    if name is not None:
        if name not in FORMATS:
            raise InputError("format", name, nearest(name, FORMATS))
        return FORMATS[name]
    # The house format goes by extension or by its first bytes; the others look at text, which Parquet is not.
    if FORMATS["shoal"].claims(source):
        return FORMATS["shoal"]
    fitting = [form for form in FORMATS.values() if form.claims(source)]
    if len(fitting) == 1:
        return fitting[0]
    if not source.path.stat().st_size:
        raise InputError("workload", str(source.path), "is empty")
    what = "fits several formats" if fitting else "is of no format recognised by its name or first line"
    names = ", ".join(form.name for form in fitting or FORMATS.values())
    raise InputError("format", source.path.name, f"{what}; say which: {names}", where=str(source.path))


def _stem(path: Path) -> str:
    name = path.name
    for suffix in (".gz", ".jsonl", ".json", ".csv", ".trace", ".parquet", ".txt"):
        name = name.removesuffix(suffix)
    return name or path.name
