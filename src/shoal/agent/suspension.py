"""Suspending the processes of a run and resuming them, by a process of its own, the *suspender*.

A keeper forks a suspender for each suspension. It takes the processes off their GPUs, where the node has any, and
freezes the run's cgroup, or stops each process where runs have no cgroups. It then waits until the keeper orders it to
resume them. If the keeper ends first, however it does, the suspender kills the processes: none stays frozen without a
keeper. Keepers import this module, so it imports the standard library only.
"""

import json
import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn, Protocol

from shoal.agent.cgroups import end_cgroup
from shoal.agent.cuda_checkpoint import CUDA, NVML, CudaCheckpoints, CudaLost, CudaRefused
from shoal.agent.keeper_state import KeeperState

_FREEZE_SECONDS = 10.0
"""Seconds in which all processes of a run must have stopped."""
_ROOM_SECONDS = 20.0
"""Seconds for which a run waits for the GPU memory that it needs to be resumed."""
_PAUSE_SECONDS = 0.01
_KILL_SECONDS = 30.0
_MEMORY_RESERVE = 0.05
"""Fraction of the host memory that a suspended run leaves free."""
_FIRST_OTHER_FD, _LAST_OTHER_FD = 3, 1024


class Stoppable(Protocol):
    """A process, identified by its number and its start time, as ``keeper.Process``."""

    @property
    def pid(self) -> int:
        """Its number."""

    @property
    def state(self) -> str:
        """Its state, a letter of ``/proc/PID/stat``."""


Processes = Callable[[int], Sequence[Stoppable]]
Send = Callable[[Any, int], None]


class Suspender:
    """The keeper's handle on its suspender."""

    def __init__(self, pid: int, orders: int, answers: int) -> None:
        self.pid = pid
        self._orders, self._answers = orders, answers
        self._unread = b""

    def fileno(self) -> int:
        """Return the descriptor of its answers."""
        return self._answers

    def resume(self) -> None:
        """Order it to resume the processes."""
        with suppress(BrokenPipeError):
            os.write(self._orders, b"resume\n")

    def read(self) -> list[dict[str, Any]]:
        """Return its new answers; the last is ``{"event": "gone"}`` if it has ended."""
        piece = os.read(self._answers, 65536)
        *lines, self._unread = (self._unread + piece).split(b"\n")
        return [*map(json.loads, lines), *([] if piece else [{"event": "gone"}])]

    def close(self) -> None:
        """Close the connection. A suspender that still holds processes then kills them."""
        os.close(self._orders)
        os.close(self._answers)


class RunSuspension:
    """The suspension of a keeper's run: at most one suspender at a time, whose answers the keeper's ``poll`` awaits."""

    def __init__(
        self, run: Mapping[str, Any], state: KeeperState, poll: Any, processes: "Processes", send: "Send"
    ) -> None:
        self._run, self._state, self._poll = run, state, poll
        self._processes, self._send = processes, send
        self._suspender: Suspender | None = None
        self._last: list[bytes] = []

    @property
    def report(self) -> list[bytes]:
        """The lines that report the suspension to an agent that takes the run over; none before it has an outcome."""
        return self._last if self._suspender is not None else []

    def order(self, command: bytes) -> None:
        """Follow an order to suspend or to resume the run; one that is being stopped is not suspended."""
        if command == b"resume" and self._suspender is not None:
            self._last = []
            self._suspender.resume()
        elif command == b"suspend" and self._suspender is None and not self._state.warned:
            self._state.suspend(time.monotonic())
            self._suspender = start_suspender(self._run, self._processes, self._send)
            self._poll.register(self._suspender.fileno(), select.POLLIN)

    def answers(self, *, done: bool) -> list[bytes]:
        """Return the lines that report the suspender's actions to the agent.

        If the suspender has ended, nothing can resume the processes: they are killed, unless the run is ``done``.
        """
        found = [] if self._suspender is None else self._suspender.read()
        for event in [answer["event"] for answer in found]:
            if event in ("refused", "resumed", "lost", "gone") and self._suspender is not None:
                self._poll.unregister(self._suspender.fileno())
                self._suspender.close()
                self._suspender = None
                if event in ("refused", "resumed"):
                    self._state.go_on(time.monotonic())
                elif not done:
                    self._state.fail(time.monotonic(), "suspender")
        lines = [json.dumps(answer).encode() + b"\n" for answer in found if answer["event"] != "gone"]
        self._last = lines[-1:] or self._last
        return lines


