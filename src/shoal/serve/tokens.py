"""Bearer tokens, stored as hashes in a SQLite file readable by its owner alone; a secret is shown once, when created.

A token is 256 random bits, so its plain SHA-256 cannot be inverted and needs no salt; a lookup by that hash takes the
same time for a wrong token as for a right one.
"""

import hashlib
import os
import secrets
import sqlite3
import threading
from dataclasses import dataclass
from pathlib import Path

from shoal.core.errors import InputError
from shoal.wire.fields import Role
from shoal.wire.messages import NewToken, TokenRow

_VERSION = 1
_PREFIX = "shoal_"
"""Lets people and secret scanners recognise a leaked token."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A token's name and role, the tenant it acts for, and the node it may speak for (None: any)."""

    name: str
    role: Role
    tenant: str | None = None
    node: str | None = None

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
        self._lock = threading.Lock()
        connection.execute("PRAGMA synchronous=FULL")
        rows = connection.execute("SELECT hash, name, role, tenant, node FROM token").fetchall()
        self._held: dict[bytes, Holder] = {row[0]: Holder(*row[1:]) for row in rows}

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
            "tenant TEXT, node TEXT)"
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
            if version == _VERSION:
                return cls(connection)
        except sqlite3.DatabaseError as error:
            connection.close()
            raise InputError("tokens", str(path), f"is not a file of tokens: {error}") from error
        connection.close()
        raise InputError("tokens", str(path), f"is of version {version}, this Shoal reads version {_VERSION}")

    def create(self, new: NewToken) -> TokenRow:
        """Create a token; its secret is in the returned row and stored nowhere."""
        _check(new)
        secret = _PREFIX + secrets.token_urlsafe(32)
        hashed = _hash(secret)
        with self._lock:
            try:
                self._connection.execute(
                    "INSERT INTO token (name, hash, role, tenant, node) VALUES (?, ?, ?, ?, ?)",
                    (new.name, hashed, new.role, new.tenant, new.node),
                )
            except sqlite3.IntegrityError as error:
                raise NameTaken("name", new.name, "is a token already; revoke it or choose another name") from error
            self._held[hashed] = Holder(new.name, new.role, new.tenant, new.node)
        return TokenRow(new.name, new.role, new.tenant, secret, new.node)

    def rows(self) -> list[TokenRow]:
        """Every token, sorted by name, without its secret."""
        holders = sorted(self._held.copy().values(), key=lambda holder: holder.name)
        return [TokenRow(holder.name, holder.role, holder.tenant, None, holder.node) for holder in holders]

    def revoke(self, name: str) -> None:
        """Revoke a token at once; KeyError if there is none of this name."""
        with self._lock:
            hashed = {holder.name: hashed for hashed, holder in self._held.items()}[name]
            admins = [holder.name for holder in self._held.values() if holder.role == "admin"]
            if admins == [name]:
                raise LastAdmin("name", name, "is the only admin's token; make another before revoking it")
            self._connection.execute("DELETE FROM token WHERE name = ?", (name,))
            del self._held[hashed]

    def holder(self, secret: str) -> Holder | None:
        """The holder of this secret; None for an unknown one."""
        return self._held.get(_hash(secret))

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def _check(new: NewToken) -> None:
    if new.role == "user" and new.tenant is None:
        raise InputError("tenant", None, "a user's token must name the tenant it acts for")
    if new.role == "agent" and new.tenant is not None:
        raise InputError("tenant", new.tenant, "an agent's token acts for no tenant; name its node instead")
    if new.role != "agent" and new.node is not None:
        raise InputError("node", new.node, "only an agent's token is bound to a node")


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False)


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="replace")).digest()
