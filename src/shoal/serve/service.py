"""A control plane that answers: the plane behind HTTP, its tokens, its forecasts, and on one machine its agents too."""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from shoal import __version__
from shoal.core.errors import InputError, ShoalError
from shoal.core.units import TenantId
from shoal.live.control_plane import ControlPlane
from shoal.live.home import JOURNAL, Settings, open_control_plane
from shoal.serve.app import make_app
from shoal.serve.server import Listening, serve
from shoal.serve.tokens import Tokens
from shoal.wire.files import replace_file
from shoal.wire.messages import NewToken, StartForecast, WhatIf

log = logging.getLogger("shoal.serve.service")

_ASKED_SECONDS = 30.0
_FORECAST_SECONDS = 5.0
_FORECAST_PART = 0.1
"""Forecasts are made while somebody looks at the queue, at most this often, and for this part of the time."""

_QUESTION_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen: loopback unless told otherwise; with a certificate and its key, over TLS."""

    host: str = "127.0.0.1"
    port: int = 0
    certfile: str | None = None
    keyfile: str | None = None


@dataclass(slots=True)
class RunningService:
    """A control plane that takes connections, until the context it came from is left."""

    plane: ControlPlane
    listening: Listening
    admin_token: str
    agent_token: str


@contextmanager
def run_service(settings: Settings, address: Address) -> Iterator[RunningService]:
    """Open the plane, its tokens and its door. ``client.json`` in the home is what the command line reads."""
    with open_control_plane(settings) as plane:
        tokens = _tokens(settings.home)
        oracle = _Forecaster(plane, settings.home / JOURNAL)
        app = make_app(plane, tokens, what_if=oracle.answer, version=__version__)
        admin, agent = _secrets(settings.home, tokens)
        ready: list[Listening] = []
        failed: list[BaseException] = []
        up = threading.Event()

        def listening(at: Listening) -> None:
            ready.append(at)
            up.set()

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
                up.set()

        thread = threading.Thread(target=run, name="http", daemon=True)
        thread.start()
        up.wait()
        if not ready:
            tokens.close()
            raise failed[0]
        _leave_for_clients(settings.home, ready[0].url, admin, address.certfile)
        oracle.start()
        try:
            yield RunningService(plane, ready[0], admin, agent)
        finally:
            oracle.stop()
            ready[0].stop()
            thread.join()
            tokens.close()


def _tokens(home: Path) -> Tokens:
    path = home / "tokens.sqlite"
    return Tokens.open(path) if path.exists() else Tokens.begin(path)


def _secrets(home: Path, tokens: Tokens) -> tuple[str, str]:
    """The secrets of the tokens a cluster has from the start, kept in files that only its owner may read."""
    return _secret(home / "admin.token", tokens, NewToken("admin", "admin")), _secret(
        home / "agent.token", tokens, NewToken("agents", "agent")
    )


def _secret(path: Path, tokens: Tokens, new: NewToken) -> str:
    if path.exists():
        secret = path.read_text().strip()
        if tokens.holder(secret) is not None:
            return secret
    if any(row.name == new.name for row in tokens.rows()):
        # Its secret is gone from the file, or was never ours: whoever can write here is the owner, and gets a new one.
        other = tokens.create(NewToken(f"{new.name}-{os.urandom(3).hex()}", new.role)).secret
    else:
        other = tokens.create(new).secret
    assert other is not None
    replace_file(path, f"{other}\n".encode(), mode=0o600)
    return other


def _leave_for_clients(home: Path, url: str, token: str, cafile: str | None) -> None:
    told = {"server": url, "token": token, "cafile": None if cafile is None else str(Path(cafile).resolve())}
    replace_file(home / "client.json", f"{json.dumps(told)}\n".encode(), mode=0o600)


@dataclass(slots=True)
class _Forecaster:
    """Runs the live state on in the simulator, in a process of its own so that deciding never waits for it."""

    plane: ControlPlane
    journal: Path
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to make forecasts while somebody looks at the queue."""
        self._thread = threading.Thread(target=self._foretell, name="forecasts", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Make no more of them."""
        self._ended.set()

    def answer(self, question: WhatIf, tenant: TenantId | None) -> Any:
        """What would become of the live jobs; of others than the tenant's own only sums are told."""
        asked = {"question": msgspec.to_builtins(question), "tenant": tenant}
        return self._ask(asked)

    def _foretell(self) -> None:
        pause, seen = _FORECAST_SECONDS, (-1, -1.0)
        while not self._ended.wait(pause):
            pause = 0.5
            if time.monotonic() - self.plane.jobs_read_at >= _ASKED_SECONDS:
                continue
            state = (self.plane.scheduler.state.cycle, round(self.plane.jobs_read_at))
            if state == seen or not self.plane.waiting:
                continue
            seen, begin = state, time.monotonic()
            try:
                found = self._ask({"forecast": True})
                self.plane.forecasts = msgspec.convert(found, dict[str, StartForecast])
            except (ShoalError, msgspec.ValidationError, OSError) as error:
                log.warning("no forecast", extra={"error": str(error)})
            pause = max(_FORECAST_SECONDS, (time.monotonic() - begin) / _FORECAST_PART)

    def _ask(self, question: dict[str, Any]) -> Any:
        now = self.plane.backend.clock.now()
        asked = json.dumps({**question, "journal": str(self.journal), "now": now})
        try:
            done = subprocess.run(
                [sys.executable, "-m", "shoal.forecast.what_if"],
                input=asked,
                capture_output=True,
                text=True,
                timeout=_QUESTION_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise InputError("question", "…", f"took longer than {_QUESTION_SECONDS:.0f} s: ask less") from error
        answer = json.loads(done.stdout) if done.stdout else {"error": ["simulation", None, done.stderr[-500:]]}
        if "error" in answer:
            raise InputError(*answer["error"])
        return answer["answer"]


# ── agents on this machine ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _LocalNode:
    """An agent as a child of this process, started again if it dies."""

    arguments: Sequence[str]
    token: str
    log: Path
    process: "subprocess.Popen[bytes] | None" = None
    again_at: float = 0.0
    pause: float = 0.5

    def tend(self) -> None:
        """Start it, if it is not there and it is time."""
        if self.process is not None and self.process.poll() is None:
            return
        now = time.monotonic()
        if self.process is not None:
            log.warning("agent died", extra={"status": self.process.returncode, "log": str(self.log)})
            self.process, self.again_at = None, now + self.pause
            self.pause = min(2 * self.pause, 30.0)
        if now >= self.again_at:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("ab") as out:
                # A session of its own: Ctrl-C in a terminal is this process's to pass on, once.
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "shoal.agent", *self.arguments, "--parent", str(os.getpid())],
                    env={**os.environ, "SHOAL_TOKEN": self.token},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )

    def ask_to_end(self) -> None:
        """Told once, it warns its jobs and gives them their grace; told twice, it kills them."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    @property
    def ended(self) -> bool:
        """Whether it is gone."""
        return self.process is None or self.process.poll() is not None


@dataclass(slots=True)
class LocalNodes:
    """The agents of every node of a cluster, on this machine. Only the thread that made it may tend it: agents end
    when the thread that started them does."""

    nodes: list[_LocalNode]

    @classmethod
    def of(cls, made: RunningService, settings: Settings, cafile: str | None) -> "LocalNodes":
        """One agent for each node of the settings, with devices counted through all of them."""
        nodes, first = [], 0
        for node in settings.scenario.cluster.nodes:
            arguments = ["--server", made.listening.url, "--node", node.name, "--kind", node.kind]
            arguments += ["--gpus", str(node.gpus), "--first-device", str(first), "--home", str(settings.home)]
            arguments += [word for root in settings.roots for word in ("--root", root)]
            arguments += ["--cafile", cafile] if cafile is not None else []
            log_file = settings.home / "nodes" / node.name / "agent.log"
            nodes.append(_LocalNode(arguments, made.agent_token, log_file))
            first += node.gpus
        return cls(nodes)

    def tend(self) -> None:
        """Start whichever is not there."""
        for node in self.nodes:
            node.tend()

    def end(self, wait: Callable[[], bool]) -> None:
        """Ask all to end and wait until they have; whenever ``wait`` says so, ask again, which is impatient."""
        for node in self.nodes:
            node.ask_to_end()
        while not all(node.ended for node in self.nodes):
            if wait():
                for node in self.nodes:
                    node.ask_to_end()
