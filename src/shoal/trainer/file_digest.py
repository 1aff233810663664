"""Digests of checkpoint files, computed in parallel, and ahead of time while a job waits at the gate.

A digest is the SHA-256 of the SHA-256 digests of the file's parts of 16 MiB, so that several threads can compute it.
Checkpoints of earlier versions have the SHA-256 of the whole file.
"""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

_PART = 16 * 2**20
_THREADS = 8
_IN_PARTS = "sha256-16MiB:"

_Version: TypeAlias = tuple[str, int, int, int]
"""A file's path, inode, length in bytes and time of its last change in nanoseconds."""

_ahead: dict[_Version, str] = {}
"""Digests that `read_ahead` computed."""


def digest(path: Path) -> str:
    """Return the digest of a file's content; many threads read large files."""
    return _ahead.get(_version(path)) or _digest(path)


def is_unchanged(path: Path, written: str) -> bool:
    """Return whether a file's content has the digest that was written for it."""
    if written.startswith(_IN_PARTS):
        return digest(path) == written
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == written


def read_ahead(folder: Path) -> None:
    """Compute the digests of a folder's files, which also brings them into the page cache; ignores errors."""
    with suppress(OSError):
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                version = _version(path)
                _ahead[version] = _digest(path)


def _version(path: Path) -> _Version:
    found = path.stat()
    return str(path), found.st_ino, found.st_size, found.st_mtime_ns


def _digest(path: Path) -> str:
    starts = range(0, path.stat().st_size, _PART)
    if len(starts) < 2:
        parts = [_part(path, 0)]
    else:
        with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
            parts = list(pool.map(lambda start: _part(path, start), starts))
    return _IN_PARTS + hashlib.sha256(b"".join(parts)).hexdigest()


def _part(path: Path, start: int) -> bytes:
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        return hashlib.sha256(file.read(_PART)).digest()
