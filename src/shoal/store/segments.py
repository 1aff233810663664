"""Segments of a live journal: closed files in ``archive`` and, beside that folder, the one being written.

Each segment begins with a header and, except the first, with a base, so that it can be read without those before it.
A switch to the next segment can be interrupted at any point: ``recover`` completes it or undoes it.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from shoal.core.errors import InputError
from shoal.core.units import JobNumber, Seconds
from shoal.store.codec import Base
from shoal.store.journal import JournalFile, SqliteJournal

ARCHIVE = "archive"
_NEXT = "next.sqlite"
_MOST_VERDICTS, _SEGMENTS_READ = 200, 8
"""Verdicts of a job that are shown, and segments of the journal that are searched for them."""


def archived(journal: Path) -> list[Path]:
    """Return the closed segments before a journal, in order."""
    folder = journal.parent / ARCHIVE
    return sorted(folder.glob("[0-9]*.sqlite")) if folder.is_dir() else []


def segments(journal: Path) -> list[Path]:
    """Return all segments of a journal, in order; its own file is the last."""
    return [*archived(journal), journal]


def last_verdicts(journal: Path, job: JobNumber) -> list[tuple[Seconds, str]]:
    """Return (time, sentence) of a job's last verdicts, from the latest segments, in order."""
    found: list[tuple[Seconds, str]] = []
    for path in reversed(segments(journal)[-_SEGMENTS_READ:]):
        found = [*JournalFile(path).verdicts(job), *found]
        if len(found) >= _MOST_VERDICTS:
            break
    return found[-_MOST_VERDICTS:]


def switch(journal: SqliteJournal, base: Base, step: Callable[[str], None] = lambda _: None) -> bool:
    """Close a journal's segment, move it to the archive, and continue in a new one that begins with ``base``.

    Return false, with nothing changed, if another process reads the journal now. ``step`` is called after each step.
    """
    path = journal.path
    new = path.with_name(_NEXT)
    recover(path)
    begun = SqliteJournal.begin(new, journal.settings, base)
    begun.close()
    _sync_folder(path.parent)
    step("written")
    old = _next_name(path)
    old.parent.mkdir(mode=0o700, exist_ok=True)

    def replace() -> None:
        step("closed")
        os.link(path, old)
        _sync_folder(old.parent)
        step("linked")
        os.replace(new, path)
        with suppress(OSError):  # the file is replaced; SQLite flushes the folder too when it creates the file's log
            _sync_folder(path.parent)
        step("replaced")

    try:
        return journal.switch_files(replace, begun.records)
    finally:
        recover(path)


def recover(journal: Path) -> None:
    """Undo a switch that was interrupted before the new segment took the journal's place, or tidy up after one."""
    for end in ("", "-wal", "-shm", "-journal"):
        journal.with_name(_NEXT + end).unlink(missing_ok=True)
    last = archived(journal)[-1:]
    if last and journal.exists() and os.path.samefile(last[0], journal):
        last[0].unlink()


def _next_name(journal: Path) -> Path:
    last = archived(journal)[-1:]
    number = int(last[0].stem) + 1 if last else 1
    if number > 999_999:
        raise InputError("archive", str(last[0].parent), "holds a million segments; move them away")
    return journal.parent / ARCHIVE / f"{number:06d}.sqlite"


def _sync_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
