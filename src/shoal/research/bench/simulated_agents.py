"""Simulated agents: thousands of nodes in one thread that exchange reports and orders with a real control plane.

Each agent has two connections, as a real agent has: one holds a request open until its orders change, the other reports
changes at once. Runs are entries in memory: a run starts as soon as it is ordered, and ends as ``Fleet.end_runs`` says.
"""

import asyncio
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from shoal.wire.messages import PROTOCOL, AgentOrders, AgentReport, Hello, RankExit, RunReport

_RETRY_SECONDS = 0.5
_CONNECTING = 200
"""Most agents that register at a time."""

_orders = msgspec.json.Decoder(AgentOrders)


class _Link(asyncio.Protocol):
    """One connection that is kept open, with one request at a time; it is opened anew where the server closed it."""

    def __init__(self, fleet: "Fleet", address: str, token: str, take: Callable[[int, bytes], None]) -> None:
        self._fleet, self._address, self._take = fleet, address, take
        self._head = f"Host: {fleet.host}:{fleet.port}\r\nAuthorization: Bearer {token}\r\n".encode()
        self._head += b"Accept: application/json\r\nContent-Type: application/json\r\nContent-Length: "
        self._transport: asyncio.Transport | None = None
        self._sent = b""
        self._received = b""

    def post(self, path: bytes, body: bytes) -> None:
        """Send a request; ``take`` gets the status and the body of the answer, status 0 if there is none."""
        self._sent = b"POST %b HTTP/1.1\r\n%b%d\r\n\r\n%b" % (path, self._head, len(body), body)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._sent)
        else:
            self._fleet.spawn(self._connect())

    async def _connect(self) -> None:
        try:
            connect = self._fleet.loop.create_connection
            await connect(lambda: self, self._fleet.host, self._fleet.port, local_addr=(self._address, 0))
        except OSError:
            self._sent = b""
            self._take(0, b"")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request that waits for the connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._received = transport, b""
        self._fleet.connections += 1
        if self._sent:
            transport.write(self._sent)

    def connection_lost(self, error: Exception | None) -> None:
        """Report a request without an answer; the next one opens another connection."""
        self._transport = None
        if self._sent and not self._fleet.closed:
            self._sent = b""
            self._take(0, b"")

    def data_received(self, data: bytes) -> None:
        """Collect the bytes of an answer."""
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        at = head.lower().find(b"content-length:")
        if len(body) < int(head[at + 15 :].split(b"\r\n", 1)[0]):
            return
        self._received = self._sent = b""
        self._take(int(head[9:12]), body)


@dataclass(slots=True)
class _Agent:
    """The agent of one node; ``runs`` by job and incarnation."""

    fleet: "Fleet"
    node: str
    address: str
    token: str
    boot: str
    known: int = -1
    session: str = ""
    wait: float = 0.0
    runs: dict[tuple[int, int], RunReport] = field(default_factory=dict)
    freed: deque[float] = field(default_factory=deque)
    """End times of the runs whose GPUs no later run has got yet."""
    registered: bool = False
    _poll: _Link = field(init=False)
    _push: _Link = field(init=False)
    _pushing: bool = False
    _changed: bool = False

    def __post_init__(self) -> None:
        self._poll = _Link(self.fleet, self.address, self.token, self._polled)
        self._push = _Link(self.fleet, self.address, self.token, self._pushed)

    def open(self) -> None:
        """Register, or ask for orders."""
        if self.fleet.closed:
            return
        if self.registered:
            self._poll.post(b"/v1/agent/sync", self._report(self.wait))
            return
        hello = Hello(PROTOCOL, self.node, self.boot, self.fleet.kind, self.fleet.gpus, "127.0.0.1")
        self._poll.post(b"/v1/agent/hello", msgspec.json.encode(hello))

    def _report(self, wait: float) -> bytes:
        report = AgentReport(
            protocol=PROTOCOL, node=self.node, boot=self.boot, known=self.known, runs=list(self.runs.values()),
            wait=wait, session=self.session, disk_free=10**12,
        )  # fmt: skip
        return msgspec.json.encode(report)

    def _polled(self, status: int, body: bytes) -> None:
        if status == 200:
            orders = _orders.decode(body)
            if not self.registered:
                self.registered, self.session, self.wait = True, orders.session, orders.lease / 3
                self.fleet.count_registered()
            else:
                self.fleet.heartbeats += 1
            self._act(orders)
            self.open()
            return
        self.fleet.failures += 1
        self.registered = self.registered and status not in (409, 422)
        self.fleet.loop.call_later(_RETRY_SECONDS * random.uniform(0.5, 1.0), self.open)

    def _pushed(self, status: int, body: bytes) -> None:
        self._pushing = False
        if status == 200:
            self.fleet.pushes += 1
            self._act(_orders.decode(body))
        else:
            self.fleet.failures += 1
            self.fleet.loop.call_later(_RETRY_SECONDS * random.uniform(0.5, 1.0), self.report)
            return
        if self._changed:
            self.report()

    def report(self) -> None:
        """Report a change at once, or after the report that is on its way."""
        self._changed = True
        if not self._pushing and self.registered:
            self._pushing, self._changed = True, False
            self._push.post(b"/v1/agent/sync", self._report(0.0))

    def _act(self, orders: AgentOrders) -> None:
        if orders.generation < self.known:
            return
        self.known = orders.generation
        changed, listed = False, set()
        for order in orders.runs:
            key = order.job, order.incarnation
            listed.add(key)
            run = self.runs.get(key)
            phase = "" if run is None else run.phase
            if order.phase == "go" and phase in ("", "ready"):
                self.runs[key] = RunReport(job=key[0], incarnation=key[1], phase="running", port=29500)
                self.fleet.began(self, key, range(order.first_rank, order.first_rank + order.local_ranks))
            elif order.phase == "prepare" and not phase:
                self.runs[key] = RunReport(job=key[0], incarnation=key[1], phase="ready", port=29500)
            elif order.phase == "stop" and phase != "ended":
                self.runs[key] = RunReport(job=key[0], incarnation=key[1], phase="ended")
            else:
                continue
            changed = True
        for key in [key for key in self.runs if key not in listed]:
            del self.runs[key]
        if changed:
            self.report()

    def end(self, key: tuple[int, int], ranks: range) -> None:
        """End a run with status 0, unless it has ended."""
        run = self.runs.get(key)
        if run is None or run.phase != "running":
            return
        exits = [RankExit(rank, 0) for rank in ranks]
        self.runs[key] = RunReport(job=key[0], incarnation=key[1], phase="ended", exits=exits, finished=True)
        self.freed.append(time.monotonic())
        self.report()


