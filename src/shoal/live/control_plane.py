"""The control plane: the loop in a thread of its own, its journal, and the desk where everybody else asks.

Nothing is acknowledged before it is durable. Every public method may be called from any thread.
"""

import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from time import monotonic, perf_counter

import numpy as np

from shoal.core.commands import Decided
from shoal.core.errors import InputError
from shoal.core.events import EventBatch
from shoal.core.lifecycle import JobState
from shoal.core.snapshot import Snapshot
from shoal.core.units import JobId, TenantId
from shoal.engine.loop import Judgement, Loop, judge_or_keep
from shoal.engine.replay import Scheduler
from shoal.live.accounts import Account, Accounts
from shoal.live.admission import Admission
from shoal.live.app_bidding import AppBidding, UnknownApp
from shoal.live.backend import LiveBackend
from shoal.live.last_decision import LastDecision
from shoal.live.views import ClusterViews
from shoal.store.journal import JournalFile, SqliteJournal
from shoal.wire.messages import (
    PROTOCOL,
    AcctRow,
    AgentOrders,
    AgentReport,
    AppBidMessage,
    AppOffer,
    ClusterRow,
    Hello,
    JobDetail,
    JobRow,
    LogAnswer,
    LogPart,
    LogRead,
    NodeRow,
    Reshape,
    StartForecast,
    Submission,
    TenantRow,
)

log = logging.getLogger("shoal.plane")

_MOST_FIGURES = 10_000

_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
"""For identifiers people type: nothing that looks like something else."""


class UnknownJob(LookupError):
    """No such job, or none that the one who asks may see."""


@dataclass(frozen=True, slots=True)
class ControlPlaneFigures:
    """What metrics are made of. The two lists hold what was measured since they were last asked for."""

    states: Mapping[str, int]
    gpus_up: Mapping[str, int]
    gpus_used: Mapping[str, int]
    nodes_up: int
    nodes_down: int
    decisions: int
    decision_seconds: Sequence[float]
    commit_seconds: Sequence[float]
    tenants: Sequence[TenantRow]
    lost_gpu_seconds: float
    restarts: int
    crashes: int
    completed: int
    submitted: int
    review_in: float


@dataclass(frozen=True, slots=True)
class About:
    """What a cluster says of itself."""

    version: str
    policy: str
    cluster: str
    epoch: float
    """The Unix time at which the journal began."""


