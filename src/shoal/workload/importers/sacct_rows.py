"""Rows of ``sacct`` output, whatever its form: each is a mapping from column names in lower case to text.

A table is recognised by its header: separated by any delimiter (``-P``, ``-p``, ``--delimiter``, quoted CSV) or of
fixed width with a line of dashes below the header. ``--json`` output becomes rows with the names of the columns.
"""

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain

import msgspec

from shoal.core.errors import InputError
from shoal.workload.importers.rows import Source

SacctRow = Mapping[str, str]

_COLUMNS = frozenset(
    re.findall(
        r"\w+",
        "jobid jobidraw jobname partition account user state submit eligible start end elapsed elapsedraw timelimit "
        "timelimitraw alloctres reqtres allocgres reqgres nodelist nnodes allocnodes reqnodes alloccpus exitcode qos",
    )
)
_NAME = re.compile(r"[A-Za-z_]+")
_RULER = re.compile(r"^-+(?: +-+)*\s*$")
_PAIR = re.compile(r"^([A-Za-z0-9_/:.\-]+)=[^=]*$")
_HEADER_WITHIN = 50
_DELIMITERS = "|;\t^,"
_FREE_TEXT = ("jobname", "comment", "admincomment", "workdir", "submitline")


def is_sacct(source: Source) -> bool:
    """Whether a file certainly is output of ``sacct``."""
    start = source.raw[:65536].decode("utf-8-sig", errors="replace").lstrip()
    if start.startswith("{"):
        return '"jobs"' in start and ('"job_id"' in start or '"sacct"' in start)
    return any(_is_header(line) and "submit" in _names(line) for line in start.split("\n")[:_HEADER_WITHIN])


def sacct_rows(source: Source, columns: Sequence[str] | None = None) -> Iterator[tuple[str, SacctRow | InputError]]:
    """The rows with their positions, an error in place of a broken one; ``columns`` names those without a header."""
    text = source.raw.decode("utf-8-sig", errors="replace")
    if text.lstrip()[:1] in ("{", "["):
        return _json_rows(source, text)
    return _table_rows(source, text, columns)


def _names(line: str) -> list[str]:
    return [name.lower() for name in _NAME.findall(line)]


def _is_header(line: str) -> bool:
    names = _names(line)
    return bool({"jobid", "jobidraw"} & set(names)) and len(_COLUMNS & set(names)) >= min(2, len(names))


def _table_rows(
    source: Source, text: str, columns: Sequence[str] | None
) -> Iterator[tuple[str, SacctRow | InputError]]:
    lines = ((number, line.rstrip("\r")) for number, line in enumerate(text.split("\n"), 1))
    filled = ((number, line) for number, line in lines if line.strip())
    first: list[tuple[int, str]] = []
    header = None
    for number, line in filled:
        if _is_header(line):
            header = line
            break
        first.append((number, line))
        if len(first) >= _HEADER_WITHIN:
            break
    if header is None:
        if not first:
            raise InputError("header", "", "the file is empty", where=str(source.path))
        if columns is None:
            hint = "names no columns; run sacct without --noheader, or name the columns: --columns JobID,Submit,…"
            raise InputError("header", first[0][1][:60], hint, where=f"{source.path}:{first[0][0]}")
        names, split = [name.strip().lower() for name in columns], _splitter_for(first[0][1], len(columns))
        return _split_rows(chain(first, filled), names, split, None)
    ahead = next(filled, None)
    ruled = ahead is not None and bool(_RULER.match(ahead[1]))
    names, split = _columns_of(header, ahead[1] if ruled and ahead else None, source)
    rest = filled if ahead is None or ruled else chain([ahead], filled)
    return _split_rows(rest, names, split, header)


Split = Callable[[str], list[str]]


def _columns_of(header: str, ruler: str | None, source: Source) -> tuple[list[str], Split]:
    if ruler is not None:
        spans = [match.span() for match in re.finditer("-+", ruler)]
        names = [header[a:b].strip().lower() for a, b in spans]
        return names, lambda line: [line[a:b].strip() for a, b in spans]
    if header.lstrip().startswith('"'):
        delimiter = header.lstrip().split('"')[2][:1] or ","
        split = _quoted(delimiter)
        return [name.strip().lower() for name in split(header)], split
    match = re.match(r"\s*[A-Za-z_]+([^A-Za-z_]+)[A-Za-z_]", header)
    if match is None or not (delimiter := match[1].strip(" ")):
        hint = "has columns of fixed width without the line of dashes below; keep that line, or use sacct -P"
        raise InputError("header", " ".join(header.split())[:60], hint, where=str(source.path))
    split = _plain(delimiter, header.endswith(delimiter))
    return [name.lower() for name in split(header)], split


def _plain(delimiter: str, trailing: bool) -> Split:
    def split(line: str) -> list[str]:
        return [part.strip() for part in (line.removesuffix(delimiter) if trailing else line).split(delimiter)]

    quoted = _quoted(delimiter)
    return (lambda line: quoted(line) if '"' in line else split(line)) if delimiter == "," else split


def _quoted(delimiter: str) -> Split:
    return lambda line: [part.strip() for part in next(csv.reader([line], delimiter=delimiter))]


