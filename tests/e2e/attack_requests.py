"""Attacks of ``tests.e2e.attack`` through the network: random requests, connections that hold back or break off."""

import http.client
import json
import random
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import msgspec.inspect as shapes

from shoal.serve.route import Route
from shoal.serve.routes import ROUTES

_WORDS = (
    "", "a", "gpu-0", "gpu-99", "admin", "-", "..", "../../etc/passwd", "%2e%2e", "x" * 300, "a b", "\u202e", "\x00",
    "\ud7ff", "*", "0", "-1", "1e999", "true", "fifo", "/tmp/evil.py:P", "shoal", "'; drop table record", "{}", "🦈",
)  # fmt: skip
_NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 7, 1e308, -1e308, 1e-308, 2**31, 2**53, 2**63, 2**64, 10**40, 0.1, 1e18, float("nan"), float("inf"),
)  # fmt: skip
_SPARED = frozenset(
    {("DELETE", "/v1/nodes/{node}"), ("DELETE", "/v1/tokens/{token}"), ("POST", "/v1/policy"), ("POST", "/v1/nodes"),
     ("POST", "/v1/cancel"), ("POST", "/v1/priority")}
)  # fmt: skip
"""Requests of an admin that change the cluster under attack for good."""

_SLOW, _STREAMS = 120, 40


