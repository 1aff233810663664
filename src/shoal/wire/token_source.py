"""Sources of a program's token: a file, an open file descriptor, or the socket of ``shoal up``.

A token is never passed in an argument, which every user of the machine can read, and to an agent never in an
environment variable, which every process of the same user can read.
"""

import json
import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from shoal.core.errors import InputError, ShoalError
from shoal.wire.client import Unreachable

_MOST_BYTES = 4096
_PATIENCE_SECONDS = 10.0


def read_token_file(path: str | Path) -> str:
    """Return the token in a file."""
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("token-file", str(path), f"cannot be read: {getattr(error, 'strerror', error)}") from error


def read_token_fd(descriptor: int) -> str:
    """Return the token that can be read from an open file descriptor, and leave an empty file in its place."""
    try:
        found = b""
        while b"\n" not in found and (piece := os.read(descriptor, _MOST_BYTES)):
            found += piece
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, descriptor)
        os.close(empty)
    except OSError as error:
        raise InputError("token-fd", descriptor, f"cannot be read: {error.strerror}") from error
    return found.decode(errors="replace").strip()


def agent_token(file: str | Path | None, descriptor: int | None) -> Callable[[], str]:
    """Return a function that returns an agent's token, read from the file each time; ``InputError`` if there is none.

    The control plane refuses a token that has expired or was replaced: the file may have another by then.
    """
    found = ""
    if file is not None:
        found = read_token_file(file)
    elif descriptor is not None:
        found = read_token_fd(descriptor)
    elif "SHOAL_TOKEN" in os.environ:
        hint = "an agent takes no token from its environment, which every process of its user can read"
        raise InputError("SHOAL_TOKEN", "…", f"{hint}; name a --token-file")
    if not found:
        raise InputError("token", None, "name a --token-file (`shoal serve` writes agents/NODE.token in its home)")

    def token() -> str:
        with suppress(InputError):
            return (read_token_file(file) if file is not None else "") or found
        return found

    return token


def ask_token(name: str) -> str:
    """Return the admin's token of the ``shoal up`` that answers on this abstract socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        asked.settimeout(_PATIENCE_SECONDS)
        try:
            asked.connect(f"\0{name}")
            _, uid, _ = struct.unpack("3i", asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            answer = b""
            while piece := asked.recv(_MOST_BYTES):
                answer += piece
        except PermissionError:
            raise ShoalError("a job may not act as the cluster's owner; give it a token of its own") from None
        except OSError as error:
            text = f"cannot reach the cluster: {error.strerror or error}; is `shoal up` running?"
            raise Unreachable(text) from None
    if uid not in (0, os.getuid()):
        raise ShoalError("another user answers in place of `shoal up`")
    said = json.loads(answer or b'{"error": "`shoal up` gave no answer"}')
    if "token" not in said:
        raise ShoalError(str(said.get("error")))
    return str(said["token"])
