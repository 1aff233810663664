"""A live cluster as real processes that can be killed: `shoal serve`, and an agent for each node behind a cable."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e.cable import Cable

from shoal.agent.processes import all_processes, environment, find_process
from shoal.agent.workspace import Workspace
from shoal.wire.client import Client

DEADLINE_SECONDS = 90.0
"""How long anything may take on a busy machine before it counts as never; nothing passes by waiting for it."""


class Line(NamedTuple):
    """What one rank of a job wrote down: what it did, and when on the monotonic clock."""

    incarnation: int
    rank: int
    world: int
    what: str
    at: float
    pid: int


def until(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of a condition."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"never came true: {what}")
        time.sleep(0.05)
    return value


class Site:
    """A control plane that keeps its port and its home, and its agents. Only the thread that made it may start agents,
    since they end with the thread that started them."""

    def __init__(self, folder: Path, cluster: tuple[int, int], options: Sequence[str] = ()) -> None:
        self.folder, self.home = folder, folder / "home"
        self._nodes, self._gpus = cluster
        self._port = _free_port()
        self._options = options
        self._plane: subprocess.Popen[bytes] | None = None
        self._agents: dict[int, subprocess.Popen[bytes]] = {}
        self.cables = [Cable(self._port) for _ in range(self._nodes)]
        self.door = Cable(self._port)
        """The way people take to the control plane."""
        self.start_plane()
        self.client = Client(self.door.url, self._token("admin.token"), timeout=3.0)
        for node in range(self._nodes):
            self.start_agent(node)

    # ── starting and ending ───────────────────────────────────────────────────────────────────────────────────

    def start_plane(self) -> None:
        """Start the control plane, if there is none; it takes up its journal."""
        if self._plane is None:
            shape = f"gpu:{self._nodes}x{self._gpus}"
            where = ["--home", str(self.home), "--port", str(self._port)]
            self._plane = self._start("plane", ["shoal", "serve", "--cluster", shape, *where, *self._options])

    def strike_plane(self) -> None:
        """SIGKILL it, from any thread; ``kill_plane`` is to follow."""
        if self._plane is not None:
            self._plane.kill()

    def kill_plane(self) -> None:
        """SIGKILL it."""
        if self._plane is not None:
            self._plane.kill()
            self._plane.wait()
            self._plane = None

    def start_agent(self, node: int) -> None:
        """Start a node's agent, if it has none."""
        if node not in self._agents:
            who = ["--node", f"gpu-{node}", "--kind", "gpu", "--gpus", str(self._gpus), "--parent", str(os.getpid())]
            where = ["--server", self.cables[node].url, "--home", str(self.home)]
            self._token(token := f"agents/gpu-{node}.token")
            where += ["--token-file", str(self.home / token)]
            self._agents[node] = self._start(f"agent-{node}", ["shoal.agent", *who, *where])

    def kill_agent(self, node: int) -> None:
        """SIGKILL it."""
        agent = self._agents.pop(node, None)
        if agent is not None:
            agent.kill()
            agent.wait()

    def signal_agent(self, node: int, number: int) -> None:
        """Send a node's agent a signal, if it has one."""
        if node in self._agents:
            self._agents[node].send_signal(number)

    def mend(self) -> None:
        """Everything that should be there, is."""
        self.start_plane()
        for node, cable in enumerate(self.cables):
            self.signal_agent(node, signal.SIGCONT)
            self.start_agent(node)
            cable.mend()
        self.door.mend()

    def close(self) -> list[int]:
        """End everything in good order; the exit statuses, the control plane's last."""
        statuses = []
        self.client.close()
        for together in ([*self._agents.values()], [self._plane] if self._plane is not None else []):
            for process in together:
                process.terminate()
            for process in together:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(DEADLINE_SECONDS)
                process.kill()
                statuses.append(process.wait())
        for cable in (*self.cables, self.door):
            cable.close()
        return statuses

    def _start(self, name: str, module: list[str]) -> "subprocess.Popen[bytes]":
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *module],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _token(self, name: str) -> str:
        path = self.home / name
        until(lambda: path.exists() and path.read_text().strip(), f"{path} is written")
        return path.read_text().strip()

    # ── what is there ─────────────────────────────────────────────────────────────────────────────────────────

    def failed(self) -> list[str]:
        """Processes that ended though nobody killed them."""
        named = {"plane": self._plane, **{f"agent-{node}": agent for node, agent in self._agents.items()}}
        return [f"{name} ended with status {p.returncode}" for name, p in named.items() if p and p.poll() is not None]

    def ranks(self) -> list[int]:
        """The processes of jobs of this cluster, by what their environment says."""
        jobs = str(self.home / "jobs") + "/"
        living = [process.pid for process in all_processes() if process.state != "Z"]
        return [pid for pid in living if environment(pid).get("SHOAL_DIR", "").startswith(jobs)]

    def keepers(self, node: int) -> list[int]:
        """The processes that keep the ranks of a node."""
        records = [record for _, record in Workspace(self.home, f"gpu-{node}").records() if record is not None]
        found = [(record, find_process(record.pid)) for record in records]
        servers = {record.pid for record, process in found if process is not None and process.start == record.start}
        return [process.pid for process in all_processes() if process.parent in servers and process.state != "Z"]

    def runs(self) -> list[str]:
        """What agents still keep of runs."""
        return [str(path) for node in range(self._nodes) for path, _ in Workspace(self.home, f"gpu-{node}").records()]

    def story(self, job: str) -> list[Line]:
        """What the ranks of a job wrote down, in order."""
        path = self.home / "jobs" / job / "story"
        return [Line(*json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def _free_port() -> int:
    """A port nobody has, from below those the kernel gives to those who call: while the control plane is away, nobody
    who calls it may get its own port and find himself there."""
    chance = random.Random(os.getpid() ^ time.monotonic_ns())
    while True:
        port = chance.randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
