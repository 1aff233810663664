"""Code that users ship with their jobs: archives in the control plane's home, by tenant and content.

An archive is uploaded in parts and kept once its content has the digest that names it. Tenants share no archives: an
answer that one is already there would disclose what other tenants have. The oldest archives that no live job uses are
removed where there is no room.
"""

import hashlib
import os
import re
import threading
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from shoal.core.errors import InputError
from shoal.core.units import JobNumber, TenantId
from shoal.wire.disk import free_bytes
from shoal.wire.messages import MOST_CODE_BYTES, MOST_PART_BYTES, CodePart, CodeStatus

MOST_STORED_BYTES = 10 * 2**30
"""Bytes of all archives together."""

LEFT_FREE_BYTES = 2**30
"""Bytes of the disk that archives leave free: the journal is on the same disk."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_DONE, _PART = ".tar.gz", ".part"

CodeKey: TypeAlias = tuple[TenantId, str]
"""A tenant and a digest."""


@dataclass(slots=True)
class CodeStore:
    """The archives in a folder; ``in_use`` returns those of live jobs.

    ``owner_of`` takes a node, a job's number and a digest; it returns the job's tenant if the node has a run of that
    job with this code, else None.
    """

    folder: Path
    in_use: Callable[[], Set[CodeKey]]
    owner_of: Callable[[str, JobNumber, str], TenantId | None]
    most_bytes: int = MOST_STORED_BYTES
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def status(self, tenant: TenantId, digest: str) -> CodeStatus:
        """Return whether an archive is there, or how many of its bytes are."""
        whole, part = self._paths(tenant, digest)
        with self._lock:
            if whole.exists():
                os.utime(whole)  # it is about to be used
                return CodeStatus(whole.stat().st_size, True)
            return CodeStatus(part.stat().st_size if part.exists() else 0, False)

    def receive(self, tenant: TenantId, digest: str, piece: CodePart) -> CodeStatus:
        """Append a part to the bytes that are there; the last part completes the archive if its digest is right."""
        whole, part = self._paths(tenant, digest)
        if len(piece.data) > MOST_PART_BYTES or piece.offset + len(piece.data) > min(piece.size, MOST_CODE_BYTES):
            raise InputError("size", piece.size, f"an archive has at most {MOST_CODE_BYTES / 1e6:,.0f} MB")
        with self._lock:
            if whole.exists():
                return CodeStatus(whole.stat().st_size, True)
            have = part.stat().st_size if part.exists() else 0
            if piece.offset != have:
                return CodeStatus(have, False)
            self._make_room(len(piece.data), part)
            if free_bytes(self.folder.parent) < LEFT_FREE_BYTES + len(piece.data):
                hint = (
                    f"the control plane's disk has less than {LEFT_FREE_BYTES / 2**30:,.0f} GB free; share the folder"
                )
                raise InputError("code", digest, f"{hint} with the nodes, or submit later")
            part.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as out:
                out.write(piece.data)
            if have + len(piece.data) < piece.size:
                return CodeStatus(have + len(piece.data), False)
            with part.open("rb") as archive:
                found = hashlib.file_digest(archive, "sha256").hexdigest()
            if found != digest:
                part.unlink()
                raise InputError("digest", digest, f"the archive that was sent has the digest {found}; send it again")
            part.rename(whole)
            return CodeStatus(piece.size, True)

    def check(self, tenant: TenantId, digest: str) -> None:
        """Raise ``InputError`` unless the whole archive is there."""
        if not self.status(tenant, digest).whole:
            raise InputError("code", digest, "is not on the control plane; send it with `shoal submit --ship`")

    def read(self, tenant: TenantId, digest: str, offset: int) -> CodePart:
        """Return a part of an archive, from ``offset`` on."""
        whole, _ = self._paths(tenant, digest)
        try:
            with whole.open("rb") as archive:
                archive.seek(offset)
                return CodePart(offset, whole.stat().st_size, archive.read(MOST_PART_BYTES))
        except FileNotFoundError:
            raise InputError("code", digest, "is no longer on the control plane; submit the job again") from None

    def _paths(self, tenant: TenantId, digest: str) -> tuple[Path, Path]:
        if not _DIGEST.fullmatch(digest):
            raise InputError("digest", digest[:80], "must be the SHA-256 of the archive, 64 hexadecimal digits")
        own = self.folder / hashlib.sha256(tenant.encode()).hexdigest()[:32]
        return own / f"{digest}{_DONE}", own / f"{digest}{_PART}"

    def _make_room(self, needed: int, wanted: Path) -> None:
        """Remove the least recently used archives until there is room; ``InputError`` if there is none."""
        others = (path for path in self.folder.glob("*/*") if path != wanted)
        files = sorted(others, key=lambda path: path.stat().st_mtime)
        total = sum(path.stat().st_size for path in files) + (wanted.stat().st_size if wanted.exists() else 0)
        if total + needed <= self.most_bytes:
            return
        used = {self._paths(*key)[0] for key in self.in_use()}
        for path in files:
            if path not in used:
                total -= path.stat().st_size
                path.unlink()
                if total + needed <= self.most_bytes:
                    return
        hint = f"the control plane has no room: live jobs use {total / 1e9:,.1f} of {self.most_bytes / 1e9:,.1f} GB"
        raise InputError("code", wanted.name.removesuffix(_PART), hint)
