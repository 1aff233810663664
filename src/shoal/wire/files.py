"""Atomic replacement of small files that other processes read."""

import os
from contextlib import suppress
from pathlib import Path


def replace_file(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write ``data`` to a file beside ``path`` and rename it to ``path``: a reader sees the old content or the new.

    ``mode`` is the mode of the new file, less the umask; 0o600 keeps it private to its owner. The rename survives the
    death of this process, not that of the machine: nothing is flushed to the disk. Where writing fails, ``path`` is
    left as it was.
    """
    folder, name = os.path.split(path)
    beside = os.path.join(folder, f".{name}.{os.getpid()}")
    try:
        file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        try:
            while data:
                data = data[os.write(file, data) :]
        finally:
            os.close(file)
        os.replace(beside, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(beside)
        raise
