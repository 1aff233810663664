"""A keeper process, as its agent controls it. No method waits for a keeper that is still running."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any, Literal

import msgspec

from shoal.agent import keeper

_KEEPER = str(Path(keeper.__file__).resolve())

_OVERDUE_SECONDS = 5.0
"""Seconds after its ranks should have ended at which a keeper counts as hanging, and is killed."""


class KeeperMessage(msgspec.Struct, frozen=True):
    """A line of a keeper's output."""

    event: Literal["started", "failed", "ended", "cleared", "over"]
    pids: dict[str, int] = {}
    rank: int = 0
    status: int = 0
    warned: bool = False
    cause: str = ""
    why: str = ""


class KeeperHandle:
    """A keeper process. It starts no rank before ``begin`` sends its input."""

    def __init__(self, lease: float, grace: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-X", "utf8", _KEEPER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
            cwd="/",
            start_new_session=True,
        )
        self._lease, self._grace = lease, grace
        self._stop_by = inf
        self._unread = b""
        self.cause = ""
        """Why the keeper could not start the ranks, or could not go on."""
        self.last: KeeperMessage | None = None
        """Its message that no process is left."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._out, False)

    @property
    def pid(self) -> int:
        """The keeper's process number."""
        return self._process.pid

    @property
    def start_time(self) -> int:
        """The keeper's start time as /proc counts it; 0 if it is already gone."""
        process = keeper.find_process(self._process.pid)
        return process.start if process else 0

    def fileno(self) -> int:
        """Return the file descriptor of the keeper's output."""
        return self._out

    @property
    def deadline(self) -> float:
        """Monotonic time at which the keeper must have ended by itself."""
        return min(self._stop_by, self._lease + self._grace) + _OVERDUE_SECONDS

    def begin(self, run: dict[str, Any]) -> None:
        """Send the keeper its input: the ranks to start."""
        with suppress(BrokenPipeError):
            line = memoryview(msgspec.json.encode(run) + b"\n")
            while line:
                line = line[os.write(self._in, line) :]
        # From here on a keeper that does not read must not block the agent.
        os.set_blocking(self._in, False)

    def renew(self, lease: float) -> None:
        """Prolong the lease to this monotonic time."""
        self._lease = max(self._lease, lease)
        self._send(f"lease {lease!r}\n")

    def stop(self, grace: float) -> None:
        """Order the keeper to warn the ranks, and to kill them after ``grace`` seconds."""
        self._stop_by = min(self._stop_by, time.monotonic() + grace)
        self._send(f"stop {grace!r}\n")

    def release(self, rank: int, grace: float) -> None:
        """Order the keeper to kill a rank that should leave by itself, after ``grace`` seconds."""
        self._send(f"release {rank} {grace!r}\n")

    def kill(self) -> None:
        """Kill the keeper: its ranks die with it, and processes they started become children of the agent."""
        self._stop_by = self._lease = inf
        self._process.kill()

    def read(self) -> tuple[list[KeeperMessage], list[str], bool]:
        """Return new messages, lines that are not messages (a traceback), and whether the output is closed."""
        try:
            piece = os.read(self._out, 65536)
        except BlockingIOError:
            return [], [], False
        *lines, self._unread = (self._unread + piece).split(b"\n")
        messages, other = [], []
        for line in lines:
            try:
                messages.append(msgspec.json.decode(line, type=KeeperMessage))
            except msgspec.DecodeError:
                other.append(line.decode(errors="replace"))
        return messages, other, not piece

    def close(self) -> int:
        """Wait for the keeper, which has closed its output, and return its exit status."""
        status = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._in = -1
        return status

    def _send(self, line: str) -> None:
        # The pipe of a keeper that hangs is full, that of a dead one is broken: both are noticed elsewhere.
        with suppress(OSError):
            os.write(self._in, line.encode())
