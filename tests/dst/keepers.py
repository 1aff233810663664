"""Simulated keepers: the real ``Keeper`` on simulated pipes, children and signals."""

import errno
import json
import os
import select
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tests.dst.ranks import Host, Rank, Registry, Store
from tests.dst.turns import Turns
from tests.dst.world import Blocked, World

from shoal.agent import keeper as real
from shoal.agent.processes import Process

MOST_POLLS = 1000
"""Polls of a keeper at one moment after which it counts as spinning."""


@dataclass
class Pipe:
    """Bytes from one process to another; ``wake`` is called when the reader may have something to do."""

    wake: Callable[[], None]
    data: bytes = b""
    writable: bool = True
    readable: bool = True

    def write(self, data: bytes) -> int:
        if not self.readable:
            raise BrokenPipeError(errno.EPIPE, "no reader")
        self.data += data
        self.wake()
        return len(data)

    def close(self) -> None:
        """The writer is gone."""
        self.writable = False
        self.wake()

    @property
    def ready(self) -> bool:
        return bool(self.data) or not self.writable

    def read(self, most: int) -> bytes:
        found, self.data = self.data[:most], self.data[most:]
        return found


@dataclass(eq=False)
class KeeperProcess:
    """A process that runs the real ``Keeper``. Standard input and output are pipes from and to its agent."""

    world: World
    registry: Registry
    host: Host
    parent: Any = None
    """The keeper server that forked it, if there is one."""
    stdin: Pipe = field(init=False)
    stdout: Pipe = field(init=False)
    wake: Callable[[], None] = field(init=False)
    signal: Callable[[int], None] = field(init=False)
    pid: int = field(init=False)
    status: int | None = None
    paused: bool = False
    keeper: Any = None
    suspender: Any = None
    wake_fd: int = 77
    sigchld: bool = False
    timed_out: bool = False
    input_ended: bool = False
    run: dict[str, Any] = field(default_factory=dict)
    children: dict[int, Any] = field(default_factory=dict)
    polls: int = 0
    polled_at: float = -1.0
    _first: bytes = b""

    def __post_init__(self) -> None:
        self.pid = next(self.world.pids)
        self.host.keepers[self.pid] = self
        # It starts longer on a machine with too much to do.
        slow = self.host.slow_starts
        seconds = (0.5, 6.0) if slow else (0.001, 0.01) if self.parent is not None else (0.02, 0.1)
        turns = Turns(self, "keeper", self._main, self.world.now + self.world.rng.uniform(*seconds))
        self.wake, self.signal = turns.wake, turns.signal
        self.stdin = Pipe(self.wake)
        self.stdout = Pipe(lambda: None)
        self.wake()

    def monotonic(self) -> float:
        return self.host.monotonic()

    def wall(self) -> float:
        return self.host.wall()

    def child_ended(self) -> None:
        """SIGCHLD."""
        self.sigchld = True
        self.wake()

    def _main(self) -> None:
        """Do what ``keeper.main`` does, up to the next call that would block."""
        if self.keeper is None:
            self._first += self.stdin.read(1 << 20)
            if b"\n" not in self._first:
                if self.stdin.writable:
                    raise Blocked(None)
                self.end(0)
                return
            run, _, commands = self._first.partition(b"\n")
            self.run = json.loads(run)
            self.keeper = real.Keeper(self.run, self.wake_fd)
            self.keeper.start()
            self.keeper.follow(commands)
        self.keeper.watch()
        self.end(0)

    def spawn(self, rank: dict[str, Any]) -> tuple[int, str, str]:
        """Start a rank, as ``Keeper._spawn`` does."""
        if self.host.spawn_fails:
            return 0, f"rank {rank.get('rank', 'store')}: cannot start: no such file on this node", ""
        env = self.run["env"]
        truth = self.registry.jobs[env["SHOAL_JOB"]]
        if "argv" in rank:
            store = Store(self.world, truth, self)
            self.children[store.pid] = self.host.ranks[store.pid] = store
            return store.pid, "", ""
        devices = [int(device) for device in env["CUDA_VISIBLE_DEVICES"].split(",") if device]
        own = (devices[int(rank["env"]["LOCAL_RANK"])],)
        orders = rank["env"].get("SHOAL_ORDERS")
        child = Rank(
            self.world, self.registry, self.host, truth, self, int(env["SHOAL_INCARNATION"]), rank["rank"],
            int(env["WORLD_SIZE"]), own, self.host.origins.get(orders or "", int(env["SHOAL_INCARNATION"])), orders,
            env["SHOAL_PROGRESS"],
        )  # fmt: skip
        self.children[child.pid] = self.host.ranks[child.pid] = child
        child.begin()
        return child.pid, "", ""

    def end(self, status: int) -> None:
        """End; the kernel kills its ranks with it."""
        if self.status is None:
            self.status = status
            for child in list(self.children.values()):
                child.signal(signal.SIGKILL)
                self.host.ranks.pop(child.pid, None)
            self.host.keepers.pop(self.pid, None)
            self.stdin.readable = False
            self.stdout.close()
            if self.parent is not None:
                self.parent.child_ended()

    def reap(self, pid: int) -> None:
        """Forget a child that was waited for."""
        del self.children[pid]
        self.host.ranks.pop(pid, None)


