"""A simulated node: the real ``NodeAgent``, ``KeeperHandle`` and ``Launcher`` on simulated pipes and processes."""

import errno
import os
import signal
import subprocess
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.dst.keepers import KeeperProcess, Pipe
from tests.dst.link import SimLink
from tests.dst.network import Cable
from tests.dst.ranks import Registry
from tests.dst.world import Blocked, Clocks, World

from shoal.agent import node_agent
from shoal.agent.agent_settings import AgentSettings
from shoal.agent.devices import Devices
from shoal.agent.workspace import Workspace
from shoal.wire.messages import LogAnswer, SessionReport

KEEPERS_OWN_SECONDS = 2.0
"""Seconds that a starting agent gives an earlier agent's keepers to end their ranks, as ``orphans`` does."""

SUPERVISOR_SECONDS = 1.0
"""Seconds after which an agent that was refused is started again."""


@dataclass(eq=False)
class SimNode:
    """A machine with GPUs: at most one agent, its keepers and their ranks."""

    world: World
    registry: Registry
    name: str
    gpus: int
    clocks: Clocks
    cable: Cable
    address: str
    supervised: bool = True
    """Whether an agent that ends because it is refused is started again."""
    ranks: dict[int, Any] = field(default_factory=dict)
    keepers: dict[int, KeeperProcess] = field(default_factory=dict)
    spawn_fails: int = 0
    disk_fails: int = 0
    slow_starts: int = 0
    rosters: dict[str, Any] = field(default_factory=dict)
    """By path: what an orders file says."""
    origins: dict[str, int] = field(default_factory=dict)
    agent: Any = None
    paused: bool = False
    alive: bool = False
    boots: int = 0
    servers: dict[int, Any] = field(default_factory=dict)
    pipes: dict[int, Pipe] = field(default_factory=dict)
    """By file descriptor of the agent: where it reads from, or writes to."""
    writers: dict[int, Pipe] = field(default_factory=dict)
    """The same for the other direction of a socket."""
    channels: dict[int, Any] = field(default_factory=dict)
    wanted: bool = True
    _fds: Any = field(default_factory=lambda: count(1000))
    _wakes: int = 0
    _due: bool = False
    _deferred: list[Callable[[], None]] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.clocks.monotonic()

    def wall(self) -> float:
        return self.clocks.wall()

    def pipe(self, pipe: Pipe) -> int:
        """Return a file descriptor of the agent for one end of a pipe."""
        fd: int = next(self._fds)
        self.pipes[fd] = pipe
        return fd

    # ── life of the agent ─────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Start an agent, once no process of an earlier one is left."""
        if self.wanted and not self.alive:
            self.boots += 1
            self.alive = True
            self._clear(self.boots, self.world.now)

    def _clear(self, boot: int, began: float) -> None:
        if not self.alive or self.boots != boot:
            return
        if self.paused:
            self._deferred.append(lambda: self._clear(boot, began))
        elif self.keepers or self.servers:
            if self.world.now - began >= KEEPERS_OWN_SECONDS:
                for process in [*self.servers.values(), *self.keepers.values()]:
                    process.signal(signal.SIGKILL)
            self.world.after(0.05, self._clear, boot, began)
        else:
            settings = AgentSettings(
                "http://plane", lambda: "token", self.name, self.address, Path("/sim"), kind="gpu", gpus=self.gpus
            )
            with self.world.acting(self):
                self.agent = node_agent.NodeAgent(settings)
                self.agent._link.open()
            self.world.note("agent up", self.name, boot)
            self.wake()

    def kill(self, *, everything: bool = False) -> None:
        """SIGKILL the agent, or all processes of the node at once."""
        self.world.note("agent killed", self.name, everything)
        self._gone()
        for process in [*self.servers.values(), *self.keepers.values()] if everything else ():
            process.signal(signal.SIGKILL)

    def _gone(self) -> None:
        self.alive, self.paused, self.agent, self.wanted = False, False, None, False
        pipes = [*self.pipes.values(), *self.writers.values()]
        self.pipes, self.writers = {}, {}  # sockets on their way to a keeper server still arrive
        self._deferred.clear()
        for pipe in pipes:
            pipe.readable = False
            if pipe.writable:
                pipe.close()

    def revive(self) -> None:
        """Start an agent again after a fault."""
        self.wanted = True
        self.start()

    def terminate(self) -> None:
        """SIGTERM to the agent."""
        if self.agent is not None:
            self.agent._signals.count += 1
            self.wake()

    def pause(self) -> None:
        """SIGSTOP the agent."""
        self.paused = self.alive

    def resume(self) -> None:
        """SIGCONT the agent."""
        if self.paused:
            self.paused = False
            deferred, self._deferred = self._deferred, []
            for action in deferred:
                action()
            self.wake()

    # ── the agent's loop ──────────────────────────────────────────────────────────────────────────────────────

    def wake(self) -> None:
        """Run the agent's loop soon."""
        if not self._due:
            self._due = True
            self.world.after(0.0005, self._enter, -1)

    def _enter(self, wakes: int) -> None:
        if wakes < 0:
            self._due = False
        elif wakes != self._wakes:
            return
        if self.agent is None or self.paused:
            return
        self._wakes += 1
        self.agent._selector.timed_out = True
        try:
            with self.world.acting(self):
                self.agent._loop()
        except Exception:
            self.world.violate(f"the agent of {self.name} died: {traceback.format_exc(limit=-3)}")
        except Blocked as blocked:
            if blocked.seconds is not None:
                self.world.after(max(blocked.seconds, 0.001), self._enter, self._wakes)
        else:
            refused = self.agent._rejected is not None
            self.world.note("agent ends", self.name, refused)
            self._gone()
            if refused and self.supervised:
                self.world.after(SUPERVISOR_SECONDS, self.revive)

    def when_running(self, action: Callable[[], None]) -> None:
        """Do something that the agent's process does: later, if it is suspended."""
        if self.paused:
            self._deferred.append(action)
        else:
            with self.world.acting(self):
                action()


