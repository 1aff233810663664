"""HTTP client of agents and of the command line, on the standard library, so that an idle agent stays small.

Keeps one connection open per calling thread. A refusal by the server is raised as the error it stands for.
"""

import http.client
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from shoal.core.errors import InputError, ShoalError
from shoal.wire.kept_connections import MOST_BYTES, KeptConnections
from shoal.wire.messages import ProblemDetails

_T = TypeVar("_T")


class Unreachable(ShoalError):
    """No server answered, or it does not speak HTTP."""


class Untrusted(Unreachable):
    """The server's certificate is not trusted."""

    exit_code = 2


class Refused(ShoalError):
    """The server refused the request, other than for bad input."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        self.exit_code = 2 if status < 500 else 1
        super().__init__(text)


class Client:
    """Calls one server, as the holder of one token.

    If ``token`` is a function it is called before the first request, and again where the server refuses its token.
    """

    def __init__(
        self, url: str, token: str | Callable[[], str], *, cafile: str | None = None, timeout: float = 30.0
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError("server", url, "must be a URL such as http://127.0.0.1:7433")
        self.url = url.rstrip("/")
        self.cafile = cafile
        self._host, self._port = parts.hostname, parts.port
        self._base = parts.path.rstrip("/")
        self._tls = ssl.create_default_context(cafile=cafile) if parts.scheme == "https" else None
        self._token = token if isinstance(token, str) else ""
        self._ask = None if isinstance(token, str) else token
        self._timeout = timeout
        self._kept = KeptConnections(self._connect)

    def get(self, path: str, into: type[_T], *, timeout: float | None = None) -> _T:
        """GET a path; the answer as a message of type ``into``."""
        return self.call("GET", path, None, into, timeout=timeout)

    def post(self, path: str, body: Any, into: type[_T], *, timeout: float | None = None) -> _T:
        """POST a message; the answer as a message of type ``into``."""
        return self.call("POST", path, body, into, timeout=timeout)

    def call(self, method: str, path: str, body: Any, into: type[_T], *, timeout: float | None = None) -> _T:
        """Send one request; the answer as a message of type ``into``, None for ``type(None)``."""
        data = None if body is None else msgspec.json.encode(body)
        status, answer = self._exchange(method, path, data, timeout or self._timeout)
        if status == 401 and self._forget_token():
            status, answer = self._exchange(method, path, data, timeout or self._timeout)
        if status >= 400:
            raise refusal(status, answer)
        try:
            return msgspec.json.decode(answer, type=into) if into is not type(None) else None
        except msgspec.DecodeError as error:
            raise Unreachable(f"{self.url}{path} answered something that is not Shoal's: {error}") from error

    def lines(self, path: str) -> Iterator[str]:
        """Yield the lines of a streamed answer until the server ends it."""
        connection = self._connect(None)
        try:
            connection.request("GET", self._base + path, headers=self._headers(None))
            response = connection.getresponse()
            if response.status == 401 and self._forget_token():
                connection.close()
                connection.request("GET", self._base + path, headers=self._headers(None))
                response = connection.getresponse()
            if response.status >= 400:
                raise refusal(response.status, response.read(MOST_BYTES))
            for line in response:
                yield line.decode().rstrip("\r\n")
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        finally:
            connection.close()

    def close(self) -> None:
        """Close this thread's connection; a later call connects anew."""
        self._kept.close()

    def _exchange(self, method: str, path: str, data: bytes | None, timeout: float) -> tuple[int, bytes]:
        try:
            return self._kept.exchange(method, self._base + path, data, self._headers(data), timeout)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error

    def _connect(self, timeout: float | None) -> http.client.HTTPConnection:
        if self._tls is not None:
            return _HTTPSConnection(self._host, self._port, timeout=timeout, context=self._tls)
        return _HTTPConnection(self._host, self._port, timeout=timeout)

    def _forget_token(self) -> bool:
        """Forget a token that was refused; return whether another can be asked for."""
        if self._ask is not None:
            self._token = ""
        return self._ask is not None

    def _headers(self, data: bytes | None) -> dict[str, str]:
        if not self._token and self._ask is not None:
            self._token = self._ask()
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        return headers if data is None else {**headers, "Content-Type": "application/json"}

    def _unreachable(self, error: Exception) -> Unreachable:
        if isinstance(error, ssl.SSLCertVerificationError):
            hint = "name the file of its certificate, or of its issuer's, in SHOAL_CAFILE"
            return Untrusted(f"the certificate of {self.url} is not trusted: {error.verify_message}; {hint}")
        return Unreachable(f"cannot reach {self.url}: {error or type(error).__name__}; is `shoal up` running?")


class _HTTPConnection(http.client.HTTPConnection):
    """Sends head and body of a request together, so that the server reads it with one call and answers more cheaply."""

    _held: list[bytes] | None = None

    def request(self, *args: Any, **more: Any) -> None:
        """Send a request."""
        self._held = []
        try:
            super().request(*args, **more)
            data = b"".join(self._held)
        finally:
            self._held = None
        self.send(data)

    def send(self, data: Any) -> None:
        """Send bytes, or hold them back until the request is complete."""
        if self._held is None:
            super().send(data)
        else:
            self._held.append(data)


class _HTTPSConnection(_HTTPConnection, http.client.HTTPSConnection):
    """An HTTP connection over TLS."""


def refusal(status: int, answer: bytes) -> ShoalError:
    """Return the error that a refusal stands for: ``InputError`` where it names a field, ``Refused`` otherwise."""
    problem = ProblemDetails(answer[:500].decode(errors="replace") or f"status {status}")
    with suppress(msgspec.DecodeError):
        problem = msgspec.json.decode(answer, type=ProblemDetails)
    if status in (400, 404, 409, 413, 422) and problem.field is not None:
        return InputError(problem.field, problem.value, problem.hint or problem.error)
    return Refused(status, problem.error)