def _splitter_for(line: str, count: int) -> Split:
    """Return how rows without a header are split: by the delimiter that gives ``count`` fields, or at blanks."""
    for delimiter in _DELIMITERS:
        if line.count(delimiter) in (count - 1, count) and delimiter in line:
            return _plain(delimiter, line.count(delimiter) == count)
    return _plain("|", line.endswith("|")) if "|" in line else str.split


def _split_rows(
    lines: Iterator[tuple[int, str]], names: list[str], split: Split, header: str | None
) -> Iterator[tuple[str, SacctRow | InputError]]:
    width = len(names)
    for number, line in lines:
        if line == header or _RULER.match(line):
            continue  # several outputs in one file
        try:
            fields = split(line)
        except csv.Error as error:
            yield f":{number}", InputError("row", line[:80], f"is not a row: {error}")
            continue
        if len(fields) > width:
            fields = _rejoined(fields, names)
        if len(fields) != width:
            yield f":{number}", InputError("row", line[:80], f"has {len(fields)} fields where the header has {width}")
        else:
            yield f":{number}", dict(zip(names, fields, strict=True))


def _rejoined(fields: list[str], names: list[str]) -> list[str]:
    """Return a row's fields, with the parts of one that contains the delimiter joined: a TRES list, or a job's name."""
    joined: list[str] = []
    keys: set[str] = set()
    for part in fields:
        pair = _PAIR.match(part)
        if pair and keys and pair[1] not in keys:
            joined[-1] += f",{part}"
            keys.add(pair[1])
        else:
            joined.append(part)
            keys = {pair[1]} if pair else set()
    if len(joined) == len(names):
        return joined
    free = [place for place, name in enumerate(names) if name in _FREE_TEXT]
    extra = len(fields) - len(names)
    if len(free) != 1 or extra < 1:
        return fields
    at = free[0]
    return [*fields[:at], "|".join(fields[at : at + extra + 1]), *fields[at + extra + 1 :]]


# ── sacct --json ──────────────────────────────────────────────────────────────────────────────────────────────────


def _json_rows(source: Source, text: str) -> Iterator[tuple[str, SacctRow | InputError]]:
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError("json", text[:40], f"is not JSON: {error}", where=str(source.path)) from None
    jobs = document.get("jobs") if isinstance(document, dict) else document
    if not isinstance(jobs, list):
        raise InputError("json", text[:40], 'has no list "jobs", as sacct --json prints', where=str(source.path))
    return _rows_of_jobs(jobs)


def _rows_of_jobs(jobs: list[object]) -> Iterator[tuple[str, SacctRow | InputError]]:
    for place, job in enumerate(jobs):
        if not isinstance(job, dict):
            yield f":jobs[{place}]", InputError("json", str(job)[:40], "is not an object")
            continue
        row = _json_row(job)
        yield f":jobs[{place}]", row
        for step in _list(job.get("steps")):
            usage = _tres(_at(step, "tres", "requested", "average"), "")
            if "gres/gpuutil" in usage:
                yield f":jobs[{place}]", {"jobid": f"{row['jobid']}.step", "tresusageinave": usage}


def _json_row(job: Mapping[str, object]) -> SacctRow:
    time = _object(job.get("time"))
    state = _at(job, "state", "current")
    last = (_list(state) or [state])[-1]
    minutes = _number(time.get("limit"))
    return {
        "jobid": _json_id(job),
        "jobname": _text(job.get("name")),
        "user": _text(job.get("user") or _at(job, "association", "user")),
        "account": _text(job.get("account") or _at(job, "association", "account")),
        "partition": _text(job.get("partition")),
        "nodelist": _text(job.get("nodes")),
        "state": _text(last),
        "submit": _number(time.get("submission")),
        "eligible": _number(time.get("eligible")),
        "start": _number(time.get("start")),
        "end": _number(time.get("end")),
        "elapsedraw": _number(time.get("elapsed")),
        "timelimitraw": minutes,
        "alloctres": _tres(_at(job, "tres", "allocated"), _text(job.get("tres_alloc_str"))),
        "reqtres": _tres(_at(job, "tres", "requested"), _text(job.get("tres_req_str"))),
    }


def _json_id(job: Mapping[str, object]) -> str:
    array, task = _number(_at(job, "array", "job_id")), _number(_at(job, "array", "task_id"))
    het, offset = _number(_at(job, "het", "job_id")), _number(_at(job, "het", "job_offset"))
    if array not in ("", "0") and task:
        return f"{array}_{task}"
    if het not in ("", "0") and offset:
        return f"{het}+{offset}"
    return _number(job.get("job_id"))


def _tres(entries: object, fallback: str) -> str:
    pairs = []
    for entry in map(_object, _list(entries)):
        name = _text(entry.get("name"))
        pairs.append(f"{_text(entry.get('type'))}{f'/{name}' if name else ''}={_number(entry.get('count'))}")
    return ",".join(pairs) or fallback


def _number(value: object) -> str:
    """A number as text, whether plain or ``{set, infinite, number}``; empty where it is not set."""
    if isinstance(value, dict):
        if value.get("infinite"):
            return "UNLIMITED"
        value = value.get("number") if value.get("set", True) else None
    return str(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else ""


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _object(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _at(value: object, *path: str) -> object:
    for key in path:
        value = _object(value).get(key)
    return value
