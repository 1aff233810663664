"""Hand the admin's token of ``shoal up`` to commands of its owner, over an abstract socket, and to no job.

The token is in no file that a job of the same user could read. Two checks keep jobs out. The kernel keeps a job in its
Landlock domain from the socket (``shoal.agent.confinement``; Linux 6.12 or newer). On every kernel this server refuses
descendants of its own process, which all jobs are, and other users except root.
"""

import logging
import os
import secrets
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec

from shoal.agent.processes import find_process

_LOG = logging.getLogger("shoal.serve")

_PATIENCE_SECONDS = 5.0
_MOST_ANCESTORS = 1000


@contextmanager
def offer_token(secret: str) -> Iterator[str]:
    """Answer on a new abstract socket while the context is open; yields the socket's name."""
    name = f"shoal-{secrets.token_hex(16)}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"\0{name}")
    listener.listen(16)
    threading.Thread(target=_answer_all, args=(listener, secret), name="token", daemon=True).start()
    try:
        yield name
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _answer_all(listener: socket.socket, secret: str) -> None:
    while True:
        try:
            peer, _ = listener.accept()
        except OSError:  # closed
            return
        with peer, suppress(OSError):
            peer.settimeout(_PATIENCE_SECONDS)
            pid, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            problem = _problem(pid, uid)
            if problem:
                _LOG.warning("admin token refused", extra={"pid": pid, "uid": uid, "problem": problem})
            peer.sendall(msgspec.json.encode({"error": problem} if problem else {"token": secret}))


def _problem(pid: int, uid: int) -> str:
    """Return why this process may not have the token; empty if it may."""
    if uid not in (0, os.getuid()):
        return "this cluster belongs to another user; ask for a token of your own"
    if _descends(pid):
        return "a job may not act as the cluster's owner; give it a token of its own (`shoal token create`)"
    return ""


def _descends(pid: int) -> bool:
    """Whether a process descends from this one, or has ended, or cannot be seen from here."""
    for _ in range(_MOST_ANCESTORS):
        process = find_process(pid)
        if process is None or pid == os.getpid():
            return True
        if process.parent == 0:
            return False
        pid = process.parent
    return True
