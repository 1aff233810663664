"""Commands that a keeper starts inside its run while the ranks run; they end with the run at the latest.

Keepers import this module, so it imports the standard library only.
"""

import json
import os
import select
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from shoal.agent.run_process import become_process

_HANGUP_SECONDS = 2.0
"""Seconds between the hang-up signal to a session that is closed and the kill."""

_START_SECONDS = 5.0
_MOST_FDS = 4


class KeeperChannel:
    """The socket between a keeper and its agent: lines, and with some of them open files, in order."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self.files: list[int] = []
        """Files received and not taken yet."""

    def read(self) -> bytes:
        """Return the next piece of the input; empty if the agent has died."""
        try:
            piece, files, _, _ = socket.recv_fds(self._socket, 65536, _MOST_FDS, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            return b""
        self.files += files
        return piece

    def take(self, count: int) -> list[int]:
        """Return the next files; the caller closes them."""
        taken, self.files = self.files[:count], self.files[count:]
        return taken


class KeeperSessions:
    """The sessions of one run, by process number."""

    def __init__(self, run: Mapping[str, Any]) -> None:
        self._run = run
        self._open: dict[int, str] = {}
        self._kill_at: dict[int, float] = {}

    def __contains__(self, pid: object) -> bool:
        """Return whether this is the process of a session."""
        return pid in self._open

    def start(self, files: list[int]) -> tuple[str, str]:
        """Start a command; return the session and the problem, if there is one.

        The first file holds the session, its rank, the command and variables beside those of the rank; one more is the
        command's terminal, three are its standard streams. All are closed here.
        """
        try:
            with os.fdopen(os.dup(files[0]), "rb") as order:
                order.seek(0)
                process = json.load(order)
            own = next(rank["env"] for rank in self._run["ranks"] if rank["rank"] == process["rank"])
            pid, problem = self._spawn({**process, "env": {**own, **process["env"]}}, files[1:])
            if not problem:
                self._open[pid] = process["session"]
            return process["session"], problem
        finally:
            for file in files:
                os.close(file)

    def _spawn(self, process: Mapping[str, Any], files: list[int]) -> tuple[int, str]:
        problems, report_problem = os.pipe()
        keeper, terminal = os.getpid(), len(files) == 1
        try:
            pid = os.fork()
        except OSError as error:
            os.close(report_problem)
            os.close(problems)
            return 0, f"cannot start a process: {error.strerror}"
        if pid == 0:
            given, out, err = files * 3 if terminal else files
            become_process(self._run, process, (given, out, err), keeper, report_problem, terminal=terminal)
        os.close(report_problem)
        try:
            ready, _, _ = select.select([problems], [], [], _START_SECONDS)
            problem = os.read(problems, 65536).decode() if ready else "the program was not started in time"
        finally:
            os.close(problems)
        if problem:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pid, problem

    def ended(self, pid: int) -> str:
        """Forget the session whose command was this process, and return it; empty if it was no session's."""
        self._kill_at.pop(pid, None)
        return self._open.pop(pid, "")

    def hang_up(self, session: str, now: float) -> None:
        """Send the hang-up signal to a session that its owner has left; processes that remain are killed later."""
        for pid, name in self._open.items():
            if name == session and pid not in self._kill_at:
                self._kill_at[pid] = now + _HANGUP_SECONDS
                for number in (signal.SIGHUP, signal.SIGCONT):
                    with suppress(ProcessLookupError, PermissionError):
                        os.killpg(pid, number)

    def due(self, now: float) -> list[int]:
        """Return the processes to kill, with their descendants, each once."""
        late = [pid for pid, at in self._kill_at.items() if now >= at]
        for pid in late:
            del self._kill_at[pid]
        return late

    @property
    def next_kill(self) -> float:
        """The monotonic time, in seconds, of the next kill; infinity if none is planned."""
        return min(self._kill_at.values(), default=float("inf"))
