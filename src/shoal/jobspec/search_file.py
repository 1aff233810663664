"""Search files: one search over hyper-parameters as YAML, read into its scheduler, its trials' settings and its jobs.

The file::

    app: sweep                              # the file's name where left out
    scheduler: halving:eta=2                # or hyperband, curve, single; optuna with the extra hpo
    parameters:                             # a list of settings, or {grid: …}, or {draw: …, count: N, seed: N}
      grid: {rate: [0.1, 0.01], decay: [0, 0.0001]}
    folder: checkpoints                     # optional; {folder} is then a folder of the trial's own in it
    job:                                    # as in a job file; `work` is of a whole training
      command: [python, train.py, "--rate={rate}", "--until={until}", "--checkpoints={folder}"]
      gpus: 1
      max_gpus: 4                           # how wide a promoted trial's gang may become

What is wrong with it is an ``InputError`` with the field, the value, the way out and the line.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, prod
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from shoal.core.errors import InputError, nearest
from shoal.hpo.live_search import Leg
from shoal.hpo.optuna_study import OptunaSearcher
from shoal.hpo.parameters import Categorical, Interval, Range, Setting, Value, crossed, drawn
from shoal.hpo.registry import SEARCHERS, parse_search
from shoal.hpo.search import Searcher, Trial
from shoal.jobspec.job_file import lines_of, number_of, placed, submission, text_of, with_numbers
from shoal.jobspec.sbatch import as_name
from shoal.wire.messages import Submission

_FIELDS = ("app", "scheduler", "parameters", "folder", "job")
_OWN = ("trial", "leg", "since", "until", "folder")
"""Names that stand for something of the leg rather than of the search."""

_MOST_TRIALS = 10_000
_MOST_LETTERS = 48
"""Of an app's name: its jobs are named for it, with the trial and the leg."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_APP = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]*")
_BRACES = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SCIENTIFIC = re.compile(r"[-+]?\d+\.?\d*[eE][-+]?\d+")


@dataclass(frozen=True, slots=True)
class SearchFile:
    """A search as it was written down; ``setting`` is what a trial is trained with, ``job`` the job of a leg."""

    app: str
    scheduler: str
    searcher: Searcher
    trials: int
    setting: Callable[[int], Setting]
    fields: Mapping[str, Any]
    folder: Path | None
    where: str
    lines: Mapping[str, int]

    @property
    def gpus(self) -> int:
        """The gang of a first leg."""
        gpus: int = self.fields.get("gpus", 1)
        return gpus

    @property
    def most_gpus(self) -> int:
        """The widest gang a promoted trial may have."""
        return max(self.fields.get("max_gpus") or self.gpus, self.gpus)

    def folder_of(self, trial: int) -> Path | None:
        """Where a trial's checkpoints are to be."""
        return None if self.folder is None else self.folder / f"trial-{trial}"

    def job(self, leg: Leg) -> Submission:
        """What to submit for a leg of a trial."""
        gpus, folder = self._gang(leg.wider), self.folder_of(leg.trial)
        named: dict[str, Value] = {
            **self.setting(leg.trial),
            "trial": leg.trial,
            "leg": leg.number,
            "since": leg.since,
            "until": leg.until,
            "folder": str(folder),
        }
        fields = {
            **self.fields,
            "app": self.app,
            "name": f"{self.fields.get('name', self.app)}-{leg.trial}" + (f".{leg.number}" if leg.number > 1 else ""),
            "command": [_filled(word, named) for word in self.fields["command"]],
            "env": {key: _filled(text, named) for key, text in self.fields.get("env", {}).items()},
            "gpus": gpus,
            "max_gpus": None,
        }
        made = submission(fields, where=self.where, lines=self.lines)
        if made.work is None:
            return made
        # Without a model work is seconds on the gang asked for, so a wider one has less.
        narrower = 1.0 if made.model is not None else self.gpus / gpus
        return replace(made, work=made.work * (leg.until - leg.since) * narrower)

    def _gang(self, wider: int) -> int:
        return min(self.gpus * wider, self.most_gpus)


def read_search(path: Path, *, folder: Path) -> SearchFile:
    """The search a file describes; its jobs run in ``folder`` where it names no other."""
    document, lines, job_lines = _document(path)

    def place(name: str) -> str:
        return placed(str(path), name, lines)

    for name in map(str, document):
        if name not in _FIELDS:
            raise InputError("field", name, nearest(name, _FIELDS), where=place(name))
    for name in ("scheduler", "parameters", "job"):
        if document.get(name) is None:
            raise InputError(name, None, f"is missing; a search has {', '.join(_FIELDS)}", where=str(path))
    app = document.get("app", as_name(path.stem)[:_MOST_LETTERS])
    if not isinstance(app, str) or not _APP.fullmatch(app) or len(app) > _MOST_LETTERS:
        hint = f"must be letters, digits, `_`, `.` or `-`, beginning with a letter or digit, at most {_MOST_LETTERS}"
        raise InputError("app", app, hint, where=place("app"))
    space = _space(document["parameters"], place("parameters"))
    searcher = _searcher(document["scheduler"], space, place("scheduler"))
    found = SearchFile(
        app=app,
        scheduler=document["scheduler"],
        searcher=searcher,
        trials=len(space.settings),
        setting=space.asked_of(searcher) if isinstance(searcher, OptunaSearcher) else space.settings.__getitem__,
        fields=_job_fields(document["job"], folder, str(path), job_lines),
        folder=_folder(document.get("folder"), folder, place("folder")),
        where=str(path),
        lines=job_lines,
    )
    _check(found, space, place)
    return found