@dataclass(slots=True)
class ControlPlane:
    """A cluster under one loop."""

    crew: Scheduler
    machines: LiveBackend
    journal: SqliteJournal
    ledger: Accounts
    admission: Admission
    about: About
    resumed: bool = False
    failed: str | None = None
    forecasts: Mapping[JobId, StartForecast] = field(default_factory=dict)
    asked: float = float("-inf")
    """When somebody last looked at the queue, on the monotonic clock."""
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _board: LastDecision | None = None
    _listeners: list[Callable[[], None]] = field(default_factory=list)
    _reserved: set[JobId] = field(default_factory=set)
    _loop: Loop = field(init=False)
    _thread: threading.Thread = field(init=False)
    _recorder: "_Recorder" = field(init=False)

    def __post_init__(self) -> None:
        self._recorder = _Recorder(self)
        crew = self.crew
        review_at = float("-inf") if self.resumed else float("inf")
        self._loop = Loop(
            self.machines, crew.state, crew.policy, crew.placer, crew.move_planner, self._recorder,
            watch=self._watch, review_at=review_at, judge=judge_or_keep,
        )  # fmt: skip
        self.machines.changed = self._changed
        self._thread = threading.Thread(target=self._turn, name="ring", daemon=True)

    def start(self) -> None:
        """Let the loop turn."""
        self._thread.start()

    def stop(self) -> None:
        """End the loop after what is under way; close the journal."""
        self.machines.close()
        self._thread.join()
        self.journal.close()

    def listen(self, callback: Callable[[], None]) -> None:
        """Have this called, from any thread, whenever orders or the board changed."""
        self._listeners.append(callback)

    def _changed(self) -> None:
        for callback in self._listeners:
            callback()

    def _turn(self) -> None:
        try:
            while self._loop.cycle():
                self._recorder.settle()
                self._changed()
        except Exception as error:
            self.failed = f"the control plane stopped deciding: {error}"
            log.exception("the loop died")
            self.journal.commit()  # what was heard is kept, whatever became of the decision on it
            self.machines.abandon(RuntimeError(self.failed))
            self._changed()

    def _watch(self, snapshot: Snapshot, judgement: Judgement) -> None:
        """Keep the moment for whoever asks, and each job's verdict where it is another than before."""
        snapshot.columns.secure()  # it is kept anyway, and others read it from threads of their own
        before, board = self._board, LastDecision(snapshot, judgement.verdicts, judgement.decision.carry)
        if before is not None:
            board.remember(before)
        for i in np.flatnonzero(board.news).tolist():
            self.journal.record_verdict(
                snapshot.now, int(snapshot.columns.rows[i]), judgement.verdicts.reason(i).sentence()
            )
        self._board = board

    # ── what people ask for ───────────────────────────────────────────────────────────────────────────────────

    def submit(self, submissions: Sequence[Submission], tenant: TenantId) -> "Future[list[JobId]]":
        """Admit jobs, all or none; their identifiers come when they are durable."""
        now = self.machines.clock.now()
        with self._lock:
            ids: list[JobId] = []
            admitted = []
            keys: dict[tuple[TenantId, str], JobId] = {}
            for number, wanted in enumerate(submissions):
                owner = wanted.tenant or tenant
                named = owner, wanted.key
                known = self.ledger.keys.get(named, keys.get(named)) if wanted.key else None
                id = known or self._new_id(wanted.name)
                if known is None:
                    try:
                        admitted.append(self.admission.admit(wanted, id, owner, now))
                    except InputError as error:
                        place = f"jobs[{number}]." if len(submissions) > 1 else ""
                        raise InputError(place + error.field, error.value, error.hint) from error
                    if wanted.key:
                        keys[named] = id
                ids.append(id)
            # Not before all are admitted: the key of a submission that was refused must not lead anywhere.
            self.ledger.keys |= keys
            return self.machines.submit(admitted, ids)

    def _new_id(self, name: str) -> JobId:
        while True:
            id = f"{name}-{''.join(secrets.choice(_ALPHABET) for _ in range(5))}"
            if id not in self._reserved and id not in self.ledger.numbers:
                self._reserved.add(id)
                return id

    def cancel(self, job: JobId, tenant: TenantId | None) -> "Future[None]":
        """Withdraw a job; what runs of it is warned and then killed."""
        return self.machines.cancel(self._account(job, tenant).number)

    def reshape(self, job: JobId, shape: Reshape, tenant: TenantId | None) -> "Future[None]":
        """Ask for another gang for a job."""
        account = self._account(job, tenant)
        if not account.live:
            raise InputError("job", job, f"has ended ({account.state.name.lower()}); only live jobs can be resized")
        gpus, least, most = self.admission.gang(shape, account.spec.kinds)
        return self.machines.reshape(account.number, gpus, least, most)

    def _account(self, job: JobId, tenant: TenantId | None) -> Account:
        with self._lock:
            number = self.ledger.numbers.get(job)
            account = None if number is None else self.ledger.accounts[number]
        if account is None or tenant not in (None, account.spec.tenant):
            raise UnknownJob(job)
        return account

    def offer(self, app: str, tenant: TenantId | None) -> AppOffer:
        """How an app stands before the next auction."""
        return self._app_desk(app).offer(app, tenant, lambda at: self.about.epoch + at)

    def bid(self, app: str, valuation: AppBidMessage, tenant: TenantId | None) -> "Future[None]":
        """Hear what GPUs are worth to an app."""
        return self.machines.bid(app, *self._app_desk(app).heard(app, valuation, tenant))

    def _app_desk(self, app: str) -> AppBidding:
        board = self._board
        if board is None:
            raise UnknownApp(app)
        return AppBidding(self.crew.policy, replace(board.snapshot, carry=board.carry))

    # ── what people are told ──────────────────────────────────────────────────────────────────────────────────

    def jobs(self, tenant: TenantId | None, *, ended: bool = False) -> list[JobRow]:
        """The live jobs in order of submission; with ``ended``, all there ever were."""
        self.asked = monotonic()
        with self._lock:
            return self._picture(tenant).jobs(ended=ended)

    @property
    def waiting(self) -> bool:
        """Whether any job waits for GPUs."""
        with self._lock:
            return any(account.state is JobState.PENDING for account in self.ledger.live.values())

    def job(self, job: JobId, tenant: TenantId | None) -> JobDetail:
        """Everything about one job."""
        account = self._account(job, tenant)
        told = JournalFile(self.journal.path).verdicts(account.number)
        with self._lock:
            return self._picture(tenant).job(account, told)

    def nodes(self, tenant: TenantId | None) -> list[NodeRow]:
        """Every node: what it has, whether it answers, what runs there that one may see."""
        with self._lock:
            heard = [self.machines.heard(node) for node in range(len(self.machines.topology.nodes))]
            return self._picture(tenant).nodes(heard)

    def share(self, tenant: TenantId | None) -> list[TenantRow]:
        """What each tenant holds and has had; a tenant sees itself and all others as one."""
        with self._lock:
            return self._picture(tenant).share()

    def acct(self, tenant: TenantId | None) -> list[AcctRow]:
        """Jobs that ended, in order of submission: what they took."""
        with self._lock:
            return self._picture(tenant).acct()

    def _picture(self, tenant: TenantId | None) -> ClusterViews:
        topology, now = self.crew.state.topology, self.machines.clock.now()
        return ClusterViews(self.ledger, self._board, topology, self.forecasts, now, self.about.epoch, tenant)

    def cluster(self) -> ClusterRow:
        """The cluster in one look."""
        state, about = self.crew.state, self.about
        with self._lock:
            states = [account.state for account in self.ledger.live.values()]
            ended = len(self.ledger.accounts) - len(states)
        used = sum(row.used for row in self.nodes(None))
        running = sum(s in (JobState.RUNNING, JobState.STARTING) for s in states)
        return ClusterRow(
            version=about.version,
            protocol=PROTOCOL,
            policy=about.policy,
            cluster=about.cluster,
            now=about.epoch + self.machines.clock.now(),
            up_gpus=state.topology.total_gpus,
            used_gpus=used,
            running=running,
            waiting=len(states) - running,
            ended=ended,
            decisions=state.cycle,
        )

    def figures(self) -> ControlPlaneFigures:
        """What metrics are made of."""
        topology, now = self.crew.state.topology, self.machines.clock.now()
        used = dict.fromkeys(topology.kinds, 0)
        for row in self.nodes(None):
            used[row.kind] += row.used
        with self._lock:
            states = {state.name.lower(): 0 for state in JobState}
            for account in self.ledger.live.values():
                states[account.state.name.lower()] += 1
            ledger = self.ledger
            decided, committed = self._recorder.drain()
            return ControlPlaneFigures(
                states={name: count for name, count in states.items() if JobState[name.upper()].live},
                gpus_up=dict(zip(topology.kinds, topology.capacity, strict=True)),
                gpus_used=used,
                nodes_up=len(topology.nodes) - len(topology.down),
                nodes_down=len(topology.down),
                decisions=self.crew.state.cycle,
                decision_seconds=decided,
                commit_seconds=committed,
                tenants=self.share(None),
                lost_gpu_seconds=ledger.lost_gpu_seconds,
                restarts=ledger.restarts,
                crashes=ledger.crashes,
                completed=ledger.completed,
                submitted=len(ledger.accounts),
                review_in=self._loop.review_at - now,
            )

    # ── agents and logs ───────────────────────────────────────────────────────────────────────────────────────

    def hello(self, hello: Hello) -> AgentOrders:
        """An agent introduces itself."""
        return self.machines.hello(hello)

    def sync(self, report: AgentReport) -> AgentOrders:
        """An agent reports and is told what it should have; never blocks."""
        return self.machines.sync(report)

    def generation(self, node: str) -> int:
        """Counts up with each change of a node's orders."""
        return self.machines.generation(node)

    def read_log(
        self, job: JobId, tenant: TenantId | None, *, incarnation: int | None, rank: int, offset: int, most: int
    ) -> "Future[LogPart]":
        """A piece of a rank's log, fetched from the node it was written on."""
        account, part = self._account(job, tenant), Future[LogPart]()
        run = account.incarnation if incarnation is None else incarnation
        seats = account.last_seats.get(run)
        if seats is None:
            hint = f"has runs 1 to {account.incarnation}" if account.incarnation else "has not run yet: see `shoal why`"
            raise InputError("incarnation", run, hint)
        ranks = [1 if account.launch.ranks == "node" else count for _, count in seats.seats]
        if rank >= sum(ranks):
            raise InputError("rank", rank, f"run {run} has ranks 0 to {sum(ranks) - 1}")
        node = next(n for i, n in enumerate(seats.nodes) if rank < sum(ranks[: i + 1]))
        # A rank that came to others in place was started by the incarnation before, under another number.
        node, began, number = self.machines.place(account.number, run, rank) or (node, run, rank)
        asked = self.machines.read_log(node, LogRead(0, job, began, number, offset, most))

        def answer(given: "Future[LogAnswer]") -> None:
            if given.cancelled() or part.cancelled():
                self.machines.forget_read(asked)
                return
            found = given.result()
            text, length = _whole(found.data)
            live = account.live and run == account.incarnation
            part.set_result(LogPart(job, run, rank, offset, max(found.size, 0), text, live, offset + length))

        asked.add_done_callback(answer)
        part.add_done_callback(lambda _: self.machines.forget_read(asked))
        return part


