"""A worker's connection to its job's store, as a store of torch."""

import secrets
import socket
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec
from torch.distributed import Store

from shoal.core.errors import InputError
from shoal.trainer.elastic.store import NONCE_BYTES, SECRET, proof, receive_exactly, receive_message, send_message

_RETRY_SECONDS = 0.05
_WAIT_SECONDS = 0.2
"""Time that the store waits for keys at a time: meanwhile no other thread can use this connection."""


class WorkerStore(Store):  # type: ignore[misc]
    """Connects to the store at ``host`` and ``port``, for ``timeout`` at most, and proves to know the job's secret.

    A broken connection and keys that are not set in time raise ``RuntimeError``, as in torch's own stores.
    """

    def __init__(self, host: str, port: int, secret: str, timeout: timedelta) -> None:
        super().__init__()
        self._where, self._timeout = f"{host}:{port}", timeout
        self._lock = threading.Lock()
        self._connection = _connect(host, port, secret, timeout.total_seconds())

    def set(self, key: str, value: str | bytes) -> None:
        """Set a key."""
        self._call("set", key, _bytes(value))

    def get(self, key: str) -> bytes:
        """Return a key's value, once it is set."""
        self.wait([key])
        value: bytes | None = self._call("get", key)
        return value or b""

    def add(self, key: str, amount: int) -> int:
        """Add to a key's number and return the sum."""
        total: int = self._call("add", key, amount)
        return total

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        """Set a key if it has the expected value, or if it is unset and that is empty; return its value."""
        value: bytes = self._call("compare_set", key, _bytes(expected_value), _bytes(desired_value))
        return value

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys are set."""
        return bool(self._call("wait", list(keys), 0.0))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are set."""
        deadline = time.monotonic() + (timeout or self._timeout).total_seconds()
        while not self._call("wait", list(keys), _WAIT_SECONDS):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the store at {self._where} did not get {', '.join(keys)[:200]} in time")

    def delete_key(self, key: str) -> bool:
        """Remove a key and return whether it was set."""
        return bool(self._call("delete", key))

    def num_keys(self) -> int:
        """Return the number of keys."""
        return int(self._call("count"))

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time after which ``get`` and ``wait`` give up."""
        self._timeout = timeout

    @property
    def timeout(self) -> timedelta:
        """The time after which ``get`` and ``wait`` give up."""
        return self._timeout

    def _call(self, *message: Any) -> Any:
        with self._lock:
            try:
                send_message(self._connection, message)
                return receive_message(self._connection)
            except (OSError, ValueError, msgspec.DecodeError) as error:
                raise RuntimeError(f"the store at {self._where} does not answer: {error}") from error

    def __del__(self) -> None:
        if hasattr(self, "_connection"):
            self._connection.close()


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _connect(host: str, port: int, secret: str, seconds: float) -> socket.socket:
    """Connect, again and again while nothing listens: the store may be starting."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            connection = socket.create_connection((host, port), timeout=seconds)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise RuntimeError(f"no store answers at {host}:{port}: {error}") from error
            time.sleep(_RETRY_SECONDS)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _prove(connection, secret)
        connection.settimeout(None)
    except OSError as error:
        connection.close()
        raise InputError(SECRET, "…", f"is not the secret of the store at {host}:{port}: {error}") from error
    except InputError:
        connection.close()
        raise
    return connection


def _prove(connection: socket.socket, secret: str) -> None:
    theirs, mine = receive_exactly(connection, NONCE_BYTES), secrets.token_bytes(NONCE_BYTES)
    connection.sendall(mine + proof(secret, "worker", theirs, mine))
    if receive_exactly(connection, NONCE_BYTES) != proof(secret, "store", theirs, mine):
        raise InputError(SECRET, "…", "the store does not know it: another process listens in its place")
