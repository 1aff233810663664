"""The keeper server of an agent: forks a keeper for each run, so that no run pays for the start of an interpreter.

It runs as ``python -I -S`` in a session of its own. Its standard input is a socket of packets from the agent::

    fork ID LEASE GRACE CGROUP   fork a keeper for run ID, whose end of a socket comes with the packet
    lease T                      the lease of every run now ends at T at the earliest, on the monotonic clock
    kill ID                      kill the keeper of run ID, which hangs

The cgroup is the folder that the keeper makes for the run; none where cgroups cannot be used.

It answers ``died ID STATUS`` when a keeper did not end by itself and nothing that the keeper had started is left.

It is the parent of all keepers and of every process whose keeper has died, and kills those. It also ends what a keeper
that is stopped or hangs does not: a second after a run's lease and grace have passed it kills the run's keeper and all
that the keeper started. Its keepers die with it. After the end of the input, which means that the agent is dead, it
stays until its keepers have ended, and waits at a socket for the node's next agent, which may take suspended runs over.
"""

import gc
import os
import select
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from typing import NamedTuple, NoReturn

from shoal.agent import keeper
from shoal.agent.cgroups import end_cgroup, remove_empty
from shoal.agent.confinement import prepare_domain
from shoal.agent.handover import NextAgent, server_socket
from shoal.agent.keeper import handle_signals, wake_by_signal
from shoal.agent.processes import all_processes, descendants, send_signal
from shoal.agent.run_process import adopt_orphans, die_with_parent

LATE_SECONDS = 1.0
"""Seconds after its lease and grace at which a keeper that has not ended is killed, with all that it started."""

_SWEEP_SECONDS = 0.02
_MOST_PACKET_BYTES = 4096


class KeptRun(NamedTuple):
    """A run as the keeper server knows it: its number, the end of its first lease, its grace and its cgroup."""

    id: int
    lease: float
    grace: float
    cgroup: str


class KeeperServer:
    """The keepers of one agent, by process number."""

    def __init__(self, agent: socket.socket, wake: int, folder: str = "") -> None:
        self._agent: socket.socket | None = agent
        self._folder, self._name = folder, server_socket(os.environ.get("SHOAL_BOOT", ""))
        self._poll = select.poll()
        self._next_agent = NextAgent(self._poll)
        self._wake = wake
        self._runs: dict[int, KeptRun] = {}
        self._lease = 0.0
        self._dead: dict[KeptRun, int] = {}  # run: status of its keeper, while processes may be left
        self._cgroups: set[str] = set()  # the folders of the runs' cgroups

    def serve(self) -> None:
        """Serve until the agent has died and every keeper has ended."""
        poll = self._poll
        poll.register(self._wake, select.POLLIN)
        assert self._agent is not None
        poll.register(self._agent, select.POLLIN)
        while self._agent is not None or self._runs or self._dead:
            for fd, _ in poll.poll(self._timeout()):
                if fd == self._wake:
                    os.read(self._wake, 4096)
                elif self._next_agent.is_at(fd):
                    self._agent = self._next_agent.accept()
                    if self._agent is not None:
                        poll.register(self._agent, select.POLLIN)
                elif not self._receive():
                    self._lose_agent()
            self._reap()
            self._kill_late(time.monotonic())
            if self._dead:
                self._sweep()
        for folder in self._cgroups:
            remove_empty(folder)
        with suppress(OSError):
            os.unlink(os.path.join(self._folder, self._name))

    def _lose_agent(self) -> None:
        """Close the connection to the agent, which has died, and wait for the next one."""
        assert self._agent is not None
        self._poll.unregister(self._agent)
        self._agent.close()
        self._agent = None
        if self._runs and self._folder:
            self._next_agent.wait(self._folder, self._name, socket.SOCK_SEQPACKET)

    def _deadline(self, run: KeptRun) -> float:
        return max(run.lease, self._lease) + run.grace + LATE_SECONDS

    def _timeout(self) -> float | None:
        """Return the milliseconds until the next deadline."""
        if self._dead:
            return 1000 * _SWEEP_SECONDS
        if not self._runs:
            return None
        return 1000 * max(0.0, min(map(self._deadline, self._runs.values())) - time.monotonic()) + 1

    def _receive(self) -> bool:
        """Carry out one packet of the agent; return False if it has died."""
        assert self._agent is not None
        try:
            packet, fds, _, _ = socket.recv_fds(self._agent, _MOST_PACKET_BYTES, 1)
        except ConnectionResetError:
            return False
        command, *values = packet.split(maxsplit=4) or [b""]
        if command == b"fork":
            cgroup = os.fsdecode(values[3]) if len(values) > 3 else ""
            self._cgroups |= {os.path.dirname(cgroup)} if cgroup else set()
            self._fork(KeptRun(int(values[0]), float(values[1]), float(values[2]), cgroup), fds[0])
        elif command == b"lease":
            self._lease = max(self._lease, float(values[0]))
        elif command == b"kill":
            for pid, run in self._runs.items():
                if run.id == int(values[0]):
                    os.kill(pid, signal.SIGKILL)  # not waited for yet, so the number is still the keeper's
        return bool(packet)

    def _fork(self, run: KeptRun, channel: int) -> None:
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._dead[run] = -(error.errno or 1)
        else:
            if pid == 0:
                self._become(parent, channel)
            self._runs[pid] = run
        os.close(channel)

    def _become(self, parent: int, channel: int) -> NoReturn:
        """In the child: be a keeper on this channel."""
        try:
            die_with_parent(signal.SIGKILL)
            if os.getppid() != parent or self._agent is None:
                os._exit(127)
            os.setsid()
            os.close(self._wake)
            for fd in (0, 1, 2):  # 0 was the agent's socket
                os.dup2(channel, fd)
            os.close(channel)
            os._exit(keeper.keep())
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(1)

    def _reap(self) -> None:
        """Note the keepers that ended; one that ended by itself has left no process."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                run = self._runs.pop(ended[0], None)
                if run is not None and ended[1]:
                    self._dead[run] = os.waitstatus_to_exitcode(ended[1])

    def _kill_late(self, now: float) -> None:
        for pid, run in self._runs.items():
            if now >= self._deadline(run):
                os.kill(pid, signal.SIGKILL)

    def _sweep(self) -> None:
        """Kill the processes that dead keepers left, now children of this process; report keepers with none left."""
        processes = all_processes()
        orphans = [p for p in processes if p.parent == os.getpid() and p.pid not in self._runs and p.state != "Z"]
        for process in [*orphans, *descendants([orphan.pid for orphan in orphans], processes)]:
            send_signal(process, signal.SIGKILL)
        if orphans or not all(end_cgroup(run.cgroup) for run in self._dead):
            return
        for run, status in self._dead.items():
            if self._agent is not None:
                with suppress(OSError):
                    self._agent.send(b"died %d %d" % (run.id, status))
        self._dead = {}


def main() -> int:
    """Serve the agent at standard input."""
    adopt_orphans()
    prepare_domain()
    handle_signals()
    wake = wake_by_signal()
    # A keeper lives shortly and shares the server's memory as long as neither moves its objects.
    gc.collect()
    gc.disable()
    gc.freeze()
    KeeperServer(socket.socket(fileno=0), wake, *sys.argv[2:3]).serve()
    return 0
