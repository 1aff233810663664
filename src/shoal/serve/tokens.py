"""Bearer tokens, stored as hashes in a SQLite file readable by its owner alone; a secret is shown once, when created.

A token is 256 random bits, so its plain SHA-256 cannot be inverted and needs no salt; a lookup by that hash takes the
same time for a wrong token as for a right one. Every token expires. Tokens that ``shoal up`` lends to its own processes
are in no file: they end with the process that issued them.

While a control plane runs, time follows the monotonic clock. At a start it continues from the time in the file: at most
``_MOST_STEP`` seconds are added, and none if the machine's clock was set back. So no token expires because a clock is
years ahead.
"""

import hashlib
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from shoal.core.errors import InputError
from shoal.serve.allocation_tokens import allocation_of
from shoal.wire.fields import Role
from shoal.wire.messages import TOKEN_DAYS, NewToken, TokenRow

_T = TypeVar("_T")

_VERSION = 2
_DAY_SECONDS = 86400.0
_MOST_STEP = 30 * _DAY_SECONDS
"""Seconds that a start adds at most to the time by which tokens expire."""
_LENT_SECONDS = _DAY_SECONDS
"""Seconds after which a lent token expires unless it is renewed."""
LENT_PREFIX = "up."
"""Beginning of the names of lent tokens, which no other token may have."""
_PREFIX = "shoal_"
"""Lets readers and secret scanners recognise a leaked token."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A token's name and role, the tenant it acts for, the node it is for, and its Unix times.

    An agent's token is for a node, or for one ``allocation``.
    """

    name: str
    role: Role
    tenant: str | None = None
    node: str | None = None
    created: float = 0.0
    expires: float = float("inf")
    clock: Callable[[], float] = field(default=time.time, compare=False, repr=False)
    allocation: str | None = None

    @property
    def agent(self) -> str:
        """The node or allocation of an agent's token; empty for other tokens."""
        return self.allocation or self.node or ""

    @property
    def expired(self) -> bool:
        """Whether the token is no longer valid."""
        return self.clock() >= self.expires

    @property
    def sees(self) -> str | None:
        """The tenant whose jobs the holder may see: None for all, the empty name for none."""
        return None if self.role == "admin" else self.tenant or ""


class NameTaken(InputError):
    """A token of this name exists."""


class LastAdmin(InputError):
    """The token is the only admin's: without it no other could be created."""


