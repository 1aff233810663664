"""Sockets by which a keeper or a keeper server whose agent has died waits for the node's next agent.

Keepers import this module, so it imports the standard library only.
"""

import os
import select
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

KEEPER = "keeper.sock"
"""Name of a keeper's socket, in the folder of its run."""

_SECONDS = 2.0


def server_socket(boot: str) -> str:
    """Return the name of a keeper server's socket, in the node's folder; ``boot`` is that of its first agent."""
    return f"keepers-{boot}.sock"


class NextAgent:
    """The socket at which the next agent of a node connects; ``poll`` reports the connection."""

    def __init__(self, poll: Any) -> None:
        self._poll = poll
        self._listener: socket.socket | None = None

    def wait(self, folder: str, name: str, kind: int) -> bool:
        """Begin to wait at a socket in this folder; return whether that is possible."""
        listener = socket.socket(socket.AF_UNIX, kind)
        try:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))
            _in_folder(folder, name, listener.bind)
            listener.listen(1)
            listener.setblocking(False)
        except OSError:
            listener.close()
            return False
        self._poll.register(listener, select.POLLIN)
        self._listener = listener
        return True

    def is_at(self, fd: int) -> bool:
        """Return whether this is the socket's descriptor."""
        return self._listener is not None and self._listener.fileno() == fd

    def accept(self) -> socket.socket | None:
        """Return the connection of an agent of this process's user, and stop waiting; None if none has connected."""
        assert self._listener is not None
        try:
            found, _ = self._listener.accept()
        except OSError:
            return None
        _, user, _ = struct.unpack("3i", found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user != os.geteuid():
            found.close()
            return None
        self._poll.unregister(self._listener)
        self._listener.close()
        self._listener = None
        found.setblocking(True)
        return found


def peer(connection: socket.socket) -> int:
    """Return the process number of the other end."""
    return int(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])


def connect(folder: str, name: str, kind: int) -> socket.socket | None:
    """Return a connection to the process that waits at this socket; None if no process does."""
    found = socket.socket(socket.AF_UNIX, kind)
    found.settimeout(_SECONDS)
    try:
        _in_folder(folder, name, found.connect)
    except OSError:
        found.close()
        return None
    found.setblocking(False)
    return found


def _in_folder(folder: str, name: str, call: Callable[[str], None]) -> None:
    """Call ``call`` with a name of the socket within the kernel's limit of 108 characters, however deep the folder."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        call(f"/proc/self/fd/{fd}/{name}")
    finally:
        os.close(fd)
