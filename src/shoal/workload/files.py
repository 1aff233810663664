"""Workload files: read any known format, write Shoal's own.

Reading changes no number, and writing is deterministic: equal workloads give equal bytes, except that Parquet files
also name the version of the library that wrote them. A workload that is written and read again has the same jobs.
"""

import gzip
import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from shoal.core.errors import InputError, nearest
from shoal.wire.files import replace_file
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
    columns: tuple[str, ...] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Workload:
    """Read a workload file.

    Without ``format`` the format is detected from the extension and the first lines; it is an error if none or several
    fit. A broken row is an ``InputError`` that names file, line, field and value; with ``skip_bad`` such rows are
    skipped and their messages kept in ``Workload.skipped``. ``window=(A, B)`` keeps the jobs submitted in ``[A, B)``
    seconds and sets the clock's origin to A. A workload without jobs is an error too. ``columns`` names those of sacct
    output without a header; ``progress`` receives the number of rows read now and then.
    """
    source = Source(Path(path), skip_bad, columns, progress)
    form = _detected_format(source, format)
    parsed = form.read(source)
    workload = Workload(
        name=name or _stem(source.path),
        jobs=tuple(parsed.jobs),
        format=form.name,
        source=str(source.path),
        skipped=parsed.skipped,
        left_out=parsed.left_out,
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
    """Parse ``A:B``, seconds with 0 <= A < B; A defaults to 0 and B to infinity."""
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
        replace_file(target, data)
    except OSError as error:
        raise InputError("out", str(path), f"cannot be written: {error.strerror or error}") from None


def to_jsonl(workload: Workload) -> bytes:
    """The jobs as JSON lines, without fields at their defaults."""
    encode = msgspec.json.Encoder().encode
    return b"".join(encode(_written_fields(job)) + b"\n" for job in workload.jobs)


_REQUIRED = ("id", "submitted", "gpus", "work")
_DEFAULTS = tuple((f.name, f.default) for f in msgspec.structs.fields(Job) if f.name not in _REQUIRED)


def _written_fields(job: Job) -> dict[str, object]:
    """The required fields of a job and those not at their defaults.

    Equal jobs must give equal bytes. Integers in float fields are therefore written as floats, and defaults are
    compared by value (msgspec's own omission compares by identity).
    """
    row: dict[str, object] = {"id": job.id, "submitted": float(job.submitted), "gpus": job.gpus}
    row["work"] = float(job.work)
    for name, default in _DEFAULTS:
        value = getattr(job, name)
        if value != default:
            row[name] = float(value) if name in _FLOATS else value
    if job.batch_schedule:
        row["batch_schedule"] = [(float(progress), size) for progress, size in job.batch_schedule]
    return row


_FLOATS = frozenset(
    (
        "declared_work",
        "weight",
        "deadline",
        "restart_seconds",
        "checkpoint_gb",
        "loss",
        "pace",
        "save_every",
        "begin",
        "time",
    )
)


def _gzipped(data: bytes) -> bytes:
    # No file name and no time in the header, so that equal workloads give equal bytes.
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
        "exclusive": pa.bool_(),
        "after": pa.list_(pa.string()),
    }
    special["limits"] = pa.list_(pa.int64())
    texts = {"id", "tenant", "app", "model", "search", "adaptation", "preemptible", "array", "user", "name"}
    counts = {"gpus", "min_gpus", "max_gpus", "batch_size", "most_at_once", "priority"}
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


def _detected_format(source: Source, name: str | None) -> Format:
    if name is not None:
        if name not in FORMATS:
            raise InputError("format", name, nearest(name, FORMATS))
        return FORMATS[name]
    # Two are certain from the first bytes, even if these are not UTF-8: Shoal's own, and a header of sacct.
    for certain in ("shoal", "sacct"):
        if FORMATS[certain].claims(source):
            return FORMATS[certain]
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
