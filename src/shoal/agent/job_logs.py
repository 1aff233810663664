"""Logs of ranks, each kept within a bound: its head and its tail stay, and a note stands where the middle was cut out.

Ranks append to their logs directly, so that no job ever waits for its output to be taken. A thread of the agent frees
the blocks in the middle of a log that has grown beyond its bound: the file keeps its length, and the hole in it is what
was cut. Where the file system has no holes, the log is rewritten without its middle. The agent keeps each log open, so
that one which its job deletes is bounded too.
"""

import os
import re
import stat
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shoal.agent.node_run import Key
from shoal.wire.disk import punch_hole

DEFAULT_LOG_BYTES = 64 * 10**6
"""Bytes kept of a rank's log."""

_BLOCK = 64 * 1024
"""Holes begin and end at multiples of this, which every common file system can free."""

_POLL_SECONDS, _FAST_POLL_SECONDS = 0.05, 0.005
"""Seconds between two checks of the logs; the shorter ones while a log grows fast."""

_NOTE = re.compile(rb"\n\[shoal: ([\d,]+) bytes cut here\]\n")
_MOST_NOTE_BYTES = 80


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Bytes of a log from ``begin`` to ``next``: those of the file, or a note in place of those that were cut."""

    size: int
    begin: int
    next: int
    data: bytes


def read_piece(file: int, offset: int, most: int) -> LogPiece:
    """Return at most ``most`` bytes of an open log from ``offset`` on; inside its hole, a note and the hole's ends."""
    size = os.fstat(file).st_size
    begin, end = _hole(file, size)
    if begin <= offset < end:
        return LogPiece(size, begin, end, _note(end - offset))
    if offset > size:  # it was rewritten shorter
        return LogPiece(size, size, size, b"")
    data = os.pread(file, min(most, begin - offset) if offset < begin else most, offset)
    return LogPiece(size, offset, offset + len(data), data)


def cut_log(file: int, bound: int) -> int:
    """Cut the middle out of an open log that is beyond its bound; return the length beyond which to cut again.

    A quarter of the bound is left at the log's head, half of it at its tail.
    """
    size, head = os.fstat(file).st_size, _aligned(bound // 4)
    begin, end = _hole(file, size)
    kept_from = max(head, end) if begin <= head else head
    if head + size - kept_from <= bound:
        return kept_from + bound - head
    keep_from = _aligned(size - bound // 2)
    if punch_hole(file, head, keep_from):
        return keep_from + bound - head
    _rewrite(file, size, head, bound // 2)
    return bound


def _rewrite(file: int, size: int, head: int, tail: int) -> None:
    """Shorten a log to its head, a note and its tail, where no hole can be punched; lines written meanwhile are lost.

    The file must be open for appending.
    """
    cut = size - head - tail
    before = _NOTE.match(os.pread(file, _MOST_NOTE_BYTES, head))
    if before is not None:
        cut += int(before[1].replace(b",", b"")) - len(before[0])
    kept = os.pread(file, tail, size - tail)
    os.ftruncate(file, head)
    os.write(file, _note(cut) + kept)


def shrink_earlier(folder: Path, incarnation: int, rank: int | str, bound: int) -> None:
    """Keep a rank's logs of earlier incarnations within one bound: of the oldest ones only a note is left."""
    logs = []
    for path in folder.glob(f"*.{rank}.log"):
        number = path.name.partition(".")[0]
        if number.isdigit() and int(number) < incarnation:
            logs.append((int(number), path))
    used = 0
    for _, path in sorted(logs, reverse=True):
        found = path.lstat()
        used += found.st_blocks * 512
        if used <= bound or not stat.S_ISREG(found.st_mode):
            continue
        if found.st_size <= _MOST_NOTE_BYTES:
            path.unlink()
        else:
            with open(os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW), "wb") as file:
                file.write(_note(found.st_size))


@dataclass(slots=True)
class _WatchedLog:
    """A log that may grow: its length when last checked, and the length beyond which it is cut; ``file`` once open."""

    path: Path
    limit: int
    size: int = 0
    file: int | None = None

    def open(self) -> int:
        """Return the log's file descriptor; ``OSError`` if there is no such regular file yet."""
        if self.file is None:
            file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK)
            if not stat.S_ISREG(os.fstat(file).st_mode):
                os.close(file)
                raise OSError("not a regular file")
            self.file = file
        return self.file


class LogLimiter:
    """Keeps the logs of a node's runs within ``bound`` bytes each, from a thread that checks those that may grow."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._lock = threading.Lock()
        self._logs: dict[Key, list[_WatchedLog]] = {}
        self._any = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, key: Key, folder: Path, names: Sequence[str]) -> None:
        """Watch the logs of a run that starts, and shrink those of earlier incarnations."""
        for name in names:
            incarnation, rank, _ = name.split(".")
            with suppress(OSError):
                shrink_earlier(folder, int(incarnation), rank, self._bound)
        with self._lock:
            self._logs[key] = [_WatchedLog(folder / name, self._bound) for name in names]
            self._any.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="logs", daemon=True)
            self._thread.start()

    def forget(self, key: Key) -> None:
        """Cut the logs of a run that is over a last time, and watch them no longer."""
        with self._lock:
            for log in self._logs.pop(key, ()):
                self._cut(log)
                if log.file is not None:
                    os.close(log.file)
            if not self._logs:
                self._any.clear()

    def _look(self) -> None:
        while self._any.wait():
            with self._lock:
                grown = max((self._cut(log) for logs in self._logs.values() for log in logs), default=0)
            time.sleep(_FAST_POLL_SECONDS if grown > self._bound // 16 else _POLL_SECONDS)

    def _cut(self, log: _WatchedLog) -> int:
        """Cut a log beyond its limit; return the bytes by which it has grown."""
        try:
            file = log.open()
            before, log.size = log.size, os.fstat(file).st_size
            if log.size > log.limit:
                log.limit = cut_log(file, self._bound)
        except OSError:  # it is not there yet, or the disk is full
            return 0
        return log.size - before


def _hole(file: int, size: int) -> tuple[int, int]:
    """Return begin and end of the first hole in an open file; both are its size if there is none."""
    try:
        begin = os.lseek(file, 0, os.SEEK_HOLE)
    except OSError:
        return size, size
    if begin >= size:
        return size, size
    try:
        return begin, os.lseek(file, begin, os.SEEK_DATA)
    except OSError:  # nothing but the hole
        return begin, size


def _aligned(offset: int) -> int:
    return offset // _BLOCK * _BLOCK


def _note(count: int) -> bytes:
    return f"\n[shoal: {count:,} bytes cut here]\n".encode()
