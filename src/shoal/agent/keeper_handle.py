"""One keeper, as its agent holds it: what it says, and what it is told. Nothing here ever waits for a keeper."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from shoal.agent import keeper
from shoal.agent.keeper import look

_KEEPER = str(Path(keeper.__file__).resolve())

_OVERDUE_SECONDS = 5.0
"""A keeper that has not ended its ranks so long after it should have hangs, and is killed itself."""


class KeeperMessage(msgspec.Struct, frozen=True):
    """A line from a keeper."""

    event: Literal["started", "failed", "ended", "cleared", "over"]
    pids: dict[str, int] = {}
    rank: int = 0
    status: int = 0
    warned: bool = False
    cause: str = ""
    why: str = ""


class KeeperHandle:
    """A keeper that runs, but has not been told yet what to start."""

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
        self._stop_by = float("inf")
        self._heard = b""
        self.cause = ""
        """Why the keeper could not start the ranks, once it has said so."""
        self.last: KeeperMessage | None = None
        """What it said when all was over."""
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
        """The keeper's start time, as /proc counts it; 0 where it is gone already."""
        process = look(self._process.pid)
        return process.start if process else 0

    def fileno(self) -> int:
        """Where its lines come from."""
        return self._out

    @property
    def due(self) -> float:
        """When, on the monotonic clock, the keeper must have ended by itself."""
        return min(self._stop_by, self._lease + self._grace) + _OVERDUE_SECONDS

    def begin(self, what: dict[str, Any]) -> None:
        """Tell it what to start."""
        with suppress(BrokenPipeError):
            line = memoryview(msgspec.json.encode(what) + b"\n")
            while line:
                line = line[os.write(self._in, line) :]
        # From here on a keeper that does not listen must not hold up the agent.
        os.set_blocking(self._in, False)

    def renew(self, lease: float) -> None:
        """The lease now ends then."""
        self._lease = max(self._lease, lease)
        self._tell(f"lease {lease!r}\n")

    def stop(self, grace: float) -> None:
        """Warn the ranks, and kill what is left of them after ``grace`` seconds."""
        self._stop_by = min(self._stop_by, time.monotonic() + grace)
        self._tell(f"stop {grace!r}\n")

    def release(self, rank: int, grace: float) -> None:
        """A rank is to leave by itself; kill it if it has not after ``grace`` seconds."""
        self._tell(f"release {rank} {grace!r}\n")

    def kill(self) -> None:
        """Kill the keeper itself; its ranks die with it, what they started becomes the agent's to kill."""
        self._stop_by = self._lease = float("inf")
        self._process.kill()

    def hear(self) -> tuple[list[KeeperMessage], list[str], bool]:
        """What it has said since, what was not a message (a traceback), and whether it has closed its end."""
        try:
            piece = os.read(self._out, 65536)
        except BlockingIOError:
            return [], [], False
        *lines, self._heard = (self._heard + piece).split(b"\n")
        said, noise = [], []
        for line in lines:
            try:
                said.append(msgspec.json.decode(line, type=KeeperMessage))
            except msgspec.DecodeError:
                noise.append(line.decode(errors="replace"))
        return said, noise, not piece

    def close(self) -> int:
        """Wait for the keeper, which has closed its end; its exit status."""
        status = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._in = -1
        return status

    def _tell(self, line: str) -> None:
        # The pipe of a keeper that hangs is full, that of one which is gone is broken; both are noticed elsewhere.
        with suppress(OSError):
            os.write(self._in, line.encode())
