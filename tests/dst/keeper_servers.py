"""Simulated keeper servers: the real ``KeeperServer`` and the agent's handle of it, on simulated sockets and forks."""

import errno
import os
import select
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import Any

from tests.dst.keepers import KeeperProcess, Pipe
from tests.dst.ranks import Registry
from tests.dst.turns import Turns
from tests.dst.world import Blocked, World

from shoal.agent import keeper_server


@dataclass
class Channel:
    """One end of a pair of connected sockets."""

    node: Any
    incoming: Pipe
    outgoing: Pipe
    packets: bool
    fd: int
    peer: Any = None

    def __enter__(self) -> "Channel":
        return self

    def __exit__(self, *_: object) -> None:
        """Close this process's copy of the other process's end, which stays open there."""

    def fileno(self) -> int:
        return self.fd

    def setblocking(self, blocking: bool) -> None:
        pass

    def settimeout(self, seconds: float | None) -> None:
        pass

    def send(self, data: bytes) -> int:
        return self.outgoing.write(data + b"\0" if self.packets else data)

    def sendall(self, data: bytes) -> None:
        self.send(data)

    def recv(self, most: int) -> bytes:
        if not self.incoming.ready:
            raise BlockingIOError(errno.EAGAIN, "nothing to read")
        if not self.packets:
            return self.incoming.read(most)
        packet, _, self.incoming.data = self.incoming.data.partition(b"\0")
        return packet

    def close(self) -> None:
        self.node.pipes.pop(self.fd, None)
        self.node.writers.pop(self.fd, None)
        self.incoming.readable = False
        self.outgoing.close()


@dataclass(eq=False)
class ServerProcess:
    """A process that runs the real ``KeeperServer``."""

    world: World
    registry: Registry
    host: Any
    agent: Channel
    pid: int = field(init=False)
    status: int | None = None
    paused: bool = False
    server: Any = None
    sigchld: bool = False
    timed_out: bool = False
    agent_gone: bool = False
    children: dict[int, KeeperProcess] = field(default_factory=dict)
    wake: Callable[[], None] = field(init=False)
    signal: Callable[[int], None] = field(init=False)

    def __post_init__(self) -> None:
        self.pid = next(self.world.pids)
        self.host.servers[self.pid] = self
        slow = self.host.slow_starts
        seconds = self.world.rng.uniform(*(0.5, 6.0) if slow else (0.02, 0.1))
        turns = Turns(self, "keeper server", self._main, self.world.now + seconds)
        self.wake, self.signal = turns.wake, turns.signal
        self.agent.incoming.wake = self.wake
        self.wake()

    def monotonic(self) -> float:
        return float(self.host.monotonic())

    def wall(self) -> float:
        return float(self.host.wall())

    def child_ended(self) -> None:
        """SIGCHLD."""
        self.sigchld = True
        self.wake()

    def _main(self) -> None:
        """Serve up to the next call that would block; end when there is nothing left to serve."""
        if self.server is None:
            self.server = keeper_server.KeeperServer(self.agent, 77)  # type: ignore[arg-type]
        if self.server._agent is None:
            self.agent_gone = True
            self.server._agent = _Gone()
        try:
            self.server.serve()
        except Blocked:
            if self.agent_gone:
                self.server._agent = None
                if not self.server._runs and not self.server._dead:
                    self.end(0)
            raise
        self.end(0)

    def fork(self, run: Any, fd: int) -> None:
        """Fork a keeper, as ``KeeperServer._fork`` does."""
        channel = self.host.channels.pop(fd)
        keeper = KeeperProcess(self.world, self.registry, self.host, parent=self)
        keeper.stdin, keeper.stdout = channel.incoming, channel.outgoing
        keeper.stdin.wake = keeper.wake
        self.children[keeper.pid] = keeper
        self.server._runs[keeper.pid] = run

    def end(self, status: int) -> None:
        """End; the kernel kills its keepers with it."""
        if self.status is None:
            self.status = status
            for keeper in list(self.children.values()):
                keeper.signal(signal.SIGKILL)
            self.host.servers.pop(self.pid, None)
            for packet in self.agent.incoming.data.split(b"\0"):  # the kernel closes sockets that were on their way
                channel = self.host.channels.pop(int(packet.partition(b" fd=")[2] or -1), None)
                if channel is not None:
                    channel.close()
            self.agent.close()


class _Gone:
    """The agent's socket while ``serve`` is entered again after the agent's death: nothing comes from it."""

    def fileno(self) -> int:
        return -1

    def send(self, data: bytes) -> int:
        raise BrokenPipeError(errno.EPIPE, "no reader")


