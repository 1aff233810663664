"""Journals: append-only records of events and decisions, in memory or in a SQLite file.

Reading returns exactly what was written, in order. From a file that was cut short or damaged it returns every whole
record before the damage, and a sentence on what was lost.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
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
"""Records per commit: a durable commit takes milliseconds, a record in it microseconds."""


@dataclass(slots=True)
class MemoryJournal:
    """A journal as a list of encoded records."""

    records: list[bytes] = field(default_factory=list)

    @classmethod
    def begin(cls, settings: dict[str, Any]) -> "MemoryJournal":
        """Return a new journal of a run with these settings."""
        return cls([codec.pack_header(settings)])

    def record_events(self, batch: EventBatch) -> None:
        """Append a batch of events."""
        self.records.append(codec.pack_events(batch))

    def record_decision(self, decided: Decided) -> None:
        """Append a decision."""
        self.records.append(codec.pack_decision(decided))

    def read(self) -> Iterator[codec.Record]:
        """Yield every record, in order."""
        return map(codec.unpack, self.records)

    def raw(self) -> Iterator[list[Any]]:
        """Yield every record as ``codec.unpack_raw`` returns it, in order."""
        return map(codec.unpack_own, self.records)


class SqliteJournal:
    """A journal in a SQLite file: write-ahead log, durable at each group commit."""

    def __init__(self, path: Path, connection: sqlite3.Connection, settings: dict[str, Any]) -> None:
        self.path = path
        self.settings = settings
        self.records, self.bytes = 0, 0
        """Records in the file, and bytes appended to it, since this process opened it."""
        self._connection = connection
        self._pending: list[tuple[bytes, int]] = []
        self._verdicts: list[tuple[Seconds, JobNumber, str]] = []
        self._durable = _last_record(connection)
        self._uncertain: tuple[int, int] | None = None
        """Records and verdicts of a commit that failed: the file may have them or not."""

    @classmethod
    def begin(cls, path: Path, settings: dict[str, Any], base: codec.Base | None = None) -> "SqliteJournal":
        """Create a journal file, with a ``base`` if it continues others; an existing one is an error."""
        if path.exists():
            raise InputError("journal", str(path), "exists already; choose another name or remove it")
        connection = _open(path)
        try:
            connection.execute("BEGIN")  # tables and header are created together
            connection.execute(
                "CREATE TABLE record (seq INTEGER PRIMARY KEY, body BLOB NOT NULL, crc INTEGER NOT NULL)"
            )
            connection.execute("CREATE TABLE verdict (at REAL NOT NULL, job INTEGER NOT NULL, told TEXT NOT NULL)")
            connection.execute("CREATE INDEX verdict_of ON verdict (job)")
            return cls(path, connection, settings)._with_header(base)
        except sqlite3.Error:
            connection.close()
            _remove(path)  # without its header it could not be opened again
            raise

    @classmethod
    def resume(cls, path: Path, settings: dict[str, Any]) -> "SqliteJournal":
        """Open an existing journal to append to, under these settings; the caller has read it and found it whole."""
        connection = _open(path)
        connection.execute("PRAGMA user_version=0")
        journal = cls(path, connection, settings)
        journal.records = journal._durable
        return journal._with_header()

    def _with_header(self, base: codec.Base | None = None) -> "SqliteJournal":
        self.append(codec.pack_header(self.settings))
        if base is not None:
            self.append(codec.pack_base(base))
        self.commit()
        return self

    def switch_files(self, replace: Callable[[], None], records: int) -> bool:
        """Close the file, call ``replace``, and continue with the file of ``records`` records that has its name then.

        Return false, with the file still open, if another process reads it now. If ``replace`` raises, the file stays.
        """
        self.commit()
        self._connection.execute(f"PRAGMA user_version={self.records:d}")
        try:
            (mode,) = self._connection.execute("PRAGMA journal_mode=DELETE").fetchone()
        except sqlite3.OperationalError:
            mode = "wal"
        if mode != "delete":
            self._connection.execute("PRAGMA user_version=0")
            return False
        self._connection.close()
        self._uncertain = 0, 0  # if no file can be opened below, the next commit opens it
        try:
            replace()
            self.records = self._durable = records
            self.bytes = 0
        finally:
            with suppress(sqlite3.Error):
                self._connection = _open(self.path)
                self._connection.execute("PRAGMA user_version=0")
                self._uncertain = None
        return True

    def record_events(self, batch: EventBatch) -> None:
        """Append a batch of events."""
        self.append(codec.pack_events(batch))

    def record_decision(self, decided: Decided) -> None:
        """Append a decision."""
        self.append(codec.pack_decision(decided))

    def append(self, body: bytes) -> None:
        """Append an encoded record."""
        self._pending.append((body, codec.checksum(body)))
        self.records += 1
        self.bytes += len(body)
        if len(self._pending) >= _GROUP:
            self.commit()

    def commit(self) -> bool:
        """Make everything recorded so far durable; return whether there was anything.

        A commit that fails (``sqlite3.Error``) may or may not be in the file. The next call opens the file again, finds
        out, and writes what is missing, so that every record is in it once.
        """
        if self._uncertain is not None:
            self._reopen(*self._uncertain)
        if not (self._pending or self._verdicts):
            return False
        self._uncertain = len(self._pending), len(self._verdicts)
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN")
        self._connection.executemany("INSERT INTO record (body, crc) VALUES (?, ?)", self._pending)
        self._connection.executemany("INSERT INTO verdict (at, job, told) VALUES (?, ?, ?)", self._verdicts)
        self._connection.execute("COMMIT")
        self._written(*self._uncertain)
        return True

    def _written(self, records: int, verdicts: int) -> None:
        """Drop the records and verdicts that are durable now from those that wait."""
        del self._pending[:records], self._verdicts[:verdicts]
        self._durable += records
        self._uncertain = None

    def _reopen(self, records: int, verdicts: int) -> None:
        """Open the file again after a commit of this number of records and verdicts failed."""
        failed = self._connection
        with suppress(sqlite3.Error):
            failed.execute("ROLLBACK")
        self._connection = _open(self.path)
        failed.close()
        # Moves the log's content into the file and flushes that: a log whose flush failed must not be appended to,
        # since after a crash everything behind the damage is lost.
        (busy, *_) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise sqlite3.OperationalError("the journal is being read")
        query = "SELECT body, crc FROM record WHERE rowid > ? ORDER BY rowid"
        found = self._connection.execute(query, (self._durable,)).fetchall()
        if _last_record(self._connection) < self._durable or found not in ([], self._pending[:records]):
            raise JournalError(f"{self.path}: after a failed write it no longer ends with record {self._durable}")
        self._uncertain = None
        if found:
            self._written(records, verdicts)

    def record_verdict(self, at: Seconds, job: JobNumber, sentence: str) -> None:
        """Append the sentence of a job's verdict to a table beside the records; ``commit`` makes it durable too."""
        self._verdicts.append((at, job, sentence))

    def close(self) -> None:
        """Commit, merge the write-ahead log into the file, and store in it the number of records."""
        try:
            self.commit()
            self._connection.execute(f"PRAGMA user_version={_last_record(self._connection):d}")
            self._connection.execute("PRAGMA journal_mode=DELETE")
        finally:
            self._connection.close()


