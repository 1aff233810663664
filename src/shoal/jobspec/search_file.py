"""Search files: one search over hyper-parameters as YAML, read into its searcher, its trials' settings and its jobs.

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

Errors name the line, the field, the value and the way out.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct, structs

from shoal.core.decoding import convert, hint
from shoal.core.errors import InputError, nearest
from shoal.hpo.live_search import Leg
from shoal.hpo.optuna_study import OptunaSearcher
from shoal.hpo.parameters import Categorical, Interval, Range, Setting, Value, crossed, drawn
from shoal.hpo.registry import SEARCHERS, parse_search
from shoal.hpo.search import Searcher, Trial
from shoal.jobspec.job_file import job_fields, submission
from shoal.jobspec.sbatch import as_name
from shoal.jobspec.yaml_file import lines_of, place, read_text, yaml_errors
from shoal.wire.messages import Submission

_RESERVED = ("trial", "leg", "since", "until", "folder")
"""Names in braces that stand for values of the leg."""

_MOST_TRIALS = 10_000
_MOST_LETTERS = 48
"""Most letters of an app's name: its jobs' names add the trial and the leg."""

_BRACES = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SCIENTIFIC = re.compile(r"[-+]?\d+\.?\d*[eE][-+]?\d+")

# ── the file's fields ───────────────────────────────────────────────────────────────────────────────────────────────

_App: TypeAlias = Annotated[
    str,
    Meta(
        pattern=rf"^[A-Za-z0-9][A-Za-z0-9_.\-]{{0,{_MOST_LETTERS - 1}}}\Z",
        extra=hint(
            f"must be letters, digits, `_`, `.` or `-`, beginning with a letter or digit, at most {_MOST_LETTERS}"
        ),
    ),
]
_Name: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z",
        extra=hint("a parameter's name is letters, digits and `_`, not beginning with a digit"),
    ),
]
_Value: TypeAlias = Annotated[Value, Meta(extra=hint("must be a number, a text, or true or false"))]
_Values: TypeAlias = Annotated[list[_Value], Meta(min_length=1, extra=hint("must be a list of values"))]
_Finite: TypeAlias = Annotated[float, Meta(ge=-1e300, le=1e300, extra=hint("must be a finite number"))]
_Ends: TypeAlias = Annotated[
    tuple[_Finite, _Finite], Meta(extra=hint("must be [LOW, HIGH], two numbers, the lower first"))
]
_Settings: TypeAlias = Annotated[
    list[Annotated[dict[_Name, _Value], Meta(min_length=1)]], Meta(min_length=1, max_length=_MOST_TRIALS)
]


class _Document(Struct, forbid_unknown_fields=True, frozen=True):
    scheduler: Annotated[str, Meta(extra=hint("must be text, e.g. halving:eta=2"))]
    parameters: Any
    job: Annotated[dict[str, Any], Meta(extra=hint("must be a job, as in a job file"))]
    app: _App | None = None
    folder: Annotated[str, Meta(extra=hint("must be the path of a folder that all nodes share"))] | None = None


class _Grid(Struct, forbid_unknown_fields=True, frozen=True):
    grid: Annotated[dict[_Name, _Values], Meta(min_length=1)]


class _RangeFields(Struct, forbid_unknown_fields=True, frozen=True):
    uniform: _Ends | None = None
    log: _Ends | None = None
    choice: _Values | None = None


class _Draw(Struct, forbid_unknown_fields=True, frozen=True):
    draw: Annotated[dict[_Name, _RangeFields], Meta(min_length=1)]
    count: Annotated[int, Meta(ge=1, le=_MOST_TRIALS)]
    seed: Annotated[int, Meta(ge=0)] = 0


@dataclass(frozen=True, slots=True)
class SearchFile:
    """A search; ``setting(trial)`` are a trial's hyper-parameters, ``job(leg)`` is the job of a leg."""

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
        """GPUs of a first leg."""
        gpus: int = self.fields.get("gpus", 1)
        return gpus

    @property
    def most_gpus(self) -> int:
        """The most GPUs a promoted trial may have."""
        return max(self.fields.get("max_gpus") or self.gpus, self.gpus)

    def folder_of(self, trial: int) -> Path | None:
        """The folder for a trial's checkpoints; None where the search names none."""
        return None if self.folder is None else self.folder / f"trial-{trial}"

    def job(self, leg: Leg) -> Submission:
        """The submission for a leg of a trial."""
        gpus, folder = min(self.gpus * leg.wider, self.most_gpus), self.folder_of(leg.trial)
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
        # Without a model, work is seconds on the requested gang, so a wider gang has less.
        narrower = 1.0 if made.model is not None else self.gpus / gpus
        return structs.replace(made, work=made.work * (leg.until - leg.since) * narrower)


