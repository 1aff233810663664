"""Bounds on connections: how many an address may have open, and how long a request may take to arrive.

A connection is a *stranger* until a request on it has shown a valid token. If an address has too many strangers, or the
process too many open files, the oldest stranger is closed to admit a new one: a caller shows its token within
milliseconds, while connections that hold back their request become the oldest.
"""

import asyncio
import ipaddress
import resource
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from shoal.serve.agent_reports import BEGINNING, AgentReports, PendingReport
from shoal.serve.limits import ServerLimits

IDENTIFY = "shoal.identify"
"""Key of the function, in the extensions of a request's scope, that takes the role and name of its token."""

_RESERVED_FILES = 128
"""Files kept free for the journal, simulations and the rest of the process."""

_AGENT_IDLE_SECONDS = 75.0
"""Seconds for which the connection of an agent stays open after the answer to a report."""

_MOST_CONNECTIONS = 65_536
"""Most connections where the number of open files is not limited."""

Peer: TypeAlias = tuple[Any, ...]
"""Address and port of the other end."""


def _most_connections() -> int:
    """Return how many connections this process may have open: its limit of open files without those it needs itself."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else max(_RESERVED_FILES, soft - _RESERVED_FILES)


@dataclass(slots=True)
class _Open:
    """An open connection; ``role`` and ``token`` are those of the token it showed, None and empty for a stranger."""

    address: str
    socket: socket.socket
    role: str | None = None
    token: str = ""


@dataclass(slots=True)
class Connections:
    """The open connections of a server, the oldest first. Only the event loop's thread uses it."""

    limits: ServerLimits
    most: int = field(default_factory=_most_connections)
    _open: dict[Peer, _Open] = field(default_factory=dict)
    _strangers: dict[Peer, None] = field(default_factory=dict)
    _people: Counter[str] = field(default_factory=Counter)
    """Connections that showed the token of a user or an admin, by address."""
    _agents: dict[str, dict[Peer, None]] = field(default_factory=dict)
    """Connections that showed the token of an agent, by token, the oldest first."""

    def admit(self, connection: socket.socket, peer: Peer) -> bool:
        """Count a new connection and return whether it may stay; may close an older one in its favour."""
        address = group_of(str(peer[0]) if peer else "")
        same = [other for other in self._strangers if self._open[other].address == address]
        if len(same) >= self.limits.strangers:
            self._evict(same[0])
        elif self._people[address] >= self.limits.callers:
            return False
        if len(self._open) >= self.most:
            if not self._strangers:
                return False
            self._evict(next(iter(self._strangers)))
        self._open[peer] = _Open(address, connection)
        self._strangers[peer] = None
        return True

    def identify(self, peer: Peer, role: str, token: str) -> None:
        """Note that a request on this connection has shown this token; may close an older one of the same agent."""
        found = self._open.get(peer)
        if found is None or found.role is not None:
            return
        found.role, found.token = role, token
        del self._strangers[peer]
        if role != "agent":
            self._people[found.address] += 1
            return
        own = self._agents.setdefault(token, {})
        own[peer] = None
        if len(own) > self.limits.agent_connections:
            self._evict(next(iter(own)))

    def closed(self, peer: Peer, connection: socket.socket) -> None:
        """Forget a connection that is closed."""
        found = self._open.get(peer)
        if found is None or found.socket is not connection:
            return
        del self._open[peer]
        self._strangers.pop(peer, None)
        if found.role == "agent":
            del self._agents[found.token][peer]
            if not self._agents[found.token]:
                del self._agents[found.token]
        elif found.role is not None:
            self._people[found.address] -= 1
            if not self._people[found.address]:
                del self._people[found.address]

    def _evict(self, peer: Peer) -> None:
        """Shut a connection down: its transport then reads the end and closes it."""
        evicted = self._open[peer].socket
        self.closed(peer, evicted)
        with suppress(OSError):  # it may be closed already
            evicted.shutdown(socket.SHUT_RDWR)