@dataclass(slots=True)
class _Recorder:
    """The journal as the loop sees it: what is heard and decided is durable before anything is sent or acknowledged."""

    plane: ControlPlane
    decision_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_FIGURES))
    commit_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_FIGURES))
    _began: float = 0.0
    _now: float = 0.0

    def drain(self) -> tuple[list[float], list[float]]:
        """Seconds of decisions and of commits since last asked: the latest, if nobody asked for long."""
        drained = list(self.decision_seconds), list(self.commit_seconds)
        self.decision_seconds.clear()
        self.commit_seconds.clear()
        return drained

    def record_events(self, heard: EventBatch) -> None:
        """Record what one wait brought."""
        self.plane.journal.record_events(heard)
        with self.plane._lock:
            self.plane.ledger.hear(heard.events)
        self._now, self._began = heard.now, perf_counter()

    def record_decision(self, decided: Decided) -> None:
        """Record what was decided on it, and make both durable."""
        self.decision_seconds.append(perf_counter() - self._began)
        self.plane.journal.record_decision(decided)
        with self.plane._lock:
            self.plane.ledger.assume(self._now, decided.commands)
        self.settle()

    def settle(self) -> None:
        """Make durable what is not yet, and say so to those who wait for it."""
        begin = perf_counter()
        if self.plane.journal.commit():
            self.commit_seconds.append(perf_counter() - begin)
        self.plane.machines.confirmed()


def _whole(data: bytes) -> tuple[str, int]:
    """The text in these bytes and how many of them it took: a character cut in two is left for the next time."""
    for cut in range(min(4, len(data) + 1)):
        try:
            return data[: len(data) - cut].decode(), len(data) - cut
        except UnicodeDecodeError:
            continue
    return data.decode(errors="replace"), len(data)
