"""Job files: YAML with one job or a list, or a batch script, made into submissions or refused by field and line.

Reads the one file it is given and nothing else; the folder and the environment it is called in are arguments.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.core.errors import InputError, nearest
from shoal.jobspec.sbatch import as_name, jobs_of
from shoal.wire.messages import Submission

if TYPE_CHECKING:
    from yaml.nodes import Node

_AT = re.compile(r" - at `(?:key` in `)?\$\.(\w+)(?:\[(\d+)\])?")
_UNKNOWN = re.compile(r"unknown field `(.*)`")
_MISSING = re.compile(r"missing required field `(.*)`")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_NUMBERS = ("work", "deadline", "weight", "grace")
_NAMES = "must be letters, digits, `_`, `.` or `-`, beginning with a letter or digit, at most 64"
_WORDS = "must be a list of words, as no shell reads it: [python, train.py], or [bash, -c, 'cd src && make']"


@dataclass(frozen=True, slots=True)
class JobFile:
    """The jobs of a file, and what its writer should know of how they were read."""

    jobs: tuple[Submission, ...]
    notes: tuple[str, ...] = ()


def read_jobs(
    path: Path, *, folder: Path, environ: Mapping[str, str] | None = None, given: Mapping[str, Any] | None = None
) -> JobFile:
    """The jobs a file describes; ``given`` goes before what the file says, in each of them.

    A job runs in ``folder`` where it names no other; a name that is missing is made from the file's.
    """
    text, given = text_of(path), given or {}
    if is_script(text):
        scripts, notes = jobs_of(text, path, folder=folder, environ=environ or {}, given=given)
        made = [submission({"workdir": str(folder), **fields}, where=path.name) for fields in scripts]
        return JobFile(tuple(made), tuple(notes))
    jobs = []
    for fields, lines in _documents(text, path):
        _known_fields(fields, lines, path)
        settings = {"name": as_name(path.stem), "workdir": str(folder), **with_numbers(fields), **given}
        if isinstance(fields.get("env"), dict):
            settings["env"] = {**fields["env"], **given.get("env", {})}
        if isinstance(settings["workdir"], str):
            settings["workdir"] = str(folder / settings["workdir"])
        jobs.append(submission(settings, where=str(path), lines=lines))
    return JobFile(tuple(jobs))


def is_script(text: str) -> bool:
    """Whether this is a script rather than YAML: it says what runs it, or has directives for Slurm."""
    return text.startswith("#!") or any(line.startswith("#SBATCH") for line in text.splitlines())


def submission(fields: Mapping[str, Any], *, where: str = "", lines: Mapping[str, int] | None = None) -> Submission:
    """A submission of these fields; what is wrong with one is an ``InputError`` that names it, with its line."""
    try:
        made = msgspec.convert(dict(fields), Submission)
    except msgspec.ValidationError as error:
        raise _explained(error, fields, where, lines or {}) from None
    for name in _NUMBERS:
        value = getattr(made, name)
        if value is not None and not math.isfinite(value):
            raise InputError(name, value, "must be a finite number", where=placed(where, name, lines or {}))
    return made


def text_of(path: Path) -> str:
    """What stands in a file."""
    try:
        return path.read_text()
    except OSError as error:
        raise InputError("file", str(path), f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError("file", str(path), "is neither YAML nor a script: it is not text") from error


def _documents(text: str, path: Path) -> list[tuple[dict[str, Any], dict[str, int]]]:
    """The jobs of a YAML file as they stand, each with the line of each of its fields."""
    import yaml

    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        items = root.value if isinstance(root, yaml.SequenceNode) else [root] if root is not None else []
        lines = [lines_of(item) for item in items]  # before they are made into values, which unfolds merged keys
        found = [(loader.construct_document(item), of) for item, of in zip(items, lines, strict=True)]
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise InputError("file", str(path), f"is not a job file: {line}{error.problem}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise InputError("file", str(path), f"is not a job file: {' '.join(str(error).split())}") from error
    if not found:
        raise InputError("file", str(path), "holds no job; write at least `command: [WORD, …]`")
    for document, _ in found:
        if not isinstance(document, dict):
            raise InputError("file", str(path), "must hold a job, as fields and values, or a list of jobs")
    return found


def lines_of(node: "Node") -> dict[str, int]:
    """The line of each field of a YAML mapping; a field that is given twice is refused."""
    from yaml import MappingNode
    from yaml.constructor import ConstructorError

    lines: dict[str, int] = {}
    for key, _ in node.value if isinstance(node, MappingNode) else ():
        if str(key.value) in lines:
            raise ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
        lines[str(key.value)] = key.start_mark.line + 1
    return lines


def with_numbers(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The same, with 1e6 where a number belongs read as one: to YAML it is a word."""
    return {name: number_of(value) if name in _NUMBERS else value for name, value in fields.items()}


def number_of(value: object) -> object:
    """The same, as a number if it is the text of one."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _known_fields(fields: Mapping[Any, Any], lines: Mapping[str, int], path: Path) -> None:
    for name in map(str, fields):
        if name not in Submission.__struct_fields__:
            hint = nearest(name, Submission.__struct_fields__)
            raise InputError("field", name, hint, where=placed(str(path), name, lines))


def placed(where: str, name: str, lines: Mapping[str, int]) -> str:
    """The file, and the line of the field if it has one."""
    return f"{where}:{lines[name]}" if name in lines else where


def _explained(
    error: msgspec.ValidationError, fields: Mapping[str, Any], where: str, lines: Mapping[str, int]
) -> InputError:
    """The same error by field, value and way out."""
    text = str(error)
    if missing := _MISSING.search(text):
        return InputError(missing[1], None, "is missing: say what to run, e.g. [python, train.py]", where=where)
    if unknown := _UNKNOWN.search(text):
        return InputError("field", unknown[1], nearest(unknown[1], Submission.__struct_fields__), where=where)
    at = _AT.search(text)
    assert at is not None, text
    name, value = at[1], fields.get(at[1])
    if at[2] is not None:
        value = value[int(at[2])] if isinstance(value, list) else value
    hint = text.partition(" - at ")[0].replace("Expected", "must be", 1).replace("`", "")
    if name == "env" and isinstance(value, dict):
        name, value, hint = _in_env(value)
    elif "str, got" in hint:
        hint = "must be text: put it in quotes"
    elif "regex" in hint:
        hint = _NAMES
    elif name == "command" and "array" in hint:
        hint = _WORDS
    elif name == "ranks":
        hint = "must be gpu (run it once for each GPU) or node (once for each node)"
    elif name == "resizes":
        hint = "must be restart (stop it and start it again) or in_place (its workers come and go while others train)"
    return InputError(name, value, hint, where=placed(where, at[1], lines))


def _in_env(env: Mapping[Any, Any]) -> tuple[str, object, str]:
    """The first variable that cannot be one; msgspec says only that there is one."""
    for key, value in env.items():
        if not isinstance(key, str) or _VARIABLE.fullmatch(key) is None:
            return "env", key, "is no name of a variable: letters, digits and `_`, not beginning with a digit"
        if not isinstance(value, str):
            return f"env.{key}", value, "must be text: put it in quotes"
        if len(value) > 4096:
            return f"env.{key}", value[:20] + "…", "must be at most 4,096 characters"
    raise AssertionError(f"nothing is wrong with {env}")
