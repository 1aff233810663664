"""The agent process: one per node, it does what the control plane orders and tells it what it has.

Everything it knows changes in one thread, which never waits for a job, a keeper or the network. However it ends, its
keepers end what they started; when it starts, nothing of an earlier agent of the same node is left.
"""

import logging
import os
import queue
import secrets
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

import msgspec

from shoal.agent import devices, launch, orphans
from shoal.agent.control_link import ControlLink, News, OutgoingReport, ReceivedOrders, TurnedAway
from shoal.agent.keeper import adopt_orphans, die_with_parent
from shoal.agent.keeper_handle import KeeperHandle, KeeperMessage
from shoal.agent.node_state import Forget, Key, NodeState, Prepare, StartRanks, StopRanks, Tell, Todo
from shoal.agent.workspace import Record, Workspace
from shoal.core.decoding import convert
from shoal.core.errors import InputError, ShoalError
from shoal.wire.client import Client
from shoal.wire.logs import log_json
from shoal.wire.messages import PROTOCOL, Hello, LogAnswer, LogRead, Roster, RunOrder, RunReport

_LOG = logging.getLogger("shoal.agent")

_PROGRESS_SECONDS = 2.0
_LEASE_SECONDS = 1.0
"""A job is told anew of its lease when it was prolonged by more than this."""
_SWEEP_SECONDS = 0.02
_LINGER_SECONDS = 15.0
"""How much longer than its grace a worker may take to leave that was left out: the others are to have regrouped."""
_MOST_READS = 16
"""Log pieces in one report: with their length bounded too, no report is large."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Whom an agent serves, as which node, with what, and where it may let jobs work.

    Without a kind or a number of GPUs NVIDIA's driver is asked. ``roots`` are the folders in which jobs may have their
    working directory, beside their own. ``parent`` is the process that started it, and with which it ends. Where
    several agents share a machine, ``first_device`` is the first of its GPUs that is this one's.
    """

    server: str
    token: str
    node: str
    address: str
    home: Path
    cafile: str | None = None
    kind: str | None = None
    gpus: int | None = None
    roots: tuple[Path, ...] = ()
    parent: int | None = None
    first_device: int = 0


