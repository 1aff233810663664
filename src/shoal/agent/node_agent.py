"""The agent process, one per node: starts and stops the runs that the control plane orders, and reports on them.

All its state changes in one thread, which never waits for a job, a keeper or the network. However the agent ends, its
keepers end what they started, suspended runs when their lease ends; when it starts, no process of an earlier agent of
the node is left but those of suspended runs, which it takes over.
"""

import logging
import os
import queue
import secrets
import selectors
import socket
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from shoal.agent import devices, launch, orphans
from shoal.agent.agent_settings import AgentSettings
from shoal.agent.cgroup_limits import pass_on
from shoal.agent.cgroups import end_cgroup, own_folder, run_folder
from shoal.agent.control_link import ControlLink, LinkMessage, ReceivedOrders, Rejected, checked
from shoal.agent.gate_files import GateFiles, MemoryWatch
from shoal.agent.job_logs import LogLimiter
from shoal.agent.keeper_handle import KeeperHandle, KeeperMessage, KeeperServerHandle, KeeperServers
from shoal.agent.lease_files import LEASE_SECONDS, LeaseFiles
from shoal.agent.log_answers import LogAnswers
from shoal.agent.machine import CUDA_CHECKPOINT, suspension_ability, with_machine
from shoal.agent.node_run import Key
from shoal.agent.node_state import (
    Actions,
    Forget,
    NodeState,
    OpenGate,
    Prepare,
    ResumeRanks,
    SetMembers,
    StartRanks,
    StopRanks,
    SuspendRanks,
)
from shoal.agent.old_folders import OldFolders
from shoal.agent.rank_port import RankPorts
from shoal.agent.run_process import adopt_orphans
from shoal.agent.sessions import AgentSessions
from shoal.agent.shipped_code import CodeFetched, CodeFetcher
from shoal.agent.stop_signals import StopSignals
from shoal.agent.takeover import TakenRuns, take_over
from shoal.agent.tenant_users import choose_users
from shoal.agent.workspace import Workspace
from shoal.core.errors import InputError, ShoalError
from shoal.wire.disk import free_bytes
from shoal.wire.messages import PROTOCOL, AgentReport, Hello, LogAnswer, Roster, RunOrder

_LOG = logging.getLogger("shoal.agent")

_PROGRESS_SECONDS, _SWEEP_SECONDS = 2.0, 0.02
_LINGER_SECONDS = 15.0
"""Seconds beyond its grace that a worker which is no longer a member has to leave, while the others regroup."""


