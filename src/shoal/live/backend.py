"""The live backend: requests of people and reports of agents become events, commands of the ring become orders.

It implements ``core.interfaces.Backend`` with real machines, as ``sim.backend`` does with a heap of future events.
Agents call the control plane, never the reverse. An agent's orders always name everything its node should have, so a
message that is lost or repeated does no harm. Every method may be called from any thread.
"""

import hashlib
import hmac
import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import InitVar, asdict, dataclass, field
from math import inf
from threading import Condition
from typing import Any

import msgspec

from shoal.core.bids import Rows
from shoal.core.commands import Command
from shoal.core.errors import InputError, nearest
from shoal.core.events import AppBid, EventBatch, JobReshaped, NodeReturned, QuotaSet
from shoal.core.interfaces import Backend
from shoal.core.job import JobSpec, Launch
from shoal.core.quota import Quota
from shoal.core.retry import FIRST_RETRY
from shoal.core.topology import Placement, Topology
from shoal.core.units import JobNumber, Seconds, TenantId
from shoal.live.agent_status import AgentStatus
from shoal.live.clock import IDLE_RECORD, Clock
from shoal.live.gang import Gang
from shoal.live.machines import Machine, machine_of
from shoal.live.recovery import RecoveredRuns
from shoal.live.resumption import resume
from shoal.live.runs import RunRegistry
from shoal.live.sessions import SessionRelay
from shoal.live.suspension import ability_event
from shoal.wire.messages import PROTOCOL, AgentOrders, AgentReport, Hello, LogAnswer, LogRead, NodeRow, RunOrder

log = logging.getLogger(__name__)

LEASE: Seconds = 20.0
"""Seconds a job may go on without contact between its agent and the control plane."""

_MARGIN: Seconds = 2.0
"""Seconds to kill ranks, added to lease and grace before a node counts as lost."""

_MOST_REPLACED = 3
"""Times that another boot may replace an agent's before the agent is refused."""

_MOST_BOOTS = 8
"""Replaced boots that are remembered for each node."""


