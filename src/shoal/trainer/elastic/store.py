"""Key-value store of an elastic job, in a process of its own that outlives every worker.

``python -m shoal.trainer.elastic.store [PORT]`` listens on the port (0 or none: any free one) of the address in
``MASTER_ADDR`` (loopback by default) and on no other, prints the port on a line, and serves until SIGTERM, SIGINT or
the end of its standard input. It serves only those who prove that they know the secret in ``SHOAL_STORE_SECRET``, and
proves the same to them; what follows is neither encrypted nor signed. Messages are plain values (MessagePack).
"""

import hashlib
import hmac
import os
import secrets
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from shoal.core.errors import InputError

SECRET = "SHOAL_STORE_SECRET"

_LOOPBACK = "127.0.0.1"
_HANDSHAKE_SECONDS = 10.0
_LONGEST_WAIT_SECONDS = 1.0
_MOST_BYTES = 64 * 2**20
_MOST_CONNECTIONS = 4096
NONCE_BYTES = 32
"""Bytes of each random number of a proof of the secret."""
_LENGTH = struct.Struct("!I")


class StoreServer:
    """The keys and values of one job's workers; ``port`` is where it listens."""

    def __init__(self, listening: socket.socket, secret: str) -> None:
        self.port: int = listening.getsockname()[1]
        self._listening, self._secret = listening, secret
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._places = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self._operations: Mapping[str, Callable[..., Any]] = {
            "set": self._set,
            "get": self._get,
            "add": self._add,
            "compare_set": self._compare_set,
            "wait": self._wait,
            "delete": self._delete,
            "count": lambda: len(self._values),
        }
        threading.Thread(target=self._accept, name="store", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            if self._places.acquire(blocking=False):
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
            else:
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            # A peer that breaks off or sends something else ends its own connection only.
            with connection, suppress(OSError, msgspec.DecodeError, TypeError, ValueError, LookupError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.settimeout(_HANDSHAKE_SECONDS)
                if not self._is_worker(connection):
                    return
                connection.settimeout(None)
                while True:
                    name, *arguments = receive_message(connection)
                    send_message(connection, self._operations[name](*arguments))
        finally:
            self._places.release()

    def _is_worker(self, connection: socket.socket) -> bool:
        """Exchange proofs of the secret; return whether the other side knows it."""
        mine = secrets.token_bytes(NONCE_BYTES)
        connection.sendall(mine)
        theirs = receive_exactly(connection, NONCE_BYTES)
        shown = receive_exactly(connection, NONCE_BYTES)
        if not hmac.compare_digest(shown, proof(self._secret, "worker", mine, theirs)):
            return False
        connection.sendall(proof(self._secret, "store", mine, theirs))
        return True

    def _set(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def _get(self, key: str) -> bytes | None:
        with self._changed:
            return self._values.get(key)

    def _add(self, key: str, amount: int) -> int:
        with self._changed:
            total = int(self._values.get(key, b"0")) + amount
            self._values[key] = str(total).encode()
            self._changed.notify_all()
            return total

    def _compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        with self._changed:
            present = self._values.get(key)
            if present is None and expected:
                return expected
            if present is None or present == expected:
                self._values[key] = present = desired
                self._changed.notify_all()
            return present

    def _wait(self, keys: list[str], seconds: float) -> bool:
        """Return whether all keys are set, after waiting for them for these seconds, 1 at most."""
        with self._changed:
            wait = min(seconds, _LONGEST_WAIT_SECONDS)
            return self._changed.wait_for(lambda: all(key in self._values for key in keys), wait)

    def _delete(self, key: str) -> bool:
        with self._changed:
            return self._values.pop(key, None) is not None


def open_store(port: str, host: str = _LOOPBACK, secret: str = "") -> StoreServer:
    """A store listening on a port of one address, for those who know the secret; 0 picks a free port."""
    if not port.isdecimal() or int(port) > 65535:
        raise InputError("port", port, "must be a whole number from 0 to 65535")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen()
        except OSError:
            listening.close()
            raise
    except OSError as error:
        hint = f"cannot listen on {host} there ({error.strerror}); choose another"
        raise InputError("port", port, hint) from None
    return StoreServer(listening, secret)


def proof(secret: str, who: str, store: bytes, worker: bytes) -> bytes:
    """Return the proof of a secret, for one connection and one side of it."""
    return hmac.new(secret.encode(), b"|".join((who.encode(), store, worker)), hashlib.sha256).digest()


def send_message(connection: socket.socket, message: object) -> None:
    """Send a message of plain values."""
    data = msgspec.msgpack.encode(message)
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive_message(connection: socket.socket) -> Any:
    """Receive a message; ``ValueError`` for one that is too long, ``OSError`` at the end of the connection."""
    (length,) = _LENGTH.unpack(receive_exactly(connection, _LENGTH.size))
    if length > _MOST_BYTES:
        raise ValueError(f"a message of {length} bytes")
    return msgspec.msgpack.decode(receive_exactly(connection, length))


def receive_exactly(connection: socket.socket, count: int) -> bytes:
    """Receive this many bytes; ``ConnectionError`` where the connection ends before."""
    data = bytearray()
    while len(data) < count:
        part = connection.recv(min(count - len(data), 2**16))
        if not part:
            raise ConnectionError("the other side closed the connection")
        data += part
    return bytes(data)


def main(arguments: list[str]) -> int:
    """Serve; returns the exit code: 0, or 2 after printing one line of error."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    host, secret = os.environ.get("MASTER_ADDR") or _LOOPBACK, os.environ.get(SECRET, "")
    try:
        store = open_store(arguments[0] if arguments else "0", host, secret)
    except InputError as error:
        print(f"shoal store: {error}", file=sys.stderr)
        return 2
    print(store.port, flush=True)

    def watch() -> None:
        while sys.stdin.readline():
            pass
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    ended.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