class NodeAgent:
    """One boot of a node's agent."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        found = devices.find(settings.kind, settings.gpus, first=settings.first_device, environ=os.environ)
        self._devices = found.ids
        boot, place, ability = secrets.token_hex(16), orphans.place_of(settings.home.resolve()), suspension_ability()
        hello = Hello(PROTOCOL, settings.node, boot, found.kind, found.count, settings.address, place=place)
        self._hello = checked(msgspec.structs.replace(hello, suspension=ability, allocation=settings.allocation))
        self._workspace = Workspace(settings.home.resolve(), settings.allocation or settings.node)
        self._old = OldFolders(self._workspace)
        self._users, self._why_shared = choose_users(settings.tenant_users, self._workspace.home)
        cuda = ability.how == CUDA_CHECKPOINT
        self._launcher = launch.Launcher(self._workspace, settings.address, found.kind, boot, self._users, cuda)
        self._logs = LogLimiter(settings.log_bytes)
        self._state = NodeState(found.count, real=cuda)
        client = settings.client()
        self._link = ControlLink(client, self._hello, self._deliver)
        self._sessions = AgentSessions(client)
        self._inbox: queue.SimpleQueue[LinkMessage | CodeFetched] = queue.SimpleQueue()
        self._code = CodeFetcher(settings.client, self._workspace, self._launcher.owner, self._deliver)
        self._keepers: dict[Key, KeeperHandle] = {}
        self._dead_keepers: dict[Key, str] = {}  # run: why its keeper died
        self._workdirs: dict[Key, str] = {}
        self._ports = RankPorts()
        self._log_answers = LogAnswers(self._workspace)
        self._published: tuple[tuple[object, ...], ...] = ()
        self._lease_files, self._gates = LeaseFiles(self._workspace), GateFiles(self._workspace)
        self._lease = self._renewed = self._read_progress_at = 0.0
        self._changed = self._urgent = False  # since the last report: whether anything did, and whether that is urgent
        self._signals = StopSignals()
        self._closing = 0
        self._left: set[Key] = set()  # suspended runs that are left to the node's next agent
        self._rejected: ShoalError | None = None
        self._own_cgroup, self._memory, self._env = "", MemoryWatch(), dict(os.environ)
        self._machine = orphans.machine_boot()
        self._other_children = orphans.children()
        self._selector = selectors.DefaultSelector()
        self._servers = KeeperServers(boot, str(self._workspace.folder), self._selector, self._keeper_died)
        self._woken, self._waker = socket.socketpair()

    def serve(self) -> None:
        """Serve until a signal or the control plane ends the agent; return when every run has ended."""
        lock = self._workspace.lock()
        try:
            if self._users is None:
                _LOG.warning("tenants share a user", extra={"uid": os.geteuid(), "why": self._why_shared})
            else:
                self._users.open_home(self._workspace)
            adopt_orphans()
            self._handle_signals()
            self._own_cgroup, reason = own_folder()
            taken = take_over(self._workspace, self._machine, time.monotonic())
            if orphans.clear_earlier(self._workspace, lambda: self._signals.count > 0, self._own_cgroup, taken):
                self._adopt(taken)
                kept = f"by cgroups below {self._own_cgroup}" if self._own_cgroup else f"without cgroups: {reason}"
                self._link.hello = self._hello = with_machine(self._hello, self._own_cgroup, reason)
                _LOG.info("agent up", extra={"node": self._hello.node, "boot": self._hello.boot, "runs_kept": kept})
                self._link.open()
                self._loop()
        finally:
            self._servers.close(leave=bool(self._left))
            os.close(lock)
        if self._rejected is not None:
            raise self._rejected

    def _adopt(self, taken: TakenRuns) -> None:
        """Take over the suspended runs of earlier agents."""
        self._hello = msgspec.structs.replace(self._hello, kept=[run.key for run in taken.runs])
        for server in taken.handles:
            self._servers.take(server)
        for run in taken.runs:
            _LOG.info("run taken over", extra={"run": run.key})
            self._state.adopt(run.order, run.devices)
            self._watch(run.key, run.keeper)
            self._logs.watch(run.key, self._workspace.logs(run.order.id), run.logs)

    def _watch(self, key: Key, keeper: KeeperHandle) -> None:
        self._keepers[key] = keeper
        self._selector.register(keeper, selectors.EVENT_READ, partial(self._read_keeper, key))

    # ── the loop ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _loop(self) -> None:
        while not self._closing or self._keepers.keys() - self._left:
            for key, _ in self._selector.select(self._timeout()):
                key.data()
            received = [self._inbox.get() for _ in range(self._inbox.qsize())]
            for message in received:
                self._receive(message)
            self._tick()
            if self._signals.count > self._closing:
                self._closing = self._signals.count
                self._close(impatient=self._closing > 1)
            if received or self._changed:
                self._publish()
            for message in received:
                if isinstance(message, ReceivedOrders):
                    message.applied.set()
        if self._rejected is None:
            leaving = None if self._signals.restarts else 0.0
            self._link.send_last(msgspec.structs.replace(self._report([]), leaving=leaving))
        _LOG.info("agent down", extra={"node": self._hello.node})

    def _timeout(self) -> float | None:
        if self._lost_keepers():
            return _SWEEP_SECONDS
        if not self._keepers:
            return None
        deadline = min(keeper.deadline for keeper in self._keepers.values())
        return max(0.0, min(self._read_progress_at, deadline, self._gates.next_look()) - time.monotonic())

    def _tick(self) -> None:
        now = time.monotonic()
        for key, keeper in self._keepers.items():
            if now >= keeper.deadline:
                _LOG.error("keeper hangs", extra={"run": key})
                keeper.kill()
        if lost := self._lost_keepers():
            self._sweep(lost)
        for key in self._gates.due():
            self._act(self._state.arrived(key))
        self._sessions.hang_up_unattended()
        if self._keepers and now >= self._read_progress_at:
            self._read_progress_at = now + _PROGRESS_SECONDS
            for key in self._keepers:
                self._read_progress(key)
            self._changed = True

    def _deliver(self, message: LinkMessage | CodeFetched) -> None:
        """Pass a message to the loop; called from other threads."""
        self._inbox.put(message)
        with suppress(BlockingIOError):
            self._waker.send(b"\0")

    def _handle_signals(self) -> None:
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, lambda: self._woken.recv(4096))
        self._signals.listen(self._waker.fileno(), self._settings.parent)

    # ── orders ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _receive(self, message: LinkMessage | CodeFetched) -> None:
        if isinstance(message, CodeFetched):
            self._act(self._prepared(message.order, message.cause, message.blameless))
            return
        if isinstance(message, Rejected):
            self._rejected = message.error
            self._signals.count = max(self._signals.count, 1)
            return
        self._renew(message)
        self._state.gates = self._memory.enough()
        self._act(self._state.follow(message.orders, first=message.first))
        self._old.follow(message.orders, {run.order.id for run in self._state.runs.values()})
        self._sessions.follow(message.orders.sessions, self._keepers)
        self._urgent |= self._log_answers.follow(message.orders.reads, message.answered)
        if self._settings.allocation and not message.orders.runs and not self._state.runs:  # its run is over
            self._signals.count = max(self._signals.count, 1)

    def _renew(self, received: ReceivedOrders) -> None:
        self._lease = max(self._lease, received.sent + received.orders.lease)
        # A lease is passed on when that adds a tenth to it, not with every message of a busy node.
        if self._lease < self._renewed + min(LEASE_SECONDS, received.orders.lease / 10):
            return
        self._renewed = self._lease
        self._servers.renew(self._lease)
        for key, keeper in self._keepers.items():
            keeper.renew(self._lease)
            self._lease_files.renew(key, self._lease)

    def _set_members(self, key: Key, roster: Roster, leavers: tuple[int, ...]) -> None:
        """Write a run's orders file: which workers train. Others leave by themselves, or are killed after a time."""
        try:
            self._workspace.write_orders(key, roster)
        except OSError as error:
            # Workers wait for it, and end with an error when they have waited too long.
            _LOG.error("worker orders not written", extra={"run": key, "error": str(error)})
        for number in leavers:
            self._keepers[key].release(number, self._state.runs[key].order.grace + _LINGER_SECONDS)

    def _act(self, actions: Actions) -> None:
        pending = deque(actions)
        while pending:
            action = pending.popleft()
            match action:
                case Prepare(order) if order.code is not None:
                    self._code.start(order)
                case Prepare(order):
                    pending += self._prepared(order)
                case StartRanks():
                    pending += self._start(action)
                case SetMembers(key, roster, leavers):
                    self._set_members(key, roster, leavers)
                case StopRanks(key, grace):
                    _LOG.info("run stopping", extra={"run": key, "grace": grace})
                    self._lease_files.write(key, self._lease, stopping=True)
                    self._keepers[key].stop(grace)
                case SuspendRanks(key) | ResumeRanks(key):
                    keeper = self._keepers[key]
                    (keeper.suspend if isinstance(action, SuspendRanks) else keeper.resume)()
                case OpenGate(key):
                    self._gates.open(key)
                case Forget(key):
                    self._forget(key)
        self._changed = True

    def _close(self, *, impatient: bool) -> None:
        _LOG.info("agent ending", extra={"runs": len(self._keepers), "impatient": impatient})
        self._urgent = True  # the control plane moves its jobs
        self._left = self._state.suspended if self._signals.restarts else set()
        self._act(self._state.close(self._left, self._settings.grace_when_warned))
        if impatient:
            for keeper in self._keepers.values():
                keeper.stop(0.0)

    @property
    def _leaving_in(self) -> float | None:
        """Seconds after which the agent has ended at the latest; None if it stays, or is only restarted."""
        if not self._closing or self._signals.restarts:
            return None
        return max((run.order.grace for key, run in self._state.runs.items() if key in self._keepers), default=0.1)

    def _prepared(self, order: RunOrder, cause: str = "", blameless: bool = False) -> Actions:
        found = (0, cause, blameless) if cause else self._prepare(order)
        return self._state.prepared((order.job, order.incarnation), *found)

    def _prepare(self, order: RunOrder) -> tuple[int, str, bool]:
        """Return a port for the run; why it cannot start here, empty if it can; and whether the node is at fault."""
        key = order.job, order.incarnation
        try:
            self._workdirs[key] = launch.check(order, self._workspace, self._settings.roots, self._env)
            self._launcher.check_user(order)
            return self._ports.reserve(key), "", False
        except (InputError, OSError, ValueError) as error:
            _LOG.warning("run refused", extra={"run": key, "id": order.id, "cause": str(error)})
            return 0, str(error), not isinstance(error, InputError)

    def _start(self, start: StartRanks) -> Actions:
        order = start.order
        key = order.job, order.incarnation
        self._ports.release(key)
        own = tuple(map(int, start.devices))
        start = replace(start, devices=tuple(self._devices[device] for device in own))
        try:
            run = self._launcher.keeper_input(start, workdir=self._workdirs[key], lease=self._lease, environ=self._env)
            self._servers.start()
            run["cgroup"] = cgroup = run_folder(self._own_cgroup, self._workspace.identity, self._hello.boot, key)
            if self._hello.no_limits or not cgroup:
                run["limits"] = None
            else:
                pass_on(os.path.dirname(cgroup))
            # Without this record a later agent would not look for the run's processes.
            self._workspace.record(key, self._servers.own.record(self._machine, cgroup, order, own), self._lease)
            if start.gated:
                self._gates.expect(key)
            keeper = KeeperHandle(self._servers.own, self._lease, order.grace, cgroup)
            terminal = self._sessions.open_terminal(key, run) if run["terminal"] else None
        except OSError as error:
            return self._state.over(key, f"the agent could not start a keeper: {error}", blameless=True)
        self._watch(key, keeper)
        self._lease_files.begin(key, self._lease)
        if order.roster is not None:
            self._set_members(key, order.roster, ())
        ranks = [*run["ranks"], *([run["store"]] if run["store"] else [])]
        self._logs.watch(key, Path(run["logs"]), [rank["log"] for rank in ranks])
        keeper.begin(run, terminal)
        if terminal is not None:
            os.close(terminal)
        return []

    def _forget(self, key: Key) -> None:
        self._workdirs.pop(key, None)
        self._lease_files.forget(key)
        self._ports.release(key)
        self._workspace.forget(self._workspace.run(key))

    # ── keepers ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _read_keeper(self, key: Key) -> None:
        keeper = self._keepers[key]
        messages, other, closed = keeper.read()
        if other:
            _LOG.error("keeper failed", extra={"run": key, "output": other})
        for message in messages:
            self._apply(key, keeper, message)
        if closed or keeper.last is not None:
            self._selector.unregister(keeper)
            keeper.close()
            if keeper.last is None:
                self._dead_keepers[key] = keeper.cause or "its keeper died"
                self._end_without_keeper(key)
            else:
                requeued, closing = self._workspace.asked_to_requeue(key), self._closing > 0
                self._over(key, *keeper.cause_of_end(closing, requeued), unwarned=not keeper.last.why)
        self._changed = True

    def _keeper_died(self, server: KeeperServerHandle, number: int, status: int) -> None:
        for key, keeper in [*self._keepers.items()]:
            if keeper.number == number and keeper.forked_by(server):
                _LOG.error("keeper died", extra={"run": key, "status": status})
                keeper.left_nothing = True
                self._end_without_keeper(key)

    def _end_without_keeper(self, key: Key) -> None:
        """End the run of a dead keeper once its output is read and the server has found nothing left of it."""
        if key in self._dead_keepers and self._keepers[key].left_nothing:
            self._over(key, self._dead_keepers.pop(key), blameless=True)

    def _apply(self, key: Key, keeper: KeeperHandle, message: KeeperMessage) -> None:
        match message.event:
            case "started":
                _LOG.info("run started", extra={"run": key, "pids": message.pids})
                self._state.started(key)
            case "failed":
                keeper.cause, keeper.blameless = message.cause, message.why == "node"
            case "ended":
                _LOG.info("rank ended", extra={"run": key, "rank": message.rank, "status": message.status})
                # An engine signals all processes of an allocation: a rank may have left before its keeper warns it.
                warned = message.warned or self._signals.count > 0
                self._state.exited(key, message.rank, message.status, warned=warned)
                self._sessions.rank_ended(key, message.rank, message.status)
            case "left":
                self._sessions.left(message.session, message.status, message.cause)
            case "cleared":
                self._act(self._state.cleared(key, message.rank))
            case "lost":
                keeper.cause, keeper.blameless = f"it could not be resumed: {message.cause}", True
            case "suspended" | "refused" | "resumed" | "waiting" as event:
                _LOG.info(f"run {event}", extra={"run": key, "seconds": message.seconds, "cause": message.cause})
                self._act(self._state.turned(key, *message.outcome))
            case "over":
                keeper.last = message

    def _over(self, key: Key, cause: str, blameless: bool, *, unwarned: bool = False) -> None:
        self._read_progress(key)
        self._logs.forget(key)
        self._sessions.run_over(key)
        self._gates.forget(key)
        del self._keepers[key]
        self._servers.drop_unused(self._keepers.values())
        _LOG.info("run over", extra={"run": key, "cause": cause})
        self._act(self._state.over(key, cause, blameless=blameless, unwarned=unwarned))

    def _lost_keepers(self) -> list[Key]:
        """Return the runs whose keeper died with its server."""
        return [key for key in self._dead_keepers if self._keepers[key].server_died]

    def _sweep(self, lost: list[Key]) -> None:
        """Kill the processes that keepers of a dead server left; their runs are over once none is left."""
        own = self._servers.own.pid
        others = self._other_children | ({own} if own is not None else set())
        if orphans.kill_orphans(others) and all(end_cgroup(self._keepers[key].cgroup) for key in lost):
            for key in lost:
                self._over(key, self._dead_keepers.pop(key), blameless=True)

    def _read_progress(self, key: Key) -> None:
        written = self._workspace.read_progress(key)
        if written is not None:
            self._state.progressed(key, *written)

    # ── reports ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _publish(self) -> None:
        """Hand the report to the connection, once for everything that one turn of the loop changed."""
        report = self._report(self._log_answers.pieces)
        # Progress alone can wait for the next request; any other change is urgent.
        state = self._state.urgent_parts()
        self._link.publish(report, urgent=self._urgent or state != self._published)
        self._published, self._changed, self._urgent = state, False, False

    def _report(self, logs: list[LogAnswer]) -> AgentReport:
        hello, state, free = self._hello, self._state, None
        runs, known = state.reports(), state.generation
        with suppress(OSError):
            free = free_bytes(self._workspace.home)
        return AgentReport(
            protocol=PROTOCOL, node=hello.node, boot=hello.boot, known=known, runs=runs, logs=logs, disk_free=free,
            old=self._old.names, leaving=self._leaving_in, allocation=hello.allocation,
        )  # fmt: skip