def start_suspender(run: Mapping[str, Any], processes: Processes, send: Send) -> Suspender:
    """Fork a suspender of a keeper's run, which suspends it at once.

    ``processes`` returns the descendants of the process with this number, and ``send`` sends one of them a signal.
    ``run["cuda"]`` has the devices of a run on GPUs; without it there is nothing to take off a GPU.
    """
    (order_end, orders), (answers, answer_end) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(_Suspension(run, processes, send, order_end, answer_end))
    os.close(order_end)
    os.close(answer_end)
    return Suspender(pid, orders, answers)


def _become(suspension: "_Suspension") -> NoReturn:
    """In the child: serve the keeper, holding none of its other descriptors."""
    try:
        signal.set_wakeup_fd(-1)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        kept = suspension.orders, suspension.answers
        for fd in range(_FIRST_OTHER_FD, _LAST_OTHER_FD):
            if fd not in kept:
                with suppress(OSError):
                    os.close(fd)
        suspension.serve()
    finally:
        os._exit(0)


class SuspendFailed(Exception):
    """The processes could not be stopped; they run as before."""


class _Suspension:
    """The work of a suspender."""

    def __init__(self, run: Mapping[str, Any], processes: Processes, send: Send, orders: int, answers: int) -> None:
        self.orders, self.answers = orders, answers
        self._cgroup = str(run.get("cgroup") or "")
        cuda = run.get("cuda")
        self._cuda = (
            CudaCheckpoints(tuple(cuda["devices"]), cuda.get("cuda", CUDA), cuda.get("nvml", NVML)) if cuda else None
        )
        self._keeper = os.getppid()
        self._found, self._send = processes, send
        self._stopped: Sequence[Stoppable] = ()

    def serve(self) -> None:
        """Suspend the run, and resume it on order; if the keeper ends first, kill its processes."""
        began = time.monotonic()
        try:
            self._suspend()
        except (SuspendFailed, CudaRefused, CudaLost, OSError) as error:
            self._answer("lost" if isinstance(error, CudaLost) else "refused", cause=str(error))
            return
        self._answer("suspended", bytes=self._host_bytes(), seconds=time.monotonic() - began)
        while os.read(self.orders, 64):
            if self._resume():
                return
        self._kill()

    def _answer(self, event: str, **values: object) -> None:
        with suppress(BrokenPipeError):
            os.write(self.answers, json.dumps({"event": event, **values}).encode() + b"\n")

    def _processes(self) -> list[Stoppable]:
        return [
            process for process in self._found(self._keeper) if process.pid != os.getpid() and process.state not in "ZX"
        ]

    def _suspend(self) -> None:
        room = available_memory() - int(_MEMORY_RESERVE * total_memory())
        if self._cuda is not None:
            self._cuda.take_off([process.pid for process in self._processes()], room)
        elif (held := sum(resident_memory(process.pid) for process in self._processes())) > room:
            hint = f"{max(0, room):,} are left for a run in its place"
            raise SuspendFailed(f"its processes hold {held:,} bytes of host memory, and only {hint}")
        try:
            self._freeze()
        except (SuspendFailed, OSError):
            self._thaw()
            if self._cuda is not None:
                self._cuda.put_back()
            raise

    def _freeze(self) -> None:
        deadline = time.monotonic() + _FREEZE_SECONDS
        signalled: set[int] = set()
        if self._cgroup:
            write(f"{self._cgroup}/cgroup.freeze", b"1")
        while True:
            self._stopped = self._processes()
            if self._cgroup:
                running = [] if frozen(self._cgroup) else list(self._stopped)
            else:
                # A process may have forked before it was stopped: its child is found in the next round.
                # One that waits in the kernel (D), as for a child between vfork and exec, stops before it goes on.
                running = [p for p in self._stopped if p.state not in ("TtD" if p.pid in signalled else "Tt")]
                for process in running:
                    self._send(process, signal.SIGSTOP)
                signalled |= {process.pid for process in running}
            if not running:
                return
            if time.monotonic() >= deadline:
                raise SuspendFailed(f"process {running[0].pid} did not stop within {_FREEZE_SECONDS:.0f} s")
            time.sleep(_PAUSE_SECONDS)

    def _thaw(self) -> None:
        if self._cgroup:
            write(f"{self._cgroup}/cgroup.freeze", b"0")
        else:
            for process in self._stopped:
                self._send(process, signal.SIGCONT)

    def _resume(self) -> bool:
        """Resume the processes; return whether this suspension is over: they run, or are lost."""
        began = time.monotonic()
        if self._cuda is not None and self._cuda.taken:
            while not self._cuda.has_room():
                if time.monotonic() >= began + _ROOM_SECONDS or _closed(self.orders):
                    self._answer("waiting", cause="the memory it needs is not free on its GPUs")
                    return False
                time.sleep(_PAUSE_SECONDS)
        try:
            self._thaw()
            if self._cuda is not None:
                self._cuda.put_back()
        except (CudaLost, OSError) as error:
            self._answer("lost", cause=str(error))
            return True
        self._answer("resumed", seconds=time.monotonic() - began)
        return True

    def _host_bytes(self) -> int:
        """Return the host memory that the suspended processes hold, with the GPU memory that was copied there."""
        return sum(resident_memory(process.pid) for process in self._stopped)

    def _kill(self) -> None:
        """Kill the processes, whose keeper has ended, and all that they have started."""
        deadline = time.monotonic() + _KILL_SECONDS
        while time.monotonic() < deadline:
            gone = end_cgroup(self._cgroup)
            for process in self._stopped:
                self._send(process, signal.SIGKILL)
            if gone and not any(_alive(process) for process in self._stopped):
                return
            time.sleep(_PAUSE_SECONDS)


