"""Node agents as child processes on this machine, one per node, restarted when they die."""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.core.topology import Node

log = logging.getLogger("shoal.provider.local")

_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0


@dataclass(slots=True)
class _LocalAgent:
    """The agent process of one node; pauses between restarts double up to 30 s."""

    arguments: Sequence[str]
    token: str
    log_file: Path
    process: "subprocess.Popen[bytes] | None" = None
    restart_at: float = 0.0
    pause: float = _FIRST_PAUSE_SECONDS

    def ensure_running(self) -> None:
        """Start the process if it does not run and its pause is over."""
        if self.running:
            return
        now = time.monotonic()
        if self.process is not None:
            log.warning("agent died", extra={"status": self.process.returncode, "log": str(self.log_file)})
            self.process, self.restart_at = None, now + self.pause
            self.pause = min(2 * self.pause, _LONGEST_PAUSE_SECONDS)
        if now >= self.restart_at:
            self.log_file.parent.mkdir(parents=True, exist_ok=True)
            with self.log_file.open("ab") as out:
                # A session of its own: this process passes Ctrl-C on, once.
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "shoal.agent", *self.arguments, "--parent", str(os.getpid())],
                    env={**os.environ, "SHOAL_TOKEN": self.token},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )

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
        token: str,
        nodes: Sequence[Node],
        home: Path,
        *,
        roots: Sequence[str] = (),
        cafile: str | None = None,
    ) -> "LocalNodes":
        """Return an object with one agent per node, not started yet; device numbers continue from node to node.

        ``url`` and ``token`` are the control plane's and an agent's; files go under ``home``. Jobs may work in the
        folders ``roots``.
        """
        agents, first_device = [], 0
        for node in nodes:
            arguments = ["--server", url, "--node", node.name, "--kind", node.kind]
            arguments += ["--gpus", str(node.gpus), "--first-device", str(first_device), "--home", str(home)]
            arguments += [word for root in roots for word in ("--root", root)]
            arguments += ["--cafile", cafile] if cafile is not None else []
            agents.append(_LocalAgent(arguments, token, home / "nodes" / node.name / "agent.log"))
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
