"""Start the tasks of a step on this node, and follow them: output, exits and signals."""

import errno
import json
import os
import select
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

if TYPE_CHECKING:
    from shoal.agent.slurm.programs.channel import Channel

CONTROL, STDOUT, STDERR = 0, 1, 2
"""Kinds of frames between nodes: JSON, and output of a task."""

FORWARDED = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
    signal.SIGXCPU, signal.SIGCONT,
)  # fmt: skip
"""Signals that ``srun`` passes on to the tasks of its step."""

OnFrame: TypeAlias = Callable[[int, tuple[int, int, bytes] | None], None]

NOT_STARTED = 2
"""Exit status of a task whose program cannot be started."""


def expand(pattern: str, values: dict[str, str]) -> str:
    """Return a file name with Slurm's patterns replaced: ``%j``, ``%4t``, ``%%``; a backslash switches them off."""
    if "\\" in pattern:
        return pattern.replace("\\", "")
    found, at = [], 0
    while at < len(pattern):
        end = at + 1
        while pattern[at] == "%" and pattern[end : end + 1].isdigit():
            end += 1
        letter = pattern[end : end + 1]
        if pattern[at] != "%" or (letter not in values and letter != "%"):
            found.append(pattern[at])
            at += 1
            continue
        width = min(int(pattern[at + 1 : end] or 0), 10)
        found.append(
            "%" if letter == "%" else values[letter].zfill(width) if values[letter].isdigit() else values[letter]
        )
        at = end + 1
    return "".join(found)


def file_values(environ: dict[str, str]) -> dict[str, str]:
    """Return the values of Slurm's file name patterns, from the variables of a job or of a task."""
    found = {
        "j": "SLURM_JOB_ID", "J": "SLURM_JOB_ID", "A": "SLURM_ARRAY_JOB_ID", "a": "SLURM_ARRAY_TASK_ID",
        "x": "SLURM_JOB_NAME", "N": "SLURMD_NODENAME", "n": "SLURM_NODEID", "t": "SLURM_PROCID",
        "s": "SLURM_STEP_ID", "u": "SLURM_JOB_USER",
    }  # fmt: skip
    values = {letter: environ.get(name, "") for letter, name in found.items()}
    values["A"] = values["A"] or values["j"]
    values["a"] = values["a"] or "4294967294"  # what Slurm writes for a job that is no array's
    return values


def open_output(path: str, folder: str, *, append: bool) -> int:
    """Open an output file, below ``folder`` if its name is relative."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (0 if append else os.O_TRUNC)
    return os.open(os.path.join(folder, path), flags, 0o644)


def become(argv: list[str], environ: dict[str, str], folder: str, stdio: Iterable[int]) -> NoReturn:
    """In the child: execute a program in a process group of its own; exit with 2 if that fails."""
    try:
        os.setpgid(0, 0)
        for number in (*FORWARDED, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        for target, source in enumerate([os.dup(fd) for fd in stdio]):
            os.dup2(source, target)
        os.chdir(folder)
        os.execvpe(argv[0], argv, environ)
    except OSError as error:
        why = "no such program" if error.errno == errno.ENOENT else error.strerror
        where = f"{folder}: " if error.filename == folder else ""
        os.write(2, f"slurm: error: cannot start {argv[0]!r}: {where}{why}\n".encode(errors="replace"))
    finally:
        os._exit(NOT_STARTED)


def wake_by_signal() -> int:
    """Catch the signals that are passed on, and SIGCHLD; return a descriptor from which their numbers can be read."""
    wake, signalled = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    for number in (*FORWARDED, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
    return wake


def stopping() -> bool:
    """Whether the job's agent is stopping the run: its keepers have sent SIGTERM to every process of it."""
    try:
        with open(os.environ.get("SHOAL_LEASE", ""), "rb") as file:
            return bool(json.load(file)["stopping"])
    except (OSError, ValueError, KeyError):
        return False


class Relay:
    """Follows tasks, their output and connections in one loop; callbacks decide what to do with each."""

    def __init__(self, output: Callable[[int, int, bytes], None], ended: Callable[[int, int], None]) -> None:
        self._output, self._ended = output, ended
        self.pids: dict[int, int] = {}  # pid: rank
        self.channels: dict[int, Channel] = {}
        self._pipes: dict[int, tuple[int, int]] = {}
        self._poll = select.poll()
        self._wake = wake_by_signal()
        self._poll.register(self._wake, select.POLLIN)

    def start(self, task: dict[str, Any], argv: list[str], folder: str, stdio: tuple[int | None, ...]) -> None:
        """Start a task; an output that is None comes through a pipe to the ``output`` callback."""
        fds, ends = [], []
        for stream, fd in enumerate(stdio):
            if fd is not None:
                fds.append(fd)
                continue
            end, write = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(end, False)
            self._pipes[end] = (task["rank"], STDOUT if stream == 1 else STDERR)
            self._poll.register(end, select.POLLIN)
            ends.append(write)
            fds.append(write)
        pid = os.fork()
        if pid == 0:
            become(argv, task["env"], folder, fds)
        with suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)
        for fd in ends:
            os.close(fd)
        self.pids[pid] = task["rank"]

    def join(self, channel: "Channel") -> None:
        """Follow a connection too."""
        self.channels[channel.socket.fileno()] = channel
        self._poll.register(channel.socket, select.POLLIN)

    def leave(self, fd: int) -> None:
        """Close a connection and stop reading from it."""
        self._poll.unregister(fd)
        self.channels.pop(fd).socket.close()

    def signal(self, number: int) -> None:
        """Send a signal to all processes of the tasks."""
        for pid in self.pids:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, number)

    def follow(self, frame: OnFrame, signalled: Callable[[int], None]) -> None:
        """Follow until no task and no connection is left; at the end of a connection ``frame`` is called with None."""
        while self.pids or self.channels:
            self._turn(frame, signalled)

    def follow_tasks(self, frame: OnFrame, signalled: Callable[[int], None]) -> None:
        """Follow, as ``follow`` does, until no task is left."""
        while self.pids:
            self._turn(frame, signalled)

    def _turn(self, frame: OnFrame, signalled: Callable[[int], None]) -> None:
        for fd, _ in self._poll.poll():
            if fd == self._wake:
                self._signals(signalled)
            elif fd in self.channels:
                frame(fd, self.channels[fd].receive())
            elif fd in self._pipes:
                self._drain(fd, once=True)

    def _signals(self, signalled: Callable[[int], None]) -> None:
        numbers = os.read(self._wake, 4096)
        for number in dict.fromkeys(numbers):
            if number != signal.SIGCHLD:
                signalled(number)
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                rank = self.pids.pop(ended[0], None)
                if rank is None:
                    continue
                for fd in [fd for fd, (of, _) in self._pipes.items() if of == rank]:
                    self._drain(fd)
                self._ended(rank, os.waitstatus_to_exitcode(ended[1]))

    def _drain(self, fd: int, *, once: bool = False) -> None:
        """Pass on a task's new output; after its end the rest, without later output of processes it left behind."""
        while True:
            try:
                data = os.read(fd, 65536)
            except BlockingIOError:
                if not once:
                    break
                return
            if not data:
                break
            self._output(*self._pipes[fd], data)
            if once:
                return
        self._poll.unregister(fd)
        del self._pipes[fd]
        os.close(fd)