class ForeignRead(InputError):
    """An agent answered a request for a piece of a log that another node's agent was asked."""


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
    machines: dict[int, Machine] = field(default_factory=dict)
    """By index of a node, what its agent said about its CPUs and memory when it connected."""
    _runs: RunRegistry = field(init=False)
    _lock: Condition = field(default_factory=Condition)
    """Guards everything below; notified when ``wait`` may have something to return."""
    _acks: list[tuple["Future[Any]", Any]] = field(default_factory=list)
    _delivered: list[tuple["Future[Any]", Any]] = field(default_factory=list)
    """Futures with their results: for events that ``wait`` has not returned yet, and for those that it has."""
    _ended: list[Gang] = field(default_factory=list)
    _log_reads: dict[int, tuple[int, LogRead, "Future[LogAnswer]"]] = field(default_factory=dict)
    """By number of a log read: its node, its order and the future of its answer."""
    _log_read_count: int = 0
    _closed: bool = False
    _returned_at: Seconds = 0.0
    """When ``wait`` last returned."""

    def __post_init__(self, speed: Callable[[JobSpec, Placement], float], first_retry: Seconds) -> None:
        self._runs = RunRegistry(self.topology.nodes, speed, first_retry)

    def resume(self, recovered: RecoveredRuns, down: frozenset[int]) -> None:
        """Resume the runs that a journal left unfinished; ``down`` are the nodes that the ring counts as down."""
        with self._lock:
            self._returned_at = self.clock.now()
            resume(self._runs, recovered, down, self._returned_at, self.lease + _MARGIN)

    def retire(self, nodes: Iterable[int]) -> None:
        """Mark nodes as lost that are no longer in the cluster; one with runs only when its lease has ended."""
        with self._lock:
            for index in nodes:
                if self._runs.agents[index].up and not self._runs.agents[index].gangs:
                    self._runs.lose(index, self.clock.now(), self._quiet_at(self._runs.agents[index]))

    # ── the ring ──────────────────────────────────────────────────────────────────────────────────────────────

    def wait(self, until: Seconds) -> EventBatch:
        """Sleep until there are events, urgent or not, at the latest until ``until``; return them.

        Without any it returns after ``IDLE_RECORD`` seconds, for the journal to show that time has passed.
        """
        runs = self._runs
        with self._lock:
            while True:
                now = self.clock.now()
                self._tick(now)
                idle_until = min(until, self._returned_at + IDLE_RECORD)
                if runs.events or self._acks or self._closed or now >= idle_until:
                    break
                self._lock.wait(min(idle_until, self._next_tick()) - now)
            self._returned_at = now
            events, runs.events = tuple(runs.events), []
            over = self._closed and not events and not self._acks
            self._delivered += self._acks
            self._ended += runs.ending
            self._acks, runs.ending = [], []
            return EventBatch(now, events, over=over)

    def send(self, commands: Sequence[Command]) -> None:
        """Turn commands into orders; agents receive them with their next request."""
        if not commands:
            return
        with self._lock:
            now = self.clock.now()
            for command in commands:
                self._runs.carry_out(command, now)
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
        """Make the next ``wait`` without events return that the run is over."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()

    def fail(self, error: Exception) -> None:
        """Answer every open request with an error: the loop has died, or the journal cannot be written."""
        with self._lock:
            waiting = [*self._delivered, *self._acks]
            self._delivered, self._acks = [], []
        for future, _ in waiting:
            if not future.cancelled():
                future.set_exception(error)

    def _deadline(self, agent: AgentStatus) -> Seconds:
        """Return when a silent node counts as lost: by then its agent has killed the first of the runs there."""
        if not agent.up:
            return inf
        graces = [gang.launch.grace for gang in agent.gangs.values()]
        return self._quiet_at(agent) + min(graces, default=0.0)

    def _quiet_at(self, agent: AgentStatus) -> Seconds:
        """Return when a silent node has no run without grace left; each other run is gone its own grace later."""
        return agent.last_contact + self.lease + _MARGIN

    def _next_tick(self) -> Seconds:
        runs = self._runs
        deadlines = map(self._deadline, runs.agents)
        lost = (runs.next_settlement(index) for index, agent in enumerate(runs.agents) if not agent.up)
        return min(
            [*deadlines, *lost, *runs.held.releases.values(), *runs.held.limits.values(), runs.health.next_probe]
        )

    def _tick(self, now: Seconds) -> None:
        for index, agent in enumerate(self._runs.agents):
            if now >= self._deadline(agent):
                self._runs.lose(index, now, self._quiet_at(agent))
            elif not agent.up and now >= self._runs.next_settlement(index):
                self._runs.settle(index, now)
        self._runs.release(now)
        self._runs.probe(now)

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

    def drain(self, node: str, reason: str, by: str) -> "Future[None]":
        """Drain a node for an operator: it gets no new runs until it is resumed."""
        index = self._index(node)
        with self._lock:
            self._runs.events += self._runs.health.drain(index, reason, self.clock.now(), by)
            return self._acknowledgement(None)

    def resume_node(self, node: str) -> "Future[None]":
        """Resume a drained node for an operator; no effect on one that is not drained."""
        index = self._index(node)
        with self._lock:
            self._runs.events += self._runs.health.resume(index, self.clock.now())
            return self._acknowledgement(None)

    def bid(self, app: str, jobs: tuple[JobNumber, ...], rows: Rows) -> "Future[None]":
        """Record an app's valuation of GPUs, made with these jobs."""
        with self._lock:
            self._runs.events.append(AppBid(self.clock.now(), app, jobs, rows))
            return self._acknowledgement(None)

    def set_quota(self, tenant: TenantId, quota: Quota) -> "Future[None]":
        """Record a tenant's quota."""
        with self._lock:
            self._runs.events.append(QuotaSet(self.clock.now(), tenant, quota))
            return self._acknowledgement(None)

    def _acknowledgement(self, result: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        self._acks.append((future, result))
        # Even without an event: only a turn of the loop resolves the future.
        self._lock.notify_all()
        return future

    # ── agents ────────────────────────────────────────────────────────────────────────────────────────────────

    def hello(self, hello: Hello) -> AgentOrders:
        """Register an agent that started, or that was asked to register again; runs of an earlier boot are lost."""
        index = self._node(hello.node, hello.protocol)
        node = self.topology.nodes[index]
        if (hello.kind, hello.gpus) != (node.kind, node.gpus):
            given = f"{hello.gpus} x {hello.kind}"
            raise InputError(f"node {node.name}", given, f"this cluster has it with {node.gpus} x {node.kind}")
        with self._lock:
            agent, now = self._runs.agents[index], self.clock.now()
            if agent.place not in ("", hello.place):
                self._move(index, agent, hello, now)
            if agent.boot is not None and agent.boot != hello.boot:
                _replace_boot(agent, agent.boot, hello)
                self._runs.reboot(index, now)
            agent.boot, agent.address, agent.last_contact = hello.boot, hello.address, now
            moved, agent.place = agent.place != hello.place, hello.place
            agent.session = secrets.token_hex(8)
            self.machines[index] = machine_of(hello)
            if moved or not agent.up:
                agent.up = True
                self._runs.events.append(NodeReturned(now, index, hello.place))
            if hello.suspension is not None and hello.suspension != agent.suspension:
                agent.suspension = hello.suspension
                self._runs.events.append(ability_event(index, hello.suspension, now))
            orders = self._orders(index)
            self._lock.notify_all()
        self.on_change()
        return orders

    def _move(self, index: int, agent: AgentStatus, hello: Hello, now: Seconds) -> None:
        """Lose the node of an agent that another one replaces elsewhere; ``InputError`` while its runs may be alive."""
        graces = [gang.launch.grace for gang in agent.gangs.values() if not gang.parts[index].phase.over]
        left = self._quiet_at(agent) + max(graces, default=0.0) - now
        if left > 0 and (agent.up or agent.gangs):
            log.warning("two agents have the name of one node", extra={"node": hello.node, "address": hello.address})
            hint = f"an agent of this name runs elsewhere{f' ({agent.address})' * bool(agent.address)}"
            raise InputError("node", hello.node, f"{hint}: name another node, or stop that one and wait {left:,.0f} s")
        if agent.up:
            self._runs.lose(index, now, self._quiet_at(agent))

    def sync(self, report: AgentReport) -> AgentOrders:
        """Process an agent's report and return the orders that hold now."""
        index = self._node(report.node, report.protocol)
        runs = self._runs
        with self._lock:
            agent = runs.agents[index]
            if agent.boot != report.boot or not agent.up:
                raise InputError("boot", report.boot, "not known, or its node counts as lost: say hello first")
            # A late hello may have named a dead agent: its late reports, which do not know the answer, do not count.
            if report.session not in ("", agent.session):
                raise InputError("session", report.session, "is over: say hello first")
            agent.disk_free = report.disk_free
            before = len(runs.events), agent.generation
            self._take_log_answers(index, report)
            runs.report(index, report.runs, self.clock.now())
            orders = self._orders(index)
            changed = (len(runs.events), agent.generation) != before
            if changed:
                self._lock.notify_all()
        if changed:
            self.on_change()
        return orders

    def generation(self, node: str) -> int:
        """Return the generation of a node's orders, which counts up with each change."""
        return self._runs.agents[self._node(node, PROTOCOL)].generation

    def owner_of_code(self, node: str, job: JobNumber, digest: str) -> TenantId | None:
        """Return the tenant of a job that a node has a run of, if it was shipped with this code; else None."""
        with self._lock:
            orders = self._runs.orders(self._node(node, PROTOCOL))
        return next((order.tenant for order in orders if (order.job, order.code) == (job, digest)), None)

    def last_report(self, node: int) -> Seconds | None:
        """Return the time of a node's last report; None if there was none since the control plane started."""
        return self._runs.agents[node].last_report

    def with_machine(self, row: NodeRow) -> NodeRow:
        """Return a node's row with its machine's CPUs and memory, and the free bytes of its disk at its last report."""
        index = self.topology.node_index[row.name]
        agent = self._runs.agents[index]
        row = msgspec.structs.replace(row, disk_free=agent.disk_free, suspension=agent.suspension)
        machine = self.machines.get(index)
        return row if machine is None else msgspec.structs.replace(row, **asdict(machine))

    def _node(self, name: str, protocol: int) -> int:
        if protocol != PROTOCOL:
            raise InputError("protocol", protocol, f"this control plane speaks {PROTOCOL}: use one version of Shoal")
        return self._index(name)

    def _index(self, name: str) -> int:
        index = self.topology.node_index.get(name)
        if index is None:
            raise InputError("node", name, nearest(name, self.topology.node_index))
        return index

    def _orders(self, index: int) -> AgentOrders:
        runs, generation = self._runs.orders(index), self._runs.agents[index].generation
        runs = [self._with_secret(run) for run in runs]
        reads = [order for node, order, _ in self._log_reads.values() if node == index]
        session = self._runs.agents[index].session
        return AgentOrders(
            protocol=PROTOCOL, generation=generation, lease=self.lease, runs=runs, reads=reads, session=session,
            sessions=self.sessions.orders(index),
        )  # fmt: skip

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

    def orders_changed(self, node: int) -> None:
        """Let a node's agent know of a change of its orders other than of its runs, such as a new session."""
        with self._lock:
            self._runs.agents[node].generation += 1
        self.on_change()

    # ── logs ──────────────────────────────────────────────────────────────────────────────────────────────────

    def read_log(self, node: int, order: LogRead) -> "Future[LogAnswer]":
        """Ask a node's agent for a piece of a log; ``order.read`` is replaced by a new number."""
        answer: Future[LogAnswer] = Future()
        with self._lock:
            self._log_read_count += 1
            numbered = msgspec.structs.replace(order, read=self._log_read_count)
            self._log_reads[self._log_read_count] = node, numbered, answer
            self._runs.agents[node].generation += 1
        self.on_change()
        return answer

    def _take_log_answers(self, node: int, report: AgentReport) -> None:
        """Pass a node's answers on to those who asked; ``ForeignRead`` if one was asked of another node."""
        asked = [(answer, self._log_reads.get(answer.read)) for answer in report.logs]
        for answer, read in asked:
            if read is not None and read[0] != node:
                raise ForeignRead("logs", answer.read, f"this piece of a log was not asked of {report.node}")
        for answer, _ in asked:
            read = self._log_reads.pop(answer.read, None)
            if read is not None and not read[2].cancelled():
                read[2].set_result(answer)

    def place(self, job: JobNumber, incarnation: int, rank: int) -> tuple[int, int, int] | None:
        """Return a rank's node, the incarnation that started it and its number there; None if not resized in place."""
        with self._lock:
            return self._runs.place(job, incarnation, rank)

    def forget_read(self, answer: "Future[LogAnswer]") -> None:
        """Withdraw the request for a piece of a log that this future was to hold."""
        with self._lock:
            self._log_reads = {number: read for number, read in self._log_reads.items() if read[2] is not answer}


def _replace_boot(agent: AgentStatus, boot: str, hello: Hello) -> None:
    """Count that the agent of ``boot`` is replaced; ``InputError`` if the new one was replaced too often itself.

    A restarted agent replaces the earlier one for good. Two that run under one name replace each other in turn; a late
    hello of a dead agent may do so once.
    """
    if hello.boot in agent.replaced:
        addresses = {"node": hello.node, "address": hello.address, "other": agent.address}
        log.warning("two agents have the name of one node", extra=addresses)
        if agent.replaced[hello.boot] >= _MOST_REPLACED:
            hint = f"another agent of this name runs at {agent.address}: stop one of them, or name another node"
            raise InputError("node", hello.node, hint)
    agent.replaced[boot] = agent.replaced.pop(boot, 0) + 1
    if len(agent.replaced) > _MOST_BOOTS:
        del agent.replaced[next(iter(agent.replaced))]
