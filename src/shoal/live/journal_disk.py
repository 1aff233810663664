"""The disk of the journal: refusal of new work while it is short of space, and the journal's reserve on it.

New work is refused while less than ``NEEDED_BYTES`` are free, so that the rest is left to the ends of running jobs. On
top of that the journal's write-ahead log has blocks of its own, which no job log and no program log can take.
"""

import logging
import sqlite3
import threading
from dataclasses import dataclass, field
from pathlib import Path

from shoal.core.errors import InputError, ShoalError
from shoal.core.units import Seconds
from shoal.wire.disk import free_bytes, is_full, reserve

log = logging.getLogger(__name__)

NEEDED_BYTES = 16 * 2**20
"""Bytes that must be free on the journal's disk for a control plane to start and to accept work."""

WRITE_ERRORS = (sqlite3.OperationalError, OSError)
"""Errors of a journal's commit after which it may succeed later."""

_BYTES_PER_BYTE = 4
"""Bytes that the journal may take for one byte of a request: record, index and write-ahead log."""

_FIRST_PAUSE: Seconds = 0.2
_LONGEST_PAUSE: Seconds = 10.0


class ShortOfDisk(ShoalError):
    """A request needs the journal, and the journal's disk is full or failing."""


def check_room(home: Path) -> None:
    """Raise ``InputError`` if the disk of a control plane's home is too full to start there."""
    folder = next(path for path in (home, *home.absolute().parents) if path.exists())
    free = free_bytes(folder)
    if free < NEEDED_BYTES:
        hint = f"its disk has {_mb(free)} free and a control plane needs {_mb(NEEDED_BYTES)}; free some or name another"
        raise InputError("home", str(home), hint)


@dataclass(slots=True)
class JournalDisk:
    """The disk of a journal file; set ``stopping`` to end the attempts to write to it."""

    path: Path
    stopping: threading.Event = field(default_factory=threading.Event)
    failure: str = ""
    """Why the journal cannot be written; empty while it can."""
    _pauses: int = 0

    def __post_init__(self) -> None:
        self._reserve()

    def shortage(self, request_bytes: int = 0) -> str:
        """Return a sentence on why a request of this size cannot be accepted; empty if it can."""
        needed = NEEDED_BYTES + _BYTES_PER_BYTE * request_bytes
        free = free_bytes(self.path.parent)
        if not self.failure and free >= needed:
            return ""
        what = f"cannot write its journal ({self.failure})" if self.failure else "is short of disk"
        room = f": its disk has {_mb(free)} free and it needs {_mb(needed)}" if free < needed else ""
        return f"the control plane {what}{room}; running jobs go on, new work is refused meanwhile"

    def check(self, request_bytes: int = 0) -> None:
        """Raise ``ShortOfDisk`` if a request of this size, which adds work, cannot be accepted."""
        if sentence := self.shortage(request_bytes):
            raise ShortOfDisk(sentence)

    def check_writable(self) -> None:
        """Raise ``ShortOfDisk`` if the journal cannot be written at all: the reserve is used up, or the disk fails."""
        if self.failure:
            self.check()

    def failed(self, error: Exception) -> ShortOfDisk:
        """Record that a commit failed; return the error for the requests that wait for it."""
        if not self.failure:
            log.error("the journal cannot be written", extra={"error": str(error), "full": is_full(error)})
        self.failure = str(error)
        return ShortOfDisk(f"{self.shortage()}; it is not known whether this request will count: ask again")

    def wait(self) -> bool:
        """Pause before the next attempt, each time twice as long up to 10 s; true if the control plane stops."""
        seconds = min(_FIRST_PAUSE * 2**self._pauses, _LONGEST_PAUSE)
        self._pauses += 1
        return self.stopping.wait(seconds)

    def recovered(self) -> None:
        """Record that a commit succeeded."""
        if self.failure:
            log.info("the journal is written again", extra={"attempts": self._pauses})
            self.failure, self._pauses = "", 0
            self._reserve()

    def _reserve(self) -> None:
        try:
            reserve(self.path.with_name(f"{self.path.name}-wal"), NEEDED_BYTES)
        except OSError as error:
            log.warning("no space is reserved for the journal", extra={"error": str(error)})


def _mb(count: int) -> str:
    return f"{count / 2**20:,.1f} MB"
