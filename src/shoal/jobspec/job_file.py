"""Job files: YAML with one job or a list, or an ``#SBATCH`` script, read into submissions.

Errors name the line, the field, the value and the way out. Only the given file is read; the folder and the environment
it is called in are arguments.
"""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from shoal.core.decoding import convert
from shoal.core.errors import InputError
from shoal.core.sizes import read_size
from shoal.jobspec.sbatch import as_name, jobs_of
from shoal.jobspec.times import read_moment, read_span
from shoal.jobspec.yaml_file import lines_of, place, read_text, yaml_errors
from shoal.wire.messages import Submission

_NUMBERS = ("work", "deadline", "weight", "grace", "priority")
_MOST_SHOWN = 100


@dataclass(frozen=True, slots=True)
class JobFile:
    """The jobs of a file, and notes for its author on how it was read."""

    jobs: tuple[Submission, ...]
    notes: tuple[str, ...] = ()


def read_jobs(
    path: Path, *, folder: Path, environ: Mapping[str, str] | None = None, given: Mapping[str, Any] | None = None
) -> JobFile:
    """Read the jobs of a file; fields in ``given`` override the file's, in each of them.

    A job runs in ``folder`` unless it names another; a missing name is made from the file's.
    """
    text, given = read_text(path), given or {}
    if is_script(text):
        return read_script(text, path, folder=folder, environ=environ, given=given)
    jobs = []
    for fields, lines in _documents(text, path):
        settings = {"name": as_name(path.stem), **job_fields(fields, folder), **given}
        if isinstance(fields.get("env"), dict):
            settings["env"] = {**fields["env"], **given.get("env", {})}
        jobs.append(submission(settings, where=str(path), lines=lines))
    return JobFile(tuple(jobs))


def read_script(
    text: str,
    path: Path,
    *,
    folder: Path,
    environ: Mapping[str, str] | None = None,
    given: Mapping[str, Any] | None = None,
    words: Sequence[str] = (),
    arguments: Sequence[str] = (),
    now: datetime | None = None,
) -> JobFile:
    """Read the jobs of a batch script with these options (``words``) and ``arguments`` of a command line.

    ``now`` is the time from which a relative begin counts; by default the present.
    """
    scripts, notes = jobs_of(
        text, path, folder=folder, environ=environ or {}, given=given or {}, words=words, arguments=arguments,
        now=now or datetime.now().astimezone(), host=socket.gethostname(),
    )  # fmt: skip
    made = [submission({"workdir": str(folder), **fields}, where=path.name) for fields in scripts]
    return JobFile(tuple(made), tuple(notes))


def is_script(text: str) -> bool:
    """Whether this is a script rather than YAML: it has a ``#!`` line or ``#SBATCH`` directives."""
    return text.startswith("#!") or any(line.startswith("#SBATCH") for line in text.splitlines())


def submission(fields: Mapping[str, Any], *, where: str = "", lines: Mapping[str, int] | None = None) -> Submission:
    """A submission with these fields; an error names the field with its line."""
    try:
        return convert(dict(fields), Submission, whole="job")
    except InputError as error:
        value = error.value
        if isinstance(value, str) and len(value) > _MOST_SHOWN:
            value = value[:20] + "…"
        raise InputError(error.field, value, error.hint, where=place(where, error.field, lines or {})) from None


def job_fields(fields: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the fields of a YAML job, with the working folder below ``folder``.

    Unlike in YAML, ``1e6`` is a number here, and ``yes`` and ``no`` are words.
    """
    read: dict[str, Any] = {name: _number(value) if name in _NUMBERS else value for name, value in fields.items()}
    if isinstance(read.get("memory"), str):
        read["memory"] = read_size("memory", read["memory"])
    if isinstance(read.get("preemptible"), bool):
        read["preemptible"] = "yes" if read["preemptible"] else "no"
    if isinstance(read.get("time"), str):
        read["time"] = read_span("time", read["time"])
    if isinstance(begin := read.get("begin"), str | datetime):
        read["begin"] = read_moment("begin", str(begin), datetime.now())
    workdir = read.get("workdir", "")
    return {**read, "workdir": str(folder / workdir) if isinstance(workdir, str) else workdir}


def _number(value: object) -> object:
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _documents(text: str, path: Path) -> list[tuple[dict[str, Any], dict[str, int]]]:
    """The jobs of a YAML file, each with the line of each of its fields."""
    import yaml

    with yaml_errors(path, "a job file"):
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        items = root.value if isinstance(root, yaml.SequenceNode) else [root] if root is not None else []
        lines = [lines_of(item) for item in items]  # before construction, which unfolds merged keys
        found = [(loader.construct_document(item), of) for item, of in zip(items, lines, strict=True)]
    if not found:
        raise InputError("file", str(path), "holds no job; write at least `command: [WORD, …]`")
    if not all(isinstance(document, dict) for document, _ in found):
        raise InputError("file", str(path), "must hold a job, as fields and values, or a list of jobs")
    return found
