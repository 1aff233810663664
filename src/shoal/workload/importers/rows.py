"""Common parts of all readers: bytes to text, text to rows, rows to jobs, and errors with file and line.

An importer supplies a function that converts a row to a ``Job``, or to a ``LeftOut`` if the row is valid but not a GPU
job that ran. `collect` adds file and line to its errors, skips broken rows on request, and rejects duplicate ids.
"""

import csv
import gzip
import io
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec

from shoal.core.errors import InputError
from shoal.workload.schema import Job, shifted

Row = TypeVar("Row")

PROGRESS_EVERY = 20_000
"""Rows between two calls of ``Source.progress``."""


@dataclass(frozen=True)
class Source:
    """A file to read; with ``skip_bad`` its broken rows are skipped.

    ``columns`` names the columns of ``sacct`` output without a header. ``progress`` receives the number of rows read
    now and then.
    """

    path: Path
    skip_bad: bool = False
    columns: tuple[str, ...] | None = None
    progress: Callable[[int], None] | None = None

    @cached_property
    def suffix(self) -> str:
        """The extension in lower case, ignoring a trailing ``.gz``."""
        suffixes = [s.lower() for s in self.path.suffixes]
        if suffixes and suffixes[-1] == ".gz":
            suffixes.pop()
        return suffixes[-1] if suffixes else ""

    @cached_property
    def raw(self) -> bytes:
        """The file's bytes, unpacked if they are gzip data."""
        try:
            data = self.path.read_bytes()
            return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        except OSError as error:
            raise InputError("file", str(self.path), f"cannot be read: {error.strerror or error}") from None
        except (EOFError, zlib.error) as error:
            raise InputError("file", str(self.path), f"is not whole gzip data: {error}") from None

    @cached_property
    def text(self) -> str:
        """The file's text, without a byte-order mark."""
        try:
            return self.raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = self.raw.count(b"\n", 0, error.start) + 1
            hint = "is not UTF-8 text"
            raise InputError(
                "text", self.raw[error.start : error.start + 8], hint, where=f"{self.path}:{line}"
            ) from None

    @cached_property
    def first_line(self) -> str:
        """The first line that is not blank, without its line end."""
        return next((line for line in self.text[:65536].splitlines() if line.strip()), "")

    @cached_property
    def header(self) -> frozenset[str]:
        """The comma-separated names in the first line."""
        return frozenset(name.strip() for name in self.first_line.split(","))

    @cached_property
    def document(self) -> object:
        """The file as one JSON document."""
        try:
            return msgspec.json.decode(self.text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InputError("json", self.first_line[:40], f"is not JSON: {error}", where=str(self.path)) from None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A valid row that is not a job to simulate, and why."""

    reason: str


NO_GPU = LeftOut("jobs without a GPU")
NEVER_RAN = LeftOut("jobs that never ran")


@dataclass(frozen=True, slots=True)
class ParsedFile:
    """Jobs in file order, messages of the broken rows skipped, and counts of valid rows left out, by reason."""

    jobs: list[Job]
    skipped: tuple[str, ...] = ()
    left_out: tuple[tuple[str, int], ...] = ()


Convert: TypeAlias = Callable[[Row], Job | LeftOut]
ConvertRow: TypeAlias = Callable[[int, list[str]], Job | LeftOut]
"""Converts a table's row, given its number counted from 0 below the header, to a job."""


@dataclass(frozen=True, slots=True)
class Format:
    """A trace format: its reader, and a test that is true for files certainly in this format."""

    name: str
    summary: str
    read: Callable[[Source], ParsedFile]
    claims: Callable[[Source], bool]


def collect(source: Source, rows: Iterable[tuple[str, Row]], convert: Convert[Row]) -> ParsedFile:
    """Convert rows to jobs; each row comes with its position, such as ``:12`` for a line, for error messages."""
    jobs: list[Job] = []
    seen: dict[str, str] = {}
    skipped: list[str] = []
    left_out: Counter[str] = Counter()
    for count, (place, row) in enumerate(rows):
        if source.progress is not None and not count % PROGRESS_EVERY:
            source.progress(count)
        try:
            job = convert(row)
            if isinstance(job, LeftOut):
                left_out[job.reason] += 1
            elif seen.setdefault(job.id, place) is place:
                jobs.append(job)
            else:
                raise _duplicate_id(job.id, seen[job.id])
        except InputError as error:
            placed = InputError(error.field, error.value, error.hint, where=f"{source.path}{place}")
            if not source.skip_bad:
                raise placed from None
            skipped.append(str(placed))
    return ParsedFile(jobs, tuple(skipped), tuple(sorted(left_out.items())))


def _duplicate_id(name: str, place: str) -> InputError:
    return InputError("id", name, f"is the id of the job at {place.lstrip(':')} too; ids must differ")


def collect_table(source: Source, prepare: Callable[[Mapping[str, int]], ConvertRow]) -> ParsedFile:
    """Read a CSV file with a header; ``prepare`` gets the positions of the columns and returns the row conversion."""
    reader = csv.reader(io.StringIO(source.text, newline=""))
    try:
        header = next((row for row in reader if row), None)
        if header is None:
            raise InputError("header", "", "the file is empty", where=str(source.path))
        try:
            convert = prepare({name.strip(): place for place, name in enumerate(header)})
        except InputError as error:
            where = f"{source.path}:{reader.line_num}"
            raise InputError(error.field, error.value, error.hint, where=where) from None
        filled = (row for row in reader if row)
        rows = ((f":{reader.line_num}", (number, row)) for number, row in enumerate(filled))
        return collect(source, rows, _checking_width(len(header), convert))
    except csv.Error as error:
        raise InputError("row", "", f"is not a table row: {error}", where=f"{source.path}:{reader.line_num}") from None


def _checking_width(width: int, convert: ConvertRow) -> Convert[tuple[int, list[str]]]:
    def checked(numbered: tuple[int, list[str]]) -> Job | LeftOut:
        number, row = numbered
        if len(row) != width:
            raise InputError("row", ",".join(row)[:80], f"has {len(row)} fields where the header has {width}")
        return convert(number, row)

    return checked


def tab_lines(source: Source) -> Iterator[tuple[str, tuple[int, list[str]]]]:
    """Lines of a tab-separated trace without a header, each with its position and its number counted from 0."""
    for number, line in enumerate(source.text.splitlines()):
        if line.strip():
            yield f":{number + 1}", (number, line.split("\t"))


def column(columns: Mapping[str, int], *names: str) -> int:
    """Return the position of the only column with one of these names; none or several are an error."""
    there = [name for name in names if name in columns]
    if len(there) == 1:
        return columns[there[0]]
    if there:
        raise InputError("header", " and ".join(there), "mean the same; keep one of these columns")
    raise InputError("header", ",".join(columns), f"has no column {' or '.join(names)}")


def number(field: str, text: object, *, least: float = -math.inf, above: float = -math.inf) -> float:
    """Parse a finite number from text or JSON."""
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise InputError(field, text, "is not a number")
    try:
        value = float(text)
    except (ValueError, OverflowError):
        raise InputError(field, text, "is not a number") from None
    if not -math.inf < value < math.inf:
        raise InputError(field, text, "must be finite")
    if value < least:
        raise InputError(field, text, f"must be at least {least:g}")
    if value <= above:
        raise InputError(field, text, f"must be above {above:g}")
    return value


def whole(field: str, text: object, *, least: int = 0) -> int:
    """Parse a whole number from text or JSON; ``4.0`` counts as 4."""
    try:
        if isinstance(text, str):
            return _at_least(field, int(text), least)
    except ValueError:
        pass
    value = number(field, text)
    if value != int(value):
        raise InputError(field, text, "must be a whole number")
    return _at_least(field, int(value), least)


def _at_least(field: str, value: int, least: int) -> int:
    if value < least:
        raise InputError(field, value, f"must be at least {least}")
    return value


_EPOCH = datetime(1970, 1, 1)


def clock(field: str, text: str) -> float:
    """Parse a wall-clock time such as ``2017-10-09 07:01:55`` to seconds since 1970.

    A time without a zone is taken as UTC, so across a change to or from summer time differences are off by an hour.
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(field, text, "is not a time like 2017-10-09 07:01:55") from None
    if time.tzinfo is not None:
        time = time.astimezone(UTC).replace(tzinfo=None)
    return (time - _EPOCH).total_seconds()


def elements(source: Source, rows: object, what: str) -> list[tuple[str, object]]:
    """The elements of a JSON list, each with its position such as ``[3]``; ``what`` names them in errors."""
    if not isinstance(rows, list):
        raise InputError("json", str(rows)[:40], f"must be a list of {what}", where=str(source.path))
    return [(f"[{place}]", row) for place, row in enumerate(rows)]


def member(row: object, field: str) -> object:
    """A required field of a JSON row."""
    if not isinstance(row, dict):
        raise InputError("json", row, "must be an object")
    if field not in row:
        raise InputError(field, None, "is missing")
    value: object = row[field]
    return value


def rebased(parsed: ParsedFile) -> ParsedFile:
    """Return the jobs with times relative to the earliest submission."""
    if not parsed.jobs:
        return parsed
    origin = min(job.submitted for job in parsed.jobs)
    return ParsedFile(shifted(parsed.jobs, origin), parsed.skipped, parsed.left_out)
