"""The keeper of one run's ranks on one node: its processes outlive neither it, nor its agent, nor its lease."""

import json
import os
import select
import signal
import socket
import stat
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

if __name__ == "__main__":  # started as a file by ``python -I -S``, whose path holds the standard library only
    sys.path.append(os.path.abspath(__file__).rsplit(os.sep, 3)[0])

from shoal.agent.cgroup_limits import over_memory, ran_out_of_memory, set_limits
from shoal.agent.cgroups import end_cgroup
from shoal.agent.confinement import enter_domain
from shoal.agent.handover import KEEPER, NextAgent
from shoal.agent.keeper_sessions import KeeperChannel, KeeperSessions
from shoal.agent.keeper_state import KeeperState
from shoal.agent.processes import all_processes, descendants, environment, send_signal
from shoal.agent.run_process import adopt_orphans, become_process
from shoal.agent.suspension import RunSuspension

_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS = 0.02, 1.0
"""Seconds between attempts to kill: a process may have forked meanwhile, or hang in the kernel."""

_LONGEST_SLEEP_SECONDS = 60.0


class Keeper:
    """Starts the ranks of a run and stays until none of their processes is left."""

    def __init__(self, run: Mapping[str, Any], wake: int, channel: KeeperChannel | None = None) -> None:
        self._run = run
        self._channel = channel
        self._sessions = KeeperSessions(run)
        self._wake = wake
        self._cgroup = str(run.get("cgroup") or "")
        self._limits = run.get("limits") or {}
        ranks = [rank["rank"] for rank in run["ranks"]]
        signal_after = run["signal"]["after"] if run.get("signal") else None
        self._state = KeeperState(
            float(run["lease"]), float(run["grace"]), ranks, apart=bool(run.get("apart")), signal_after=signal_after
        )
        self._ranks: dict[int, int] = {}  # pid of the main process: rank
        self._ended: dict[int, int] = {}  # the same for ended ranks that may have left processes behind
        self._saving: set[int] = set()  # those of them whose processes keep the grace
        self._store: int | None = None
        self._store_input = os.pipe() if run.get("store") else (0, 0)  # the store ends when its standard input does
        self._poll, below = select.poll(), lambda pid: descendants([pid], all_processes())
        self._suspension = RunSuspension(run, self._state, self._poll, below, send_signal)
        self._retry = _FIRST_RETRY_SECONDS
        self._unread = b""
        self._unsent: list[bytes] = []
        self._attended, self._next_agent = True, NextAgent(self._poll)

    def start(self) -> None:
        """Start every rank or none: if one cannot be started, kill the others and report the cause."""
        if not self._state.begin(time.monotonic()):
            return
        try:
            if self._cgroup:
                os.mkdir(self._cgroup)
                set_limits(self._cgroup, self._limits)
        except OSError as error:
            self._fail(f"cannot make the run's cgroup {self._cgroup!r} with its limits: {error.strerror}", why="node")
            return
        enter_domain()
        pids = {}
        store = self._run.get("store")
        for rank in [*([store] if store else []), *self._run["ranks"]]:
            pid, problem, at_fault = self._spawn(rank)
            if problem:
                self._fail(problem, why=at_fault)
                return
            if rank is store:
                self._store = pid
            else:
                self._ranks[pid] = rank["rank"]
                pids[str(rank["rank"])] = pid
        self._state.started(time.monotonic())
        self._report(event="started", pids=pids)
        self._flush()

    def _report(self, **message: object) -> None:
        """Report to the agent, with the next ``_flush``."""
        self._unsent.append(json.dumps(message).encode() + b"\n")

    def _flush(self) -> None:
        if self._unsent:
            with suppress(BrokenPipeError, ConnectionResetError):  # the agent has died
                os.write(1, b"".join(self._unsent))
            self._unsent.clear()

    def _fail(self, problem: str, why: str = "") -> None:
        self._report(event="failed", cause=problem, why=why)
        self._state.fail(time.monotonic(), "start")

    def watch(self) -> None:
        """Follow commands and report exits until no process is left."""
        poll, state = self._poll, self._state
        poll.register(0, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while self._reap():
            self._flush()
            for fd, _ in poll.poll(1000 * self._timeout()):
                if fd == self._wake:
                    os.read(self._wake, 4096)
                elif self._next_agent.is_at(fd):
                    self._serve_next_agent()
                elif fd:
                    self._unsent += self._suspension.answers(done=self._done)
                elif piece := _receive(self._channel):
                    self.follow(piece)
                else:
                    poll.unregister(0)
                    self._await_next_agent(time.monotonic())
            if not self._attended:
                self._warn(state.orphan(time.monotonic()))
            self._act_on_time(time.monotonic())
        while not end_cgroup(self._cgroup):
            time.sleep(_FIRST_RETRY_SECONDS)
        self._report(event="over", why=state.why)
        self._flush()

    def _await_next_agent(self, now: float) -> None:
        """Stop the run, whose agent has died; while it is suspended, wait for the node's next agent instead."""
        self._attended = False
        if self._state.suspended and not self._next_agent.wait(self._run.get("folder", ""), KEEPER, socket.SOCK_STREAM):
            self._state.fail(now, "agent")

    def _serve_next_agent(self) -> None:
        """Follow the agent that has connected, and report to it how the run was suspended."""
        found = self._next_agent.accept()
        if found is None:
            return
        with found:
            for fd in (0, 1, 2):
                os.dup2(found.fileno(), fd)
        self._channel, self._attended, self._unread = KeeperChannel(os.dup(0)), True, b""
        self._poll.register(0, select.POLLIN)
        self._unsent += self._suspension.report

    def _act_on_time(self, now: float) -> None:
        """Carry out what is due: the lease's end, the time limit's signal, the kill of ranks that should have left."""
        self._warn(self._state.expire(now))
        if self._state.signal_due(now):
            self._send_signal()
        self._kill_late(now)
        if self._state.must_kill(now) or (self._done and not self._saving):
            self._kill_all()

    def _kill_late(self, now: float) -> None:
        """Kill the ranks and the sessions that should have ended by now."""
        late, sessions = self._state.overdue(now), self._sessions.due(now)
        for pid, rank in self._ranks.items():
            if rank in late:
                _signal_group(pid, signal.SIGKILL)
        processes = all_processes() if sessions else []
        for process in [*(p for p in processes if p.pid in sessions), *descendants(sessions, processes)]:
            send_signal(process, signal.SIGKILL)

    @property
    def _done(self) -> bool:
        """Whether no rank is left and the store, if it is here, is no longer needed: the run was stopped."""
        return not self._ranks and (self._store is None or self._state.warned)

    def _timeout(self) -> float:
        if self._ended.keys() - self._saving or (self._done and not self._saving):
            return self._retry
        left = min(self._state.next_deadline(), self._sessions.next_kill) - time.monotonic()
        if self._state.warned:
            return left if left > 0 else self._retry
        return min(max(left, 0.0), _LONGEST_SLEEP_SECONDS)

    def follow(self, piece: bytes) -> None:
        """Carry out the commands in a piece of the input, whose last line may be incomplete."""
        *lines, self._unread = (self._unread + piece).split(b"\n")
        for line in lines:
            command, *values = line.split()
            if command == b"lease":
                self._state.renew(float(values[0]))
            elif command == b"stop":
                self._warn(self._state.stop(time.monotonic(), float(values[0]), "order"))
            elif command == b"release":
                self._state.release(int(values[0]), time.monotonic(), float(values[1]))
            elif command in (b"suspend", b"resume"):
                self._suspension.order(command)
            elif command == b"exec" and self._channel is not None:
                self._start_session(self._channel.take(int(values[0])))
            elif command == b"hangup":
                self._sessions.hang_up(values[0].decode(), time.monotonic())

    def _start_session(self, files: list[int]) -> None:
        if self._state.warned or not self._ranks:
            for file in files:
                os.close(file)
            return  # the agent closes the session with the run, which is ending
        session, problem = self._sessions.start(files)
        if problem:
            self._report(event="left", session=session, cause=problem, status=127)

    def _warn(self, due: bool) -> None:
        """Send SIGTERM, and SIGCONT to wake stopped processes, to all but the store: ranks may need it to leave.

        A suspended run is not warned: it is killed at once.
        """
        if not due or self._state.suspended:
            return
        for number in (signal.SIGTERM, signal.SIGCONT):
            for pid in self._ranks:
                _signal_group(pid, number)
            for process in descendants([os.getpid()], all_processes()):
                if process.group not in self._ranks and process.group != self._store:
                    send_signal(process, number)

    def _send_signal(self) -> None:
        """Send the signal that precedes the job's time limit: to the ranks' groups, or to their main processes only."""
        number, main = self._run["signal"]["number"], self._run["signal"]["main"]
        for pid in self._ranks:
            with suppress(PermissionError):
                os.kill(pid, number) if main else os.killpg(pid, number)

    def _kill_all(self) -> None:
        self._retry = min(2 * self._retry, _LAST_RETRY_SECONDS)
        end_cgroup(self._cgroup)
        for process in descendants([os.getpid()], all_processes()):
            send_signal(process, signal.SIGKILL)

    def _reap(self) -> bool:
        """Report ranks that ended and kill the processes they left; return False when no process is left."""
        try:
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                pid = ended.si_pid
                if pid in self._ranks:
                    self._rank_ended(pid, ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status)
                elif session := self._sessions.ended(pid):
                    status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
                    self._report(event="left", session=session, status=status)
                elif pid == self._store:
                    self._store = None
                    if not self._state.warned:
                        self._report(
                            event="failed", cause="the store of the job's workers ended; see its log on this node"
                        )
                        self._warn(self._state.stop(time.monotonic(), self._state.grace, "store"))
                os.waitpid(pid, 0)
            if self._ended:
                before, self._ended = self._ended, self._kill_leftovers(self._ended)
                for pid, rank in before.items() if self._run.get("apart") else ():
                    if pid not in self._ended:
                        self._report(event="cleared", rank=rank)
        except ChildProcessError:
            return False
        return True

    def _rank_ended(self, pid: int, status: int) -> None:
        rank = self._ended[pid] = self._ranks.pop(pid)
        if status and self._limits.get("memory") and not self._state.warned and ran_out_of_memory(self._cgroup):
            self._report(event="failed", cause=over_memory(rank, len(self._run["ranks"]), self._limits["shown"]))
        self._report(event="ended", rank=rank, status=status, warned=self._state.warned)
        if self._state.warned and status == -signal.SIGTERM:  # a shell, for example, does not wait for its program
            self._saving.add(pid)
        else:  # it was not waited for yet, so its number and its group's cannot belong to another process
            _signal_group(pid, signal.SIGKILL)
        self._warn(self._state.ended(rank, status, time.monotonic()))

    def _kill_leftovers(self, ended: dict[int, int]) -> dict[int, int]:
        """Kill processes that ended ranks left behind, except those that may still save; return the ranks that had any.

        A process whose parent died is a child of the keeper. Its group or its environment shows its rank; one that
        hides both is killed with the last rank. Processes of a rank whose main process the warning itself ended keep
        the rest of the grace; sessions do not.
        """
        processes = all_processes()
        main_of = {str(rank): pid for pid, rank in ended.items()}
        orphans: dict[int, int] = {}
        spared: set[int] = set()
        for process in processes:
            if process.parent == os.getpid() and process.pid not in self._ranks and process.state != "Z":
                main = main_of.get(environment(process.pid).get("SHOAL_RANK", ""))
                main = process.group if main is None and process.group in ended else main
                if main in self._saving and process.pid not in self._sessions:
                    spared.add(main)
                elif main is not None:
                    orphans[process.pid] = main
        for process in [*descendants(orphans, processes), *(p for p in processes if p.pid in orphans)]:
            send_signal(process, signal.SIGKILL)
        self._saving = spared
        return {main: ended[main] for main in [*orphans.values(), *spared]}

    def _spawn(self, rank: Mapping[str, Any]) -> tuple[int, str, str]:
        """Start one rank; return its pid, why it could not be started, and ``node`` where that is the node's fault."""
        try:
            log = self._open_log(rank["log"])
        except OSError as error:
            return 0, f"cannot write the log {rank['log']!r} in {self._run['logs']!r}: {error.strerror}", "node"
        problems, report_problem = os.pipe()
        has_terminal = self._run.get("terminal") and rank.get("rank") == 0 and self._channel is not None
        terminal = self._channel.take(1)[0] if has_terminal and self._channel else None
        keeper = os.getpid()
        pid = os.fork()
        if pid == 0:
            given = self._store_input[0] if "argv" in rank else os.open(os.devnull, os.O_RDONLY)
            streams = (given, log, log) if terminal is None else (terminal, terminal, terminal)
            become_process(self._run, rank, streams, keeper, report_problem, terminal=terminal is not None)
        if terminal is not None:
            os.close(terminal)
        os.close(log)
        os.close(report_problem)
        try:
            # A program on a file system that hangs must not delay the end of the lease.
            ready, _, _ = select.select([problems], [], [], max(self._state.lease - time.monotonic(), 0.0))
            problem = os.read(problems, 65536).decode() if ready else "it was not started before the lease ended"
        finally:
            os.close(problems)
        name = "the job's store" if "argv" in rank else f"rank {rank['rank']}"
        return pid, problem and f"{name}: {problem}", "" if ready else "node"

    def _open_log(self, name: str) -> int:
        folder = os.open(self._run["logs"], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
            return os.open(os.path.basename(name), flags, 0o600, dir_fd=folder)
        finally:
            os.close(folder)


def _signal_group(group: int, number: int) -> None:
    with suppress(PermissionError):
        os.killpg(group, number)


def _receive(channel: KeeperChannel | None) -> bytes:
    """Return the next piece of the input; empty if the agent has died."""
    if channel is not None:
        return channel.read()
    try:
        return os.read(0, 65536)
    except ConnectionResetError:
        return b""


def handle_signals() -> None:
    """Have SIGCHLD wake the poll; ignore the signals that a service manager sends to every process of the agent."""
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)


def wake_by_signal() -> int:
    """Return a descriptor that becomes readable with every signal."""
    wake, signalled = os.pipe()
    for end in (wake, signalled):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
    return wake


def keep() -> int:
    """Read the first input line, start its ranks, and stay until no process of them is left."""
    adopt_orphans()
    wake = wake_by_signal()
    received = b""
    channel = KeeperChannel(os.dup(0)) if stat.S_ISSOCK(os.fstat(0).st_mode) else None
    while b"\n" not in received:
        piece = _receive(channel)
        if not piece:
            return 0
        received += piece
    run, _, commands = received.partition(b"\n")
    keeper = Keeper(json.loads(run), wake, channel)
    keeper.start()
    keeper.follow(commands)
    keeper.watch()
    return 0


if __name__ == "__main__":
    handle_signals()
    sys.exit(keep())