class SimWorkspace(Workspace):
    """The folders of a node: the real paths, and no files."""

    def __init__(self, home: Path, node: str, world: World) -> None:
        super().__init__(home, node)
        object.__setattr__(self, "_world", world)
        object.__setattr__(self, "_node", world.machine)

    _world: World
    _node: "SimNode"

    def _write(self) -> None:
        if self._node.disk_fails:
            raise OSError(errno.ENOSPC, "no space left on device")

    def job(self, job_id: str) -> Path:
        return self.home / "jobs" / job_id

    def logs(self, job_id: str) -> Path:
        self._write()
        return self.home / "logs" / job_id

    def record(self, key: Any, record: Any, lease: float | None = None) -> None:
        self._write()

    def forget(self, path: Path) -> None:
        pass

    def write_lease(self, key: Any, until: float, *, stopping: bool) -> None:
        self._write()

    def write_orders(self, key: Any, roster: Any) -> None:
        path = str(self.orders(key))
        self._node.origins[path] = roster.origin
        self._write()
        if roster.generation:
            self._node.rosters[path] = roster
            for rank in [rank for rank in self._node.ranks.values() if rank.orders == path]:
                self._world.after(self._world.rng.uniform(0.0, 0.1), rank.read_orders)

    def read_progress(self, key: Any) -> tuple[float, float | None, SessionReport | None] | None:
        path, roster = str(self.progress(key)), self._node.rosters.get(str(self.orders(key)))
        first = roster.members[0] if roster is not None and roster.members else 0
        for rank in self._node.ranks.values():
            if rank.number != first or rank.progress_file != path or rank.status is not None:
                continue
            session = None if roster is None else SessionReport(generation=roster.generation)
            if rank.truth.job.reports or roster is not None:
                return rank.progress, rank.truth.saved, session
        return None

    def read_log(self, read: Any) -> LogAnswer:
        return LogAnswer(read.read, -1, b"")


class SimSelector:
    """The agent's selector: keepers whose output can be read."""

    def __init__(self, world: World) -> None:
        self._node: SimNode = world.machine
        self._registered: dict[Any, Callable[[], None]] = {}
        self.timed_out = False

    def register(self, key: Any, events: int, data: Callable[[], None]) -> None:
        self._registered[key] = data
        self._node.pipes[_fd(key)].wake = self._node.wake

    def unregister(self, key: Any) -> None:
        del self._registered[key]

    def select(self, timeout: float | None) -> list[tuple[Any, int]]:
        pipes = self._node.pipes
        ready = [
            (SimpleNamespace(data=data), 1)
            for key, data in self._registered.items()
            if (pipe := pipes.get(_fd(key))) is not None and pipe.ready
        ]
        if not ready and not self.timed_out and (timeout is None or timeout > 0):
            raise Blocked(timeout)
        self.timed_out = False
        return ready


