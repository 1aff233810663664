"""Connections between the nodes of one job: both ends prove that they know the run's secret, then exchange frames."""

import hashlib
import hmac
import json
import os
import socket
import struct
import time
from typing import Any

from shoal.agent.slurm.programs.tasks import CONTROL

HANDSHAKE_SECONDS = 10.0
_HEAD = struct.Struct(">IHB")
_MOST_FRAME_BYTES = 64 << 20


class Channel:
    """A connected socket that carries frames: a kind, the number of a task and bytes."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection

    def send(self, kind: int, task: int, data: bytes) -> None:
        """Send a frame; waits while the other end does not read."""
        self.socket.sendall(_HEAD.pack(len(data), task, kind) + data)

    def tell(self, message: object) -> None:
        """Send a JSON frame."""
        self.send(CONTROL, 0, json.dumps(message).encode())

    def receive(self) -> tuple[int, int, bytes] | None:
        """Return the next frame; None at the end of the connection."""
        head = self._read(_HEAD.size)
        if len(head) < _HEAD.size:
            return None
        size, task, kind = _HEAD.unpack(head)
        if size > _MOST_FRAME_BYTES:
            return None
        data = self._read(size)
        return (kind, task, data) if len(data) == size else None

    def hear(self) -> Any:
        """Return the message of the next JSON frame; ``ConnectionError`` if none comes."""
        frame = self.receive()
        if frame is None or frame[0] != CONTROL:
            raise ConnectionError("the other node closed the connection")
        return json.loads(frame[2])

    def _read(self, size: int) -> bytes:
        pieces = bytearray()
        while len(pieces) < size:
            try:
                piece = self.socket.recv(min(size - len(pieces), 1 << 20))
            except ConnectionError:
                break
            if not piece:
                break
            pieces += piece
        return bytes(pieces)

    def _exactly(self, size: int) -> bytes:
        data = self._read(size)
        if len(data) < size:
            raise ConnectionError("the other node closed the connection: another secret?")
        return data


def listen(port: int = 0) -> socket.socket:
    """Listen on all addresses of this node."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128)
    return socket.create_server(("", port), backlog=128)


def welcome(connection: socket.socket, secret: str) -> Channel:
    """Prove the secret to a process that connected, which must do so first."""
    connection.settimeout(HANDSHAKE_SECONDS)
    channel, nonce = Channel(connection), os.urandom(32)
    connection.sendall(nonce)
    answer = channel._exactly(64)
    _check(answer[:32], _proof(secret, b"caller", nonce))
    connection.sendall(_proof(secret, b"server", answer[32:]))
    connection.settimeout(None)
    return channel


def call(host: str, port: int, secret: str, deadline: float) -> Channel:
    """Connect and prove the secret; try again until ``deadline``, on the monotonic clock."""
    while True:
        try:
            return _call(host, port, secret, max(0.1, min(HANDSHAKE_SECONDS, deadline - time.monotonic())))
        except OSError as error:
            if time.monotonic() >= deadline:
                raise ConnectionError(f"cannot connect to {host}:{port}: {error}") from None
            time.sleep(0.05)


def _call(host: str, port: int, secret: str, seconds: float) -> Channel:
    connection = socket.create_connection((host, port), timeout=seconds)
    try:
        channel = Channel(connection)
        nonce, own = channel._exactly(32), os.urandom(32)
        connection.sendall(_proof(secret, b"caller", nonce) + own)
        _check(channel._exactly(32), _proof(secret, b"server", own))
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        connection.close()
        raise
    return channel


def _check(proof: bytes, expected: bytes) -> None:
    if not hmac.compare_digest(proof, expected):
        raise ConnectionError("the other process does not know the run's secret")


def _proof(secret: str, side: bytes, nonce: bytes) -> bytes:
    return hmac.new(secret.encode(), side + nonce, hashlib.sha256).digest()
