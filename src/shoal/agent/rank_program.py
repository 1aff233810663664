"""Executing the program of a rank, in the process that becomes it; problems are sentences for the job's owner.

It imports only the standard library, as the keeper does.
"""

import errno
import os


def enter_folder(folder: str) -> str:
    """Change to the working directory; return the problem if that fails."""
    try:
        os.chdir(folder)
        arrived = os.getcwd()
    except OSError as error:
        return f"cannot enter the working directory {folder!r}: {error.strerror}"
    # It was resolved when it was checked: a link put in its place since then must not lead elsewhere.
    return "" if arrived == folder else f"the working directory {folder!r} has become a link to {arrived!r}"


def execute(argv: list[str], environ: dict[str, str]) -> str:
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
