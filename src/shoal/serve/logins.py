"""Logins of browsers: a cookie stands for a token, so that the page's scripts never hold the token's secret.

A cookie's secret is stored as a hash, like a token's, and survives a restart of the control plane. It ends when it is
logged out, after seven days, or with the token it was made from.
"""

import hashlib
import secrets
import sqlite3
import threading
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.requests import Request

from shoal.serve.errors import RequestError
from shoal.serve.tokens import Holder, Tokens

LOGIN_SECONDS = 7 * 86400.0
CODE_SECONDS = 300.0
_MOST_LOGINS = 10_000
"""Most logins kept; the one that expires first is dropped first."""
_MOST_CODES = 1000


@dataclass(frozen=True, slots=True)
class LoginCookie:
    """The cookie of a request: its name, its secret (empty without one), and whether it travels over TLS alone.

    The name holds the port, since cookies of one host are shared by all its ports.
    """

    name: str = "shoal"
    secret: str = ""
    secure: bool = False

    @classmethod
    def of(cls, request: Request) -> "LoginCookie":
        """Return the cookie that a request has, or would be given."""
        secure = request.url.scheme == "https"
        port = request.headers.get("host", "").rpartition(":")[2]
        name = f"shoal-{port}" if port.isascii() and port.isdigit() else "shoal"
        return cls(name, request.cookies.get(name, ""), secure)

    def set(self, secret: str, seconds: float) -> str:
        """Return the header that stores a secret in the browser; 0 seconds remove it."""
        secure = "; Secure" if self.secure else ""
        return f"{self.name}={secret}; HttpOnly; SameSite=Strict; Path=/; Max-Age={seconds:.0f}{secure}"


@dataclass(slots=True)
class Logins:
    """The logins of one control plane; methods may be called from any thread."""

    tokens: Tokens
    _codes: dict[str, tuple[str, float]] = field(default_factory=dict)
    """By code, the token's name and the time until which it is valid."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, holder: Holder) -> tuple[str, float]:
        """Log a browser in; return the cookie's secret and the time at which it expires."""
        secret, now = secrets.token_urlsafe(32), self.tokens.now()
        expires = min(now + LOGIN_SECONDS, holder.expires)

        def store(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM login WHERE expires <= ?", (now,))
            connection.execute("INSERT INTO login VALUES (?, ?, ?)", (_hash(secret), holder.name, expires))
            connection.execute(
                "DELETE FROM login WHERE hash NOT IN (SELECT hash FROM login ORDER BY expires DESC LIMIT ?)",
                (_MOST_LOGINS,),
            )

        self.tokens.in_file(store)
        return secret, expires

    def holder(self, secret: str) -> tuple[Holder, float] | None:
        """Return the holder that a cookie stands for, and when the login expires; None for an unknown one."""
        find = "SELECT token, expires FROM login WHERE hash = ?"
        row = self.tokens.in_file(lambda connection: connection.execute(find, (_hash(secret),)).fetchone())
        holder = None if row is None or row[1] <= self.tokens.now() else self.tokens.named(row[0])
        return None if holder is None else (holder, min(row[1], holder.expires))

    def end(self, secret: str) -> None:
        """Log a browser out."""
        self.tokens.in_file(lambda connection: connection.execute("DELETE FROM login WHERE hash = ?", (_hash(secret),)))

    def new_code(self, holder: Holder) -> str:
        """Return a code with which one browser can log in as the holder, once, within ``CODE_SECONDS``."""
        code, now = secrets.token_urlsafe(16), self.tokens.now()
        with self._lock:
            self._codes = {old: known for old, known in self._codes.items() if known[1] > now}
            if len(self._codes) >= _MOST_CODES:
                del self._codes[next(iter(self._codes))]
            self._codes[code] = holder.name, now + CODE_SECONDS
        return code

    def redeem(self, code: str) -> Holder | None:
        """Return the holder that a code stands for, and forget the code; None for an unknown or expired one."""
        with self._lock:
            name, until = self._codes.pop(code, ("", 0.0))
        return self.tokens.named(name) if self.tokens.now() < until else None


def check_origin(request: Request) -> None:
    """Refuse a request with a cookie (403) that a page of another origin has made: browsers add the cookie to those.

    Another port of the same host is another origin, but the same site, so that ``SameSite`` alone is not enough.
    """
    site, origin = request.headers.get("sec-fetch-site", "same-origin"), request.headers.get("origin")
    foreign = site not in ("same-origin", "none")
    if request.method not in ("GET", "HEAD") or origin is not None:
        foreign = foreign or origin is None or urlsplit(origin).netloc != request.headers.get("host", "")
    if foreign:
        raise RequestError(403, "made by a page of another origin", "Origin", (origin or "none")[:200])


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="replace")).digest()