def _document(path: Path) -> tuple[dict[str, Any], dict[str, int], dict[str, int]]:
    """What the file says, the line of each of its fields, and of each field of its job."""
    import yaml

    try:
        loader = yaml.SafeLoader(text_of(path))
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            raise InputError("file", str(path), "must hold one search, as fields and values")
        lines = lines_of(root)
        job_lines = next((lines_of(value) for key, value in root.value if key.value == "job"), {})
        return loader.construct_document(root), lines, job_lines
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise InputError("file", str(path), f"is not a search file: {line}{error.problem}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise InputError("file", str(path), f"is not a search file: {' '.join(str(error).split())}") from error


# ── what is searched over ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Space:
    """The settings of all trials; ``ranges`` are what they were drawn from, where they were."""

    settings: tuple[Setting, ...]
    names: tuple[str, ...]
    ranges: Mapping[str, Range] | None = None
    seed: int = 0

    def asked_of(self, searcher: OptunaSearcher) -> Callable[[int], Setting]:
        """What a study suggests for its trials."""
        ranges = self.ranges or {}
        return lambda trial: {name: within.ask(name, searcher.asked[trial]) for name, within in ranges.items()}


def _space(given: object, where: str) -> _Space:
    if isinstance(given, list) and given:
        return _listed(given, where)
    if isinstance(given, dict) and "grid" in given:
        _only(given, ("grid",), where)
        grid = {name: _values(f"parameters.grid.{name}", v, where) for name, v in _names(given["grid"], where).items()}
        _fewer(prod(map(len, grid.values())), where)
        return _Space(crossed(grid), tuple(grid))
    if isinstance(given, dict) and "draw" in given:
        _only(given, ("draw", "count", "seed"), where)
        ranges = {name: _range(name, within, where) for name, within in _names(given["draw"], where).items()}
        count, seed = _whole("count", given.get("count"), 1, where), _whole("seed", given.get("seed", 0), 0, where)
        _fewer(count, where)
        return _Space(drawn(ranges, count, seed), tuple(ranges), ranges, seed)
    hint = "must be a list of settings, {grid: {NAME: [VALUE, …]}} or {draw: {NAME: RANGE}, count: N}"
    raise InputError("parameters", given, hint, where=where)


def _listed(given: Sequence[object], where: str) -> _Space:
    _fewer(len(given), where)
    settings = [_names(each, where) for each in given]
    names = tuple(settings[0])
    for number, setting in enumerate(settings):
        if set(setting) != set(names):
            hint = f"must set what the first does: {', '.join(names)}"
            raise InputError(f"parameters[{number}]", ", ".join(setting), hint, where=where)
        for name, value in setting.items():
            setting[name] = _value(f"parameters[{number}].{name}", value, where)
    return _Space(tuple(settings), names)


def _names(given: object, where: str) -> dict[str, Any]:
    """Parameters by name, none of them with a name that stands for something else."""
    if not isinstance(given, dict) or not given:
        raise InputError("parameters", given, "must name at least one parameter, as fields and values", where=where)
    for name in given:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            hint = "a parameter's name is letters, digits and `_`, not beginning with a digit"
            raise InputError("parameters", name, hint, where=where)
        if name in _OWN:
            raise InputError("parameters", name, f"{{{name}}} is the search's own; name it otherwise", where=where)
    return dict(given)


def _only(given: Mapping[Any, Any], known: Sequence[str], where: str) -> None:
    for name in map(str, given):
        if name not in known:
            raise InputError("parameters, field", name, nearest(name, known), where=where)


def _value(field: str, value: object, where: str) -> Value:
    if isinstance(value, str) and _SCIENTIFIC.fullmatch(value):
        return float(value)  # to YAML 1e-3 is a word
    if isinstance(value, str | int | float | bool):
        return value
    raise InputError(field, value, "must be a number, a text, or true or false", where=where)


def _values(field: str, given: object, where: str) -> tuple[Value, ...]:
    if not isinstance(given, list) or not given:
        raise InputError(field, given, "must be a list of values", where=where)
    return tuple(_value(field, value, where) for value in given)


def _range(name: str, given: object, where: str) -> Range:
    field = f"parameters.draw.{name}"
    if not isinstance(given, dict) or len(given) != 1 or next(iter(given)) not in ("uniform", "log", "choice"):
        hint = "must be {uniform: [LOW, HIGH]}, {log: [LOW, HIGH]} or {choice: [VALUE, …]}"
        raise InputError(field, given, hint, where=where)
    (how, within), *_ = given.items()
    if how == "choice":
        return Categorical(_values(field, within, where))
    given_ends = map(number_of, within) if isinstance(within, list) else ()
    ends = [float(end) for end in given_ends if isinstance(end, int | float) and isfinite(end)]
    if len(ends) != 2 or not ends[0] < ends[1]:
        raise InputError(f"{field}.{how}", within, "must be [LOW, HIGH], two numbers, the lower first", where=where)
    if how == "log" and ends[0] <= 0:
        raise InputError(f"{field}.{how}", within, "must begin above 0, as logarithms do", where=where)
    return Interval(ends[0], ends[1], how == "log")


def _whole(name: str, given: object, least: int, where: str) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or given < least:
        raise InputError(f"parameters.{name}", given, f"must be a whole number of at least {least}", where=where)
    return given


def _fewer(count: int, where: str) -> None:
    if count > _MOST_TRIALS:
        raise InputError("parameters", count, f"makes more than {_MOST_TRIALS:,} trials", where=where)


def _searcher(spec: object, space: _Space, where: str) -> Searcher:
    if not isinstance(spec, str):
        raise InputError("scheduler", spec, "must be text, e.g. halving:eta=2", where=where)
    name, _, options = spec.partition(":")
    if name not in SEARCHERS and name != "optuna":
        raise InputError("scheduler", name, nearest(name, [*SEARCHERS, "optuna"]), where=where)
    if name == "optuna" and space.ranges is None:
        hint = "chooses settings itself: give it parameters as {draw: {NAME: RANGE}, count: N}"
        raise InputError("scheduler", spec, hint, where=where)
    try:
        if name == "optuna":
            return OptunaSearcher.parse(options, space.seed)
        searcher = parse_search(spec)
        searcher.ahead((Trial(),) * len(space.settings))  # one that cannot try so many says so now
    except InputError as error:
        raise InputError(error.field, error.value, error.hint, where=where) from error
    return searcher


# ── its jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _job_fields(given: object, folder: Path, where: str, lines: Mapping[str, int]) -> dict[str, Any]:
    """The fields of the job, checked as a job file's are, with nothing filled in yet."""
    if not isinstance(given, dict):
        raise InputError("job", given, "must be a job, as in a job file", where=where)
    for name in map(str, given):
        at = placed(where, name, lines)
        if name in ("app", "ahead", "key"):
            raise InputError(f"job.{name}", given[name], "is the search's own; leave it out", where=at)
        if name not in Submission.__struct_fields__:
            raise InputError("field", name, nearest(name, Submission.__struct_fields__), where=at)
    fields = {"workdir": str(folder), **with_numbers(given)}
    if isinstance(fields["workdir"], str):
        fields["workdir"] = str(folder / fields["workdir"])
    submission(fields, where=where, lines=lines)
    return fields


def _folder(given: object, folder: Path, where: str) -> Path | None:
    if given is None or isinstance(given, str):
        return None if given is None else folder / given
    raise InputError("folder", given, "must be the path of a folder that all nodes share", where=where)


def _check(search: SearchFile, space: _Space, place: Callable[[str], str]) -> None:
    """What only shows when all is put together."""
    fields, lines = search.fields, search.lines
    texts = {"command": fields["command"], "env": list(fields.get("env", {}).values())}
    used = {
        (name, found[1])
        for name, words in texts.items()
        for word in words
        for found in _BRACES.finditer(word)
        if found[1] is not None
    }
    known = {*space.names, *(_OWN if search.folder is not None else _OWN[:-1])}
    for field, name in sorted(used):
        if name not in known:
            missing = "needs a `folder` for checkpoints" if name == "folder" else nearest(name, known)
            hint = f"{missing}; write {{{{{name}}}}} for the braces themselves"
            raise InputError(f"job.{field}", f"{{{name}}}", hint, where=placed(search.where, field, lines))
    for name in space.names:
        if name not in {used_name for _, used_name in used}:
            hint = f"is used nowhere: write {{{name}}} in the job's command or env"
            raise InputError("parameters", name, hint, where=place("parameters"))
    if search.searcher.marks and fields.get("work") is None:
        hint = f"is missing: {search.scheduler.partition(':')[0]} looks at trials on the way, as parts of their work"
        raise InputError("job.work", None, hint, where=place("job"))
    if fields.get("max_gpus") is not None and fields["max_gpus"] < search.gpus:
        hint, at = f"is below the gang of a first leg, {search.gpus}", placed(search.where, "max_gpus", lines)
        raise InputError("job.max_gpus", fields["max_gpus"], hint, where=at)
    if not isinstance(search.searcher, OptunaSearcher):
        for trial in range(search.trials):
            search.job(Leg(trial, 1, 0.0, 1.0, 1))


def _filled(text: str, named: Mapping[str, Value]) -> str:
    """The text with what stands in braces filled in; doubled braces are single ones."""

    def word(found: re.Match[str]) -> str:
        return found[0][0] if found[1] is None else in_words(named[found[1]])

    return _BRACES.sub(word, text)


def in_words(value: Value) -> str:
    """A parameter's value as a command gets it: true and false as YAML has them."""
    return str(value).lower() if isinstance(value, bool) else str(value)
