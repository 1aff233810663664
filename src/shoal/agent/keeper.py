"""The keeper of one run's ranks on one node: nothing that it started outlives it, its agent, or its lease.

Run as ``python -I -S keeper.py`` in a session of its own, and therefore self-contained. Its standard input brings one
JSON line, what to start, and then commands::

    lease T     the lease now ends at T, on this machine's monotonic clock
    stop G      warn with SIGTERM, and kill whatever is left after G seconds
    release R G rank R is to leave by itself, and is killed if it is still there after G seconds

The end of the input means that the agent is dead. The output is JSON lines: ``started`` once every rank has been
exec'ed, ``failed`` with a sentence where one could not be (then none is left running), ``ended`` for each rank,
and ``over`` when no process is left. A rank that fails takes the others with it, unless they are workers that come and
go (``apart``): then ``cleared`` says that nothing of one is left while others go on. The job's ``store``, where it has
one here, is started first and stays, whatever ranks do, until the run is stopped. The keeper enforces the lease by
itself, so an agent that hangs cannot prolong it.
"""

import ctypes
import errno
import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_ORPHAN_GRACE_SECONDS = 1.0
"""How long ranks may take to save when their agent has died."""

_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS = 0.02, 1.0
"""How soon processes that were killed are looked for again: one may have forked meanwhile, or hang in the kernel."""

_LONGEST_SLEEP_SECONDS = 60.0


class Process(NamedTuple):
    """A process as /proc shows it; (pid, start) names it for ever, pid alone only while it lives."""

    pid: int
    state: str
    parent: int
    group: int
    start: int


def look(pid: int) -> Process | None:
    """The process with this number, if there is one."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program's name in parentheses, which may itself hold spaces and parentheses.
    fields = text[text.rindex(b")") + 2 :].split()
    return Process(pid, fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[19]))


def everyone() -> list[Process]:
    """All processes of this machine."""
    return [process for name in os.listdir("/proc") if name.isdigit() and (process := look(int(name)))]


def descendants(tops: Iterable[int], processes: Iterable[Process]) -> list[Process]:
    """What descends from these processes, themselves not among them."""
    children: dict[int, list[Process]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    queue = list(tops)
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += [process.pid for process in below]
    return found


def environment(pid: int) -> dict[str, str]:
    """What a process was started with in its environment; nothing where that may not be seen."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            items = file.read().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(item.split("=", 1) for item in items if "=" in item)


def strike(process: Process, number: int) -> None:
    """Send a signal to this very process: one that has its number by now is left alone."""
    now = look(process.pid)
    if now is not None and now.start == process.start:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)


