"""Journals: append-only records of what was heard and what was decided.

Whatever the kind, reading gives back exactly what was written, in order; a journal that was cut short or damaged
gives every whole record before the damage and says what was lost.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from shoal.core.errors import InputError, JournalError
from shoal.core.events import Heard
from shoal.store import codec

_T = TypeVar("_T")

_GROUP = 1000
"""Records per commit: a durable commit costs milliseconds, a record in a group microseconds."""


class Journal(Protocol):
    """Where the loop records."""

    def heard(self, heard: Heard) -> None:
        """Record what one wait brought."""
        ...

    def decided(self, decided: codec.Decided) -> None:
        """Record what was decided on it."""
        ...


@dataclass(slots=True)
class MemoryJournal:
    """A journal as a list of encoded records."""

    records: list[bytes] = field(default_factory=list)

    @classmethod
    def begin(cls, settings: dict[str, Any]) -> "MemoryJournal":
        """A new journal of a run with these settings."""
        return cls([codec.pack_header(settings)])

    def heard(self, heard: Heard) -> None:
        """Record what one wait brought."""
        self.records.append(codec.pack_heard(heard))

    def decided(self, decided: codec.Decided) -> None:
        """Record what was decided on it."""
        self.records.append(codec.pack_decided(decided))

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

    @classmethod
    def begin(cls, path: Path, settings: dict[str, Any]) -> "SqliteJournal":
        """A new journal file; an existing one is never overwritten."""
        if path.exists():
            raise InputError("journal", str(path), "exists already; choose another name or remove it")
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE record (seq INTEGER PRIMARY KEY, body BLOB NOT NULL, crc INTEGER NOT NULL)")
        journal = cls(path, connection)
        journal._append(codec.pack_header(settings))
        journal.commit()
        return journal

    def heard(self, heard: Heard) -> None:
        """Record what one wait brought."""
        self._append(codec.pack_heard(heard))

    def decided(self, decided: codec.Decided) -> None:
        """Record what was decided on it."""
        self._append(codec.pack_decided(decided))

    def _append(self, body: bytes) -> None:
        self._pending.append((body, codec.checksum(body)))
        if len(self._pending) >= _GROUP:
            self.commit()

    def commit(self) -> None:
        """Make everything recorded so far durable."""
        if self._pending:
            self._connection.execute("BEGIN")
            self._connection.executemany("INSERT INTO record (body, crc) VALUES (?, ?)", self._pending)
            self._connection.execute("COMMIT")
            self._pending.clear()

    def close(self) -> None:
        """Commit, fold the write-ahead log into the one file, and note there how many records a whole reading finds."""
        self.commit()
        (records,) = self._connection.execute("SELECT max(seq) FROM record").fetchone()
        self._connection.execute(f"PRAGMA user_version={records:d}")
        self._connection.execute("PRAGMA journal_mode=DELETE")
        self._connection.close()


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
        # The row's own number, not the column that names it: that stays a number even when the schema is damaged.
        for seq, body, crc in connection.execute("SELECT rowid AS seq, body, crc FROM record ORDER BY rowid"):
            if seq != self.records + 1:
                whole = max(whole, seq - 1, self.records + 1)
                break
            if not isinstance(body, bytes) or codec.checksum(body) != crc:
                self.cut = f"cut after record {self.records}: the checksum of record {seq} does not match"
                return
            try:
                record = unpack(body)
            except JournalError as error:
                self.cut = f"cut after record {self.records}: {error}"
                return
            self.records = seq
            yield record
        if self.records < whole:
            self.cut = f"cut after record {self.records}: records {self.records + 1} to {whole} are missing"


def settings_of(read: Callable[[], Iterator[codec.Record]]) -> dict[str, Any]:
    """The settings in a journal's first record."""
    first = next(read(), None)
    if not isinstance(first, codec.Header):
        raise JournalError("a journal must begin with its header")
    return first.settings
