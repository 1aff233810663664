"""Fetch the code that a job was shipped with, check it and unpack it in the job's folder.

The archive comes from a user: it may not be larger than packed code may be, nor hold devices, or paths and links that
lead out of it. It is unpacked in a folder of the agent's and moved into the job's when it is whole, once per job: a job
that is started again finds its folder as it left it.
"""

import hashlib
import logging
import os
import shutil
import tarfile
import tempfile
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from shoal.agent.workspace import Workspace
from shoal.core.errors import InputError, ShoalError
from shoal.wire.client import Client
from shoal.wire.messages import MOST_CODE_BYTES, MOST_CODE_FILES, CodePart, RunOrder

_LOG = logging.getLogger("shoal.agent")

CODE = "code"
"""The folder of shipped code within a job's folder."""


@dataclass(frozen=True, slots=True)
class CodeFetched:
    """The code of a run is in place, or ``cause`` says why it is not; ``blameless`` if that is not the job's fault."""

    order: RunOrder
    cause: str = ""
    blameless: bool = False


@dataclass(frozen=True, slots=True)
class CodeFetcher:
    """Fetches the code of runs, each in a thread of its own, and delivers a message about each to the agent."""

    client: Callable[[], Client]
    workspace: Workspace
    owner: Callable[[RunOrder], tuple[int, int] | None]
    deliver: Callable[[CodeFetched], None]

    def start(self, order: RunOrder) -> None:
        """Begin to fetch the code of a run."""
        threading.Thread(target=self._run, args=(order,), name="code", daemon=True).start()

    def _run(self, order: RunOrder) -> None:
        found = CodeFetched(order)
        try:
            with closing(self.client()) as client:
                fetch_code(client, order, self.workspace, self.owner(order))
        except (ShoalError, OSError) as error:
            _LOG.warning("code not fetched", extra={"id": order.id, "cause": str(error)})
            found = CodeFetched(order, f"cannot get its code: {error}", not isinstance(error, InputError))
        self.deliver(found)


def fetch_code(client: Client, order: RunOrder, workspace: Workspace, owner: tuple[int, int] | None) -> None:
    """Put the code of a run into its job's folder, for the user and group ``owner``, unless it is there.

    ``InputError`` names what is wrong with the archive; other errors of the network or the disk are not the job's.
    """
    target = workspace.job(order.id) / CODE
    if order.code is None or os.path.lexists(target):
        return
    with tempfile.TemporaryDirectory(dir=workspace.staging()) as folder:
        archive, made = Path(folder) / "archive", Path(folder) / CODE
        _download(client, order, archive)
        made.mkdir()
        _unpack(archive, made)
        if owner is not None:
            for path in (made, *made.rglob("*")):
                os.chown(path, *owner, follow_symlinks=False)
        try:
            made.rename(target)
        except OSError:
            if not target.is_dir():  # else another node with the same home was faster
                raise


def _download(client: Client, order: RunOrder, archive: Path) -> None:
    assert order.code is not None
    have, digest = 0, hashlib.sha256()
    with archive.open("wb") as out:
        while True:
            try:
                part = client.get(f"/v1/agent/code/{order.code}?job={order.job}&offset={have}", CodePart)
            except InputError as error:  # the order may be void by now
                raise OSError(str(error)) from error
            out.write(part.data)
            digest.update(part.data)
            have += len(part.data)
            if have >= part.size or not part.data or have > MOST_CODE_BYTES:
                break
    if digest.hexdigest() != order.code:
        raise OSError("the code that the control plane sent is not what the job was submitted with")


def _unpack(archive: Path, folder: Path) -> None:
    if not hasattr(tarfile, "data_filter"):
        raise OSError("this node's Python cannot unpack archives safely; use Python 3.11.4 or newer")
    try:
        with tarfile.open(archive, "r:gz") as packed:
            files = size = 0
            for member in packed:
                files, size = files + 1, size + member.size
                if files > MOST_CODE_FILES or size > MOST_CODE_BYTES:
                    raise InputError("code", member.name, "the archive is larger than code may be")
                packed.extract(member, folder, set_attrs=True, filter="data")
    except (tarfile.TarError, EOFError, ValueError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise InputError("code", archive.name, f"cannot be unpacked: {error}") from None
