"""The format ``shoal``: the house schema, one JSON object a line (``.jsonl``, ``.jsonl.gz``) or Parquet.

Fields are those of ``shoal.workload.schema.Job``; in JSON a field at its default may be left out. Numbers survive a
round trip exactly.
"""

import io
from collections.abc import Iterator

import msgspec

from shoal.core.decoding import NotJson, convert, decode
from shoal.core.errors import InputError
from shoal.workload.importers.rows import Format, ImportResult, Source, collect
from shoal.workload.schema import Job

_DECODER = msgspec.json.Decoder(Job)


def read(source: Source) -> ImportResult:
    """Read Parquet where the bytes say so, and JSON lines otherwise."""
    if source.raw[:4] == b"PAR1":
        return collect(source, _records(source), _row)
    return collect(source, _lines(source), _line)


def _lines(source: Source) -> Iterator[tuple[str, bytes]]:
    for number, line in enumerate(source.raw.split(b"\n"), start=1):
        if line.strip():
            yield f":{number}", line


def _line(line: bytes) -> Job:
    try:
        return _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return decode(line, Job, whole="row")
    except NotJson as error:
        raise InputError("row", line[:60].decode("utf-8", "replace"), error.hint) from None


def _records(source: Source) -> Iterator[tuple[str, dict[str, object]]]:
    import pyarrow
    from pyarrow import parquet

    try:
        rows = parquet.read_table(io.BytesIO(source.raw)).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        hint = f"is not a whole Parquet file: {str(error).splitlines()[0]}"
        raise InputError("file", str(source.path), hint) from None
    for number, row in enumerate(rows):
        yield f"[{number}]", row


def _row(row: dict[str, object]) -> Job:
    # Columns say null where JSON lines leave a field out; the two columns of lists come back as lists of dicts.
    present = {name: value for name, value in row.items() if value is not None}
    schedule = present.get("batch_schedule")
    if isinstance(schedule, list) and all(isinstance(change, dict) for change in schedule):
        present["batch_schedule"] = [[change.get("progress"), change.get("batch_size")] for change in schedule]
    return convert(present, Job, whole="row")


def claims(source: Source) -> bool:
    """Whether a file is surely of this format."""
    return source.suffix in (".jsonl", ".ndjson", ".parquet") or source.raw[:4] == b"PAR1"


FORMAT = Format("shoal", "the house schema: JSON lines (.jsonl, .jsonl.gz) or Parquet", read, claims)