def adopt_orphans() -> None:
    """Make this process the one to which descendants are given when their parents die."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: int) -> None:
    """Ask for this signal when the parent dies; one that dies before this call goes unnoticed."""
    _prctl(_PR_SET_PDEATHSIG, number)


_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")


class Keeper:
    """Starts the ranks it was told to and stays until nothing of them is left."""

    def __init__(self, what: Mapping[str, Any], wake: int) -> None:
        self._what = what
        self._wake = wake
        self._lease = float(what["lease"])
        self._grace = float(what["grace"])
        self._ranks: dict[int, int] = {}  # pid of the main process: rank
        self._left: dict[int, int] = {}  # the same of ranks that ended and had left something behind when last seen
        self._store: int | None = None
        self._held = os.pipe()  # the store ends when its standard input does
        self._releases: dict[int, float] = {}  # rank: when it is killed if it has not left
        self._kill_at: float | None = None
        self._retry = _FIRST_RETRY_SECONDS
        self._why = ""
        self._heard = b""

    def start(self) -> None:
        """Start every rank, or none: where one cannot be, those already started are killed and the reason is told."""
        if time.monotonic() >= self._lease:
            self._why = "lease"
            return
        pids = {}
        store = self._what.get("store")
        for rank in [*([store] if store else []), *self._what["ranks"]]:
            pid, problem = self._spawn(rank)
            if problem:
                _say(event="failed", cause=problem)
                self._kill_at = time.monotonic()
                return
            if rank is store:
                self._store = pid
            else:
                self._ranks[pid] = rank["rank"]
                pids[str(rank["rank"])] = pid
        _say(event="started", pids=pids)

    def watch(self) -> None:
        """Obey until no process is left."""
        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while self._reap():
            for fd, _ in poll.poll(1000 * self._patience()):
                if fd == self._wake:
                    os.read(self._wake, 4096)
                elif piece := os.read(0, 65536):
                    self.obey(piece)
                else:
                    poll.unregister(0)
                    self._stop(min(self._grace, _ORPHAN_GRACE_SECONDS), "agent")
            now = time.monotonic()
            if now >= self._lease:
                self._stop(self._grace, "lease")
            self._release(now)
            if self._done or (self._kill_at is not None and now >= self._kill_at):
                self._kill_all()
        _say(event="over", why=self._why)

    @property
    def _done(self) -> bool:
        """Whether no rank is left, nor any that could still need the store."""
        return not self._ranks and (self._store is None or self._kill_at is not None)

    def _release(self, now: float) -> None:
        """Kill ranks that should have left by now."""
        for pid, rank in self._ranks.items():
            if now >= self._releases.get(rank, now + 1):
                del self._releases[rank]
                with suppress(PermissionError):
                    os.killpg(pid, signal.SIGKILL)

    def _patience(self) -> float:
        if self._left or self._done:
            return self._retry
        now = time.monotonic()
        if self._kill_at is not None:
            return self._kill_at - now if self._kill_at > now else self._retry
        return min(max(min([self._lease, *self._releases.values()]) - now, 0.0), _LONGEST_SLEEP_SECONDS)

    def obey(self, piece: bytes) -> None:
        """Carry out the commands in a piece of the input; the last may not be whole yet."""
        *lines, self._heard = (self._heard + piece).split(b"\n")
        for line in lines:
            command, *values = line.split()
            if command == b"lease":
                self._lease = max(self._lease, float(values[0]))
            elif command == b"stop":
                self._stop(float(values[0]), "order")
            elif command == b"release" and int(values[0]) in self._ranks.values():
                self._releases.setdefault(int(values[0]), time.monotonic() + float(values[1]))

    def _stop(self, grace: float, why: str) -> None:
        kill_at = time.monotonic() + grace
        if self._kill_at is None:
            self._kill_at = kill_at
            # Ranks that have all ended by themselves were not stopped, even while something is left of them.
            self._why = why if self._ranks else ""
            self._warn()
        else:
            self._kill_at = min(self._kill_at, kill_at)

    def _warn(self) -> None:
        """SIGTERM to everything, once each; SIGCONT, for a process that is stopped hears nothing else.

        Not to the store: ranks may need it to leave in good order.
        """
        for number in (signal.SIGTERM, signal.SIGCONT):
            for pid in self._ranks:
                with suppress(PermissionError):
                    os.killpg(pid, number)
            for process in descendants([os.getpid()], everyone()):
                if process.group not in self._ranks and process.group != self._store:
                    strike(process, number)

    def _kill_all(self) -> None:
        self._retry = min(2 * self._retry, _LAST_RETRY_SECONDS)
        for process in descendants([os.getpid()], everyone()):
            strike(process, signal.SIGKILL)

    def _reap(self) -> bool:
        """Tell of ranks that ended and kill what they left behind; false when there is no process any more."""
        try:
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                pid = ended.si_pid
                if pid in self._ranks:
                    status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
                    self._left[pid] = self._ranks.pop(pid)
                    self._releases.pop(self._left[pid], None)
                    warned = self._kill_at is not None
                    _say(event="ended", rank=self._left[pid], status=status, warned=warned)
                    # While it is not waited for its number, and its group's, cannot be anybody else's.
                    with suppress(PermissionError):
                        os.killpg(pid, signal.SIGKILL)
                    if status != 0 and not self._what.get("apart"):
                        self._stop(self._grace, "rank")
                elif pid == self._store:
                    self._store = None
                    if self._kill_at is None:
                        _say(event="failed", cause="the store of the job's workers ended; see its log on this node")
                        self._stop(self._grace, "store")
                os.waitpid(pid, 0)
            if self._left:
                before, self._left = self._left, self._bury(self._left)
                for pid, rank in before.items() if self._what.get("apart") else ():
                    if pid not in self._left:
                        _say(event="cleared", rank=rank)
        except ChildProcessError:
            return False
        return True

    def _bury(self, ended: dict[int, int]) -> dict[int, int]:
        """Kill what ended ranks have left behind; those of them which had left something.

        Whatever loses its parent becomes a child of the keeper. Its group or its environment tells whose it was; what
        hides both is killed with the last rank.
        """
        processes = everyone()
        whose = {str(rank): pid for pid, rank in ended.items()}
        orphans: dict[int, int] = {}
        for process in processes:
            if process.parent == os.getpid() and process.pid not in self._ranks and process.state != "Z":
                main = whose.get(environment(process.pid).get("SHOAL_RANK", ""))
                if process.group in ended or main is not None:
                    orphans[process.pid] = process.group if main is None else main
        for process in descendants(orphans, processes):
            strike(process, signal.SIGKILL)
        for process in processes:
            if process.pid in orphans:
                strike(process, signal.SIGKILL)
        return {main: ended[main] for main in orphans.values()}

    def _spawn(self, rank: Mapping[str, Any]) -> tuple[int, str]:
        """Start one rank; its number, and where it could not be started the reason."""
        try:
            log = self._open_log(rank["log"])
        except OSError as error:
            return 0, f"cannot write the log {rank['log']!r} in {self._what['logs']!r}: {error.strerror}"
        told, tell = os.pipe()
        keeper = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become(rank, keeper, log, tell)
        os.close(log)
        os.close(tell)
        try:
            # A program on a file system that hangs must not hold up the end of the lease.
            ready, _, _ = select.select([told], [], [], max(self._lease - time.monotonic(), 0.0))
            problem = os.read(told, 65536).decode() if ready else "it was not started before the lease ended"
        finally:
            os.close(told)
        name = "the job's store" if "argv" in rank else f"rank {rank['rank']}"
        return pid, problem and f"{name}: {problem}"

    def _open_log(self, name: str) -> int:
        folder = os.open(self._what["logs"], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
            return os.open(os.path.basename(name), flags, 0o600, dir_fd=folder)
        finally:
            os.close(folder)

    def _become(self, rank: Mapping[str, Any], keeper: int, log: int, tell: int) -> NoReturn:
        """In the child: turn into the rank, or tell why that cannot be. ``tell`` closes by itself at exec."""
        try:
            os.setpgid(0, 0)
            die_with_parent(signal.SIGKILL)
            if os.getppid() != keeper:
                os._exit(127)
            signal.set_wakeup_fd(-1)
            for number in _HANDLED:
                signal.signal(number, signal.SIG_DFL)
            os.dup2(self._held[0] if "argv" in rank else os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            argv = rank.get("argv", self._what["argv"])
            problem = _enter(self._what["cwd"]) or _execute(argv, {**self._what["env"], **rank["env"]})
            os.write(tell, problem.encode(errors="replace"))
        except OSError as error:
            os.write(tell, str(error).encode(errors="replace"))
        finally:
            os._exit(127)


_HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that the keeper or Python itself does not leave as they are, and ranks must find as they are."""