def _alive(process: Any) -> bool:
    try:
        with open(f"/proc/{process.pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return False
    return fields[0] not in (b"Z", b"X") and int(fields[19]) == process.start


def _closed(fd: int) -> bool:
    """Return whether the other end of a pipe is closed."""
    poll = select.poll()
    poll.register(fd, select.POLLHUP)
    return bool(poll.poll(0))


def write(path: str, value: bytes) -> None:
    """Write a value to a file of the kernel."""
    with open(path, "wb", buffering=0) as file:
        file.write(value)


def frozen(cgroup: str) -> bool:
    """Return whether all processes of a cgroup are frozen."""
    with open(f"{cgroup}/cgroup.events", encoding="ascii") as file:
        return "frozen 1" in file.read().splitlines()


def resident_memory(pid: int) -> int:
    """Return the bytes of host memory that a process holds; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def total_memory() -> int:
    """Return the bytes of this machine's memory."""
    return _memory()["MemTotal"]


def available_memory() -> int:
    """Return the bytes of this machine's memory that processes can still get."""
    return _memory()["MemAvailable"]


def part_available() -> float:
    """Return the fraction of this machine's memory that processes can still get."""
    memory = _memory()
    return memory["MemAvailable"] / memory["MemTotal"]


def _memory() -> dict[str, int]:
    """Return the first lines of /proc/meminfo, in bytes."""
    with open("/proc/meminfo", encoding="ascii") as file:
        lines = (file.readline().split() for _ in range(3))
        return {name.rstrip(":"): 1024 * int(kilobytes) for name, kilobytes, _ in lines}
