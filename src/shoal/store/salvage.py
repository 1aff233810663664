"""Salvage of a damaged journal: everything before the damage is written to a new file, the damaged one is only read."""

import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from shoal.core.commands import Decided
from shoal.core.errors import InputError, JournalError
from shoal.core.events import EventBatch, JobSubmitted
from shoal.core.units import JobId, JobNumber, Seconds
from shoal.store import codec
from shoal.store.codec import Base, Header, Record
from shoal.store.journal import JournalFile, SqliteJournal


@dataclass(frozen=True, slots=True)
class Salvaged:
    """Counts of saved and lost records; ``lost_seconds`` and ``last_job`` as far as the lost records can be read.

    ``cut`` is None if nothing was damaged. ``lost_records`` is the least number: records at the end may be missing
    without a trace. ``last_job`` is the last job that a lost record names, by name if its submission can be read.
    """

    records: int
    until: Seconds
    cut: str | None
    lost_records: int = 0
    lost_seconds: Seconds = 0.0
    last_job: JobId | JobNumber | None = None


def salvage(path: Path, target: Path) -> Salvaged:
    """Write the records of a journal, up to the first damage, to a new file; ``target`` must not exist."""
    if target.exists():
        raise InputError("out", str(target), "exists already; name another file")
    source = JournalFile(path)
    seen = _Seen()
    journal: SqliteJournal | None = None
    for record, body in source.bodies():
        if journal is None:
            if not isinstance(record, Header):
                raise JournalError(f"{path}: does not begin with a header")
            journal = SqliteJournal.begin(target, record.settings)
        else:
            journal.append(body)
        seen.read(record)
    assert journal is not None  # a file without any whole record is an error of the reader
    journal.close()
    until, seen.last_job = seen.now, None
    if source.cut is None:
        return Salvaged(source.records, until, None)
    last, behind = _behind(path, source.records)
    for lost in behind:
        seen.read(lost)
    return Salvaged(source.records, until, source.cut, max(1, last - source.records), seen.now - until, seen.last_job)


@dataclass(slots=True)
class _Seen:
    """The time of the last batch of events that was read, and the last job that a record names."""

    now: Seconds = 0.0
    last_job: JobId | JobNumber | None = None
    names: list[JobId] | None = field(default_factory=list)
    """By admission number; None if the journal begins with a base, which holds the first names."""

    def read(self, record: Record) -> None:
        if isinstance(record, Base):
            self.names = None
        elif isinstance(record, EventBatch):
            self.now = max(self.now, record.now)
            for event in record.events:
                if isinstance(event, JobSubmitted):
                    self.last_job = event.spec.id
                    if self.names is not None:
                        self.names.append(event.spec.id)
                elif hasattr(event, "job"):
                    self.last_job = self._name(event.job)
        elif isinstance(record, Decided) and record.commands:
            self.last_job = self._name(record.commands[-1].job)

    def _name(self, job: JobNumber) -> JobId | JobNumber:
        return self.names[job] if self.names is not None and job < len(self.names) else job


def _behind(path: Path, record: int) -> tuple[int, list[Record]]:
    """Return the number of the last record the file is known to have had, and the records behind the damage."""
    last, found = 0, []
    with (
        suppress(sqlite3.Error),
        closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection,
    ):
        connection.execute("PRAGMA writable_schema=ON")
        (last,) = connection.execute("PRAGMA user_version").fetchone()
        query = "SELECT rowid, body, crc FROM record WHERE rowid > ? ORDER BY rowid"
        for seq, body, crc in connection.execute(query, (record,)):
            last = max(last, seq)
            if isinstance(body, bytes) and codec.checksum(body) == crc:
                with suppress(JournalError):
                    found.append(codec.unpack(body))
    return last, found
