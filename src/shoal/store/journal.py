"""Journals: append-only records of what was heard and what was decided.

Whatever the kind, reading gives back exactly what was written, in order; a journal that was cut short or damaged
gives every whole record before the damage and says what was lost.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from shoal.core.commands import Decided
from shoal.core.errors import InputError, JournalError
from shoal.core.events import EventBatch
from shoal.core.units import JobNumber, Seconds
from shoal.store import codec

_T = TypeVar("_T")

_GROUP = 1000
"""Records per commit: a durable commit costs milliseconds, a record in a group microseconds."""


@dataclass(slots=True)
class MemoryJournal:
    """A journal as a list of encoded records."""

    records: list[bytes] = field(default_factory=list)

    @classmethod
    def begin(cls, settings: dict[str, Any]) -> "MemoryJournal":
        """A new journal of a run with these settings."""
        return cls([codec.pack_header(settings)])

    def record_events(self, batch: EventBatch) -> None:
        """Append a batch of events."""
        self.records.append(codec.pack_events(batch))

    def record_decision(self, decided: Decided) -> None:
        """Append a decision."""
        self.records.append(codec.pack_decision(decided))

    def read(self) -> Iterator[codec.Record]:
        """Every record, in order."""
        return map(codec.unpack, self.records)

    def raw(self) -> Iterator[list[Any]]:
        """Every record as ``codec.unpack_raw`` gives it, in order."""
        return map(codec.unpack_raw, self.records)


class SqliteJournal:
    """A journal in a SQLite file: write-ahead log, durable at each group commit."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._pending: list[tuple[bytes, int]] = []
        self._told: list[tuple[Seconds, JobNumber, str]] = []

    @classmethod
    def begin(cls, path: Path, settings: dict[str, Any]) -> "SqliteJournal":
        """A new journal file; an existing one is never overwritten."""
        if path.exists():
            raise InputError("journal", str(path), "exists already; choose another name or remove it")
        connection = _open(path)
        connection.execute("BEGIN")  # tables and header come into being together
        connection.execute("CREATE TABLE record (seq INTEGER PRIMARY KEY, body BLOB NOT NULL, crc INTEGER NOT NULL)")
        connection.execute("CREATE TABLE verdict (at REAL NOT NULL, job INTEGER NOT NULL, told TEXT NOT NULL)")
        connection.execute("CREATE INDEX verdict_of ON verdict (job)")
        return cls(path, connection)._headed(settings)

    @classmethod
    def resume(cls, path: Path, settings: dict[str, Any]) -> "SqliteJournal":
        """An existing journal taken up again under these settings; the caller has read it and found it whole."""
        connection = _open(path)
        connection.execute("PRAGMA user_version=0")
        return cls(path, connection)._headed(settings)

    def _headed(self, settings: dict[str, Any]) -> "SqliteJournal":
        self._append(codec.pack_header(settings))
        self.commit()
        return self

    def record_events(self, batch: EventBatch) -> None:
        """Append a batch of events."""
        self._append(codec.pack_events(batch))

    def record_decision(self, decided: Decided) -> None:
        """Append a decision."""
        self._append(codec.pack_decision(decided))

    def _append(self, body: bytes) -> None:
        self._pending.append((body, codec.checksum(body)))
        if len(self._pending) >= _GROUP:
            self.commit()

    def commit(self) -> bool:
        """Make everything recorded so far durable; whether there was anything."""
        anything = bool(self._pending or self._told)
        if anything:
            if not self._connection.in_transaction:
                self._connection.execute("BEGIN")
            self._connection.executemany("INSERT INTO record (body, crc) VALUES (?, ?)", self._pending)
            self._connection.executemany("INSERT INTO verdict (at, job, told) VALUES (?, ?, ?)", self._told)
            self._connection.execute("COMMIT")
            self._pending.clear()
            self._told.clear()
        return anything

    def record_verdict(self, at: Seconds, job: JobNumber, sentence: str) -> None:
        """Keep a job's verdict beside the records, for its story; made durable with them."""
        self._told.append((at, job, sentence))

    def close(self) -> None:
        """Commit, fold the write-ahead log into the one file, and note there how many records a whole reading finds."""
        self.commit()
        (records,) = self._connection.execute("SELECT max(seq) FROM record").fetchone()
        self._connection.execute(f"PRAGMA user_version={records:d}")
        self._connection.execute("PRAGMA journal_mode=DELETE")
        self._connection.close()