def _enter(folder: str) -> str:
    """Make this the working directory; the reason where it cannot be."""
    try:
        os.chdir(folder)
        arrived = os.getcwd()
    except OSError as error:
        return f"cannot enter the working directory {folder!r}: {error.strerror}"
    # It was resolved when it was allowed; a link put in its place since then must not lead elsewhere.
    return "" if arrived == folder else f"the working directory {folder!r} has become a link to {arrived!r}"


def _execute(argv: list[str], environ: dict[str, str]) -> str:
    """Become this program; the reason where that cannot be."""
    program = argv[0]
    try:
        os.execvpe(program, argv, environ)
    except OSError as error:
        if error.errno == errno.ENOENT and "/" not in program:
            why = f"no such program on the job's PATH ({environ.get('PATH', '')}); name its full path or set PATH"
        elif error.errno == errno.ENOENT and os.path.exists(program):
            why = "the interpreter its first line names does not exist on this node"
        elif error.errno == errno.ENOENT:
            why = "no such file on this node"
        elif error.errno == errno.EACCES:
            why = "it is not executable; set its x permission, or name the interpreter first"
        elif error.errno == errno.ENOEXEC:
            why = "it is not a program; begin it with a #! line, or name the interpreter first"
        else:
            why = str(error.strerror)
    except ValueError as error:
        why = f"the command or its environment cannot be passed on: {error}"
    return f"cannot start {program!r}: {why}"


def _say(**what: object) -> None:
    # An agent that has died hears nothing; its ranks are killed all the same.
    with suppress(BrokenPipeError):
        os.write(1, json.dumps(what).encode() + b"\n")


def main() -> int:
    """Read what to start, start it, and stay until it is over."""
    adopt_orphans()
    wake, signalled = os.pipe()
    os.set_blocking(signalled, False)
    signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # Whoever ends a whole service signals all of it; it is the agent who then says how much time the ranks have.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    heard = b""
    while b"\n" not in heard:
        piece = os.read(0, 65536)
        if not piece:
            return 0
        heard += piece
    what, _, commands = heard.partition(b"\n")
    keeper = Keeper(json.loads(what), wake)
    keeper.start()
    keeper.obey(commands)
    keeper.watch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
