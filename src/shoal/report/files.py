"""Runs on disk: ``DIR/<policy>-seed<N>/`` with ``summary.json``, ``jobs.parquet`` and, beside them, ``journal.sqlite``.

Equal results give equal bytes (Parquet also names the version of the library that wrote it), and what is read back is
what was written.
"""

import io
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from shoal.core.errors import InputError
from shoal.report.history import History, read_history
from shoal.report.metrics import DEFINITIONS, JobTable, Summary
from shoal.store.journal import JournalFile
from shoal.wire.files import replace_file

SUMMARY, JOBS, JOURNAL = "summary.json", "jobs.parquet", "journal.sqlite"
"""The files of a run."""

_TEXTS = ("id", "tenant")
_COUNTS = ("gpus", "restarts")


@dataclass(frozen=True, slots=True)
class StoredRun:
    """One policy on one seed, as found on disk; ``journal`` is None where it was not kept."""

    path: Path
    summary: Summary
    jobs: JobTable
    journal: Path | None

    @property
    def policy(self) -> str:
        """The policy as it was written on the command line."""
        return str(self.summary.get("policy") or self.path.name)

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.summary.get("seed") or 0)

    def history(self) -> History | None:
        """The story of its jobs, if the journal was kept."""
        return None if self.journal is None else read_history(JournalFile(self.journal).raw())


def run_directory(base: Path, policy: str, seed: int) -> Path:
    """Where a run belongs under a results directory; nothing is created."""
    slug = re.sub(r"[^A-Za-z0-9._=]+", "-", policy).strip("-.") or "policy"
    return base / f"{slug}-seed{seed}"


def write_run(directory: Path, summary: Summary, jobs: JobTable) -> None:
    """Write the results of a run, replacing those of an earlier one."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / JOBS).write_bytes(to_parquet(jobs))
        # A run counts as finished once its summary is there, so that comes last and whole or not at all.
        replace_file(directory / SUMMARY, to_json(summary))
    except OSError as error:
        raise InputError("out", str(directory), f"cannot be written: {error.strerror or error}") from error


def to_json(summary: Summary) -> bytes:
    """A summary as an indented JSON document."""
    return json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def to_parquet(jobs: JobTable) -> bytes:
    """The rows as Parquet: one column for each field, one for each definition of ρ, null for what is not known."""
    import pyarrow as pa
    from pyarrow import parquet

    columns = {}
    for field in fields(JobTable):
        values = getattr(jobs, field.name)
        if field.name in _TEXTS:
            columns[field.name] = pa.array(values, pa.string())
        elif field.name in _COUNTS:
            columns[field.name] = pa.array(values, pa.int64())
        elif field.name != "rho":
            columns[field.name] = pa.array(values, pa.float64(), from_pandas=True)
    for name in DEFINITIONS:
        columns[f"rho_{name}"] = pa.array(jobs.rho[name], pa.float64(), from_pandas=True)
    out = io.BytesIO()
    parquet.write_table(pa.table(columns), out, compression="zstd")
    return out.getvalue()


def from_parquet(data: bytes) -> JobTable:
    """The rows in the bytes of a ``jobs.parquet``."""
    import pyarrow as pa
    from pyarrow import parquet

    table = parquet.read_table(pa.BufferReader(data))
    plain = [field.name for field in fields(JobTable) if field.name != "rho"]
    columns = {
        name: table[name].to_pylist()
        if name in _TEXTS
        else table[name].to_numpy().astype(np.int64 if name in _COUNTS else np.float64)
        for name in plain
    }
    return JobTable(**columns, rho={name: table[f"rho_{name}"].to_numpy().astype(np.float64) for name in DEFINITIONS})


def read_run(directory: Path) -> StoredRun:
    """The run in a directory; what is missing or broken is named."""
    try:
        summary = json.loads((directory / SUMMARY).read_bytes())
        jobs = from_parquet((directory / JOBS).read_bytes())
    except (OSError, ValueError, KeyError) as error:
        hint = "not a whole run: needs a summary.json and a jobs.parquet that `shoal simulate --out DIR` wrote"
        raise InputError("run", str(directory), f"{hint} ({error})") from error
    journal = directory / JOURNAL
    return StoredRun(directory, summary, jobs, journal if journal.is_file() else None)


def is_home(directory: Path) -> bool:
    """Whether it is the home of a live cluster: there is a journal, and nobody has summed it up."""
    return (directory / JOURNAL).is_file() and not (directory / SUMMARY).exists()


def find_runs(paths: Iterable[str | Path]) -> list[StoredRun]:
    """Every run in or under these directories, each once, in the order named and then by name."""
    found: dict[Path, StoredRun] = {}
    for given in map(Path, paths):
        if not given.is_dir():
            raise InputError("run", str(given), "no such directory; name what `shoal simulate --out DIR` wrote")
        directories = [summary.parent for summary in sorted(given.rglob(SUMMARY))]
        if not directories:
            raise InputError("run", str(given), f"holds no run: there is no {SUMMARY} in or under it")
        for directory in directories:
            found.setdefault(directory.resolve(), read_run(directory))
    return list(found.values())
