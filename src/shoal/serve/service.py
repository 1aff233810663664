"""A running control plane: the loop, its HTTP server in a thread, its tokens and its forecasts."""

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from starlette.applications import Starlette

from shoal import __version__
from shoal.live.control_plane import ControlPlane
from shoal.live.home import JOURNAL, Settings, open_control_plane
from shoal.serve.app import make_app
from shoal.serve.forecaster import Forecaster
from shoal.serve.hosts import own_hosts
from shoal.serve.server import Listening, serve
from shoal.serve.tokens import Tokens
from shoal.wire.files import replace_file
from shoal.wire.messages import NewToken

_SWITCH_SECONDS = 0.0005
"""Time after which a thread lets another run Python: the ring waits this long for each reader, not Python's 5 ms."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen: loopback by default, port 0 for a free one; TLS with a certificate and its key.

    ``names`` are further names by which callers may address the server.
    """

    host: str = "127.0.0.1"
    port: int = 0
    certfile: str | None = None
    keyfile: str | None = None
    names: tuple[str, ...] = ()


@dataclass(slots=True)
class RunningService:
    """A control plane that accepts connections until its context is left."""

    control_plane: ControlPlane
    listening: Listening
    admin_token: str
    agent_token: str


@contextmanager
def run_service(settings: Settings, address: Address) -> Iterator[RunningService]:
    """Open the control plane in ``settings.home`` and serve it; writes ``client.json`` there for the command line."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    with open_control_plane(settings) as control_plane, closing(_tokens(settings.home)) as tokens:
        forecaster = Forecaster(control_plane, settings.home / JOURNAL)
        hosts = own_hosts(address.host, address.names)
        app = make_app(control_plane, tokens, what_if=forecaster.answer, version=__version__, hosts=hosts)
        admin = _secret(settings.home / "admin.token", tokens, NewToken("admin", "admin"))
        agent = _secret(settings.home / "agent.token", tokens, NewToken("agents", "agent"))
        with _served(app, address) as listening:
            _write_client_file(settings.home, listening.url, admin, address.certfile)
            forecaster.start()
            try:
                yield RunningService(control_plane, listening, admin, agent)
            finally:
                forecaster.stop()


@contextmanager
def _served(app: Starlette, address: Address) -> Iterator[Listening]:
    """Run the HTTP server in a thread while the context is open; raises where it cannot listen."""
    ready: list[Listening] = []
    failed: list[BaseException] = []
    decided = threading.Event()

    def listening(at: Listening) -> None:
        ready.append(at)
        decided.set()

    def run() -> None:
        try:
            serve(
                app,
                host=address.host,
                port=address.port,
                certfile=address.certfile,
                keyfile=address.keyfile,
                listening=listening,
            )
        except BaseException as error:
            failed.append(error)
        finally:
            decided.set()

    thread = threading.Thread(target=run, name="http", daemon=True)
    thread.start()
    decided.wait()
    if not ready:
        raise failed[0]
    try:
        yield ready[0]
    finally:
        ready[0].stop()
        thread.join()


def _tokens(home: Path) -> Tokens:
    path = home / "tokens.sqlite"
    return Tokens.open(path) if path.exists() else Tokens.begin(path)


def _secret(path: Path, tokens: Tokens, new: NewToken) -> str:
    """Return the secret of a token that every cluster has, from its file; create it if the file has no valid one."""
    if path.exists():
        secret = path.read_text().strip()
        if tokens.holder(secret) is not None:
            return secret
    if any(row.name == new.name for row in tokens.rows()):
        # The secret of an existing token is lost: create another. Write access to this folder is access to the cluster.
        new = NewToken(f"{new.name}-{os.urandom(3).hex()}", new.role)
    created = tokens.create(new).secret
    assert created is not None
    replace_file(path, f"{created}\n".encode(), mode=0o600)
    return created


def _write_client_file(home: Path, url: str, token: str, cafile: str | None) -> None:
    client = {"server": url, "token": token, "cafile": None if cafile is None else str(Path(cafile).resolve())}
    replace_file(home / "client.json", f"{json.dumps(client)}\n".encode(), mode=0o600)
