"""The format ``simple``: a job id, a submission, a run time and a number of GPUs.

CSV with a header (columns in any order, others ignored) or a JSON list of objects. The run time is that on the
requested GPUs and is kept exactly as written, so completion times come out exact. Names understood:

- ``job_id`` or ``id``;
- ``submit``, ``submit_s`` or ``submit_time``: seconds, kept as they are;
- ``duration`` or ``duration_s``: seconds, above 0;
- ``num_gpu``, ``num_gpus`` or ``gpus``.

Exactly one name of each must be there.
"""

from collections.abc import Mapping

from shoal.core.errors import InputError
from shoal.workload.importers.rows import (
    ConvertRow,
    Format,
    ImportResult,
    Source,
    collect,
    collect_table,
    column,
    elements,
    number,
    whole,
)
from shoal.workload.schema import Job

_ID = ("job_id", "id")
_SUBMIT = ("submit", "submit_s", "submit_time")
_DURATION = ("duration", "duration_s")
_GPUS = ("num_gpu", "num_gpus", "gpus")


def read(source: Source) -> ImportResult:
    """Read a CSV table, or a JSON list where the text begins with a bracket."""
    if source.first_line.lstrip()[:1] in ("[", "{"):
        return collect(source, elements(source, source.document, "jobs"), _object)
    return collect_table(source, _table)


def _job(name: str, submit: tuple[str, object], duration: tuple[str, object], gpus: tuple[str, object]) -> Job:
    return Job(
        id=name,
        submitted=number(*submit, least=0.0),
        gpus=whole(*gpus, least=1),
        work=number(*duration, above=0.0),
    )


def _table(columns: Mapping[str, int]) -> ConvertRow:
    places = [column(columns, *names) for names in (_ID, _SUBMIT, _DURATION, _GPUS)]
    names = {place: name for name, place in columns.items()}
    i, s, d, g = places

    def convert(_: int, row: list[str]) -> Job:
        return _job(row[i], (names[s], row[s]), (names[d], row[d]), (names[g], row[g]))

    return convert


def _object(row: object) -> Job:
    if not isinstance(row, dict):
        raise InputError("json", row, "must be an object")
    (_, name), submit, duration, gpus = (_one_of(row, names) for names in (_ID, _SUBMIT, _DURATION, _GPUS))
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise InputError("job_id", name, "must be a string or a whole number")
    return _job(str(name), submit, duration, gpus)


def _one_of(row: Mapping[str, object], names: tuple[str, ...]) -> tuple[str, object]:
    there = [name for name in names if name in row]
    if len(there) == 1:
        return there[0], row[there[0]]
    if there:
        raise InputError(" and ".join(there), row[there[0]], "mean the same; keep one of them")
    raise InputError(names[0], None, "is missing")


def claims(source: Source) -> bool:
    """Whether a file is surely of this format."""
    if source.suffix == ".json":
        head = source.text[:4096]
        return head.lstrip().startswith("[") and '"duration' in head and '"submit' in head
    return all(any(name in source.header for name in names) for names in (_ID, _SUBMIT, _DURATION, _GPUS))


FORMAT = Format("simple", "CSV or JSON rows: job_id, submit, duration, num_gpu", read, claims)