class ServerOS:
    """``os`` as the keeper server's module sees it."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    @property
    def _own(self) -> ServerProcess:
        process = self._world.machine
        assert isinstance(process, ServerProcess)
        return process

    def getpid(self) -> int:
        return self._own.pid

    def read(self, fd: int, most: int) -> bytes:
        self._own.sigchld = False
        return b"\0"

    def close(self, fd: int) -> None:
        pass

    def kill(self, pid: int, number: int) -> None:
        if pid in self._own.children:
            self._own.children[pid].signal(number)

    def waitpid(self, pid: int, flags: int) -> tuple[int, int]:
        children = self._own.children
        if not children:
            raise ChildProcessError(errno.ECHILD, "no children")
        ended = next((child for child in children.values() if child.status is not None), None)
        if ended is None:
            return 0, 0
        del children[ended.pid]
        assert ended.status is not None
        return ended.pid, -ended.status if ended.status < 0 else ended.status << 8


class ServerPoll:
    """A poll object over the agent's socket and the wake-up pipe."""

    def __init__(self, world: World) -> None:
        self._world = world

    def register(self, fd: int, events: int) -> None:
        pass

    def unregister(self, fd: int) -> None:
        self._world.machine.agent_gone = True

    def poll(self, milliseconds: float | None) -> list[tuple[int, int]]:
        own: ServerProcess = self._world.machine
        found = [(77, select.POLLIN)] if own.sigchld else []
        if own.agent.incoming.ready and not own.agent_gone:
            found.append((own.agent.fd, select.POLLIN))
        if not found and not own.timed_out and (milliseconds is None or milliseconds > 0):
            raise Blocked(None if milliseconds is None else milliseconds / 1000)
        own.timed_out = False
        return found


class ServerPopen:
    """A keeper server as ``subprocess`` returns it."""

    def __init__(self, world: World, registry: Registry, fd: int) -> None:
        node = world.machine
        channel = node.channels.pop(fd)
        if node.disk_fails and world.rng.random() < 0.3:
            raise OSError(errno.EAGAIN, "resource temporarily unavailable")
        self._process = ServerProcess(world, registry, node, channel)
        self.pid = self._process.pid

    def kill(self) -> None:
        self._process.signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        if self._process.status is None:
            if self._process.children or self._process.paused:
                raise subprocess.TimeoutExpired("keeper server", timeout or 0.0)
            self._process.end(0)
        assert self._process.status is not None
        return self._process.status


class SimSockets:
    """``socket`` as the modules of agent and keeper server see it."""

    AF_UNIX, SOCK_SEQPACKET, SOCK_STREAM = 1, 5, 1

    def __init__(self, world: World) -> None:
        self._world = world
        self._fds = count(5000)

    def socketpair(self, family: int = 1, kind: int = 1) -> tuple[Channel, Channel]:
        node, packets = self._world.machine, kind == self.SOCK_SEQPACKET
        there, back = Pipe(lambda: None), Pipe(node.wake)
        ours = Channel(node, back, there, packets, next(self._fds))
        theirs = Channel(node, there, back, packets, next(self._fds), peer=ours)
        node.pipes[ours.fd], node.writers[ours.fd] = back, there
        node.channels[theirs.fd] = theirs
        return ours, theirs

    def send_fds(self, channel: Channel, data: list[bytes], fds: list[int]) -> None:
        channel.send(b"".join(data) + b" fd=%d" % fds[0])

    def recv_fds(self, channel: Channel, most: int, most_fds: int) -> tuple[bytes, list[int], int, None]:
        packet, _, fd = channel.recv(most).partition(b" fd=")
        return packet, [int(fd)] if fd else [], 0, None


def server_names(world: World, registry: Registry) -> dict[str, dict[str, Any]]:
    """Return the names to replace in the modules of the keeper server and of its handle."""
    sockets = SimSockets(world)
    spawner = SimpleNamespace(
        Popen=lambda *_, stdin, **__: ServerPopen(world, registry, stdin),
        DEVNULL=subprocess.DEVNULL,
        TimeoutExpired=subprocess.TimeoutExpired,
    )
    return {
        "shoal.agent.keeper_handle": {"socket": sockets, "subprocess": spawner},
        "shoal.agent.keeper_server": {
            "os": ServerOS(world),
            "select": SimpleNamespace(poll=lambda: ServerPoll(world), POLLIN=select.POLLIN),
            "socket": sockets,
        },
        "shoal.agent.keeper_server:KeeperServer": {"_fork": lambda server, run, fd: world.machine.fork(run, fd)},
    }