def read_search(path: Path, *, folder: Path) -> SearchFile:
    """Read a search file; its jobs run in ``folder`` unless it names another."""
    data, lines, job_lines = _yaml(path)
    with _located(str(path), lines):
        document = convert(data, _Document)
        space = _space(document.parameters)
        searcher = _searcher(document.scheduler, space)
        found = SearchFile(
            app=document.app or as_name(path.stem)[:_MOST_LETTERS],
            scheduler=document.scheduler,
            searcher=searcher,
            trials=len(space.settings),
            setting=space.setting_of(searcher),
            fields=_job_fields(document.job, folder, str(path), job_lines),
            folder=None if document.folder is None else folder / document.folder,
            where=str(path),
            lines=job_lines,
        )
        _check_braces(found, space)
        _check_job(found)
    if not isinstance(searcher, OptunaSearcher):
        for trial in range(found.trials):
            found.job(Leg(trial, 1, 0.0, 1.0, 1))
    return found


def _yaml(path: Path) -> tuple[dict[str, Any], dict[str, int], dict[str, int]]:
    """The file's data, the line of each of its fields, and of each field of its job."""
    import yaml

    with yaml_errors(path, "a search file"):
        loader = yaml.SafeLoader(read_text(path))
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            raise InputError("file", str(path), "must hold one search, as fields and values")
        lines = lines_of(root)
        job_lines = next((lines_of(value) for key, value in root.value if key.value == "job"), {})
        return loader.construct_document(root), lines, job_lines


@contextmanager
def _located(where: str, lines: Mapping[str, int]) -> Iterator[None]:
    """Add the file and the line to errors that have none."""
    try:
        yield
    except InputError as error:
        if error.where:
            raise
        field = "scheduler" if error.field.startswith(("search ", "trials")) else error.field
        raise InputError(error.field, error.value, error.hint, where=place(where, field, lines)) from error


# ── the search space ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Space:
    """The settings of all trials; ``ranges`` are those they were drawn from, None if they were listed."""

    settings: tuple[Setting, ...]
    names: tuple[str, ...]
    ranges: Mapping[str, Range] | None = None
    seed: int = 0

    def setting_of(self, searcher: Searcher) -> Callable[[int], Setting]:
        """A trial's setting by its number: as an Optuna study suggests it, else as written or drawn."""
        if not isinstance(searcher, OptunaSearcher):
            return self.settings.__getitem__
        ranges = self.ranges or {}
        return lambda trial: {name: within.ask(name, searcher.asked[trial]) for name, within in ranges.items()}


def _space(given: object) -> _Space:
    given = _with_numbers(given)
    if isinstance(given, dict) and "grid" in given:
        grid = convert(given, _Grid, under="parameters")
        trials = prod(map(len, grid.grid.values()))
        if trials > _MOST_TRIALS:
            raise InputError("parameters", trials, f"makes more than {_MOST_TRIALS:,} trials")
        return _Space(crossed(grid.grid), _unreserved(grid.grid))
    if isinstance(given, dict) and "draw" in given:
        draw = convert(given, _Draw, under="parameters")
        ranges = {name: _range(name, fields) for name, fields in draw.draw.items()}
        return _Space(drawn(ranges, draw.count, draw.seed), _unreserved(ranges), ranges, draw.seed)
    if isinstance(given, list) and given:
        settings: list[dict[str, Value]] = convert(given, _Settings, under="parameters")
        names = _unreserved(settings[0])
        for number, setting in enumerate(settings):
            if set(setting) != set(names):
                text = f"must set what the first does: {', '.join(names)}"
                raise InputError(f"parameters[{number}]", ", ".join(setting), text)
        return _Space(tuple(settings), names)
    text = "must be a list of settings, {grid: {NAME: [VALUE, …]}} or {draw: {NAME: RANGE}, count: N}"
    raise InputError("parameters", given, text)


