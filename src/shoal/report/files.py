"""Runs on disk: ``DIR/<policy>-seed<N>/`` with ``summary.json``, ``jobs.parquet`` and, beside them, ``journal.sqlite``.

Equal results give equal bytes (Parquet also names the version of the library that wrote it).
"""

import io
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from shoal.core.errors import InputError
from shoal.report.history import History, read_history
from shoal.report.metrics import DEFINITIONS, JobResults, Summary
from shoal.store.journal import JournalFile
from shoal.wire.files import replace_file

SUMMARY, JOBS, JOURNAL = "summary.json", "jobs.parquet", "journal.sqlite"
"""The files of a run."""

_TEXTS = ("id", "tenant")
_COUNTS = ("gpus", "restarts")
_PLAIN = [field.name for field in fields(JobResults) if field.name != "rho"]


@dataclass(frozen=True, slots=True)
class StoredRun:
    """One policy on one seed, read from disk; ``journal`` is None where it was not kept."""

    path: Path
    summary: Summary
    jobs: JobResults
    journal: Path | None

    @property
    def policy(self) -> str:
        """The policy's specification."""
        return str(self.summary.get("policy") or self.path.name)

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.summary.get("seed") or 0)

    def history(self) -> History | None:
        """The history of its jobs; None where the journal was not kept."""
        return None if self.journal is None else read_history(JournalFile(self.journal).raw())


def run_directory(base: Path, policy: str, seed: int) -> Path:
    """The directory of a run under a results directory; nothing is created."""
    slug = re.sub(r"[^A-Za-z0-9._=]+", "-", policy).strip("-.") or "policy"
    return base / f"{slug}-seed{seed}"


def write_run(directory: Path, summary: Summary, jobs: JobResults) -> None:
    """Write the results of a run, replacing those of an earlier one."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        replace_file(directory / JOBS, to_parquet(jobs))
        # A run is finished once its summary exists, so that is written last, and atomically.
        replace_file(directory / SUMMARY, to_json(summary))
    except OSError as error:
        raise InputError("out", str(directory), f"cannot be written: {error.strerror or error}") from error


def to_json(summary: Summary) -> bytes:
    """A summary as an indented JSON document."""
    return json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def to_parquet(jobs: JobResults) -> bytes:
    """The rows as Parquet: a column for each field and for each definition of ρ, null for NaN."""
    import pyarrow as pa
    from pyarrow import parquet

    types = {**dict.fromkeys(_TEXTS, pa.string()), **dict.fromkeys(_COUNTS, pa.int64())}
    values = {name: getattr(jobs, name) for name in _PLAIN} | {f"rho_{name}": jobs.rho[name] for name in DEFINITIONS}
    columns = {n: pa.array(v, types.get(n, pa.float64()), from_pandas=n not in types) for n, v in values.items()}
    out = io.BytesIO()
    parquet.write_table(pa.table(columns), out, compression="zstd")
    return out.getvalue()


def from_parquet(data: bytes) -> JobResults:
    """The table in the bytes of a ``jobs.parquet``."""
    import pyarrow as pa
    from pyarrow import parquet

    table = parquet.read_table(pa.BufferReader(data))
    columns: dict[str, Any] = {
        name: table[name].to_pylist() if name in _TEXTS else table[name].to_numpy() for name in _PLAIN
    }
    return JobResults(**columns, rho={name: table[f"rho_{name}"].to_numpy() for name in DEFINITIONS})


def read_run(directory: Path) -> StoredRun:
    """The run in a directory; an ``InputError`` names what is missing or broken."""
    try:
        summary = json.loads((directory / SUMMARY).read_bytes())
        jobs = from_parquet((directory / JOBS).read_bytes())
    except (OSError, ValueError, KeyError) as error:
        hint = "not a whole run: needs a summary.json and a jobs.parquet that `shoal simulate --out DIR` wrote"
        raise InputError("run", str(directory), f"{hint} ({error})") from error
    journal = directory / JOURNAL
    return StoredRun(directory, summary, jobs, journal if journal.is_file() else None)


def is_home(directory: Path) -> bool:
    """Whether a directory is the home of a live cluster: it has a journal and no summary."""
    return (directory / JOURNAL).is_file() and not (directory / SUMMARY).exists()


def find_runs(paths: Iterable[str | Path]) -> list[StoredRun]:
    """Every run in or under these directories, each once, in the order given and then by name."""
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
