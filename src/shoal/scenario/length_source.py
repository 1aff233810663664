"""Earlier runs from which lengths are predicted: from a journal, from ``sacct`` output or from any other trace."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

from shoal.core.errors import InputError, JournalError
from shoal.core.events import RunsImported
from shoal.core.interfaces import PerfModel
from shoal.core.units import Seconds
from shoal.engine.replay import fold
from shoal.engine.state import State
from shoal.perf.length_history import KeyImage, LengthHistory
from shoal.store.codec import HEADER
from shoal.store.journal import JournalFile
from shoal.workload.files import read_workload

_SQLITE = b"SQLite format 3"


def read_runs(
    path: Path, at: Seconds, known: LengthHistory, perf: PerfModel, state_of: Callable[[Mapping[str, Any]], State]
) -> RunsImported:
    """Read the runs in a file as an event at this time; ``InputError`` if it is no journal and no trace.

    ``known`` is the history that they are for, and ``perf`` gives the speeds of its models. ``state_of`` makes the
    empty state of a journal's settings. The jobs of a trace count as ended in the order of submission plus run time.
    """
    journal = path / "journal.sqlite" if path.is_dir() else path
    try:
        with journal.open("rb") as file:
            is_journal = file.read(len(_SQLITE)) == _SQLITE
    except OSError as error:
        raise InputError("history", str(path), f"cannot be read: {error.strerror}") from error
    keys = _of_journal(journal, state_of) if is_journal else _of_trace(path, known, perf)
    if not keys:
        raise InputError("history", str(path), "has no run that ended")
    return RunsImported(at, f"{path.name} {crc32(repr(keys).encode()):08x}", keys)


def _of_journal(path: Path, state_of: Callable[[Mapping[str, Any]], State]) -> tuple[KeyImage, ...]:
    file = JournalFile(path)
    try:
        headers = [raw[2] for raw in file.raw() if raw[0] == HEADER]
        return fold(file.read(), state_of(headers[-1])).lengths.image().keys if headers else ()
    except JournalError as error:
        raise InputError("history", str(path), f"cannot be read as a journal: {error}") from error


def _of_trace(path: Path, known: LengthHistory, perf: PerfModel) -> tuple[KeyImage, ...]:
    history = LengthHistory(speeds_known=known.speeds_known)
    jobs = [job for job in read_workload(path).jobs if job.search is None]
    for job in sorted(jobs, key=lambda job: job.submitted + job.work):
        spec = job.spec()
        history.add(spec, job.work, history.scale(spec, perf.speeds(spec)))
    return history.image().keys
