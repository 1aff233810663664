"""The format ``shoal``: the house schema, one JSON object a line (``.jsonl``, ``.jsonl.gz``) or Parquet.

Fields are those of ``shoal.workload.schema.Job``; in JSON a field at its default may be left out. Numbers survive a
round trip exactly.
"""

import io
import json
import re
from collections.abc import Iterator

import msgspec

from shoal.core.errors import InputError, nearest
from shoal.workload.importers.rows import Format, Reading, Source, collect
from shoal.workload.schema import Job

_FIELD = re.compile(r"\$\.(\w+)")
_NAMED = re.compile(r"field `(\w+)`")
_DECODER = msgspec.json.Decoder(Job)


def read(source: Source) -> Reading:
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
    except msgspec.ValidationError as error:
        raise explained(error, _loosely(line)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _no_object(line, error) from None


def _loosely(line: bytes) -> object:
    # The standard library also reads what msgspec refuses, such as numbers out of range, so that they can be shown.
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _no_object(line, error) from None


def _no_object(line: bytes, error: Exception) -> InputError:
    return InputError("row", line[:60].decode("utf-8", "replace"), f"is not a JSON object: {error}")


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
    try:
        return msgspec.convert(present, Job)
    except msgspec.ValidationError as error:
        raise explained(error, present) from None


def explained(error: msgspec.ValidationError, row: object) -> InputError:
    """The same error with the field and the value that caused it."""
    message = str(error).split(" - at ")[0]
    at = _FIELD.search(str(error)) or _NAMED.search(message)
    if at is None:
        return InputError("row", row, message[:1].lower() + message[1:])
    field = at[1]
    value = row.get(field) if isinstance(row, dict) else None
    if "unknown field" in message:
        return InputError(field, value, nearest(field, Job.__struct_fields__))
    if "missing required" in message:
        return InputError(field, None, "is missing")
    return InputError(field, value, message[:1].lower() + message[1:])


def claims(source: Source) -> bool:
    """Whether a file is surely of this format."""
    return source.suffix in (".jsonl", ".ndjson", ".parquet") or source.raw[:4] == b"PAR1"


FORMAT = Format("shoal", "the house schema: JSON lines (.jsonl, .jsonl.gz) or Parquet", read, claims)
