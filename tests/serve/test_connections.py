"""Connections are bounded: how many an address has, and how long a request may take to arrive."""

import http.client
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from tests.serve.conftest import NewHarness, Serving

from shoal.serve import Listening, ServerLimits
from shoal.serve.connections import Connections, group_of

HALF = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n"

Opened = Callable[[Listening, bytes], socket.socket]


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Opens connections that have sent some bytes, and closes them in the end."""
    with ExitStack() as stack:

        def connect(server: Listening, sent: bytes) -> socket.socket:
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20))
            connection.sendall(sent)
            return connection

        yield connect


def status(server: Listening, path: str, secret: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {secret}"})
        return connection.getresponse().status
    finally:
        connection.close()


def rest(connection: socket.socket) -> bytes:
    """Everything until the server closes the connection."""
    parts = []
    try:
        while part := connection.recv(4096):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def trickle(connection: socket.socket, piece: bytes) -> None:
    """Send a piece every 20 ms, for 8 s at most."""
    for _ in range(400):
        connection.sendall(piece)
        time.sleep(0.02)


def test_half_sent_requests_shut_no_caller_out(new_harness: NewHarness, serving: Serving, opened: Opened) -> None:
    harness = new_harness(ServerLimits(strangers=8))
    server = serving(harness.app)
    held = [opened(server, HALF) for _ in range(40)]
    assert status(server, "/v1/jobs", harness.secrets["ana"]) == 200
    assert status(server, "/v1/healthz", "") == 200
    assert [rest(connection) for connection in held[:30]] == [b""] * 30, "the oldest made room"
    held[-1].sendall(b"\r\n")
    assert held[-1].recv(4096).startswith(b"HTTP/1.1 401"), "the newest are still served"


@pytest.mark.parametrize("sent", [b"", b"G", HALF, b"GET /v1/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" + HALF])
def test_a_request_that_does_not_arrive_in_time_ends_its_connection(
    new_harness: NewHarness, serving: Serving, opened: Opened, sent: bytes
) -> None:
    harness = new_harness(ServerLimits(head_seconds=0.2))
    connection = opened(serving(harness.app), sent)
    said = rest(connection)
    assert (b"HTTP/1.1 408" in said) == bool(sent)
    assert (b"HTTP/1.1 200" in said) == (b"healthz" in sent)


def test_bytes_now_and_then_do_not_extend_the_time(new_harness: NewHarness, serving: Serving, opened: Opened) -> None:
    harness = new_harness(ServerLimits(head_seconds=0.3))
    connection = opened(serving(harness.app), HALF)
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        trickle(connection, b"X-More: x\r\n")


def test_an_unread_body_does_not_keep_its_connection(new_harness: NewHarness, serving: Serving, opened: Opened) -> None:
    harness = new_harness(ServerLimits(head_seconds=0.3))
    connection = opened(serving(harness.app), HALF + b"Content-Length: 100000\r\n\r\n")
    assert connection.recv(4096).startswith(b"HTTP/1.1 401")
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        trickle(connection, b"x")


def test_a_slow_answer_is_not_cut_off(new_harness: NewHarness, serving: Serving, opened: Opened) -> None:
    harness = new_harness(ServerLimits(head_seconds=0.05), what_if=lambda question, tenant: time.sleep(0.3))
    head = f"POST /v1/whatif HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {harness.secrets['ana']}\r\n"
    body = "Content-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
    assert rest(opened(serving(harness.app), (head + body).encode())).startswith(b"HTTP/1.1 200")


class Peers:
    """Connections that are only counted."""

    def __init__(self, limits: ServerLimits, most: int = 1000) -> None:
        self.connections = Connections(limits, most)
        self._ends: list[socket.socket] = []
        self.shut: dict[int, socket.socket] = {}

    def admit(self, address: str, port: int, role: str | None = None, token: str = "") -> bool:
        mine, other = socket.socketpair()
        self._ends += [mine, other]
        self.shut[port] = other
        admitted = self.connections.admit(mine, (address, port))
        if admitted and role is not None:
            self.connections.identify((address, port), role, token or f"token-{port}")
        return admitted

    def is_shut(self, port: int) -> bool:
        other = self.shut[port]
        other.setblocking(False)
        try:
            return other.recv(1) == b""
        except BlockingIOError:
            return False

    def close(self) -> None:
        for end in self._ends:
            end.close()


@pytest.fixture
def peers() -> Iterator[Callable[..., Peers]]:
    made: list[Peers] = []

    def make(limits: ServerLimits, most: int = 1000) -> Peers:
        made.append(Peers(limits, most))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_the_oldest_stranger_of_an_address_makes_room(peers: Callable[..., Peers]) -> None:
    known = peers(ServerLimits(strangers=3))
    assert known.admit("192.0.2.1", 1, "user")
    assert all(known.admit("192.0.2.1", port) for port in (2, 3, 4, 5))
    assert known.admit("192.0.2.2", 6)
    assert [known.is_shut(port) for port in range(1, 7)] == [False, True, False, False, False, False]


def test_people_of_one_address_are_bounded_and_agents_are_not(peers: Callable[..., Peers]) -> None:
    known = peers(ServerLimits(callers=2))
    assert all(known.admit("192.0.2.1", port, "agent") for port in range(10))
    assert known.admit("192.0.2.1", 11, "user")
    assert known.admit("192.0.2.1", 12, "admin")
    assert not known.admit("192.0.2.1", 13)
    assert known.admit("192.0.2.2", 14, "user")


def test_the_oldest_connection_of_an_agent_makes_room_for_its_next(peers: Callable[..., Peers]) -> None:
    known = peers(ServerLimits(agent_connections=2))
    assert all(known.admit("192.0.2.1", port, "agent", "n0") for port in (1, 2))
    assert known.admit("192.0.2.1", 3, "agent", "n1")
    assert known.admit("192.0.2.2", 4, "agent", "n0")
    assert [known.is_shut(port) for port in (1, 2, 3, 4)] == [True, False, False, False]


def test_when_files_run_out_a_stranger_makes_room_and_no_one_else(peers: Callable[..., Peers]) -> None:
    known = peers(ServerLimits(), most=3)
    assert known.admit("192.0.2.1", 1, "user")
    assert known.admit("192.0.2.2", 2)
    assert known.admit("192.0.2.3", 3, "agent")
    assert known.admit("192.0.2.4", 4, "agent")
    assert [known.is_shut(port) for port in (1, 2, 3, 4)] == [False, True, False, False]
    assert not known.admit("192.0.2.5", 5)


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_the_addresses_of_one_ipv6_network_count_as_one(address: str, group: str) -> None:
    assert group_of(address) == group