def main(settings: AgentSettings) -> int:
    """Serve until told to end (SIGTERM, SIGINT); the exit code: 0, or 2 with one line on stderr for what is wrong."""
    log_json()
    try:
        NodeAgent(settings).serve()
    except ShoalError as error:
        print(f"shoal agent: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


class NodeAgent:
    """One boot of a node's agent."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        found = devices.find(settings.kind, settings.gpus)
        self._hello = _checked(
            Hello(PROTOCOL, settings.node, secrets.token_hex(16), found.kind, found.count, settings.address)
        )
        self._folder = Workspace(settings.home.resolve(), settings.node)
        self._desk = NodeState(found.count)
        self._link = ControlLink(_client(settings), self._hello, self._deliver)
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._tethers: dict[Key, KeeperHandle] = {}
        self._workdirs: dict[Key, str] = {}
        self._ports: dict[Key, socket.socket] = {}
        self._broken: dict[Key, str] = {}
        self._reads: dict[int, LogAnswer] = {}
        self._answered: set[int] = set()
        self._told: tuple[tuple[object, ...], ...] = ()
        self._leases: dict[Key, float] = {}
        self._lease = 0.0
        self._read_progress_at = 0.0
        self._signals = 0
        self._closing = 0
        self._turned_away: ShoalError | None = None
        self._machine = orphans.machine_boot()
        self._strangers = orphans.children()
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()

    def serve(self) -> None:
        """Serve until told to end, and return when every run has."""
        lock = self._folder.lock()
        try:
            adopt_orphans()
            self._heed_signals()
            if orphans.clear_earlier(self._folder, lambda: self._signals > 0):
                _LOG.info("agent up", extra={"node": self._hello.node, "boot": self._hello.boot})
                self._link.open()
                self._loop()
        finally:
            os.close(lock)
        if self._turned_away is not None:
            raise self._turned_away

    # ── the loop ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _loop(self) -> None:
        while self._tethers or not self._closing:
            for key, _ in self._selector.select(self._patience()):
                key.data()
            while not self._news.empty():
                self._hear(self._news.get())
            self._tick()
            if self._signals > self._closing:
                self._closing = self._signals
                self._close(impatient=self._closing > 1)
        if self._desk.runs:
            self._link.farewell(OutgoingReport(self._desk.reports(), (), self._desk.generation))
        _LOG.info("agent down", extra={"node": self._hello.node})

    def _patience(self) -> float | None:
        if self._broken:
            return _SWEEP_SECONDS
        if not self._tethers:
            return None
        now = time.monotonic()
        due = min(tether.due for tether in self._tethers.values())
        return max(0.0, min(self._read_progress_at, due) - now)

    def _tick(self) -> None:
        now = time.monotonic()
        for key, tether in self._tethers.items():
            if now >= tether.due and key not in self._broken:
                _LOG.error("keeper hangs", extra={"run": key, "pid": tether.pid})
                tether.kill()
        if self._broken:
            self._sweep()
        if self._tethers and now >= self._read_progress_at:
            self._read_progress_at = now + _PROGRESS_SECONDS
            for key in self._tethers:
                self._note_progress(key)
            self._publish()

    def _deliver(self, news: News) -> None:
        """From another thread: bring the loop something."""
        self._news.put(news)
        with suppress(BlockingIOError):
            self._waker.send(b"\0")

    def _heed_signals(self) -> None:
        for end in (self._woken, self._waker):
            end.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, lambda: self._woken.recv(4096))

        def told_to_end(*_: object) -> None:
            self._signals += 1

        # The handler runs only between two steps of the interpreter; the byte wakes the selector for it.
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, told_to_end)
        if self._settings.parent is not None:
            die_with_parent(signal.SIGTERM)
            if os.getppid() != self._settings.parent:  # it died before it could be noticed
                self._signals += 1

    # ── orders ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _hear(self, news: News) -> None:
        if isinstance(news, TurnedAway):
            self._turned_away = news.error
            self._signals = max(self._signals, 1)
            return
        self._renew(news)
        self._act(self._desk.follow(news.orders, first=news.first))
        self._answer(news.orders.reads, news.answered)
        news.taken.set()

    def _renew(self, heard: ReceivedOrders) -> None:
        self._lease = max(self._lease, heard.sent + heard.orders.lease)
        for key, tether in self._tethers.items():
            tether.renew(self._lease)
            if self._lease > self._leases.get(key, 0.0) + _LEASE_SECONDS:
                self._tell_lease(key)

    def _tell_lease(self, key: Key, *, stopping: bool = False) -> None:
        """Let the job know; once it was told that it is being stopped, nothing more."""
        self._leases[key] = inf if stopping else self._lease
        try:
            self._folder.write_lease(key, self._lease, stopping=stopping)
        except OSError as error:
            # A job that is not told is still warned by its keeper, as one without the trainer library is.
            _LOG.warning("lease not told", extra={"run": key, "error": str(error)})

    def _tell_roster(self, key: Key, roster: Roster, leavers: tuple[int, ...]) -> None:
        """Let a run's workers know who is to train; those left out go by themselves, and at last are made to."""
        try:
            self._folder.write_orders(key, roster)
        except OSError as error:
            # They wait for it, and end with an error when they have waited too long.
            _LOG.error("workers not told", extra={"run": key, "error": str(error)})
        for number in leavers:
            self._tethers[key].release(number, self._desk.runs[key].order.grace + _LINGER_SECONDS)

    def _act(self, todo: Todo) -> None:
        pending = deque(todo)
        while pending:
            action = pending.popleft()
            match action:
                case Prepare(order):
                    pending += self._desk.prepared((order.job, order.incarnation), *self._prepare(order))
                case StartRanks():
                    pending += self._start(action)
                case Tell(key, roster, leavers):
                    self._tell_roster(key, roster, leavers)
                case StopRanks(key, grace):
                    _LOG.info("run stopping", extra={"run": key, "grace": grace})
                    self._tell_lease(key, stopping=True)
                    self._tethers[key].stop(grace)
                case Forget(key):
                    self._clear(key)
        self._publish()

    def _close(self, *, impatient: bool) -> None:
        _LOG.info("agent ending", extra={"runs": len(self._tethers), "impatient": impatient})
        self._act(self._desk.close())
        if impatient:
            for tether in self._tethers.values():
                tether.stop(0.0)

    def _prepare(self, order: RunOrder) -> tuple[int, str]:
        """A port for the run, and why it cannot start here, if it cannot."""
        key = order.job, order.incarnation
        try:
            self._workdirs[key] = launch.check(order, self._folder, self._settings.roots, os.environ)
            port = socket.socket()
            port.bind(("", 0))
        except (InputError, OSError, ValueError) as error:
            _LOG.warning("run refused", extra={"run": key, "id": order.id, "cause": str(error)})
            return 0, str(error)
        # Kept bound until the ranks start, so that nobody else is given it meanwhile.
        self._ports[key] = port
        return port.getsockname()[1], ""

    def _start(self, start: StartRanks) -> Todo:
        order = start.order
        key = order.job, order.incarnation
        self._ports.pop(key).close()
        try:
            what = launch.keeper_line(
                replace(start, devices=tuple(self._settings.first_device + device for device in start.devices)),
                workdir=self._workdirs[key],
                folder=self._folder,
                address=self._settings.address,
                kind=self._hello.kind,
                boot=self._hello.boot,
                lease=self._lease,
                environ=os.environ,
            )
            tether = KeeperHandle(self._lease, order.grace)
        except OSError as error:
            return self._desk.over(key, f"the agent could not start a keeper: {error}", blameless=True)
        self._tethers[key] = tether
        self._selector.register(tether, selectors.EVENT_READ, self._listener(key))
        try:
            self._folder.record(key, Record(tether.pid, tether.start_time, self._hello.boot, self._machine))
        except OSError as error:
            # Without its record a later agent would not find it: it is not told to start anything.
            tether.cause = f"the agent could not record its keeper: {error}"
            tether.kill()
        else:
            self._tell_lease(key)
            if order.roster is not None:
                self._tell_roster(key, order.roster, ())
            tether.begin(what)
        return []

    def _clear(self, key: Key) -> None:
        self._workdirs.pop(key, None)
        self._leases.pop(key, None)
        if key in self._ports:
            self._ports.pop(key).close()
        self._folder.forget(self._folder.run(key))

    # ── news from keepers ─────────────────────────────────────────────────────────────────────────────────────────

    def _listener(self, key: Key) -> Callable[[], None]:
        return lambda: self._hear_keeper(key)

    def _hear_keeper(self, key: Key) -> None:
        tether = self._tethers[key]
        said, noise, closed = tether.hear()
        if noise:
            _LOG.error("keeper failed", extra={"run": key, "said": noise})
        for message in said:
            self._take_in(key, tether, message)
        if closed:
            self._selector.unregister(tether)
            status = tether.close()
            if tether.last is None:
                self._broken[key] = tether.cause or f"its keeper died (status {status})"
                _LOG.error("keeper died", extra={"run": key, "status": status})
            else:
                self._over(key, *self._cause(tether, tether.last), unwarned=not tether.last.why)
        self._publish()

    def _take_in(self, key: Key, tether: KeeperHandle, said: KeeperMessage) -> None:
        match said.event:
            case "started":
                _LOG.info("run started", extra={"run": key, "pids": said.pids})
                self._desk.started(key)
            case "failed":
                tether.cause = said.cause
            case "ended":
                _LOG.info("rank ended", extra={"run": key, "rank": said.rank, "status": said.status})
                self._desk.exited(key, said.rank, said.status, warned=said.warned)
            case "cleared":
                self._act(self._desk.cleared(key, said.rank))
            case "over":
                tether.last = said

    def _cause(self, tether: KeeperHandle, last: KeeperMessage) -> tuple[str, bool]:
        """Why a run ended other than by itself or by order, and whether that is no fault of its own."""
        if tether.cause:
            return tether.cause, False
        if last.why == "lease":
            return "its lease ended: the node had not heard from the control plane for too long", True
        if last.why == "order" and self._closing:
            return "its node's agent was told to end", True
        return "", False

    def _over(self, key: Key, cause: str, blameless: bool, *, unwarned: bool = False) -> None:
        self._note_progress(key)
        del self._tethers[key]
        _LOG.info("run over", extra={"run": key, "cause": cause})
        self._act(self._desk.over(key, cause, blameless=blameless, unwarned=unwarned))

    def _sweep(self) -> None:
        """Kill what a keeper that died has left to the agent; its run is over when nothing is left."""
        keepers = {tether.pid for key, tether in self._tethers.items() if key not in self._broken}
        if orphans.kill_orphans(keepers | self._strangers):
            broken, self._broken = self._broken, {}
            for key, cause in broken.items():
                self._over(key, cause, blameless=True)

    def _note_progress(self, key: Key) -> None:
        written = self._folder.read_progress(key)
        if written is not None:
            self._desk.progressed(key, *written)

    # ── what is told ──────────────────────────────────────────────────────────────────────────────────────────────

    def _answer(self, reads: list[LogRead], answered: tuple[int, ...]) -> None:
        """Read the pieces of logs that are asked for; what has reached the control plane is not sent again."""
        asked = {read.read: read for read in reads}
        self._answered = {number for number in (*self._answered, *answered) if number in asked}
        due = asked.keys() - self._answered
        self._reads = {number: answer for number, answer in self._reads.items() if number in due}
        new = [asked[number] for number in sorted(due - self._reads.keys())]
        for read in new[: _MOST_READS - len(self._reads)]:
            self._reads[read.read] = self._folder.read_log(read)
        self._publish(urgent=bool(new))

    def _publish(self, *, urgent: bool = False) -> None:
        reports = self._desk.reports()
        # Progress alone is no reason to speak up, a change of batch size or workers is; the rest goes with the next
        # question.
        state = tuple((run.job, run.incarnation, run.phase, len(run.exits), _heard(run)) for run in reports)
        urgent = urgent or state != self._told
        self._told = state
        self._link.publish(OutgoingReport(reports, tuple(self._reads.values()), self._desk.generation), urgent=urgent)


def _heard(run: RunReport) -> tuple[int | None, int | None] | None:
    return None if run.session is None else (run.session.batch_size, run.session.generation)


def _client(settings: AgentSettings) -> Client:
    try:
        return Client(settings.server, settings.token, cafile=settings.cafile)
    except OSError as error:
        raise InputError("cafile", settings.cafile, f"cannot be used: {error.strerror or error}") from None


def _checked(hello: Hello) -> Hello:
    """The same, if it is what the control plane takes."""
    return convert(msgspec.structs.asdict(hello), Hello)
