"""Reader of the measurements published with Pollux's and Sia's simulators: one folder for each model.

``<model>/placements.csv`` has step times by seats (a digit for each node), ``scalability.csv`` those by nodes and GPUs,
``validation-<B>.csv`` an epoch of a training at batch size B in each row. Sia's are ``placements-<machine>.csv``; as in
its simulator, their times are multiplied by a factor for each model. A model's step times are those of the first folder
that has any, and its trainings likewise: Sia's folder may be followed by Pollux's.

Published by: Qiao et al., OSDI 2021; Jayaram Subramanya et al., SOSP 2023.
"""

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from shoal.core.errors import InputError
from shoal.perf.catalog import Catalog
from shoal.perf.measured_profile import Cell, MeasuredProfile, NoiseTable, StepTable

KINDS = {"": "t4", "aws": "t4", "azure": "v100", "dgx-ext": "a100", "quad": "rtx6000", "rtx": "rtx2080ti"}
"""The kind of GPU in each machine that the files are named for; Pollux's files name none."""

_SLOWDOWNS = {"cifar10": 1.8, "ncf": 1.5}
_SLOWDOWN = 1.2
"""Factors on Sia's step times, by which its simulator matches its testbed."""

_MOST_LOCAL = {("yolov3", ""): 8, ("deepspeech2", "rtx"): 57}
"""Limits of the simulators below the largest measured samples on a GPU."""

_PLACEMENTS = re.compile(r"^placements(?:-(?P<machine>.+))?\.csv$")
_VALIDATION = re.compile(r"^validation-(?P<batch>[1-9][0-9]*)\.csv$")

Row = dict[str, float]
"""A row by column."""


def read_profiles(folders: Sequence[str], models: Sequence[str]) -> Catalog:
    """The measured profiles of those models that have a folder; errors name the file and the line."""
    for folder in folders:
        if not Path(folder).is_dir():
            raise InputError("profiles", folder, "is no folder; name one that has a folder for each model")
    there = [model for model in models if any(Path(folder, model).is_dir() for folder in folders)]
    if not there:
        raise InputError("profiles", ", ".join(folders), "has no folder that is named for a model")
    profiles = {model: _profile(folders, model) for model in there}
    source = f"measured profiles in {' and '.join(folders)}"
    return Catalog(profiles, {(m, kind): source for m, p in profiles.items() for kind in p.times})


def _profile(folders: Sequence[str], model: str) -> MeasuredProfile:
    own = [Path(folder, model) for folder in folders if Path(folder, model).is_dir()]
    times = next((timed for folder in own if (timed := _times(folder))), None)
    noise = next((trained for folder in own if (trained := _noise(folder))), None)
    if times is None:
        raise InputError("profiles", str(own[0]), "has no placements.csv or placements-<machine>.csv")
    if noise is None:
        raise InputError("profiles", str(own[0]), "has no validation-<B>.csv; add the folder that has: --profiles DIR")
    return MeasuredProfile(times, noise)


# ── step times ────────────────────────────────────────────────────────────────────────────────────────────────────


def _times(folder: Path) -> dict[str, StepTable]:
    """Step tables by kind of GPU, for machines of a known kind."""
    named = ((path, _PLACEMENTS.match(path.name)) for path in sorted(folder.iterdir()))
    machines = {(match["machine"] or ""): path for path, match in named if match}
    return {KINDS[m]: _table(folder.name, m, path) for m, path in machines.items() if m in KINDS}


def _table(model: str, machine: str, path: Path) -> StepTable:
    cells = list(_placed(path))
    if not cells:
        raise InputError("rows", 0, "holds no measurement", where=str(path))
    local = [cell.local for cell in cells]
    cells += _scaled(path.with_name(path.name.replace("placements", "scalability")))
    most = min(_MOST_LOCAL.get((model, machine), max(local)), max(local))
    slowdown = _SLOWDOWNS.get(model, _SLOWDOWN) if machine else 1.0
    return StepTable(tuple(cells), min(local), most, slowdown)


def _placed(path: Path) -> Iterator[Cell]:
    for where, row in _rows(path, ("placement", "local_bsz", "step_time", "sync_time")):
        digits = f"{row['placement']:.0f}"
        if "0" in digits:
            raise InputError("placement", digits, "must be a digit from 1 to 9 for each node", where=where)
        seats = tuple(map(int, digits))
        yield Cell(len(seats), sum(seats), *_measured(row, where), seats)


def _scaled(path: Path) -> Iterator[Cell]:
    for where, row in _rows(path, ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")):
        nodes, gpus = int(row["num_nodes"]), int(row["num_replicas"])
        if not 1 <= nodes <= gpus:
            raise InputError("num_nodes", nodes, f"must be from 1 to the GPUs, which are {gpus}", where=where)
        yield Cell(nodes, gpus, *_measured(row, where))


def _measured(row: Row, where: str) -> tuple[int, float, float]:
    local, step, sync = int(row["local_bsz"]), row["step_time"], row["sync_time"]
    if local < 1:
        raise InputError("local_bsz", local, "must be at least 1", where=where)
    if not step > 0:
        raise InputError("step_time", step, "must be above 0", where=where)
    if not 0 <= sync < step:
        raise InputError("sync_time", sync, f"must be from 0 to below step_time, which is {step}", where=where)
    return local, step, sync


# ── trainings ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _noise(folder: Path) -> NoiseTable | None:
    named = ((path, _VALIDATION.match(path.name)) for path in folder.iterdir())
    found = sorted((int(match["batch"]), path) for path, match in named if match)
    if not found:
        return None
    runs = [_training(path) for _, path in found]
    epochs = min(len(run) for run in runs)
    progress, square, variance = (np.array([[e[k] for e in run[:epochs]] for run in runs]) for k in range(3))
    sizes = tuple(batch for batch, _ in found)
    return NoiseTable(sizes, sizes[0] * progress.min(axis=0), square, variance)


def _training(path: Path) -> list[tuple[float, float, float]]:
    """By epoch: progress at its end, squared gradient, and variance of the gradient."""
    epochs: list[tuple[float, float, float]] = []
    for where, row in _rows(path, ("progress", "grad_sqr", "grad_var")):
        if row["progress"] <= (epochs[-1][0] if epochs else 0.0):
            raise InputError("progress", row["progress"], "must ascend from above 0", where=where)
        for name in ("grad_sqr", "grad_var"):
            if row[name] < 0:
                raise InputError(name, row[name], "must be at least 0", where=where)
        epochs.append((row["progress"], row["grad_sqr"], row["grad_var"]))
    if not epochs:
        raise InputError("rows", 0, "holds no epoch", where=str(path))
    return epochs


def _rows(path: Path, names: Sequence[str]) -> Iterator[tuple[str, Row]]:
    """The rows of a table with at least these columns, each with its file and line."""
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise InputError("profiles", str(path), f"cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError("profiles", str(path), "is not UTF-8 text") from error
    reader = csv.DictReader(text.splitlines())
    missing = [name for name in names if name not in (reader.fieldnames or ())]
    if missing:
        raise InputError("header", ",".join(reader.fieldnames or ()), f"has no column {missing[0]}", where=f"{path}:1")
    for row in reader:
        where = f"{path}:{reader.line_num}"
        yield where, {name: _number(name, row[name], where) for name in names}


def _number(name: str, text: str | None, where: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        raise InputError(name, text, "is not a number", where=where) from None
    if not abs(value) < float("inf"):
        raise InputError(name, text, "must be finite", where=where)
    return value