class Tokens:
    """The tokens of one control plane; methods may be called from any thread."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.allocation_key = b""
        """Key of the tokens of allocations; without one there are none."""
        self._lock = threading.Lock()
        connection.execute("PRAGMA synchronous=FULL")
        rows = connection.execute("SELECT hash, name, role, tenant, node, created, expires FROM token").fetchall()
        self._held: dict[bytes, Holder] = {row[0]: replace(Holder(*row[1:]), clock=self.now) for row in rows}
        self._lent: set[bytes] = set()
        connection.execute("CREATE TABLE IF NOT EXISTS clock (seen REAL NOT NULL)")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS login (hash BLOB PRIMARY KEY, token TEXT NOT NULL, expires REAL NOT NULL)"
        )
        (seen,) = connection.execute("SELECT max(seen) FROM clock").fetchone()
        wall = time.time()
        start = wall if seen is None else seen + min(max(wall - seen, 0.0), _MOST_STEP)
        self._origin = start - time.monotonic()
        self._store_time()

    def now(self) -> float:
        """Return the Unix time by which tokens expire; later changes of the machine's clock do not move it."""
        return self._origin + time.monotonic()

    def _store_time(self) -> None:
        self._connection.execute("BEGIN")
        self._connection.execute("DELETE FROM clock")
        self._connection.execute("INSERT INTO clock VALUES (?)", (self.now(),))
        self._connection.execute("COMMIT")

    @classmethod
    def begin(cls, path: Path) -> "Tokens":
        """Create a file without tokens; an existing file is an error."""
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except OSError as error:
            raise InputError("tokens", str(path), f"cannot be made: {error.strerror}") from error
        connection = _connect(path)
        connection.execute("BEGIN")
        connection.execute(
            "CREATE TABLE token (name TEXT PRIMARY KEY, hash BLOB NOT NULL UNIQUE, role TEXT NOT NULL, "
            "tenant TEXT, node TEXT, created REAL NOT NULL, expires REAL NOT NULL)"
        )
        connection.execute(f"PRAGMA user_version={_VERSION:d}")
        connection.execute("COMMIT")
        return cls(connection)

    @classmethod
    def open(cls, path: Path) -> "Tokens":
        """Open an existing file."""
        if not path.is_file():
            raise InputError("tokens", str(path), "there is no such file")
        connection = _connect(path)
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version == 1:
                _add_times(connection)
                version = _VERSION
            if version == _VERSION:
                return cls(connection)
        except sqlite3.DatabaseError as error:
            connection.close()
            # SQLite needs files beside it: a disk without inodes, or one that is read-only, is no fault of the file.
            operational = isinstance(error, sqlite3.OperationalError)
            problem = "cannot be opened" if operational else "is not a file of tokens"
            raise InputError("tokens", str(path), f"{problem}: {error}") from error
        connection.close()
        raise InputError("tokens", str(path), f"is of version {version}, this Shoal reads version {_VERSION}")

    def create(self, new: NewToken) -> TokenRow:
        """Create a token; its secret is in the returned row and stored nowhere."""
        _check(new)
        secret, now = _PREFIX + secrets.token_urlsafe(32), self.now()
        hashed = _hash(secret)
        holder = Holder(new.name, new.role, new.tenant, new.node, now, now + _DAY_SECONDS * new.days, self.now)
        with self._lock:
            try:
                self._connection.execute(
                    "INSERT INTO token (name, hash, role, tenant, node, created, expires) VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (new.name, hashed, new.role, new.tenant, new.node, holder.created, holder.expires),
                )
            except sqlite3.IntegrityError as error:
                raise NameTaken("name", new.name, "is a token already; revoke it or choose another name") from error
            self._held[hashed] = holder
        return _row(holder, secret)

    def has(self, name: str) -> bool:
        """Return whether the file has a token of this name."""
        return self.in_file(lambda file: bool(file.execute("SELECT 1 FROM token WHERE name = ?", (name,)).fetchone()))

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make the tokens created within the context durable together, at its end."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("COMMIT")

    def lend(self, name: str, role: Role, node: str | None = None) -> str:
        """Return the secret of a new token that is stored in no file; it replaces a lent one of the same name."""
        secret, now = _PREFIX + secrets.token_urlsafe(32), self.now()
        hashed = _hash(secret)
        with self._lock:
            for old in [old for old in self._lent if self._held[old].name == LENT_PREFIX + name]:
                self._lent.remove(old)
                del self._held[old]
            self._held[hashed] = Holder(LENT_PREFIX + name, role, None, node, now, now + _LENT_SECONDS, self.now)
            self._lent.add(hashed)
        return secret

    def renew_lent(self) -> None:
        """Prolong the lent tokens of which less than half the time is left; call it from time to time."""
        now = self.now()
        with self._lock:
            for hashed in self._lent:
                if self._held[hashed].expires < now + _LENT_SECONDS / 2:
                    self._held[hashed] = replace(self._held[hashed], expires=now + _LENT_SECONDS)

    def rows(self) -> list[TokenRow]:
        """Return every token, sorted by name, without its secret."""
        return [_row(holder) for holder in sorted(self._held.copy().values(), key=lambda holder: holder.name)]

    def revoke(self, name: str) -> None:
        """Revoke a token at once; KeyError if there is none of this name."""
        with self._lock:
            hashed = {holder.name: hashed for hashed, holder in self._held.items()}[name]
            admins = [holder.name for holder in self._held.values() if holder.role == "admin" and not holder.expired]
            if admins == [name]:
                raise LastAdmin("name", name, "is the only admin's token; make another before revoking it")
            self._remove(hashed)

    def remove(self, name: str) -> None:
        """Revoke a token, even the only admin's; the caller must have other access."""
        with self._lock:
            self._remove({holder.name: hashed for hashed, holder in self._held.items()}[name])

    def _remove(self, hashed: bytes) -> None:
        self._connection.execute("DELETE FROM token WHERE hash = ?", (hashed,))
        self._connection.execute("DELETE FROM login WHERE token = ?", (self._held[hashed].name,))
        self._lent.discard(hashed)
        del self._held[hashed]

    def holder(self, secret: str) -> Holder | None:
        """Return the holder of this secret, whose token may have expired; None for an unknown one."""
        held = self._held.get(_hash(secret))
        if held is not None or not self.allocation_key:
            return held
        allocation = allocation_of(self.allocation_key, secret)
        return None if allocation is None else Holder(f"run {allocation}", "agent", allocation=allocation)

    def named(self, name: str) -> Holder | None:
        """Return the holder of the token with this name; None for an unknown or expired one."""
        found = next((holder for holder in self._held.copy().values() if holder.name == name), None)
        return None if found is None or found.expired else found

    def in_file(self, use: Callable[[sqlite3.Connection], _T]) -> _T:
        """Call a function with the file of tokens, which also holds logins, and return its result."""
        with self._lock:
            return use(self._connection)

    def close(self) -> None:
        """Close the file."""
        with suppress(sqlite3.Error):  # on a full disk the next start goes on from an earlier time
            self._store_time()
        self._connection.close()


def _row(holder: Holder, secret: str | None = None) -> TokenRow:
    return TokenRow(
        holder.name, holder.role, holder.tenant, secret, holder.node, holder.created or None, holder.expires
    )


def _add_times(connection: sqlite3.Connection) -> None:
    """Give the tokens of a version 1 file their times: they expire as if they had been created now."""
    now = time.time()
    connection.execute("BEGIN")
    connection.execute("ALTER TABLE token ADD COLUMN created REAL NOT NULL DEFAULT 0")
    connection.execute("ALTER TABLE token ADD COLUMN expires REAL NOT NULL DEFAULT 0")
    connection.execute("UPDATE token SET expires = ?", (now + _DAY_SECONDS * TOKEN_DAYS,))
    connection.execute(f"PRAGMA user_version={_VERSION:d}")
    connection.execute("COMMIT")


def _check(new: NewToken) -> None:
    if new.name.startswith(LENT_PREFIX):
        raise InputError("name", new.name, f"names that begin with {LENT_PREFIX!r} are those of `shoal up`")
    if new.role == "user" and new.tenant is None:
        raise InputError("tenant", None, "a user's token must name the tenant it acts for")
    if new.role in ("agent", "join") and new.tenant is not None:
        hint = "acts for no tenant; name its node instead" if new.role == "agent" else "acts for no tenant"
        raise InputError("tenant", new.tenant, f"an agent's token {hint}")
    if new.role == "agent" and new.node is None:
        raise InputError("node", None, "an agent's token must name its node")
    if new.role != "agent" and new.node is not None:
        raise InputError("node", new.node, "only an agent's token is bound to a node")


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False)


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="replace")).digest()
