"""Calls of the Kubernetes API over HTTP, and the few fields of its objects that Shoal reads."""

import http.client
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from shoal.core.errors import ShoalError
from shoal.provider.kubernetes.access import Access
from shoal.provider.protocol import EngineAway
from shoal.wire.kept_connections import MOST_BYTES, KeptConnections

T = TypeVar("T")

_SECONDS = 5.0
"""Seconds after which the API server is taken not to answer."""

WATCH_SECONDS = 240
"""Seconds after which the API server ends a watch, which is then resumed."""


class Fields(msgspec.Struct, frozen=True, rename="camel"):
    """Base of objects of the API: fields that are not declared are skipped."""


class Owner(Fields, frozen=True, rename="camel"):
    """An owner of an object."""

    uid: str = ""
    controller: bool | None = None


class Metadata(Fields, frozen=True, rename="camel"):
    """Name and marks of an object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    owner_references: list[Owner] | None = None


class Condition(Fields, frozen=True, rename="camel"):
    """A condition in an object's status; ``status`` is ``True``, ``False`` or ``Unknown``."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class Status(Fields, frozen=True, rename="camel"):
    """The API server's answer in place of an object, usually a refusal."""

    message: str = ""
    reason: str = ""
    code: int = 0


class ApiRefusal(ShoalError):
    """The API server refused a request: ``status`` is HTTP's, ``reason`` Kubernetes' word, the text its sentence."""

    def __init__(self, status: int, reason: str, text: str) -> None:
        self.status, self.reason = status, reason
        super().__init__(text)


class ListAnswer(Fields, Generic[T], frozen=True, rename="camel"):
    """A list of objects, as of the version in its metadata."""

    metadata: "ListMetadata"
    items: list[T] | None = None


class ListMetadata(Fields, frozen=True, rename="camel"):
    """Version of a list, and the mark from which the next part of it begins."""

    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class WatchEvent(Fields, frozen=True, rename="camel"):
    """A change of an object; ``type`` is ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""

    type: str
    object: msgspec.Raw


@dataclass(slots=True)
class Api:
    """An API server. Keeps one connection open per calling thread; each watch has one of its own."""

    access: Access
    seconds: float = _SECONDS
    _kept: KeptConnections = field(init=False)

    def __post_init__(self) -> None:
        self._kept = KeptConnections(self._connect)

    def call(
        self, method: str, path: str, into: type[T], *, body: Any = None, params: Mapping[str, object] | None = None
    ) -> T:
        """Send one request and return its answer; ``ApiRefusal`` if it is refused, ``EngineAway`` if none comes."""
        data = None if body is None else msgspec.json.encode(body)
        target = self._target(path, params)
        try:
            # A POST or DELETE that is sent a second time is answered 409 or 404, which callers take as done.
            status, answer = self._kept.exchange(method, target, data, self._headers(data), self.seconds)
        except (OSError, http.client.HTTPException) as error:
            raise _away(self.access.url, error) from None
        return _decoded(status, answer, into)

    def list(self, path: str, item: type[T], params: Mapping[str, object]) -> tuple[list[T], str]:
        """Return all objects of a path, in parts of 500, and the version of the list."""
        found: list[T] = []
        part = ""
        while True:
            given = {**params, "limit": 500, **({"continue": part} if part else {})}
            answer = self.call("GET", path, ListAnswer[item], params=given)  # type: ignore[valid-type]
            found += answer.items or ()
            part = answer.metadata.continue_
            if not part:
                return found, answer.metadata.resource_version

    def watch(self, path: str, params: Mapping[str, object], version: str) -> "ChangeStream":
        """Open a watch of a path from a version on; ``ApiRefusal`` with status 410 if that is too old."""
        given = {**params, "watch": "1", "allowWatchBookmarks": "true", "resourceVersion": version}
        link = self._connect(self.seconds)
        try:
            link.connect()
            stream = ChangeStream(link.sock, link)
            link.request("GET", self._target(path, {**given, "timeoutSeconds": WATCH_SECONDS}), headers=self._headers())
            stream.response = response = link.getresponse()
            if response.status != 200:
                _decoded(response.status, response.read(MOST_BYTES), Status)
            stream.socket.settimeout(WATCH_SECONDS + 30.0)
        except (OSError, http.client.HTTPException) as error:
            link.close()
            raise _away(self.access.url, error) from None
        except ShoalError:
            link.close()
            raise
        return stream

    def close(self) -> None:
        """Close this thread's connection; a later call connects anew."""
        self._kept.close()

    def _target(self, path: str, params: Mapping[str, object] | None) -> str:
        query = urlencode({key: value for key, value in (params or {}).items() if value != ""})
        return urlsplit(self.access.url).path + path + (f"?{query}" if query else "")

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        parts = urlsplit(self.access.url)
        assert parts.hostname is not None
        if self.access.tls is None:
            return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
        return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout, context=self.access.tls)

    def _headers(self, data: bytes | None = None) -> dict[str, str]:
        token = self.access.token()
        headers = {"Accept": "application/json", "User-Agent": "shoal"}
        headers |= {"Authorization": f"Bearer {token}"} if token else {}
        return headers if data is None else {**headers, "Content-Type": "application/json"}


@dataclass(slots=True)
class ChangeStream:
    """The changes of an open watch, until the API server ends it or ``close`` is called."""

    socket: socket.socket
    link: http.client.HTTPConnection
    response: http.client.HTTPResponse | None = None

    def __iter__(self) -> Iterator[WatchEvent]:
        decoder = msgspec.json.Decoder(WatchEvent)
        try:
            for line in self.response or ():
                yield decoder.decode(line)
        except (OSError, ValueError, msgspec.MsgspecError, http.client.HTTPException):  # it broke off
            return
        finally:
            if self.response is not None:
                self.response.close()
            self.link.close()
            self.socket.close()

    def close(self) -> None:
        """End the watch; the thread that reads it closes its socket."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


def _decoded(status: int, answer: bytes, into: type[T]) -> T:
    if status < 400:
        try:
            return msgspec.json.decode(answer, type=into)
        except msgspec.DecodeError as error:
            raise EngineAway(f"the API server answered something that is not Kubernetes': {error}") from None
    try:
        said = msgspec.json.decode(answer, type=Status)
    except msgspec.DecodeError:
        said = Status(answer[:200].decode(errors="replace"))
    text = " ".join(said.message.split()) or f"HTTP status {status}"
    if status >= 500 or status in (401, 429):
        raise EngineAway(f"the API server answered {status}: {text}")
    raise ApiRefusal(status, said.reason, text)


def _away(url: str, error: Exception) -> EngineAway:
    if isinstance(error, ssl.SSLCertVerificationError):
        return EngineAway(f"the certificate of {url} is not trusted: {error.verify_message}")
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
    return EngineAway(f"{url} cannot be reached: {said}")
