"""Verdicts of the last full runs of reproductions, kept in ``recorded.json`` beside this module."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from math import inf
from pathlib import Path

from shoal.core.errors import InputError
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.runner import ReproOutcome
from shoal.wire.files import replace_file

FILE = "recorded.json"


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The verdicts of a reproduction's tables, each once, and the CPU seconds of the whole, None if it never ran."""

    verdicts: tuple[str, ...]
    cpu: float | None


NEVER_RUN = RecordedRun((), None)


def recorded_runs(file: Path | None = None) -> dict[str, RecordedRun]:
    """Return the recorded runs by name of the reproduction; ``file`` replaces the one of the package."""
    text = resources.files("shoal.research.repro").joinpath(FILE).read_text() if file is None else file.read_text()
    try:
        return {name: RecordedRun(tuple(row["verdicts"]), row["cpu"]) for name, row in json.loads(text).items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError("record", str(file or FILE), "must hold verdicts and CPU seconds by name") from error


def cpu_hours(runs: Mapping[str, RecordedRun]) -> float:
    """Return the total CPU hours of recorded runs; a result that several runs use counts in each."""
    return sum(run.cpu or 0.0 for run in runs.values()) / 3600.0


def longest_first(wanted: Iterable[Reproduction]) -> list[Reproduction]:
    """Return reproductions by their recorded CPU time, those without a record first, so that all end about together."""
    known = recorded_runs()
    return sorted(wanted, key=lambda one: -(known.get(one.name, NEVER_RUN).cpu or inf))


def record(outcomes: Iterable[ReproOutcome], file: Path, known: Iterable[str]) -> None:
    """Write the verdicts of these outcomes into a file, beside those of other reproductions that are still known."""
    kept: Mapping[str, RecordedRun] = recorded_runs(file) if file.exists() else {}
    ended = {one.name: RecordedRun(one.verdicts, round(one.cpu, 1)) for one in outcomes if one.tables}
    rows = {name: asdict(run) for name, run in sorted({**kept, **ended}.items()) if name in {*known}}
    replace_file(file, (json.dumps(rows, indent=1, ensure_ascii=False) + "\n").encode())
