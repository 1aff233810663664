"""A job's checkpoints in its folder: whole or not there, checked when read, the last two kept.

One is written beside its place, checksummed, and moved there in one step. Reading gives the newest that is whole and
was made by this job for this model; others are set aside, never used and never mended. Knows nothing of what is in
the files. One process writes the checkpoints of a folder at a time.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LOG = logging.getLogger("shoal.trainer")

_FORMAT = 1
_KEPT = 2
_MANIFEST = "manifest.json"
_ASIDE = ".refused"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One that is whole: where its files are, and the facts that were written down with them."""

    path: Path
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Those of one job and one model below a folder. ``owner`` is the job, ``fits`` a mark of the model's shape: what
    bears other marks is foreign."""

    folder: Path
    owner: str
    fits: str

    def begin(self, progress: int) -> Path:
        """An empty folder in which the files of a checkpoint are to be put."""
        path = self._partial(progress)
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    def commit(self, progress: int, facts: Mapping[str, Any]) -> Checkpoint:
        """All files are there: make it the newest checkpoint, and drop all but the last two."""
        partial, path = self._partial(progress), self.folder / f"{progress:015d}"
        files = {}
        for file in sorted(partial.rglob("*")):
            if file.is_file():
                files[str(file.relative_to(partial))] = _digest(file)
                _settle(file)
        manifest = {"format": _FORMAT, "owner": self.owner, "fits": self.fits, "facts": facts, "files": files}
        (partial / _MANIFEST).write_text(json.dumps(manifest))
        _settle(partial / _MANIFEST)
        _settle(partial)
        shutil.rmtree(path, ignore_errors=True)
        partial.rename(path)
        _settle(self.folder)
        for old in self._newest_first()[_KEPT:]:
            shutil.rmtree(old, ignore_errors=True)
        return Checkpoint(path, facts)

    def usable(self) -> Iterator[Checkpoint]:
        """Those that may be resumed from, newest first; what is not whole or not this job's is set aside."""
        for path in self._newest_first():
            found = self._read(path)
            if isinstance(found, Checkpoint):
                yield found
            else:
                self.refuse(path, found)

    def refuse(self, path: Path, why: str) -> None:
        """Set one aside: nobody will read it again."""
        _LOG.warning("checkpoint %s is not used: %s", path, why)
        aside = path.with_name(path.name + _ASIDE)
        shutil.rmtree(aside, ignore_errors=True)
        with suppress(OSError):  # another may have done it
            path.rename(aside)

    def _partial(self, progress: int) -> Path:
        return self.folder / f".{progress:015d}.partial"

    def _newest_first(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return sorted((path for path in self.folder.iterdir() if path.name.isdigit()), reverse=True)

    def _read(self, path: Path) -> Checkpoint | str:
        """The checkpoint, or why it cannot be used."""
        try:
            manifest = json.loads((path / _MANIFEST).read_text())
            known = manifest["format"], manifest["owner"], manifest["fits"]
            for name, digest in manifest["files"].items():
                if _digest(path / name) != digest:
                    return f"{name} is not as it was written"
            facts = dict(manifest["facts"])
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            return f"it is not whole ({error!r})"
        wanted = _FORMAT, self.owner, self.fits
        for what, found, mine in zip(("format", "job", "model"), known, wanted, strict=True):
            if found != mine:
                return f"it is of another {what} ({found!r}, not {mine!r})"
        return Checkpoint(path, facts)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _settle(path: Path) -> None:
    """Have the disk hold it before anything is built on it."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
