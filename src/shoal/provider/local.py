"""Node agents as child processes on this machine, one per node, restarted when they die."""

import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from shoal.core.topology import Node

log = logging.getLogger("shoal.provider.local")

LOG_BYTES = 16 * 2**20
"""Length of a local agent's own log after which it is copied to a second file and begun anew."""

_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0
_STABLE_SECONDS = 60.0
"""Seconds after which an agent counts as having run well."""


@dataclass(slots=True)
class _LocalAgent:
    """The agent process of one node.

    Pauses between restarts double up to 30 s; an agent that has run for a minute starts again after the shortest.
    """

    arguments: Sequence[str]
    token: Callable[[], str]
    log_file: Path
    clock: Callable[[], float] = time.monotonic
    process: "subprocess.Popen[bytes] | None" = None
    started_at: float = 0.0
    restart_at: float = 0.0
    pause: float = _FIRST_PAUSE_SECONDS

    def ensure_running(self) -> None:
        """Start the process if it does not run and its pause is over; keep its log short."""
        with suppress(OSError):
            if self.log_file.stat().st_size > LOG_BYTES:
                shutil.copyfile(self.log_file, f"{self.log_file}.1")
                os.truncate(self.log_file, 0)  # the process appends to it
        if self.running:
            return
        now = self.clock()
        if self.process is not None:
            if now - self.started_at >= _STABLE_SECONDS:
                self.pause = _FIRST_PAUSE_SECONDS
            log.warning("agent died", extra={"status": self.process.returncode, "log": str(self.log_file)})
            self.process, self.restart_at = None, now + self.pause
            self.pause = min(2 * self.pause, _LONGEST_PAUSE_SECONDS)
        if now >= self.restart_at:
            try:
                self._start(now)
            except OSError as error:  # a full disk, or too many processes
                log.warning("agent not started", extra={"error": str(error)})
                self.restart_at = now + self.pause

    def _start(self, now: float) -> None:
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        self.started_at = now
        with self.log_file.open("ab") as out:
            # A session of its own: this process passes Ctrl-C on, once.
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "shoal.agent", *self.arguments),
                    *("--token-fd", "0", "--parent", str(os.getpid())),
                ],
                env={name: value for name, value in os.environ.items() if name != "SHOAL_TOKEN"},
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        assert self.process.stdin is not None
        with suppress(BrokenPipeError), self.process.stdin as pipe:
            pipe.write(f"{self.token()}\n".encode())

    def terminate(self) -> None:
        """Send SIGTERM: the first makes the agent warn its jobs and wait for their grace, the second kill them."""
        if self.process is not None and self.running:
            self.process.terminate()

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self.process is not None and self.process.poll() is None


@dataclass(slots=True)
class LocalNodes:
    """The agents of a cluster's nodes on this machine.

    Call ``ensure_running`` from the thread that created this object only: agents end when the thread that started them
    does.
    """

    agents: list[_LocalAgent]

    @classmethod
    def of(
        cls,
        url: str,
        token: Callable[[str], str],
        nodes: Sequence[Node],
        home: Path,
        *,
        roots: Sequence[str] = (),
        log_bytes: int | None = None,
        cafile: str | None = None,
        tenant_users: str = "off",
        clock: Callable[[], float] = time.monotonic,
    ) -> "LocalNodes":
        """Return an object with one agent per node, not started yet; device numbers continue from node to node.

        ``url`` is the control plane's; ``token`` returns the token of a node's agent, which gets it over a pipe. Files
        go under ``home``. Jobs may work in the folders ``roots``, as users that ``tenant_users`` says (`choose_users`).
        Of a rank's log at most ``log_bytes`` are kept.
        """
        agents, first_device = [], 0
        for node in nodes:
            arguments = ["--server", url, "--node", node.name, "--kind", node.kind]
            arguments += ["--gpus", str(node.gpus), "--first-device", str(first_device), "--home", str(home)]
            arguments += [word for root in roots for word in ("--root", root)]
            arguments += ["--log-bytes", str(log_bytes)] if log_bytes is not None else []
            arguments += ["--cafile", cafile] if cafile is not None else []
            arguments += ["--tenant-users", tenant_users]
            log_file = home / "nodes" / node.name / "agent.log"
            agents.append(_LocalAgent(arguments, partial(token, node.name), log_file, clock))
            first_device += node.gpus
        return cls(agents)

    def ensure_running(self) -> None:
        """Start the agents that do not run."""
        for agent in self.agents:
            agent.ensure_running()

    def stop(self, impatient: Callable[[], bool]) -> None:
        """Terminate all agents and wait until they have ended.

        ``impatient`` is polled meanwhile and should block briefly; each time it returns True the agents are terminated
        again, which kills their jobs.
        """
        for agent in self.agents:
            agent.terminate()
        while any(agent.running for agent in self.agents):
            if impatient():
                for agent in self.agents:
                    agent.terminate()
