"""Keepers and the servers that fork them, as their agent controls them. No method waits for a keeper that runs."""

import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Literal

import msgspec

from shoal.agent import keeper, processes
from shoal.agent.workspace import KeeperRecord
from shoal.wire.messages import RunOrder

_LOG = logging.getLogger("shoal.agent")
_ROOT = str(Path(keeper.__file__).resolve().parents[2])
_SERVER = "import sys; sys.path.append(sys.argv[1]); from shoal.agent.keeper_server import main; sys.exit(main())"

_OVERDUE_SECONDS = 5.0
"""Seconds that a keeper or its server may take for a step that should be immediate."""

_HANGING_SECONDS = 1.0
"""Seconds after its ranks should have ended at which a keeper counts as hanging, and is killed.

Fewer than the margin that the control plane waits after lease and grace before it starts the job elsewhere.
"""


class KeeperMessage(msgspec.Struct, frozen=True):
    """A line of a keeper's output."""

    event: Literal[
        "started", "failed", "ended", "cleared", "over", "suspended", "refused", "resumed", "waiting", "lost", "left"
    ]
    pids: dict[str, int] = {}
    rank: int = 0
    status: int = 0
    warned: bool = False
    cause: str = ""
    why: str = ""
    session: str = ""
    bytes: int = 0
    seconds: float = 0.0

    @property
    def outcome(self) -> tuple[bool, int, float, str]:
        """The result of an order to suspend or resume: whether suspended, bytes, seconds, cause."""
        return self.event in ("suspended", "waiting"), self.bytes, self.seconds, self.cause


