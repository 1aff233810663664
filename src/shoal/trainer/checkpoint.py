"""Checkpoint folders of a job: written atomically, checksummed, the last two kept.

Files are written to a hidden folder that is renamed once complete. Reading returns the newest complete checkpoint of
this job and model; others are renamed aside and never read again. This module does not look into the files. Only one
process writes the checkpoints of a folder at a time.
"""

import json
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.trainer.file_digest import digest, is_unchanged, read_ahead
from shoal.wire.files import replace_file

SAVE_EVERY_SECONDS = 600.0
"""Default interval between checkpoints: the most training that a machine failure can lose, in seconds."""

_LOG = logging.getLogger("shoal.trainer")

_FORMAT, _READ = 2, (1, 2)
"""The format of a manifest that is written, and those that are read."""

KEPT = 2
"""Complete checkpoints that are kept."""
_MANIFEST = "manifest.json"
_ASIDE = ".refused"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint: its folder and the facts stored in its manifest."""

    path: Path
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The checkpoints of one job and model in ``folder``.

    ``owner`` is the job's name and ``fits`` a fingerprint of the model's shape; a checkpoint with another owner or
    fingerprint is not used.
    """

    folder: Path
    owner: str
    fits: str

    def begin(self, progress: int) -> Path:
        """Create and return an empty folder for the files of a checkpoint; remove those of checkpoints that failed."""
        for failed in self.folder.glob(".*.partial"):
            shutil.rmtree(failed, ignore_errors=True)
        path = self._partial(progress)
        path.mkdir(parents=True)
        return path

    def commit(self, progress: int, facts: Mapping[str, Any]) -> Checkpoint:
        """Publish the checkpoint whose files are complete, and delete all but the newest two."""
        partial, path = self._partial(progress), self.folder / f"{progress:015d}"
        paths = [file for file in sorted(partial.rglob("*")) if file.is_file()]
        with ThreadPoolExecutor(1) as flushing:  # the disk works while digests are computed
            flushed = flushing.map(_flush, paths)
            files = {str(file.relative_to(partial)): digest(file) for file in paths}
            list(flushed)  # raises what a flush raised
        manifest = {"format": _FORMAT, "owner": self.owner, "fits": self.fits, "facts": facts, "files": files}
        (partial / _MANIFEST).write_text(json.dumps(manifest))
        _flush(partial / _MANIFEST)
        _flush(partial)
        shutil.rmtree(path, ignore_errors=True)
        partial.rename(path)
        _flush(self.folder)
        for old in self._newest_first()[KEPT:]:
            shutil.rmtree(old, ignore_errors=True)
        return Checkpoint(path, facts)

    def usable(self) -> Iterator[Checkpoint]:
        """Yield complete checkpoints of this job and model, newest first; set others aside."""
        for path in self._newest_first():
            found = self._read(path)
            if isinstance(found, Checkpoint):
                yield found
            else:
                self.refuse(path, found)

    def refuse(self, path: Path, why: str) -> None:
        """Rename a checkpoint so that it is not read again, and log why."""
        _LOG.warning("checkpoint %s is not used: %s", path, why)
        aside = path.with_name(path.name + _ASIDE)
        shutil.rmtree(aside, ignore_errors=True)
        with suppress(OSError):  # another rank may have renamed it already
            path.rename(aside)

    def _partial(self, progress: int) -> Path:
        return self.folder / f".{progress:015d}.partial"

    def _newest_first(self) -> list[Path]:
        return _newest_first(self.folder)

    def _read(self, path: Path) -> Checkpoint | str:
        """Return the checkpoint, or the reason why it cannot be used."""
        try:
            manifest = json.loads((path / _MANIFEST).read_text())
            known = manifest["format"], manifest["owner"], manifest["fits"]
            for name, written in manifest["files"].items():
                if not is_unchanged(path / name, written):
                    return f"{name} is not as it was written"
            facts = dict(manifest["facts"])
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            return f"it is not whole ({error!r})"
        wanted = known[0] if known[0] in _READ else _FORMAT, self.owner, self.fits
        for what, found, mine in zip(("format", "job", "model"), known, wanted, strict=True):
            if found != mine:
                return f"it is of another {what} ({found!r}, not {mine!r})"
        return Checkpoint(path, facts)


def read_newest_ahead(folder: Path) -> None:
    """Read and check the newest checkpoint of a folder, so that resuming from it takes less time; ignores errors."""
    with suppress(OSError):
        for path in _newest_first(folder)[:1]:
            read_ahead(path)


def _newest_first(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if path.name.isdigit()), reverse=True)


def mark_complete(marker: Path, job: str) -> None:
    """Write the file that marks another library's checkpoint as complete and as this job's."""
    replace_file(marker, job.encode())


def is_marked(marker: Path, job: str) -> bool:
    """Return whether a checkpoint is complete and this job's; the log says which job's it is if it is another's."""
    try:
        owner = marker.read_text(errors="replace")
    except OSError:
        return False
    if owner != job:
        whose = f"of another job ({owner!r}, not {job!r})" if owner else "of an unknown job"
        _LOG.warning("checkpoint %s is not used: it is %s", marker.parent, whose)
    return owner == job


class BackgroundWriter:
    """Writes a checkpoint in a thread while training continues.

    If a checkpoint cannot be written, the failure is logged; the previous one remains.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def start(self, progress: int, write: Callable[[], None]) -> None:
        """Call ``write`` in a thread; ``progress``, in samples, is named if it fails. Call `settle` first."""
        self._thread = threading.Thread(target=_write_or_log, args=(progress, write), name="shoal-checkpoint")
        self._thread.start()

    def settle(self) -> None:
        """Wait until the checkpoint under way is written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None


def _write_or_log(progress: int, write: Callable[[], None]) -> None:
    try:
        write()
    except Exception as error:  # training continues; the previous checkpoint remains
        _LOG.warning("the checkpoint at %s samples could not be written: %r", progress, error)


def _flush(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
