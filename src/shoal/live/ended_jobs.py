"""Ended jobs on disk: their accounts for as long as the operator keeps them, after that their names.

The table follows from the journal: an account is moved here when its segment is closed, and moving it twice changes
nothing. Every method may be called from any thread.
"""

import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from shoal.core.errors import InputError
from shoal.core.units import JobId, Seconds, TenantId
from shoal.live.accounts import Account

MOST_DROPPED = 1_000_000
"""Names of dropped jobs that are kept, the latest: about 50 MB."""

_PAGE = 1000
_ACCOUNT = msgspec.msgpack.Decoder(Account)
_TABLES = """
CREATE TABLE IF NOT EXISTS ended (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL, tenant TEXT NOT NULL, key TEXT NOT NULL, at REAL NOT NULL,
    account BLOB NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS ended_id ON ended (id);
CREATE INDEX IF NOT EXISTS ended_key ON ended (tenant, key) WHERE key != '';
CREATE INDEX IF NOT EXISTS ended_at ON ended (at);
CREATE TABLE IF NOT EXISTS dropped (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL, tenant TEXT NOT NULL, at REAL NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS dropped_id ON dropped (id);
"""


class EndedJobs:
    """The accounts of ended jobs in a SQLite file."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._name = str(path)
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.executescript(_TABLES)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def check(self, submitted: int) -> None:
        """Raise ``InputError`` if there is a job here that a journal with this many submissions does not know."""
        with self._lock:
            query = "SELECT max(number) FROM (SELECT number FROM ended UNION ALL SELECT number FROM dropped)"
            (last,) = self._connection.execute(query).fetchone()
        if last is not None and last >= submitted:
            hint = f"has job number {last}, and the journal beside it has {submitted} jobs: it is of another journal"
            raise InputError("ended jobs", self._name, f"{hint}, or a later one; move it away, and those jobs with it")

    def add(self, accounts: Iterable[Account]) -> None:
        """Store the accounts of ended jobs durably."""
        rows = [
            (a.number, a.spec.id, a.spec.tenant, a.launch.key, a.ended, msgspec.msgpack.encode(a)) for a in accounts
        ]
        with self._transaction() as connection:
            connection.executemany("INSERT OR REPLACE INTO ended VALUES (?, ?, ?, ?, ?, ?)", rows)

    def drop(self, before: Seconds) -> int:
        """Drop the accounts of jobs that ended before this time, except for their names; return how many."""
        with self._transaction() as connection:
            run = connection.execute
            run("INSERT OR REPLACE INTO dropped SELECT number, id, tenant, at FROM ended WHERE at < ?", (before,))
            count = run("DELETE FROM ended WHERE at < ?", (before,)).rowcount
            if count:
                run("DELETE FROM dropped WHERE number <= (SELECT max(number) FROM dropped) - ?", (MOST_DROPPED,))
        return count

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Make the writes within the context durable, all or none."""
        with self._lock:
            self._connection.execute("BEGIN")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # else SQLite has undone it: after some errors it does
                    self._connection.execute("ROLLBACK")
                raise

    def account(self, job: JobId) -> Account | None:
        """Return the account of an ended job that is still kept."""
        found = self._rows("SELECT account FROM ended WHERE id = ?", job)
        return _ACCOUNT.decode(found[0][0]) if found else None

    def dropped(self, job: JobId, tenant: TenantId | None) -> Seconds | None:
        """Return when a job ended whose account was dropped; None if it is not known, or not to this tenant."""
        found = self._rows("SELECT at, tenant FROM dropped WHERE id = ?", job)
        return float(found[0][0]) if found and tenant in (None, found[0][1]) else None

    def known(self, job: JobId) -> bool:
        """Return whether an ended job of this name is kept."""
        return bool(self._rows("SELECT 1 FROM ended WHERE id = ?", job))

    def ever_known(self, job: JobId) -> bool:
        """Return whether an ended job of this name is kept, or was dropped."""
        query = "SELECT 1 FROM ended WHERE id = ? UNION ALL SELECT 1 FROM dropped WHERE id = ? LIMIT 1"
        return bool(self._rows(query, job, job))

    def with_key(self, tenant: TenantId, key: str) -> JobId | None:
        """Return the ended job that a tenant submitted with this key; an empty key is none."""
        if not key:
            return None
        # The last term lets SQLite use the index, which leaves out jobs without a key.
        found = self._rows("SELECT id FROM ended WHERE tenant = ? AND key = ? AND key != ''", tenant, key)
        return str(found[0][0]) if found else None

    def accounts(self, tenant: TenantId | None) -> list[Account]:
        """Return the accounts that a tenant may see (None: all), in order of submission."""
        return list(self.latest(tenant))[::-1]

    def latest(self, tenant: TenantId | None, most: int | None = None) -> Iterator[Account]:
        """Yield the accounts that a tenant may see (None: all), the latest submission first."""
        last, left = 2**62, 2**62 if most is None else most
        own = "" if tenant is None else "AND tenant = ?"
        while left > 0:
            query = f"SELECT number, account FROM ended WHERE number < ? {own} ORDER BY number DESC LIMIT ?"
            page = self._rows(query, last, *(() if tenant is None else (tenant,)), min(left, _PAGE))
            for _, data in page:
                yield _ACCOUNT.decode(data)
            if len(page) < min(left, _PAGE):
                return
            last, left = page[-1][0], left - len(page)

    def count(self) -> int:
        """Return the number of accounts kept."""
        return int(self._rows("SELECT count(*) FROM ended")[0][0])

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._connection.execute(query, values).fetchall()