class BoundedListener(socket.socket):
    """A listening socket that hands out only the connections that ``connections`` admits, also before a TLS handshake.

    The event loop calls ``accept`` and takes an error as "none for now".
    """

    connections: Connections | None = None

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection that may stay; ``BlockingIOError`` where there is none."""
        assert self.connections is not None
        while True:
            plain, peer = super().accept()
            connection = _Counted(plain.family, plain.type, plain.proto, fileno=plain.detach())
            if self.connections.admit(connection, peer):
                connection.on_close = partial(self.connections.closed, peer, connection)
                return connection, peer
            connection.close()


class _Counted(socket.socket):
    """A connection that reports its end."""

    on_close: Callable[[], None] | None = None

    def close(self) -> None:
        """Close the connection and report it."""
        super().close()
        if self.on_close is not None:
            self.on_close()
            self.on_close = None


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 on one connection, on which each request's head must arrive in time."""

    def __init__(self, *, connections: Connections, reports: AgentReports | None = None, **more: Any) -> None:
        super().__init__(**more)
        self._connections = connections
        self._reports = reports
        self._report: PendingReport | None = None
        """The agent's report that is being answered without the general path."""
        self._later = b""
        self._deadline: asyncio.TimerHandle | None = None
        inner = self.app

        async def identified(scope: Any, receive: Any, send: Any) -> None:
            peer = self.transport.get_extra_info("peername")
            scope.setdefault("extensions", {})[IDENTIFY] = partial(connections.identify, peer)
            try:
                await inner(scope, receive, send)
            except asyncio.CancelledError:  # the server stops, and its grace is over: no fault of the application
                self.cycle.disconnected = True
                self.transport.close()

        self.app = identified

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting for a request."""
        self._stop_timer()
        if self._report is not None and self._report.wait is not None:
            self._report.wait.end()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Answer a report that waits, and close the connection."""
        if self._report is not None and self._report.wait is not None:
            self._report.wait.finish(changed=False)
        super().shutdown()

    def data_received(self, data: bytes) -> None:
        """Process received bytes: a whole report of an agent at once, else as any request."""
        if self._report is not None:  # it came too early: it has its turn after the answer
            self._later += data
            self.transport.pause_reading()
        elif not (data.startswith(BEGINNING) and self._is_idle and self._take_report(data)):
            super().data_received(data)

    @property
    def _is_idle(self) -> bool:
        conn = self.conn
        return conn.our_state is h11.IDLE and conn.their_state is h11.IDLE and not conn.trailing_data[0]

    def _take_report(self, data: bytes) -> bool:
        """Answer an agent's report without the general path; return false if that must take it."""
        if self._reports is None:
            return False
        pending = self._reports.take(data, self._respond)
        if pending is None:
            return False
        self._unset_keepalive_if_required()
        self._stop_timer()
        peer = self.transport.get_extra_info("peername")
        self._connections.identify(peer, pending.holder.role, pending.holder.name)
        if pending.answer:
            self._respond(pending.answer)
        else:
            self._report = pending
        return True

    def _respond(self, answer: bytes) -> None:
        """Send the answer to a report; the connection stays open longer than others, since agents report again."""
        self._report = None
        if self.transport.is_closing():
            return
        self.transport.write(answer)
        self._expect_request(_AGENT_IDLE_SECONDS)
        if self._later:
            later, self._later = self._later, b""
            self.transport.resume_reading()
            self.loop.call_soon(self.data_received, later)

    def handle_events(self) -> None:
        """Handle received data; a complete head ends the wait for one."""
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()

    def on_response_complete(self) -> None:
        """Wait for the next request, which may be in the buffer already."""
        self._expect_request()
        super().on_response_complete()

    def _expect_request(self, seconds: float | None = None) -> None:
        self._stop_timer()
        self._deadline = self.loop.call_later(seconds or self._connections.limits.head_seconds, self._give_up)

    def _stop_timer(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        if self.transport.is_closing():
            return
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            late = b"the head of the request did not arrive in time"
            head = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(late)
            self.transport.write(head + late)
        self.transport.close()


def group_of(address: str) -> str:
    """Return the text under which an address is counted: an IPv4 address itself, of IPv6 the /64 network."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))
