"""Run the application: on loopback by default, with TLS from certificate files, stopping within a second."""

import ipaddress
import logging
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette

from shoal.core.errors import InputError
from shoal.serve.connections import BoundedListener, BoundedProtocol, Connections

_log = logging.getLogger("shoal.serve")

_GRACE = 1
"""Whole seconds for running requests at shutdown; long polls and event streams end at once."""


@dataclass(frozen=True, slots=True)
class Listening:
    """A server that accepts connections. ``stop`` may be called from any thread and returns at once."""

    url: str
    port: int
    stop: Callable[[], None]


def serve(
    app: Starlette,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    certfile: str | None = None,
    keyfile: str | None = None,
    listening: Callable[[Listening], None] = lambda _: None,
) -> None:
    """Serve until ``Listening.stop`` is called or, in the main thread, SIGINT or SIGTERM arrives; then return.

    Port 0 selects a free port. ``listening`` is called once connections are accepted.
    """
    tls = _has_tls(certfile, keyfile)
    bound = _bind(host, port)
    port = bound.getsockname()[1]
    if not tls and not _is_loopback(bound):
        _log.warning("tokens and jobs travel in the clear on %s: give a certificate and key, or bind to loopback", host)
    bound.connections = Connections(app.state.limits)
    server = _Server(
        uvicorn.Config(
            app,
            http=cast(Any, partial(BoundedProtocol, connections=bound.connections, reports=app.state.agent_reports)),
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=_GRACE,
            ssl_certfile=certfile,
            ssl_keyfile=keyfile,
        )
    )
    shown = f"[{host}]" if ":" in host else host

    def stop() -> None:
        server.should_exit = True

    server.on_started = lambda: listening(Listening(f"http{'s' if tls else ''}://{shown}:{port}", port, stop))
    server.on_stopping = app.state.close
    with bound, _signals_ignored_afterwards():
        server.run(sockets=[bound])


class _Server(uvicorn.Server):
    """A uvicorn server that calls back when connections are accepted and before shutdown, as uvicorn has no hook."""

    on_started: Callable[[], None]
    on_stopping: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.on_stopping()
        await super().shutdown(sockets)


@contextmanager
def _signals_ignored_afterwards() -> Iterator[None]:
    """Ignore the signal that uvicorn raises again after it stopped: the caller still has a journal to close."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _bind(host: str, port: int) -> BoundedListener:
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise InputError("host", host, f"cannot be resolved: {error.strerror}") from error
    bound = BoundedListener(family, kind, proto)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise InputError("port", port, f"cannot be bound on {host}: {error.strerror}") from error
    return bound


def _is_loopback(bound: socket.socket) -> bool:
    return ipaddress.ip_address(bound.getsockname()[0].partition("%")[0]).is_loopback


def _has_tls(certfile: str | None, keyfile: str | None) -> bool:
    """Whether TLS is requested; unusable files are refused by name before a socket is bound."""
    if certfile is None and keyfile is None:
        return False
    if certfile is None or keyfile is None:
        missing, given = ("certfile", keyfile) if certfile is None else ("keyfile", certfile)
        raise InputError(missing, None, f"is needed beside {given}")
    for name, path in (("certfile", certfile), ("keyfile", keyfile)):
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise InputError(name, path, f"cannot be read: {error.strerror}") from error
    try:
        # An empty password: without one, an encrypted key would make the server wait at a prompt.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certfile, keyfile, password="")
    except (ssl.SSLError, OSError) as error:
        raise InputError("certfile", certfile, f"is no certificate with the key in {keyfile}: {error}") from error
    return True