def _open(path: Path) -> sqlite3.Connection:
    """A connection whose commits are durable; readers are never in its way."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    return connection


@dataclass(slots=True)
class JournalFile:
    """A journal file being read; ``cut`` tells, once it has been read, what was lost."""

    path: Path
    cut: str | None = None
    records: int = 0

    def read(self) -> Iterator[codec.Record]:
        """Every whole record in order, up to the first damage."""
        return self._whole(codec.unpack)

    def raw(self) -> Iterator[list[Any]]:
        """The same records as ``codec.unpack_raw`` gives them."""
        return self._whole(codec.unpack_raw)

    def verdicts(self, job: JobNumber, most: int = 200) -> list[tuple[Seconds, str]]:
        """The last verdicts a live cluster kept of a job, in order: when, and the sentence it was told."""
        with closing(sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            query = "SELECT at, told FROM verdict WHERE job = ? ORDER BY rowid DESC LIMIT ?"
            return list(reversed(connection.execute(query, (job, most)).fetchall()))

    def _whole(self, unpack: Callable[[bytes], _T]) -> Iterator[_T]:
        self.cut, self.records = None, 0
        if self.path.is_dir():
            raise InputError("journal", str(self.path), "no such file, but a folder; name the journal.sqlite in it")
        if not self.path.is_file():
            raise InputError("journal", str(self.path), "no such file; `shoal simulate --out DIR` writes one")
        try:
            with closing(sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
                # Without this SQLite refuses a file cut short as a whole, though its first pages can be read.
                connection.execute("PRAGMA writable_schema=ON")
                yield from self._rows(connection, unpack)
        except sqlite3.Error as error:
            self.cut = f"cut after record {self.records}: {error}"
        if not self.records:
            raise JournalError(f"{self.path}: not a Shoal journal, or damaged from the start ({self.cut or 'empty'})")

    def _rows(self, connection: sqlite3.Connection, unpack: Callable[[bytes], _T]) -> Iterator[_T]:
        (whole,) = connection.execute("PRAGMA user_version").fetchone()
        found = 0  # counted here and not in the field: one reading may go on inside another
        # The row's own number, not the column that names it: that stays a number even when the schema is damaged.
        for seq, body, crc in connection.execute("SELECT rowid AS seq, body, crc FROM record ORDER BY rowid"):
            if seq != found + 1:
                whole = max(whole, seq - 1, found + 1)
                break
            if not isinstance(body, bytes) or codec.checksum(body) != crc:
                self.cut = f"cut after record {found}: the checksum of record {seq} does not match"
                return
            try:
                record = unpack(body)
            except JournalError as error:
                self.cut = f"cut after record {found}: {error}"
                return
            self.records = found = seq
            yield record
        if found < whole:
            self.cut = f"cut after record {found}: records {found + 1} to {whole} are missing"


def settings_of(read: Callable[[], Iterator[codec.Record]]) -> dict[str, Any]:
    """The settings in a journal's first record."""
    first = next(read(), None)
    if not isinstance(first, codec.Header):
        raise JournalError("a journal must begin with its header")
    return first.settings


def last_settings(records: Iterable[list[Any]]) -> dict[str, Any]:
    """The settings in force at a journal's end, from its raw records: those it was last taken up again under."""
    settings: dict[str, Any] | None = None
    for record in records:
        if record[0] == codec.HEADER:
            settings = record[2]
        elif settings is None:
            break
    if settings is None:
        raise JournalError("a journal must begin with its header")
    return settings