def _with_numbers(data: Any) -> Any:
    """Return the data with 1e-3, which is text to YAML, as a number."""
    if isinstance(data, str) and _SCIENTIFIC.fullmatch(data):
        return float(data)
    if isinstance(data, dict):
        return {key: _with_numbers(value) for key, value in data.items()}
    return [_with_numbers(item) for item in data] if isinstance(data, list) else data


def _unreserved(names: Mapping[str, object]) -> tuple[str, ...]:
    for name in names:
        if name in _RESERVED:
            raise InputError("parameters", name, f"{{{name}}} is the search's own; name it otherwise")
    return tuple(names)


def _range(name: str, fields: _RangeFields) -> Range:
    field = f"parameters.draw.{name}"
    chosen = {how: within for how, within in structs.asdict(fields).items() if within is not None}
    if len(chosen) != 1:
        text = "must be {uniform: [LOW, HIGH]}, {log: [LOW, HIGH]} or {choice: [VALUE, …]}"
        raise InputError(field, chosen, text)
    ((how, within),) = chosen.items()
    if how == "choice":
        return Categorical(tuple(within))
    low, high = within
    if not low < high:
        raise InputError(f"{field}.{how}", [low, high], "must be [LOW, HIGH], two numbers, the lower first")
    if how == "log" and low <= 0:
        raise InputError(f"{field}.{how}", [low, high], "must begin above 0, as logarithms do")
    return Interval(low, high, how == "log")


def _searcher(spec: str, space: _Space) -> Searcher:
    name, _, options = spec.partition(":")
    if name not in SEARCHERS and name != "optuna":
        raise InputError("scheduler", name, nearest(name, [*SEARCHERS, "optuna"]))
    if name == "optuna":
        if space.ranges is None:
            text = "chooses settings itself: give it parameters as {draw: {NAME: RANGE}, count: N}"
            raise InputError("scheduler", spec, text)
        return OptunaSearcher.parse(options, space.seed)
    searcher = parse_search(spec)
    searcher.ahead((Trial(),) * len(space.settings))  # raises where it cannot take this many trials
    return searcher


# ── jobs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _job_fields(given: Mapping[str, Any], folder: Path, where: str, lines: Mapping[str, int]) -> dict[str, Any]:
    """The job's fields, checked as in a job file, with the braces not filled in yet."""
    for name in ("app", "ahead", "key"):
        if name in given:
            text = "is the search's own; leave it out"
            raise InputError(f"job.{name}", given[name], text, where=place(where, name, lines))
    fields = job_fields(given, folder)
    submission(fields, where=where, lines=lines)
    return fields


def _check_braces(search: SearchFile, space: _Space) -> None:
    """Every name in braces must be known, and every parameter used."""
    texts = {"command": search.fields["command"], "env": search.fields.get("env", {}).values()}
    used = {(field, found[1]) for field, words in texts.items() for word in words for found in _BRACES.finditer(word)}
    known = {*space.names, *(_RESERVED if search.folder is not None else _RESERVED[:-1])}
    for field, name in sorted((field, name) for field, name in used if name is not None and name not in known):
        missing = "needs a `folder` for checkpoints" if name == "folder" else nearest(name, known)
        text = f"{missing}; write {{{{{name}}}}} for the braces themselves"
        raise InputError(f"job.{field}", f"{{{name}}}", text, where=place(search.where, field, search.lines))
    for name in space.names:
        if name not in {used_name for _, used_name in used}:
            raise InputError("parameters", name, f"is used nowhere: write {{{name}}} in the job's command or env")


def _check_job(search: SearchFile) -> None:
    fields = search.fields
    if search.searcher.marks and fields.get("work") is None:
        name = search.scheduler.partition(":")[0]
        raise InputError("job.work", None, f"is missing: {name} looks at trials on the way, as parts of their work")
    if fields.get("max_gpus") is not None and fields["max_gpus"] < search.gpus:
        where = place(search.where, "max_gpus", search.lines)
        text = f"is below the gang of a first leg, {search.gpus}"
        raise InputError("job.max_gpus", fields["max_gpus"], text, where=where)


def _filled(text: str, named: Mapping[str, Value]) -> str:
    """The text with names in braces replaced by their values; doubled braces become single ones."""

    def word(found: re.Match[str]) -> str:
        return found[0][0] if found[1] is None else in_words(named[found[1]])

    return _BRACES.sub(word, text)


def in_words(value: Value) -> str:
    """A parameter's value as text in a command: true and false as in YAML."""
    return str(value).lower() if isinstance(value, bool) else str(value)
