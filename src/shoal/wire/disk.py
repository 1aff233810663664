"""Disk space: how much is free, blocks reserved behind the end of a file, and holes punched into one."""

import ctypes
import errno
import os
from pathlib import Path

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_SQLITE_FULL = 13
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)

_libc = ctypes.CDLL(None, use_errno=True)


def free_bytes(folder: Path) -> int:
    """Return the bytes that an ordinary user may still write to the folder's disk."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def is_full(error: BaseException) -> bool:
    """Return whether an error of a file or of SQLite means that a disk, or a user's quota on it, is full."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return full or getattr(error, "sqlite_errorcode", None) == _SQLITE_FULL


def reserve(path: Path, size: int) -> bool:
    """Reserve blocks for the first ``size`` bytes of a file, whose length stays; False where that is not supported.

    ``OSError`` if fewer are free on the disk; then none is taken. Not for a file that this process has locked: closing
    it unlocks it. Nothing else may write to the file meanwhile.
    """
    file = os.open(path, os.O_WRONLY)
    try:
        found = os.fstat(file)
        if free_bytes(path.parent) < size - 512 * found.st_blocks:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        try:
            return _fallocate(file, _KEEP_SIZE, 0, size)
        except OSError:
            os.ftruncate(file, found.st_size)  # gives back the blocks that it did get
            raise
    finally:
        os.close(file)


def punch_hole(file: int, begin: int, end: int) -> bool:
    """Free the blocks of an open file's bytes ``begin`` to ``end``, which read as zeros; False where not supported."""
    return _fallocate(file, _PUNCH_HOLE | _KEEP_SIZE, begin, end - begin)


def _fallocate(file: int, mode: int, offset: int, length: int) -> bool:
    try:
        function = _libc.fallocate64 if hasattr(_libc, "fallocate64") else _libc.fallocate
    except AttributeError:  # not Linux
        return False
    if function(file, mode, ctypes.c_int64(offset), ctypes.c_int64(length)) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code))
