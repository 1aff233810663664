"""A running control plane: the loop, its HTTP server in a thread, its tokens and its forecasts."""

import json
import os
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from starlette.applications import Starlette

from shoal import __version__
from shoal.live.code_store import CodeStore
from shoal.live.control_plane import ControlPlane
from shoal.live.home import JOURNAL, Settings, open_control_plane
from shoal.serve.allocation_tokens import allocation_token
from shoal.serve.app import make_app
from shoal.serve.forecaster import Forecaster
from shoal.serve.garbage import no_collections, short_collections
from shoal.serve.hosts import own_hosts
from shoal.serve.notices import EndWatcher, NoticeSender
from shoal.serve.server import Listening, serve
from shoal.serve.token_socket import offer_token
from shoal.serve.tokens import Tokens
from shoal.serve.traces import traces_of
from shoal.wire.files import replace_file
from shoal.wire.messages import NewToken

_SWITCH_SECONDS = 0.0005
"""Time after which a thread lets another run Python: the ring waits this long for each reader, not Python's 5 ms."""

_RENEW_SECONDS = 40 * 86400.0
"""Seconds before its expiry at which a start replaces a token in a file; the old one stays valid until then."""


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
    """A control plane that accepts connections until its context is left.

    ``agent_token`` returns the secret of a node's token, ``run_token`` that of an allocation for one run. Call
    ``renew_tokens`` at least once an hour.
    """

    control_plane: ControlPlane
    listening: Listening
    admin_token: str
    agent_token: Callable[[str], str]
    renew_tokens: Callable[[], None]
    run_token: Callable[[str], str]


@contextmanager
def run_service(settings: Settings, address: Address, *, embedded: bool = False) -> Iterator[RunningService]:
    """Open the control plane in ``settings.home`` and serve it; writes ``client.json`` there for the command line.

    Where the agents of all nodes are ``embedded``, i.e. started by this process, tokens are in no file: the command
    line gets the admin's over a socket that jobs cannot use. Otherwise the files ``admin.token`` and
    ``agents/NODE.token`` hold them, readable by their owner.
    """
    home = settings.home
    sys.setswitchinterval(_SWITCH_SECONDS)
    with ExitStack() as opened:
        opened.enter_context(short_collections())
        with no_collections():
            control_plane = opened.enter_context(open_control_plane(settings))
        tokens = opened.enter_context(closing(_tokens(home)))
        tokens.allocation_key = control_plane.backend.store_key
        forecaster = Forecaster(control_plane, home / JOURNAL)
        code = CodeStore(home / "code", control_plane.accounts.code_in_use, control_plane.backend.owner_of_code)
        hosts = own_hosts(address.host, address.names)
        files = (lambda _: None) if embedded else partial(_agent_token_file, home, tokens)
        traces = traces_of(os.environ)
        if traces is not None:
            control_plane.accounts.decisions.watch = traces.decision
            traces.start()
            opened.callback(traces.stop)
        app = make_app(
            control_plane, tokens, what_if=forecaster.answer, decide_again=forecaster.decision, version=__version__,
            hosts=hosts, code=code, node_token_file=files, traces=traces,
        )  # fmt: skip
        listening = opened.enter_context(_served(app, address))
        if embedded:
            _remove_token_files(home, tokens)
            admin, agent = tokens.lend("admin", "admin"), partial(_lend, tokens)
            stored = {"token": None, "socket": opened.enter_context(offer_token(admin))}
        else:
            admin = _secret(home / "admin.token", tokens, NewToken("admin", "admin"))
            agent = partial(_agent_secret, home, tokens)
            with tokens.together():
                for node in control_plane.members.present.nodes:
                    agent(node.name)
            stored = {"token": admin}
        _write_client_file(home, {"server": listening.url, **stored}, address.certfile)
        if settings.notices.allowed:
            opened.enter_context(_notices(control_plane, settings.notices.smtp))
        forecaster.start()
        opened.callback(forecaster.stop)
        app.state.usage.start()
        opened.callback(app.state.usage.stop)
        run_token = partial(allocation_token, tokens.allocation_key)
        yield RunningService(control_plane, listening, admin, agent, tokens.renew_lent, run_token)


@contextmanager
def _notices(control_plane: ControlPlane, smtp: str) -> Iterator[None]:
    """Send notices of the ends of jobs while the context is open."""
    sender = NoticeSender(smtp)
    watcher = EndWatcher(control_plane.accounts, control_plane.compaction.lock, control_plane.about.epoch, sender.send)
    control_plane.listen(watcher.wake)
    sender.start()
    watcher.start()
    try:
        yield
    finally:
        watcher.stop()
        sender.stop()


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
    if path.exists():
        return Tokens.open(path)
    try:
        return Tokens.begin(path)
    except sqlite3.Error:
        path.unlink(missing_ok=True)  # half written, it could not be opened again
        raise


def _secret(path: Path, tokens: Tokens, new: NewToken) -> str:
    """Return the secret of a standard token, from its file; create it if the file has no valid one."""
    if path.exists():
        secret = path.read_text().strip()
        holder = tokens.holder(secret)
        if holder is not None and tokens.now() < holder.expires - _RENEW_SECONDS:
            return secret
    if tokens.has(new.name):
        # Its secret is lost, or it expires soon: create another. Write access to this folder is access to the cluster.
        new = NewToken(f"{new.name}-{os.urandom(3).hex()}", new.role, node=new.node)
    created = tokens.create(new).secret
    assert created is not None
    replace_file(path, f"{created}\n".encode(), mode=0o600)
    return created


def _agent_secret(home: Path, tokens: Tokens, node: str) -> str:
    folder = home / "agents"
    folder.mkdir(mode=0o700, exist_ok=True)
    return _secret(folder / f"{node}.token", tokens, NewToken(f"node-{node}"[:64], "agent", node=node))


def _agent_token_file(home: Path, tokens: Tokens, node: str) -> str:
    _agent_secret(home, tokens, node)
    return str(home / "agents" / f"{node}.token")


def _lend(tokens: Tokens, node: str) -> str:
    return tokens.lend(node, "agent", node)


def _remove_token_files(home: Path, tokens: Tokens) -> None:
    """Remove the files in which an earlier control plane of this home left tokens, and revoke those tokens."""
    for path in [home / "admin.token", home / "agent.token", *(home / "agents").glob("*.token")]:
        with suppress(FileNotFoundError):
            holder = tokens.holder(path.read_text().strip())
            if holder is not None:
                tokens.remove(holder.name)
            path.unlink()


def _write_client_file(home: Path, stored: Mapping[str, str | None], cafile: str | None) -> None:
    client = {**stored, "cafile": None if cafile is None else str(Path(cafile).resolve())}
    replace_file(home / "client.json", f"{json.dumps(client)}\n".encode(), mode=0o600)