class Fleet:
    """The agents of all nodes, in a thread of their own after ``start``."""

    def __init__(self, server: tuple[str, int], tokens: Mapping[str, str], *, kind: str, gpus: int) -> None:
        self.host, self.port = server
        self.kind, self.gpus = kind, gpus
        self.loop = asyncio.new_event_loop()
        self.heartbeats = self.pushes = self.failures = self.connections = self.registered = self.ended = 0
        self.waits: list[float] = []
        """Seconds from the end of a run to the start of the next one on its node."""
        self.closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._agents = [
            # Each has an address of its own, as nodes have: the server limits the connections of an address.
            _Agent(self, node, f"127.1.{n // 250}.{n % 250 + 1}", token, f"boot-{node}")
            for n, (node, token) in enumerate(tokens.items())
        ]
        self._running: list[tuple[_Agent, tuple[int, int], range]] = []
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)

    def start(self) -> None:
        """Begin to register the agents."""
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self.closed = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    @property
    def running(self) -> int:
        """The number of runs that have started and not ended."""
        return len(self._running)

    def end_runs(self, per_second: float, seconds: float) -> None:
        """End runs, chosen at random, at this rate for this long; returns at once."""
        self.loop.call_soon_threadsafe(self._end_next, per_second, time.monotonic(), seconds, 0)

    def spawn(self, work: "asyncio._CoroutineLike[None]") -> None:
        """Run a coroutine in the background."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def count_registered(self) -> None:
        """Count an agent that has registered."""
        self.registered += 1

    def began(self, agent: _Agent, key: tuple[int, int], ranks: range) -> None:
        """Note that a run has started."""
        self._running.append((agent, key, ranks))
        if agent.freed:
            self.waits.append(time.monotonic() - agent.freed.popleft())

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.spawn(self._open_all())
        self.loop.run_forever()
        for task in self._tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))

    async def _open_all(self) -> None:
        for at in range(0, len(self._agents), _CONNECTING):
            for agent in self._agents[at : at + _CONNECTING]:
                agent.open()
            await asyncio.sleep(0.1)

    def _end_next(self, per_second: float, began: float, seconds: float, done: int) -> None:
        elapsed = time.monotonic() - began
        while done < min(elapsed, seconds) * per_second and self._running:
            at = random.randrange(len(self._running))
            self._running[at], self._running[-1] = self._running[-1], self._running[at]
            agent, key, ranks = self._running.pop()
            agent.end(key, ranks)
            done += 1
            self.ended += 1
        if elapsed < seconds and not self.closed:
            self.loop.call_later(0.01, self._end_next, per_second, began, seconds, done)