def _open(path: Path) -> sqlite3.Connection:
    """Return a connection whose commits are durable and do not wait for readers."""
    there = path.exists()
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
    except sqlite3.Error:
        connection.close()
        if not there:
            _remove(path)
        raise
    return connection


def _remove(path: Path) -> None:
    for end in ("", "-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)


def _last_record(connection: sqlite3.Connection) -> int:
    (last,) = connection.execute("SELECT max(rowid) FROM record").fetchone()
    return last or 0


@dataclass(slots=True)
class JournalFile:
    """A reader of a journal file; after reading, ``cut`` is a sentence on the records lost, or None."""

    path: Path
    cut: str | None = None
    records: int = 0

    def read(self) -> Iterator[codec.Record]:
        """Yield every undamaged record in order, up to the first damage."""
        return self._whole(codec.unpack)

    def raw(self) -> Iterator[list[Any]]:
        """Yield the same records as ``codec.unpack_raw`` returns them."""
        return self._whole(codec.unpack_raw)

    def bodies(self) -> Iterator[tuple[codec.Record, bytes]]:
        """Yield the same records, each with the bytes it is stored as."""
        return self._whole(lambda body: (codec.unpack(body), body))

    def verdicts(self, job: JobNumber, most: int = 200) -> list[tuple[Seconds, str]]:
        """Return (time, sentence) of a job's last ``most`` verdicts on a live cluster, in order."""
        with closing(self._connect()) as connection:
            query = "SELECT at, told FROM verdict WHERE job = ? ORDER BY rowid DESC LIMIT ?"
            return list(reversed(connection.execute(query, (job, most)).fetchall()))

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro", uri=True)

    def _whole(self, unpack: Callable[[bytes], _T]) -> Iterator[_T]:
        self.cut, self.records = None, 0
        if self.path.is_dir():
            raise InputError("journal", str(self.path), "no such file, but a folder; name the journal.sqlite in it")
        if not self.path.is_file():
            raise InputError("journal", str(self.path), "no such file; `shoal simulate --out DIR` writes one")
        try:
            with closing(self._connect()) as connection:
                # Without this SQLite rejects a file that was cut short, though its first pages can be read.
                connection.execute("PRAGMA writable_schema=ON")
                yield from self._rows(connection, unpack)
        except sqlite3.Error as error:
            self.cut = f"cut after record {self.records}: {error}"
        if not self.records:
            raise JournalError(f"{self.path}: not a Shoal journal, or damaged from the start ({self.cut or 'empty'})")

    def _rows(self, connection: sqlite3.Connection, unpack: Callable[[bytes], _T]) -> Iterator[_T]:
        (whole,) = connection.execute("PRAGMA user_version").fetchone()
        found = 0  # not the field: one reading may run inside another
        # The row's own number, not the column: it stays a number even if the schema is damaged.
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
    """Return the settings in a journal's first record."""
    first = next(read(), None)
    if not isinstance(first, codec.Header):
        raise JournalError("a journal must begin with its header")
    return first.settings