def _fd(key: Any) -> int:
    return key if isinstance(key, int) else int(key.fileno())


class SimSocket:
    """A socket that reserves a port, or wakes the agent."""

    def __init__(self, node: SimNode) -> None:
        self._node = node

    def bind(self, address: Any) -> None:
        pass

    def getsockname(self) -> tuple[str, int]:
        return "", 40000

    def send(self, data: bytes) -> int:
        self._node.wake()
        return len(data)

    def close(self) -> None:
        pass


class SimPopen:
    """A keeper process as ``subprocess`` returns it."""

    def __init__(self, world: World, registry: Registry) -> None:
        node: SimNode = world.machine
        if node.disk_fails and world.rng.random() < 0.3:
            raise OSError(errno.EAGAIN, "resource temporarily unavailable")
        self._node, self._process = node, KeeperProcess(world, registry, node)
        self.pid = self._process.pid
        self._process.stdout.wake = node.wake
        self.stdin = _File(node, node.pipe(self._process.stdin), writer=True)
        self.stdout = _File(node, node.pipe(self._process.stdout), writer=False)

    def kill(self) -> None:
        self._process.signal(signal.SIGKILL)

    def wait(self) -> int:
        assert self._process.status is not None
        return self._process.status

    def poll(self) -> int | None:
        return self._process.status


@dataclass
class _File:
    node: SimNode
    fd: int
    writer: bool

    def fileno(self) -> int:
        return self.fd

    def close(self) -> None:
        pipe = self.node.pipes.pop(self.fd, None)
        if pipe is not None and self.writer:
            pipe.close()


class AgentOS:
    """``os`` as the agent's modules see it."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def set_blocking(self, fd: int, blocking: bool) -> None:
        pass

    def read(self, fd: int, most: int) -> bytes:
        pipe = self._world.machine.pipes[fd]
        if not pipe.ready:
            raise BlockingIOError(errno.EAGAIN, "nothing to read")
        found: bytes = pipe.read(most)
        return found

    def write(self, fd: int, data: Any) -> int:
        node = self._world.machine
        pipe = node.writers.get(fd) or node.pipes.get(fd)
        if pipe is None:
            raise OSError(errno.EBADF, "closed")
        return int(pipe.write(bytes(data)))


class SimOrphans:
    """``orphans`` as the agent's module sees it: ranks die with their keeper, so none is left."""

    def __init__(self, world: World) -> None:
        self._world = world

    def place_of(self, home: Path) -> str:
        return str(self._world.machine.address)

    def machine_boot(self) -> str:
        return "boot"

    def children(self) -> set[int]:
        return set()

    def kill_orphans(self, others: Any) -> bool:
        return True


def agent_names(world: World, registry: Registry) -> dict[str, dict[str, Any]]:
    """Return the names to replace in the agent's modules."""
    sockets = SimpleNamespace(
        socket=lambda: SimSocket(world.machine),
        socketpair=lambda: (SimSocket(world.machine), SimSocket(world.machine)),
    )
    spawner = SimpleNamespace(
        Popen=lambda *_, **__: SimPopen(world, registry), PIPE=subprocess.PIPE, STDOUT=subprocess.STDOUT
    )
    return {
        "shoal.agent.node_agent": {
            "ControlLink": lambda client, hello, deliver: SimLink(client, hello, deliver, world),
            "Workspace": lambda home, node: SimWorkspace(home, node, world),
            "selectors": SimpleNamespace(DefaultSelector=lambda: SimSelector(world), EVENT_READ=1),
            "socket": sockets,
            "orphans": SimOrphans(world),
            "devices": SimpleNamespace(
                find=lambda kind, gpus, **_: Devices(kind, gpus, tuple(str(index) for index in range(gpus)))
            ),
            "LogLimiter": lambda bound: SimpleNamespace(watch=lambda *_: None, forget=lambda *_: None),
            "free_bytes": lambda folder: 0 if world.machine.disk_fails else 2**40,
        },
        "shoal.agent.agent_settings:AgentSettings": {"client": lambda settings: None},
        "shoal.agent.launch": {"check": lambda *_: "/sim"},
        "shoal.agent.rank_port": {"socket": SimpleNamespace(socket=lambda: SimSocket(world.machine))},
        "shoal.agent.keeper_handle": {"subprocess": spawner, "os": AgentOS(world)},
    }