@dataclass(slots=True)
class Attacker:
    """A caller of the control plane at ``port`` who means no good; ``tokens`` are secrets by role."""

    port: int
    tokens: dict[str, str]
    chance: random.Random
    until: float
    """When to stop, on the monotonic clock."""
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    """Answers that no request may get."""

    @property
    def on(self) -> bool:
        """Whether there is time left."""
        return time.monotonic() < self.until

    # ── random requests ───────────────────────────────────────────────────────────────────────────────────────

    def fuzz(self) -> None:
        """Send random requests to random routes."""
        while self.on:
            route = self.chance.choice(ROUTES)
            role = self.chance.choice(["admin", "user", "agent", "none"])
            if route.media == "text/event-stream" or (role == "admin" and (route.method, route.path) in _SPARED):
                role = "none"
            self._send(route, role)

    def _send(self, route: Route, role: str) -> None:
        path = route.path
        while "{" in path:
            path = path[: path.index("{")] + self._quoted(self.chance.choice(_WORDS)) + path[path.index("}") + 1 :]
        if route.query is not None:
            path += "?" + "&".join(
                f"{name}={self._quoted(str(self._value(None)))}" for name in self._names(route.query)
            )
        body = None if route.body is None else self._body(route.body)
        method = route.method if self.chance.random() < 0.9 else self.chance.choice(["PUT", "GET", "POST", "TRACE"])
        headers = {"Content-Type": "application/json"}
        if role != "none":
            headers["Authorization"] = f"Bearer {self.tokens[role]}"
        status, said = self.ask(method, path, body, headers)
        if status >= 500 and status not in (503, 507):
            self.wrong.append(f"{status} for {method} {path[:200]} {(body or b'')[:500]!r}: {said[:200]!r}")

    def ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        """Return status and body of an answer; 0 if the control plane was not there."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=40.0)) as connection:
            try:
                connection.request(method, path, body, headers)
                answer = connection.getresponse()
                status, said = answer.status, answer.read(4096)
            except (OSError, http.client.HTTPException):
                status, said = 0, b""
        self.statuses[status] += 1
        if status in (0, 429):
            time.sleep(0.2)
        return status, said

    def _quoted(self, text: str) -> str:
        return "".join(c if c.isascii() and c.isalnum() else "".join(f"%{b:02X}" for b in c.encode()) for c in text)

    def _names(self, kind: Any) -> list[str]:
        fields = [one.name for one in msgspec.structs.fields(kind)]
        return self.chance.sample(fields, self.chance.randint(0, len(fields)))

    def _body(self, kind: Any) -> bytes:
        if self.chance.random() < 0.1:
            return self.chance.choice(
                [b"", b"{", b"null", b"[]", b"[" * 100_000, b'{"a":' * 500, b"\xff\xfe", b"1" * 5000]
            )
        text = json.dumps(self._value(shapes.type_info(kind))).encode()
        return text[: self.chance.randrange(len(text) + 1)] if self.chance.random() < 0.05 else text

    def _value(self, wanted: Any, depth: int = 0) -> Any:
        """Return a value of a type, most often a right one."""
        if wanted is None or self.chance.random() < 0.06 or depth > 6:
            return self.chance.choice([None, True, [], {}, *_NUMBERS, *_WORDS])
        match wanted:
            case shapes.Metadata():
                value = self._value(wanted.type, depth)
            case shapes.UnionType():
                value = self._value(self.chance.choice(wanted.types), depth + 1)
            case shapes.StructType():
                some = [one for one in wanted.fields if one.required or self.chance.random() < 0.3]
                value = {one.encode_name: self._value(one.type, depth + 1) for one in some}
            case shapes.ListType() | shapes.VarTupleType():
                value = [self._value(wanted.item_type, depth + 1) for _ in range(self.chance.choice([0, 1, 2, 5]))]
            case shapes.TupleType():
                value = [self._value(item, depth + 1) for item in wanted.item_types]
            case shapes.DictType():
                value = {self.chance.choice(_WORDS): self._value(wanted.value_type, depth + 1) for _ in range(2)}
            case shapes.LiteralType():
                value = self.chance.choice(wanted.values)
            case shapes.BoolType():
                value = self.chance.random() < 0.5
            case shapes.IntType() | shapes.FloatType():
                value = self.chance.choice(_NUMBERS)
            case _:
                value = self.chance.choice(_WORDS)
        return value

    # ── connections ───────────────────────────────────────────────────────────────────────────────────────────

    def hold_back(self) -> None:
        """Keep connections open that send their request slowly, in part or not at all."""
        head = b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer " + self.tokens["user"].encode()
        heads = (
            b"", b"G", b"GET /v1/jobs HTTP/1.1\r\n", head, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            head + b"\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n{",
            head + b"\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"na",
        )  # fmt: skip
        self._keep_open(heads, _SLOW, b"\r\nX-More: 1")

    def stream(self) -> None:
        """Open event streams and break them off, or do not read what they say."""
        secret = self.tokens["user"].encode()
        heads = [
            b"GET " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer " + secret + b"\r\n\r\n"
            for path in (b"/v1/events", b"/v1/watch", b"/v1/watch?views=queue", b"/v1/jobs", b"/v1/events")
        ]
        self._keep_open(heads, _STREAMS, b"")

    def garble(self) -> None:
        """Send bytes that are no HTTP, and requests with impossible heads."""
        openings: tuple[Callable[[], bytes], ...] = (
            lambda: self.chance.randbytes(self.chance.randrange(1, 4000)),
            lambda: b"GET /" + b"a" * self.chance.choice([10, 70_000]) + b" HTTP/1.1\r\n\r\n",
            lambda: b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * self.chance.choice([10, 20_000]) + b"\r\n",
            lambda: b"POST /v1/jobs HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
            lambda: b"POST /v1/jobs HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            lambda: b"GET /v1/healthz HTTP/1.1\r\nHost: a\r\n\r\n" * 200,
        )
        while self.on:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=2.0) as one:
                one.sendall(self.chance.choice(openings)())
                if self.chance.random() < 0.5:
                    one.recv(65536)
            with suppress(OSError, ssl.SSLError), socket.create_connection(("127.0.0.1", self.port), 1.0) as one:
                if self.chance.random() < 0.05:
                    ssl.create_default_context().wrap_socket(one, server_hostname="localhost")
            time.sleep(0.01)

    def _keep_open(self, heads: "tuple[bytes, ...] | list[bytes]", most: int, more: bytes) -> None:
        held: list[socket.socket] = []
        while self.on:
            with suppress(OSError):
                one = socket.create_connection(("127.0.0.1", self.port), timeout=2.0)
                one.sendall(self.chance.choice(heads))
                held.append(one)
            if len(held) >= most:
                held.pop(self.chance.randrange(len(held))).close()
            if held and self.chance.random() < 0.3:
                with suppress(OSError):
                    self.chance.choice(held).sendall(more)
            time.sleep(0.02)
        for one in held:
            one.close()

    # ── agents ────────────────────────────────────────────────────────────────────────────────────────────────

    def lie(self) -> None:
        """Report as an agent what it cannot know: runs of others, runs that never were, ends that were not."""
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.tokens['agent']}"}
        boot, session = "liar-0", ""
        while self.on:
            if self.chance.random() < 0.2:
                boot = f"liar-{self.chance.randrange(5)}"
                hello = {
                    "protocol": 1,
                    "node": "liar-0",
                    "boot": boot,
                    "kind": "gpu",
                    "gpus": 2,
                    "address": "127.0.0.1",
                }
                hello |= {"place": self.chance.choice(["here", "there"]), "kept": [[self.chance.randrange(50), 1]]}
                status, said = self.ask("POST", "/v1/agent/hello", json.dumps(hello).encode(), headers)
                session = json.loads(said).get("session", "") if status == 200 else session
            report = {"protocol": 1, "node": self.chance.choice(["liar-0"] * 9 + ["gpu-0"]), "boot": boot, "known": 0}
            report |= {"session": self.chance.choice([session] * 5 + ["", "other"])}
            report["runs"] = [self._run() for _ in range(self.chance.randrange(4))]
            status, said = self.ask("POST", "/v1/agent/sync", json.dumps(report).encode(), headers)
            if status == 200 and report["node"] != "liar-0":
                self.wrong.append(f"the agent of one node reported for another: {report}")
            if status >= 500 and status not in (503, 507):
                self.wrong.append(f"{status} for {report}: {said[:200]!r}")
            time.sleep(0.05)

    def _run(self) -> dict[str, Any]:
        chance = self.chance
        exits = [{"rank": chance.randrange(-1, 4), "status": chance.choice([0, 1, 137])} for _ in range(2)]
        fields: dict[str, Any] = {"exits": exits, "finished": True, "blameless": True, "done": chance.choice(_NUMBERS)}
        fields |= {"saved": chance.choice(_NUMBERS), "cause": chance.choice(_WORDS), "unstarted": True, "port": 4000}
        run = {name: value for name, value in fields.items() if chance.random() < 0.5}
        phase = chance.choice(["ready", "running", "ended"])
        return run | {"job": chance.randrange(60), "incarnation": chance.randrange(6), "phase": phase}