class KeeperServerHandle:
    """The process that forks this agent's keepers; started when a keeper is needed and there is none."""

    def __init__(self, boot: str, folder: str = "") -> None:
        self._boot, self._folder = boot, folder
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._start_time = 0
        self._runs = 0
        self.pid: int | None = None
        """The server's process number; None if there is no server."""

    @classmethod
    def taken_over(cls, record: KeeperRecord, connection: socket.socket) -> "KeeperServerHandle":
        """Return the server of an earlier agent, which waited at this connection; it forks no more keepers."""
        server = cls(record.boot)
        server.pid, server._start_time, server._socket = record.pid, record.start, connection
        return server

    def fileno(self) -> int:
        """Return the file descriptor of the server's answers; there must be a server."""
        assert self._socket is not None
        return self._socket.fileno()

    def start(self) -> None:
        """Start the server."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        passed_on = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-X", "utf8", "-c", _SERVER, _ROOT, self._folder],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={**passed_on, "SHOAL_BOOT": self._boot},
                cwd="/",
                start_new_session=True,
            )
        self._socket.setblocking(False)
        found = processes.find_process(self._process.pid)
        self.pid, self._start_time = self._process.pid, 0 if found is None else found.start

    def record(self, machine: str, cgroup: str, order: RunOrder, devices: tuple[int, ...]) -> KeeperRecord:
        """Return the record of the run whose keeper this server forks next; there must be a server."""
        assert self.pid is not None
        number = self._runs + 1
        return KeeperRecord(self.pid, self._start_time, self._boot, machine, cgroup, number, order, devices)

    def fork(self, lease: float, grace: float, cgroup: str) -> tuple[int, socket.socket]:
        """Return the number of a new keeper and the socket to it; ``OSError`` if the server does not take it."""
        assert self._socket is not None
        ours, theirs = socket.socketpair()
        self._runs += 1
        with theirs:
            try:
                packet = os.fsencode(f"fork {self._runs} {lease!r} {grace!r} {cgroup}")
                socket.send_fds(self._socket, [packet], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        return self._runs, ours

    def renew(self, lease: float) -> None:
        """Prolong the lease of all keepers to this monotonic time, as the server enforces it."""
        self._send(f"lease {lease!r}")

    def kill(self, number: int) -> None:
        """Kill a keeper."""
        self._send(f"kill {number}")

    def kill_all(self) -> None:
        """Kill the keeper server, which no longer answers; all its keepers die with it."""
        found = None if self.pid is None else processes.find_process(self.pid)
        if found is not None and found.start == self._start_time:
            processes.send_signal(found, signal.SIGKILL)

    def _send(self, packet: str) -> None:
        # The socket of a server that hangs is full, that of a dead one is broken: both are noticed elsewhere.
        if self._socket is not None:
            with suppress(OSError):
                self._socket.send(packet.encode())

    def read(self) -> list[tuple[int, int]] | None:
        """Return (number, status) of the keepers that died and have no process left; None if the server itself died."""
        assert self._socket is not None
        try:
            packet = self._socket.recv(256)
        except BlockingIOError:
            return []
        except ConnectionResetError:
            return None
        if not packet:
            return None
        _, number, status = packet.split()
        return [(int(number), int(status))]

    def close(self, *, leave: bool = False) -> None:
        """Close the connection and wait for the server to end; with ``leave`` it stays, with the keepers it has."""
        if self._socket is not None:
            self._socket.close()
        if self._process is not None and not leave:
            try:
                self._process.wait(_OVERDUE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = self._socket = self.pid = None


class KeeperHandle:
    """A keeper process. It starts no rank before ``begin`` sends its input."""

    def __init__(
        self,
        server: KeeperServerHandle,
        lease: float,
        grace: float,
        cgroup: str = "",
        taken_over: tuple[int, socket.socket] | None = None,
    ) -> None:
        self._server = server
        self.cgroup = cgroup
        """The folder of the run's cgroup; empty where cgroups cannot be used."""
        self.number, self._socket = taken_over or server.fork(lease, grace, cgroup)
        self._forked_by = server.pid
        self._in = self._out = self._socket.fileno()
        self._lease, self._grace = lease, grace
        self._stop_by = inf
        self._killed = False
        self._unread = b""
        self.cause = ""
        """Why the keeper could not start the ranks, or could not continue."""
        self.blameless = False
        """Whether that is the node's fault."""
        self.last: KeeperMessage | None = None
        """Its message that no process is left."""
        self.left_nothing = False
        """Whether it died and its server reported that no process is left."""

    def fileno(self) -> int:
        """Return the file descriptor of the keeper's output."""
        return self._out

    def forked_by(self, server: KeeperServerHandle) -> bool:
        """Return whether this server forked the keeper."""
        return self._server is server

    @property
    def server_died(self) -> bool:
        """Whether the server that forked it has died, and the keeper with it."""
        return self._server.pid != self._forked_by

    @property
    def deadline(self) -> float:
        """Monotonic time at which the keeper must have ended by itself."""
        return min(self._stop_by, self._lease + self._grace) + _HANGING_SECONDS

    def begin(self, run: dict[str, Any], terminal: int | None = None) -> None:
        """Send the keeper its input: the ranks to start, and the terminal of the first of them, if it has one."""
        self._socket.settimeout(_OVERDUE_SECONDS)
        with suppress(BrokenPipeError, ConnectionResetError, TimeoutError):
            if terminal is not None:
                socket.send_fds(self._socket, [b" "], [terminal])
            self._socket.sendall(msgspec.json.encode(run) + b"\n")
        # From here on a keeper that does not read must not block the agent.
        self._socket.setblocking(False)

    def renew(self, lease: float) -> None:
        """Prolong the lease to this monotonic time."""
        self._lease = max(self._lease, lease)
        self._send(f"lease {lease!r}\n")

    def stop(self, grace: float) -> None:
        """Order the keeper to warn the ranks, and to kill them after ``grace`` seconds."""
        if not self._killed:
            self._stop_by = min(self._stop_by, time.monotonic() + grace)
        self._send(f"stop {grace!r}\n")

    def release(self, rank: int, grace: float) -> None:
        """Order the keeper to kill a rank that should leave by itself, after ``grace`` seconds."""
        self._send(f"release {rank} {grace!r}\n")

    def start_session(self, process: dict[str, Any], files: Sequence[int]) -> None:
        """Order the keeper to start a command on a terminal or on three streams; ``OSError`` if it does not read."""
        order = os.memfd_create("session")
        try:
            os.write(order, msgspec.json.encode(process))
            socket.send_fds(self._socket, [f"exec {1 + len(files)}\n".encode()], [order, *files])
        finally:
            os.close(order)

    def hang_up(self, session: str) -> None:
        """Order the keeper to end the command of a session."""
        with suppress(OSError):  # also from other threads, after it was closed
            self._socket.send(f"hangup {session}\n".encode())

    def suspend(self) -> None:
        """Order the keeper to suspend the ranks."""
        self._send("suspend\n")

    def resume(self) -> None:
        """Order the keeper to resume the suspended ranks."""
        self._send("resume\n")

    def cause_of_end(self, closing: bool, requeued: bool) -> tuple[str, bool]:
        """Return why a run ended, if neither by itself nor by order, and whether the job is blameless."""
        why = "" if self.last is None else self.last.why
        if self.cause:
            return self.cause, self.blameless
        if why in ("", "rank") and requeued:
            return "its batch script asked to be requeued", True
        if why == "lease":
            return "its lease ended: the node had not heard from the control plane for too long", True
        if why == "order" and closing:
            return "its node's agent was stopped", True
        if why not in ("", "rank", "order"):
            return f"its keeper ended it without an order ({why})", True
        return "", False

    def kill(self) -> None:
        """Kill the keeper: its ranks die with it. If it is still alive at the next deadline, kill its server too."""
        if self._killed:
            self._server.kill_all()
            self._stop_by = self._lease = inf
        else:
            self._server.kill(self.number)
            self._killed = True
            self._stop_by = time.monotonic()

    def read(self) -> tuple[list[KeeperMessage], list[str], bool]:
        """Return new messages, lines that are not messages (a traceback), and whether the output is closed."""
        try:
            piece = os.read(self._out, 65536)
        except BlockingIOError:
            return [], [], False
        except ConnectionResetError:
            piece = b""
        *lines, self._unread = (self._unread + piece).split(b"\n")
        messages, other = [], []
        for line in lines:
            try:
                messages.append(msgspec.json.decode(line, type=KeeperMessage))
            except msgspec.DecodeError:
                other.append(line.decode(errors="replace"))
        return messages, other, not piece

    def close(self) -> None:
        """Close the connection to a keeper that has closed it."""
        self._socket.close()
        self._in = -1

    def _send(self, line: str) -> None:
        # The pipe of a keeper that hangs is full, that of a dead one is broken: both are noticed elsewhere.
        with suppress(OSError):
            os.write(self._in, line.encode())