class KeeperOS:
    """``os`` as the keeper's module sees it: the pipes, children and signals of the keeper whose code runs."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    @property
    def _own(self) -> KeeperProcess:
        process = self._world.machine
        assert isinstance(process, KeeperProcess)
        return process

    def pipe(self) -> tuple[int, int]:
        return 90, 91

    def close(self, fd: int) -> None:
        pass

    def getpid(self) -> int:
        return self._own.pid

    def read(self, fd: int, most: int) -> bytes:
        if fd == self._own.wake_fd:
            self._own.sigchld = False
            return b"\0"
        piece = self._own.stdin.read(most)
        self._own.input_ended = not piece
        return piece

    def write(self, fd: int, data: bytes) -> int:
        return self._own.stdout.write(data)

    def waitid(self, *_: Any) -> Any:
        children = self._own.children
        if not children:
            raise ChildProcessError(errno.ECHILD, "no children")
        ended = next((child for child in children.values() if child.status is not None), None)
        if ended is None:
            return None
        assert ended.status is not None
        code = os.CLD_EXITED if ended.status >= 0 else os.CLD_KILLED
        return SimpleNamespace(si_pid=ended.pid, si_status=abs(ended.status), si_code=code)

    def waitpid(self, pid: int, _: int) -> tuple[int, int]:
        self._own.reap(pid)
        return pid, 0

    def killpg(self, group: int, number: int) -> None:
        if group in self._own.host.ranks:
            self._own.host.ranks[group].signal(number)

    kill = killpg


class KeeperSelect:
    """``select`` as the keeper's module sees it."""

    POLLIN = select.POLLIN

    def __init__(self, world: World) -> None:
        self._world = world

    def poll(self) -> "KeeperPoll":
        return KeeperPoll(self._world)


class KeeperPoll:
    """A poll object over the keeper's input and its wake-up pipe."""

    def __init__(self, world: World) -> None:
        self._world = world

    def register(self, fd: int, events: int) -> None:
        pass

    def unregister(self, fd: int) -> None:
        pass

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        own: KeeperProcess = self._world.machine
        found = []
        if own.sigchld:
            found.append((own.wake_fd, select.POLLIN))
        if own.stdin.ready and not own.input_ended:
            found.append((0, select.POLLIN))
        if own.suspender is not None and own.suspender.answers:
            found.append((own.suspender.fileno(), select.POLLIN))
        if not found and not own.timed_out and milliseconds > 0:
            raise Blocked(milliseconds / 1000)
        own.timed_out = False
        own.polls = own.polls + 1 if own.polled_at == self._world.now else 0
        own.polled_at = self._world.now
        self._world.check(own.polls < MOST_POLLS, "a keeper polls without end")
        return found


class NoNextAgent:
    """Simulated agents take no run over: a suspended run ends with its agent."""

    def wait(self, *_: object) -> bool:
        return False

    def is_at(self, fd: int) -> bool:
        return False


def keeper_names(world: World) -> dict[str, dict[str, Any]]:
    """Return the names to replace in the keeper's module, so that its code runs on simulated processes."""

    def processes() -> list[Process]:
        host: Host = getattr(world.machine, "host", world.machine)
        ranks = [
            Process(rank.pid, "Z" if rank.status is not None else "S", rank.parent.pid, rank.pid, rank.pid)
            for rank in host.ranks.values()
        ]
        keepers = [
            Process(pid, "S", 1 if keeper.parent is None else keeper.parent.pid, pid, pid)
            for pid, keeper in host.keepers.items()
        ]
        return [*ranks, *keepers]

    def find(pid: int) -> Process | None:
        return next((process for process in processes() if process.pid == pid), None)

    module = "shoal.agent.keeper"
    return {
        module: {
            "os": KeeperOS(world),
            "select": KeeperSelect(world),
            "all_processes": processes,
            "environment": lambda pid: {},
            "NextAgent": lambda poll: NoNextAgent(),
            "enter_domain": lambda: True,  # the real one would confine the process of the tests, for good
        },
        "shoal.agent.processes": {"os": KeeperOS(world), "find_process": find},
        f"{module}:Keeper": {"_spawn": lambda keeper, rank: world.machine.spawn(rank)},
    }
