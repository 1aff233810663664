"""Pack a folder as it is at submission and send it to the control plane, once per content.

In a Git work tree the files are those that Git tracks or does not ignore; elsewhere all but ``.git``, ``.venv`` and
``__pycache__``. Equal contents give equal archives: names are sorted, owners and times left out.
"""

import gzip
import hashlib
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from urllib.parse import urlencode

from shoal.cli.output import warn
from shoal.core.errors import InputError
from shoal.wire.client import Client
from shoal.wire.messages import MOST_CODE_BYTES, MOST_CODE_FILES, MOST_PART_BYTES, CodePart, CodeStatus

_LEFT_OUT = frozenset({".git", ".venv", "__pycache__"})
_GIT_SECONDS = 60.0
_MOST_TRIES = 3
"""How often a part is sent at most: two commands may send the same archive at once."""


def ship(client: Client, folder: Path, tenant: str | None) -> str:
    """Send the folder's files, unless the control plane has them; return the digest of the archive."""
    with tempfile.TemporaryFile() as archive:
        pack(folder, archive)
        archive.seek(0)
        digest = hashlib.file_digest(archive, "sha256").hexdigest()
        size = archive.seek(0, os.SEEK_END)
        path = f"/v1/code/{digest}" + (f"?{urlencode({'tenant': tenant})}" if tenant else "")
        status = client.get(path, CodeStatus)
        for _ in range(_MOST_TRIES * (size // MOST_PART_BYTES + 1)):
            if status.whole:
                return digest
            archive.seek(status.have)
            status = client.post(path, CodePart(status.have, size, archive.read(MOST_PART_BYTES)), CodeStatus)
    if not status.whole:
        raise InputError("ship", str(folder), "could not be sent: the control plane dropped it; try again")
    return digest


def pack(folder: Path, archive: IO[bytes]) -> None:
    """Write an archive of the folder's files; ``InputError`` if they are too many or too large."""
    chosen = sorted(_files(folder))
    _check_size(folder, chosen)
    with (
        gzip.GzipFile(fileobj=archive, mode="wb", filename="", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as out,
    ):
        for name in chosen:
            path = folder / name
            member = tarfile.TarInfo(name)
            if path.is_symlink():
                member.type, member.linkname = tarfile.SYMTYPE, os.readlink(path)
                out.addfile(member)
                continue
            try:
                with path.open("rb") as file:
                    about = os.fstat(file.fileno())
                    member.size, member.mode = about.st_size, 0o755 if about.st_mode & 0o100 else 0o644
                    out.addfile(member, file)
            except OSError as error:
                raise InputError("ship", str(path), f"cannot be read: {error.strerror or error}") from error


def _files(folder: Path) -> Iterator[str]:
    """Yield the paths of files and of links within the folder, relative to it; links that lead out are left out."""
    inside = folder.resolve()
    for name in _of_git(folder) or _below(folder, folder):
        path = folder / name
        if path.is_symlink():
            target = os.path.join(path.parent.resolve(), os.readlink(path))
            if os.path.isabs(os.readlink(path)) or not Path(target).resolve().is_relative_to(inside):
                warn(f"--ship leaves {name} out: it is a link out of the folder")
                continue
            yield name
        elif path.is_file():
            yield name
        elif path.is_dir():  # a repository within the repository
            yield from _below(path, folder)


def _of_git(folder: Path) -> list[str]:
    """Return the files that Git does not ignore; none if the folder is not in a work tree."""
    command = ["git", "-C", str(folder), "ls-files", "-coz", "--exclude-standard"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_GIT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [os.fsdecode(name) for name in done.stdout.split(b"\0") if name] if done.returncode == 0 else []


def _below(folder: Path, root: Path) -> Iterator[str]:
    for at, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        links = [name for name in folders if os.path.islink(os.path.join(at, name))]
        for name in (*files, *links):
            path = os.path.join(at, name)
            if os.path.islink(path) or os.path.isfile(path):
                yield os.path.relpath(path, root)


def _check_size(folder: Path, names: list[str]) -> None:
    sizes = {name: (folder / name).lstat().st_size for name in names}
    if not names:
        raise InputError("ship", str(folder), "holds no file that Git does not ignore")
    if len(names) > MOST_CODE_FILES:
        hint = f"has {len(names):,} files, and at most {MOST_CODE_FILES:,} are shipped; let .gitignore name the others"
        raise InputError("ship", str(folder), hint)
    total = sum(sizes.values())
    if total > MOST_CODE_BYTES:
        three = sorted(names, key=lambda name: -sizes[name])[:3]
        largest = ", ".join(f"{name} ({sizes[name] / 1e6:,.0f} MB)" for name in three)
        hint = f"has {total / 1e6:,.0f} MB, and at most {MOST_CODE_BYTES / 1e6:,.0f} are shipped"
        raise InputError("ship", str(folder), f"{hint}; the largest are {largest}: let .gitignore name them")