Died = Callable[[KeeperServerHandle, int, int], None]
"""Called with a server, the number of one of its keepers that died and left nothing, and the keeper's status."""


class KeeperServers:
    """The keeper servers of an agent, its own and those that it has taken over; its selector awaits their messages."""

    def __init__(self, boot: str, folder: str, selector: selectors.BaseSelector, on_died: Died) -> None:
        self.own = KeeperServerHandle(boot, folder)
        self._selector, self._on_died = selector, on_died
        self._taken: list[KeeperServerHandle] = []

    def start(self) -> None:
        """Start the agent's own server if there is none."""
        if self.own.pid is None:
            self.own.start()
            self._register(self.own)

    def take(self, server: KeeperServerHandle) -> None:
        """Add the server of an earlier agent."""
        self._taken.append(server)
        self._register(server)

    def drop_unused(self, keepers: Collection[KeeperHandle]) -> None:
        """End the servers of earlier agents that have none of these keepers left."""
        for server in [server for server in self._taken if not any(each.forked_by(server) for each in keepers)]:
            self._taken.remove(server)
            if server.pid is not None:  # else it has died
                self._selector.unregister(server.fileno())
                server.close()

    def renew(self, lease: float) -> None:
        """Prolong the lease of all keepers to this monotonic time, as the servers enforce it."""
        for server in (self.own, *self._taken):
            server.renew(lease)

    def close(self, *, leave: bool) -> None:
        """Close the connections; wait for the agent's own server, unless it is left with keepers."""
        self.own.close(leave=leave)
        for server in self._taken:
            server.close()

    def _register(self, server: KeeperServerHandle) -> None:
        self._selector.register(server.fileno(), selectors.EVENT_READ, partial(self._read, server))

    def _read(self, server: KeeperServerHandle) -> None:
        """Process a server's reports of keepers that died; if the server itself died, all its keepers have."""
        ended = server.read()
        if ended is None:
            _LOG.error("keeper server died", extra={"pid": server.pid})
            self._selector.unregister(server.fileno())
            server.close()
            return
        for number, status in ended:
            self._on_died(server, number, status)
