"""The live backend: requests of users and reports of agents become events, commands of the ring become orders.

It implements ``core.interfaces.Backend`` with real machines, as ``sim.backend`` does with a heap of future events.
Agents call the control plane, never the reverse. An agent's orders always name everything its node should have, so a
message that is lost or repeated does no harm. Every method may be called from any thread.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import InitVar, asdict, dataclass, field
from pathlib import Path
from threading import Condition
from typing import Any, TypeVar

import msgspec

from shoal.agent.workspace import Workspace
from shoal.core.bids import Rows
from shoal.core.commands import Command, Resume, Suspend
from shoal.core.errors import InputError, nearest
from shoal.core.events import AppBid, EventBatch, JobReshaped, QuotaSet, RunsImported
from shoal.core.interfaces import Backend
from shoal.core.job import JobSpec, Launch
from shoal.core.quota import Quota
from shoal.core.retry import FIRST_RETRY
from shoal.core.topology import Placement, Topology
from shoal.core.units import JobNumber, Seconds, TenantId
from shoal.live import leaving
from shoal.live.agent_status import AgentKey
from shoal.live.clock import IDLE_RECORD, Clock
from shoal.live.cycle_pause import CyclePause
from shoal.live.gang import Gang
from shoal.live.log_reads import LogReads
from shoal.live.machines import Machine, machine_of
from shoal.live.recovery import RecoveredRuns
from shoal.live.registration import agent_of, register
from shoal.live.resumption import resume
from shoal.live.runs import RunRegistry
from shoal.live.sessions import SessionRelay
from shoal.live.silence import MARGIN, Silence
from shoal.live.suspension import answer_in_place
from shoal.wire.messages import PROTOCOL, AgentOrders, AgentReport, Hello, LogAnswer, LogRead, NodeRow, RunOrder

_T = TypeVar("_T")

LEASE: Seconds = 20.0
"""Seconds a job may continue without contact between its agent and the control plane."""


@dataclass(slots=True)
class LiveBackend(Backend):
    """The nodes of a live cluster and their agents, as a backend of the ring.

    ``speed`` gives a job's expected rate on a placement, which is used until its progress was measured. ``on_change``
    is called, with no lock held, whenever orders changed.
    """

    topology: Topology
    clock: Clock
    speed: InitVar[Callable[[JobSpec, Placement], float]]
    lease: Seconds = LEASE
    first_retry: InitVar[Seconds] = FIRST_RETRY
    on_change: Callable[[], None] = lambda: None
    store_key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    """Key from which the secrets of jobs' stores are made."""
    sessions: SessionRelay = field(default_factory=SessionRelay)
    native: InitVar[bool] = False
    """Whether each part of a run has an allocation and an agent of its own, not each node."""
    home: Path | None = None
    """The control plane's home; in native mode the logs of runs that have ended are read there."""
    machines: dict[int, Machine] = field(default_factory=dict)
    """By index of a node, its CPUs and memory as its agent reported them when it connected."""
    _runs: RunRegistry = field(init=False)
    _silence: Silence = field(init=False)
    _lock: Condition = field(default_factory=Condition)
    """Guards everything below; notified when ``wait`` may have something to return."""
    _acks: list[tuple["Future[Any]", Any]] = field(default_factory=list)
    _delivered: list[tuple["Future[Any]", Any]] = field(default_factory=list)
    """Futures with their results: for events that ``wait`` has not returned yet, and for those that it has."""
    _ended: list[Gang] = field(default_factory=list)
    _log_reads: LogReads = field(default_factory=LogReads)
    _closed: bool = False
    rest: CyclePause = field(default_factory=CyclePause)
    """The rest of the loop between two cycles."""
    _returned_at: Seconds = 0.0
    """When ``wait`` last returned."""

    def __post_init__(self, speed: Callable[[JobSpec, Placement], float], first_retry: Seconds, native: bool) -> None:
        self._runs = RunRegistry(self.topology.nodes, speed, first_retry)
        self._runs.agents.native = native
        self._silence = Silence(self._runs, self.lease)

    def resume(self, recovered: RecoveredRuns, down: frozenset[int]) -> None:
        """Resume the runs that a journal left unfinished; ``down`` are the nodes that the ring counts as down."""
        with self._lock:
            self._returned_at = self.clock.now()
            resume(self._runs, recovered, down, self._returned_at, self.lease + MARGIN)

    def retire(self, nodes: Iterable[int]) -> None:
        """Mark nodes as lost that are no longer in the cluster; one with runs only when its lease has ended."""
        with self._lock:
            for index in nodes:
                if self._runs.agents.nodes[index].up and not self._runs.agents.nodes[index].gangs:
                    self._runs.lose(index, self.clock.now(), self._silence.quiet_at(self._runs.agents[index]))

    # ── the ring ──────────────────────────────────────────────────────────────────────────────────────────────

    def wait(self, until: Seconds) -> EventBatch:
        """Sleep until there are events, urgent or not, at the latest until ``until``; return them.

        Without any it returns after ``IDLE_RECORD`` seconds, for the journal to show that time has passed.
        """
        runs = self._runs
        with self._lock:
            while True:
                now = self.clock.now()
                self._silence.tick(now)
                idle_until = min(until, self._returned_at + IDLE_RECORD)
                if runs.events or self._acks or self._closed or now >= idle_until:
                    break
                self._lock.wait(min(idle_until, self._silence.next_tick()) - now)
            self._returned_at = now
            events, runs.events = tuple(runs.events), []
            over = self._closed and not events and not self._acks
            self._delivered += self._acks
            self._ended += runs.ending
            self._acks, runs.ending = [], []
            if not self._closed:
                self.rest.taken()
            return EventBatch(now, events, over=over)

    @property
    def awaited(self) -> bool:
        """Whether a request waits for the events that ``wait`` returned to be durable."""
        return bool(self._delivered)

    @property
    def pending(self) -> bool:
        """Whether ``wait`` would return events at once."""
        return bool(self._runs.events or self._acks or self._closed)

    def send(self, commands: Sequence[Command]) -> None:
        """Turn commands into orders; agents receive them with their next request."""
        if not commands:
            return
        with self._lock:
            now = self.clock.now()
            for command in commands:
                self._runs.carry_out(command, now)
            turns = (command.job for command in commands if isinstance(command, Suspend | Resume))
            answer_in_place(self._runs, turns, now)
            self._lock.notify_all()
        self.on_change()

    def confirm(self) -> None:
        """Acknowledge the requests behind the events that ``wait`` returned: they are durable now."""
        with self._lock:
            delivered, self._delivered = self._delivered, []
            ended, self._ended = self._ended, []
            self._runs.confirm_ends(ended, self.clock.now())
        for future, result in delivered:
            if not future.cancelled():
                future.set_result(result)
        if ended:
            self.on_change()

    def close(self) -> None:
        """End the run: the next ``wait`` that finds no events returns that the run is over."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        self.rest.interrupt()

    def fail(self, error: Exception) -> None:
        """Answer every open request with an error: the loop has died, or the journal cannot be written."""
        with self._lock:
            waiting = [*self._delivered, *self._acks]
            self._delivered, self._acks = [], []
        for future, _ in waiting:
            if not future.cancelled():
                future.set_exception(error)

    # ── requests: each future resolves when the journal has it ────────────────────────────────────────────────

    def submit(self, jobs: Sequence[tuple[JobSpec, Launch]], result: Any) -> "Future[Any]":
        """Add jobs in this order; the future resolves to ``result``."""
        with self._lock:
            now = self.clock.now()
            for spec, launch in jobs:
                self._runs.submit(spec, launch, now)
            return self._acknowledgement(result)

    def cancel(self, job: JobNumber, *, force: bool = False) -> "Future[None]":
        """Cancel a job and stop its runs; with ``force`` they are killed without grace."""
        with self._lock:
            self._runs.cancel(job, self.clock.now(), force=force)
            future = self._acknowledgement(None)
        self.on_change()
        return future

    def change(self, change: Callable[[RunRegistry, Seconds], object]) -> "Future[None]":
        """Change runs as a person asked, at the present time."""
        with self._lock:
            change(self._runs, self.clock.now())
            future = self._acknowledgement(None)
        self.on_change()
        return future

    def reshape(self, job: JobNumber, gpus: int, least: int, most: int) -> "Future[None]":
        """Change the GPUs that a job asks for; no effect on a job that has ended."""
        with self._lock:
            if not self._runs.over(job):
                self._runs.events.append(JobReshaped(self.clock.now(), job, gpus, least, most))
            return self._acknowledgement(None)

    def look(self, look: Callable[[RunRegistry, Seconds], _T]) -> _T:
        """Return ``look(runs, now)``, called under the lock; it may change the runs."""
        with self._lock:
            before = len(self._runs.events), self._runs.agents.changes
            found = look(self._runs, self.clock.now())
            if changed := (len(self._runs.events), self._runs.agents.changes) != before:
                self._lock.notify_all()
        if changed:
            self.on_change()
        return found

    def drain(self, node: str, reason: str, by: str) -> "Future[None]":
        """Drain a node for an operator: it gets no new runs until it is resumed."""
        index = self.index_of(node)
        with self._lock:
            self._runs.events += self._runs.health.drain(index, reason, self.clock.now(), by)
            return self._acknowledgement(None)

    def resume_node(self, node: str) -> "Future[None]":
        """Resume a drained node for an operator; no effect on one that is not drained."""
        index = self.index_of(node)
        with self._lock:
            self._runs.events += self._runs.health.resume(index, self.clock.now())
            return self._acknowledgement(None)

    def bid(self, app: str, jobs: tuple[JobNumber, ...], rows: Rows) -> "Future[None]":
        """Record an app's valuation of GPUs, made with these jobs."""
        with self._lock:
            return self.record(AppBid(self.clock.now(), app, jobs, rows))

    def set_quota(self, tenant: TenantId, quota: Quota) -> "Future[None]":
        """Record a tenant's quota."""
        with self._lock:
            return self.record(QuotaSet(self.clock.now(), tenant, quota))

    def record(self, *new: AppBid | QuotaSet | RunsImported) -> "Future[None]":
        """Record events that no agent reports; without any, only make the loop run a cycle."""
        with self._lock:
            self._runs.events += new
            return self._acknowledgement(None)

    def _acknowledgement(self, result: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        self._acks.append((future, result))
        self.rest.interrupt()
        # Even without an event: only a turn of the loop resolves the future.
        self._lock.notify_all()
        return future

    # ── agents ────────────────────────────────────────────────────────────────────────────────────────────────

    def hello(self, hello: Hello) -> AgentOrders:
        """Register an agent that started, or that was asked to register again; runs of an earlier boot are lost."""
        index = self._node(hello.node, hello.protocol)
        with self._lock:
            key = agent_of(self._runs, index, hello.allocation)
            register(self._runs, key, hello, self.clock.now(), self.lease + MARGIN)
            agent = self._runs.agents[key]
            agent.orders = None
            for other in (one for gang in agent.gangs.values() for one in self._runs.agents.serving_all(gang)):
                other.orders = None  # they name the address
            self._runs.waits.unsure(agent)
            self._runs.waits.look(agent, self._silence.quiet_at(agent))
            self.machines[index] = machine_of(hello)
            orders = self._orders(key)
            self._lock.notify_all()
        self.on_change()
        return orders

    def sync(self, report: AgentReport) -> AgentOrders:
        """Process an agent's report and return the orders that hold now."""
        index = self._node(report.node, report.protocol)
        runs = self._runs
        with self._lock:
            key = agent_of(runs, index, report.allocation)
            agent = runs.agents[key]
            if agent.boot != report.boot or not agent.up:
                raise InputError("boot", report.boot, "not known, or its node counts as lost: register first")
            # A late hello may have named a dead agent: its late reports, which do not know the answer, do not count.
            if report.session not in ("", agent.session):
                raise InputError("session", report.session, "is over: register first")
            agent.disk_free = report.disk_free
            before = len(runs.events), agent.generation
            self._log_reads.take(key, report)
            if report.leaving is not None:
                leaving.leave(runs, key, report.leaving, self.clock.now())
            runs.report(key, report.runs, self.clock.now())
            orders = self._orders(key)
            if report.leaving == 0:
                leaving.gone(runs, key, self.clock.now())
            changed = (len(runs.events), agent.generation) != before
            if changed:
                self._lock.notify_all()
        if changed:
            self.on_change()
        return orders

    def generation(self, node: str, allocation: str = "") -> int:
        """Return the generation of an agent's orders, which counts up with each change."""
        return self._runs.agents[agent_of(self._runs, self._node(node, PROTOCOL), allocation)].generation

    def touched(self) -> list[str]:
        """Return the names of the nodes and allocations whose agents' orders changed since the last call."""
        with self._lock:
            keys = self._runs.waits.take_touched()
        return [key if isinstance(key, str) else self.topology.nodes[key].name for key in keys]

    def owner_of_code(self, agent: str, job: JobNumber, digest: str) -> TenantId | None:
        """Return the tenant of a job that was shipped with this code, if the agent has a run of it; else None.

        ``agent`` is a node's name, or the name of an allocation for one run.
        """
        with self._lock:
            key = agent if agent in self._runs.agents else agent_of(self._runs, self._node(agent, PROTOCOL), "")
            orders = self._runs.orders(key)
        return next((order.tenant for order in orders if (order.job, order.code) == (job, digest)), None)

    def last_report(self, node: int) -> Seconds | None:
        """Return the time of a node's last report; None if there was none since the control plane started."""
        return self._runs.agents[node].last_report

    def heard(self) -> dict[str, Seconds]:
        """Return the time of each agent's last report, by name of its allocation (for a whole node, of the node)."""
        names = self.topology.nodes
        with self._lock:
            reports = ((agent.allocation or names[agent.node].name, agent.last_report) for agent in self._runs.agents)
            return {name: at for name, at in reports if at is not None}

    def with_machine(self, row: NodeRow, engine: str = "") -> NodeRow:
        """Return a node's row with CPUs and memory of its machine, free bytes of its disk, and its engine's state."""
        index = self.topology.node_index[row.name]
        agent = self._runs.agents[index]
        row = msgspec.structs.replace(row, disk_free=agent.disk_free, suspension=agent.suspension, engine=engine)
        machine = self.machines.get(index)
        return row if machine is None else msgspec.structs.replace(row, **asdict(machine))

    def _node(self, name: str, protocol: int) -> int:
        if protocol != PROTOCOL:
            raise InputError("protocol", protocol, f"this control plane speaks {PROTOCOL}: use one version of Shoal")
        index = self.index_of(name)
        if index in self.topology.removed:
            raise InputError("node", name, f"was removed from the cluster: `shoal nodes add {name}` adds it again")
        return index

    def index_of(self, name: str) -> int:
        """Return the index of a node; ``InputError`` if there is none of this name."""
        index = self.topology.node_index.get(name)
        if index is None:
            raise InputError("node", name, nearest(name, self.topology.node_index))
        return index

    def is_up(self, node: int) -> bool:
        """Return whether a node is up."""
        return self._runs.agents.nodes[node].up

    def _orders(self, key: AgentKey) -> AgentOrders:
        agent, reads, sessions = self._runs.agents[key], self._log_reads.orders(key), self.sessions.orders(key)
        if agent.orders is not None and not reads and not sessions:
            return agent.orders
        runs = [self._with_secret(run) for run in self._runs.orders(key)]
        orders = AgentOrders(
            protocol=PROTOCOL, generation=agent.generation, lease=self.lease, runs=runs, reads=reads,
            session=agent.session, sessions=sessions,
        )  # fmt: skip
        agent.orders = orders if not reads and not sessions else None
        return orders

    def _with_secret(self, run: RunOrder) -> RunOrder:
        """Return an order with the secret that the job's nodes share since its last start, if they need one."""
        roster = run.roster
        if roster is None and len(run.hosts) < 2:
            return run
        text = f"{run.id} {run.job} {run.incarnation if roster is None else roster.origin}"
        secret = hmac.new(self.store_key, text.encode(), hashlib.sha256).hexdigest()
        if roster is None:
            return msgspec.structs.replace(run, secret=secret)
        return msgspec.structs.replace(run, roster=msgspec.structs.replace(roster, secret=secret))

    def forget(self, ended: Iterable[JobNumber]) -> None:
        """Drop these jobs, whose end is durable, unless a process of theirs may be left."""
        with self._lock:
            self._runs.forget(ended)

    @property
    def allocation_changes(self) -> int:
        """A number that counts up when other parts of runs need allocations."""
        return self._runs.agents.changes

    def orders_changed(self, key: AgentKey) -> None:
        """Note that an agent has new orders that are not about its runs, e.g. a new session."""
        with self._lock:
            self._runs.waits.orders_changed(self._runs.agents[key])
        self.on_change()

    # ── logs ──────────────────────────────────────────────────────────────────────────────────────────────────

    def agent_of_run(self, node: int, job: JobNumber, incarnation: int) -> tuple[AgentKey, str]:
        """Return which agent has a run's part on a node, and the name by which it is known."""
        with self._lock:
            gang = self._runs.agents.nodes[node].gangs.get((job, incarnation))
            agent = self._runs.agents[node] if gang is None else self._runs.agents.serving(gang, node)
            return agent.key, agent.allocation or self.topology.nodes[node].name

    def read_log(self, key: AgentKey, order: LogRead) -> "Future[LogAnswer]":
        """Ask an agent for a piece of a log; ``order.read`` is replaced by a new number.

        In native mode a run that has ended has no agent: its log is read here, if the nodes share this file system.
        """
        if isinstance(key, int) and self._runs.agents.native and self.home is not None:
            ended: Future[LogAnswer] = Future()
            name = f"{order.id}.{order.incarnation}.{self.topology.nodes[key].name}"
            ended.set_result(Workspace(self.home, name).read_log(order))
            return ended
        with self._lock:
            answer = self._log_reads.ask(key, order)
            self._runs.waits.orders_changed(self._runs.agents[key])
        self.on_change()
        return answer

    def place(self, job: JobNumber, incarnation: int, rank: int) -> tuple[int, int, int] | None:
        """Return a rank's node, the incarnation that started it and its number there; None if not resized in place."""
        with self._lock:
            return self._runs.place(job, incarnation, rank)

    def forget_read(self, answer: "Future[LogAnswer]") -> None:
        """Withdraw the request for a piece of a log that this future was to hold."""
        with self._lock:
            self._log_reads.withdraw(answer)
