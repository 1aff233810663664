"""The live backend: what agents and people say becomes events, what the ring orders becomes orders for agents.

Agents ask; nobody is called. Orders are levels, not edges: an agent is always told all it should have, so a message
lost or said twice does no harm. Every method may be called from any thread.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import InitVar, dataclass, field
from math import inf
from threading import Condition
from typing import Any

from shoal.core.bids import Rows
from shoal.core.commands import Command
from shoal.core.errors import InputError, nearest
from shoal.core.events import AppBid, EventBatch, JobReshaped, NodeReturned
from shoal.core.job import JobSpec, Launch
from shoal.core.retry import FIRST_RETRY
from shoal.core.topology import Placement, Topology
from shoal.core.units import JobNumber, Seconds
from shoal.live.clock import Clock
from shoal.live.gang import Gang
from shoal.live.recovery import RecoveredRuns
from shoal.live.runs import AgentStatus, RunRegistry
from shoal.wire.messages import PROTOCOL, AgentOrders, AgentReport, Hello, LogAnswer, LogRead

LEASE: Seconds = 20.0
"""How long a job may go on without its agent hearing from the control plane."""

_MARGIN: Seconds = 2.0
"""What a node is given beyond lease and grace before it counts as lost: the time a kill may take."""

_LONGEST_SLEEP: Seconds = 3600.0


@dataclass(slots=True)
class _Read:
    """A piece of a log somebody waits for."""

    node: int
    order: LogRead
    answer: "Future[LogAnswer]"


@dataclass(slots=True)
class LiveBackend:
    """Machines with agents on them, as a backend of the ring.

    ``speed`` is how fast a job is expected to go on seats: what it is held to run at until it tells its progress.
    """

    topology: Topology
    clock: Clock
    speed: InitVar[Callable[[JobSpec, Placement], float]]
    lease: Seconds = LEASE
    first_retry: InitVar[Seconds] = FIRST_RETRY
    changed: Callable[[], None] = lambda: None
    """Called, with no lock held, whenever orders changed."""
    _bell: Condition = field(default_factory=Condition)
    _incarnations: RunRegistry = field(init=False)
    _acks: list[tuple["Future[Any]", Any]] = field(default_factory=list)
    _delivered: list[tuple["Future[Any]", Any]] = field(default_factory=list)
    _ended: list[Gang] = field(default_factory=list)
    _reads: dict[int, _Read] = field(default_factory=dict)
    _read_number: int = 0
    _over: bool = False

    def __post_init__(self, speed: Callable[[JobSpec, Placement], float], first_retry: Seconds) -> None:
        self._incarnations = RunRegistry(self.topology.nodes, speed, first_retry)

    def begin(self, recalled: RecoveredRuns, down: frozenset[int]) -> None:
        """Take up what a journal says was going on, the nodes ``down`` being those the ring takes to be so."""
        with self._bell:
            self._incarnations.begin(recalled, down, self.clock.now())

    # ── the two doors of the ring ─────────────────────────────────────────────────────────────────────────────

    def wait(self, until: Seconds) -> EventBatch:
        """Sleep until something happens, loud or not, and no later than ``until``."""
        known = self._incarnations
        with self._bell:
            while True:
                now = self.clock.now()
                self._tick(now)
                if known.events or self._acks or self._over or now >= until:
                    break
                self._bell.wait(min(until - now, self._next_tick() - now, _LONGEST_SLEEP))
            events, known.events = tuple(known.events), []
            self._delivered += self._acks
            self._ended += known.ending
            over = self._over and not events and not self._acks
            self._acks, known.ending = [], []
            return EventBatch(now, events, over=over)

    def send(self, commands: Sequence[Command]) -> None:
        """Order it; the agents hear of it as soon as they ask."""
        if not commands:
            return
        with self._bell:
            now = self.clock.now()
            for command in commands:
                self._incarnations.carry_out(command, now)
            self._bell.notify_all()
        self.changed()

    def confirmed(self) -> None:
        """What ``wait`` gave last is durable: say so to whoever asked for it, and clear away what ended."""
        with self._bell:
            delivered, self._delivered = self._delivered, []
            ended, self._ended = self._ended, []
            self._incarnations.forget(ended, self.clock.now())
        for future, answer in delivered:
            if not future.cancelled():
                future.set_result(answer)
        if ended:
            self.changed()

    def close(self) -> None:
        """The next wait that finds nothing to tell says that it is over."""
        with self._bell:
            self._over = True
            self._bell.notify_all()

    def abandon(self, error: Exception) -> None:
        """The loop died: whoever waits for an answer is told so."""
        with self._bell:
            waiting = [*self._delivered, *self._acks]
            self._delivered, self._acks = [], []
        for future, _ in waiting:
            if not future.cancelled():
                future.set_exception(error)

    # ── what people ask for ───────────────────────────────────────────────────────────────────────────────────

    def submit(self, jobs: Sequence[tuple[JobSpec, Launch]], answer: Any) -> "Future[Any]":
        """Admit jobs in this order; the answer comes when they are durable."""
        with self._bell:
            now = self.clock.now()
            for spec, launch in jobs:
                self._incarnations.submit(spec, launch, now)
            return self._acknowledged(answer)

    def cancel(self, job: JobNumber) -> "Future[None]":
        """Withdraw a job and stop what runs of it."""
        with self._bell:
            self._incarnations.cancel(job, self.clock.now())
            future = self._acknowledged(None)
        self.changed()
        return future

    def reshape(self, job: JobNumber, gpus: int, least: int, most: int) -> "Future[None]":
        """Ask for another gang for a job."""
        with self._bell:
            if not self._incarnations.over(job):
                self._incarnations.events.append(JobReshaped(self.clock.now(), job, gpus, least, most))
            return self._acknowledged(None)

    def bid(self, app: str, jobs: tuple[JobNumber, ...], rows: Rows) -> "Future[None]":
        """An app says what GPUs are worth to it."""
        with self._bell:
            self._incarnations.events.append(AppBid(self.clock.now(), app, jobs, rows))
            return self._acknowledged(None)

    def _acknowledged(self, answer: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        self._acks.append((future, answer))
        # Nothing may have changed; whoever asked is owed an answer even so, and only a turn of the ring gives one.
        self._bell.notify_all()
        return future

    # ── what agents say ───────────────────────────────────────────────────────────────────────────────────────

    def hello(self, hello: Hello) -> AgentOrders:
        """An agent has started, or was told to introduce itself: what an earlier boot on its node ran is gone."""
        index = self._node(hello.node, hello.protocol)
        node = self.topology.nodes[index]
        if (hello.kind, hello.gpus) != (node.kind, node.gpus):
            given = f"{hello.gpus} x {hello.kind}"
            raise InputError(f"node {node.name}", given, f"this cluster has it with {node.gpus} x {node.kind}")
        with self._bell:
            agent, now = self._incarnations.agents[index], self.clock.now()
            if agent.boot is not None and agent.boot != hello.boot:
                self._incarnations.reboot(index, now)
            agent.boot, agent.address = hello.boot, hello.address
            agent.answered = now
            if not agent.up:
                agent.up = True
                self._incarnations.events.append(NodeReturned(now, index))
            orders = self._orders(index)
            self._bell.notify_all()
        self.changed()
        return orders

    def sync(self, report: AgentReport) -> AgentOrders:
        """Take in a report and give the orders that hold now."""
        index = self._node(report.node, report.protocol)
        known = self._incarnations
        with self._bell:
            agent = known.agents[index]
            if agent.boot != report.boot or not agent.up:
                raise InputError("boot", report.boot, "not known, or its node counts as lost: say hello first")
            before = len(known.events), agent.generation
            self._answer(report.logs)
            known.hear(index, report.runs, self.clock.now())
            orders = self._orders(index)
            news = (len(known.events), agent.generation) != before
            if news:
                self._bell.notify_all()
        if news:
            self.changed()
        return orders

    def generation(self, node: str) -> int:
        """Counts up with each change of a node's orders."""
        return self._incarnations.agents[self._node(node, PROTOCOL)].generation

    def heard(self, node: int) -> Seconds | None:
        """When a node's agent last said something; None if it has not since the control plane started."""
        return self._incarnations.agents[node].heard

    def _node(self, name: str, protocol: int) -> int:
        if protocol != PROTOCOL:
            raise InputError("protocol", protocol, f"this control plane speaks {PROTOCOL}: use one version of Shoal")
        index = self.topology.node_index.get(name)
        if index is None:
            raise InputError("node", name, nearest(name, self.topology.node_index))
        return index

    def _orders(self, index: int) -> AgentOrders:
        runs, generation = self._incarnations.orders(index), self._incarnations.agents[index].generation
        reads = [read.order for read in self._reads.values() if read.node == index]
        return AgentOrders(protocol=PROTOCOL, generation=generation, lease=self.lease, runs=runs, reads=reads)

    # ── logs ──────────────────────────────────────────────────────────────────────────────────────────────────

    def read_log(self, node: int, order: LogRead) -> "Future[LogAnswer]":
        """Ask an agent for a piece of a log; the number of the request is this room's to give."""
        answer: Future[LogAnswer] = Future()
        with self._bell:
            self._read_number += 1
            numbered = LogRead(self._read_number, order.id, order.incarnation, order.rank, order.offset, order.most)
            self._reads[self._read_number] = _Read(node, numbered, answer)
            self._incarnations.agents[node].generation += 1
        self.changed()
        return answer

    def place(self, job: JobNumber, incarnation: int, rank: int) -> tuple[int, int, int] | None:
        """On which node, by which incarnation and as which worker a rank was started that came to others in place."""
        with self._bell:
            return self._incarnations.place(job, incarnation, rank)

    def forget_read(self, answer: "Future[LogAnswer]") -> None:
        """Nobody waits for it any more."""
        with self._bell:
            self._reads = {n: read for n, read in self._reads.items() if read.answer is not answer}

    def _answer(self, answers: Iterable[LogAnswer]) -> None:
        for given in answers:
            read = self._reads.pop(given.read, None)
            if read is not None and not read.answer.cancelled():
                read.answer.set_result(given)

    # ── time ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _deadline(self, agent: AgentStatus) -> Seconds:
        """When a node that says nothing counts as lost: by then all that ran there has been killed by its agent."""
        if not agent.up:
            return inf
        graces = [gang.launch.grace for gang in agent.gangs.values()]
        return agent.answered + self.lease + max(graces, default=0.0) + _MARGIN

    def _next_tick(self) -> Seconds:
        known = self._incarnations
        return min([*map(self._deadline, known.agents), *known.releases.values()], default=inf)

    def _tick(self, now: Seconds) -> None:
        """What time brings: leases that ran out, jobs that may be tried again."""
        for index, agent in enumerate(self._incarnations.agents):
            if now >= self._deadline(agent):
                self._incarnations.lose(index, now)
        self._incarnations.release(now)
