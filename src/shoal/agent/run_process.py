"""Start of a run's process: the steps of a keeper's child until it executes its program, and the failed step if any.

Keepers import this module, so it imports the standard library only.
"""

import ctypes
import errno
import fcntl
import os
import signal
import termios
from collections.abc import Mapping
from typing import Any, NoReturn

from shoal.agent.confinement import become

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores; a program must start with their defaults. Those handled get them back by exec itself."""

Streams = tuple[int, int, int]
"""Descriptors that become standard input, output and error."""


def become_process(
    run: Mapping[str, Any],
    process: Mapping[str, Any],
    streams: Streams,
    keeper: int,
    report_problem: int,
    *,
    terminal: bool = False,
) -> NoReturn:
    """In a child of a keeper: execute a program of the run, or write the problem to a pipe, which closes at exec.

    ``process`` has the program's ``env``, added to the run's, and its ``argv`` if it differs from the run's. The kernel
    kills the program when the keeper dies. With ``terminal`` the standard input is a terminal, which the program
    controls.
    """
    try:
        if terminal:
            os.setsid()
            fcntl.ioctl(streams[0], termios.TIOCSCTTY, 0)
        else:
            os.setpgid(0, 0)
        if run.get("cgroup"):
            os.write(os.open(f"{run['cgroup']}/cgroup.procs", os.O_WRONLY), b"0")
        user = run.get("user")
        if user:
            os.fchown(streams[2], user["uid"], user["gid"])
            become(user, streams[1])  # before the next call, which a change of the user undoes
        die_with_parent(signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(127)
        for number in _IGNORED:
            signal.signal(number, signal.SIG_DFL)
        for target, source in enumerate(streams):
            os.dup2(source, target)
        os.write(2, process.get("note", "").encode(errors="replace"))
        argv = process.get("argv", run["argv"])
        problem = _enter_folder(run["cwd"]) or _execute(argv, {**run["env"], **process["env"]})
        note = f"; it runs as {user['shown']}" if user else ""
        os.write(report_problem, f"{problem}{note}".encode(errors="replace"))
    except OSError as error:
        os.write(report_problem, str(error).encode(errors="replace"))
    finally:
        os._exit(127)


def _enter_folder(folder: str) -> str:
    """Change to the working directory; return the problem if that fails."""
    try:
        os.chdir(folder)
        arrived = os.getcwd()
    except OSError as error:
        return f"cannot enter the working directory {folder!r}: {error.strerror}"
    # It was resolved when it was checked: a link put in its place since then must not lead elsewhere.
    return "" if arrived == folder else f"the working directory {folder!r} has become a link to {arrived!r}"


def _execute(argv: list[str], environ: dict[str, str]) -> str:
    """Execute this program; return the problem if that fails."""
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
        elif error.errno == errno.EACCES and os.path.isdir(program):
            why = "it is a folder; name the program to run, or a file in it"
        elif error.errno == errno.EACCES:
            why = "it is not executable for its user; set its x permission, or name the interpreter first"
        elif error.errno == errno.ENOEXEC:
            why = "it is not a program; begin it with a #! line, or name the interpreter first"
        else:
            why = str(error.strerror)
    except ValueError as error:
        why = f"the command or its environment cannot be passed on: {error}"
    return f"cannot start {program!r}: {why}"


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parents die."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: int) -> None:
    """Have the kernel send this signal when the parent dies; the caller must check whether it is dead already."""
    _prctl(_PR_SET_PDEATHSIG, number)


_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")
