"""The control plane: the loop in a thread of its own, its journal, and the requests of users and agents.

Nothing is acknowledged before it is durable. Every public method may be called from any thread.
ARCHITECTURE.md follows a submission from the client to a process on a node.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from time import monotonic, thread_time

import msgspec
import numpy as np

from shoal.core.errors import InputError
from shoal.core.lifecycle import JobState
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Topology
from shoal.core.units import JobId, TenantId
from shoal.engine.guard import Guard
from shoal.engine.loop import Judgement, Loop
from shoal.engine.replay import Scheduler
from shoal.live.accounts import Account, Accounts
from shoal.live.admission import Admission
from shoal.live.app_bidding import AppBidding, UnknownApp
from shoal.live.backend import LiveBackend
from shoal.live.cluster_row import cluster_row
from shoal.live.compaction import Compaction
from shoal.live.conditions import Resolver
from shoal.live.cycle_pause import pause_after
from shoal.live.figures import ControlPlaneFigures, figures_of
from shoal.live.holdings import Holdings
from shoal.live.job_ids import JobIds
from shoal.live.job_lists import ANY_JOB, MOST_OLDER, JobFilter, JobLists
from shoal.live.job_verbs import JobVerbs
from shoal.live.journal_disk import WRITE_ERRORS, JournalDisk, ShortOfDisk
from shoal.live.journal_writer import JournalWriter
from shoal.live.kept_lengths import KeptLengths
from shoal.live.log_parts import open_session, read_log_part
from shoal.live.machines import check_fits
from shoal.live.members import Members
from shoal.live.page_rows import PageRows
from shoal.live.policies import LivePolicies
from shoal.live.quotas import QueueLimit, quota_of, quota_rows
from shoal.live.sessions import SessionRelay
from shoal.live.time_limit import CpuLimit
from shoal.live.time_words import ClockWords
from shoal.live.training_figures import TrainingFigures
from shoal.live.views import ClusterViews, LastDecision
from shoal.store.journal import SqliteJournal
from shoal.wire import messages as wire

log = logging.getLogger(__name__)


class UnknownJob(LookupError):
    """There is no such job, or the caller may not see it."""


@dataclass(frozen=True, slots=True)
class About:
    """Description of a cluster; ``epoch`` is the Unix time at which its journal began.

    ``retired`` are the indices of nodes that were in the cluster once and are not now.
    """

    version: str
    policy: str
    cluster: str
    epoch: float
    retired: frozenset[int] = frozenset()


@dataclass(slots=True)
class ControlPlane:
    """A live cluster under one loop. A ``tenant`` of None is an admin, who may see and change every job."""

    scheduler: Scheduler
    backend: LiveBackend
    journal: SqliteJournal
    accounts: Accounts
    admission: Admission
    about: About
    disk: JournalDisk
    compaction: Compaction
    resumed: bool = False
    failed: str | None = None
    """Why the loop died, once it has."""
    forecasts: Mapping[JobId, wire.StartForecast] = field(default_factory=dict)
    forecast_at: float = 0.0
    """When the forecasts were made, on the monotonic clock."""
    jobs_read_at: float = -inf
    """When the queue was last read, on the monotonic clock."""
    _lock: threading.RLock = field(init=False)
    """Guards the accounts."""
    engine_note: Callable[[str], str] = lambda _: ""
    """Returns the engine's note on a node of a provider; empty if there is none."""
    engine_lines: Callable[[Account], tuple[list[str], str]] = lambda _: ([], "")
    """Returns a line on each allocation of a job, and what of them keeps it from starting; empty if nothing."""
    members: Members = field(init=False)
    """The nodes that may join and be removed."""
    training: TrainingFigures = field(init=False)
    policies: LivePolicies = field(init=False)
    _lists: JobLists = field(init=False)
    _last: LastDecision | None = None
    _listeners: list[Callable[[], None]] = field(default_factory=list)
    _job_ids: JobIds = field(default_factory=JobIds)
    _queue_limit: QueueLimit = field(default_factory=QueueLimit)
    _limit: CpuLimit = field(default_factory=CpuLimit)
    _lengths: KeptLengths = field(default_factory=KeptLengths)
    _loop: Loop = field(init=False)
    _thread: threading.Thread = field(init=False)
    _recorder: JournalWriter = field(init=False)

    def __post_init__(self) -> None:
        self._lock = self.compaction.lock
        self.members = Members(self.backend, set(self.about.retired), self._lock, self._nodes_changed)
        self._recorder = JournalWriter(
            self.journal, self.accounts, self.backend, self.disk, self._lock, on_failure=self._notify
        )
        self.policies = LivePolicies(self.backend, self.journal, self.about.epoch)
        self.training = TrainingFigures(self.accounts, self.about.epoch)
        self._lists = JobLists(self.accounts, self._lock)
        scheduler = self.scheduler
        self._loop = Loop(
            self.backend, scheduler.state, scheduler.policy, scheduler.placer, scheduler.move_planner, self._recorder,
            watch=self._watch, review_at=-inf if self.resumed else inf, judge=Guard(self._limit).judge,
        )  # fmt: skip
        self.backend.on_change = self._notify
        self._thread = threading.Thread(target=self._run, name="ring", daemon=True)

    def start(self) -> None:
        """Start the loop."""
        self._thread.start()

    def stop(self) -> None:
        """End the loop after its present cycle and close the journal."""
        self.backend.close()
        self.disk.stopping.set()
        self._thread.join()
        self._limit.close()
        self.policies.shadow(None)
        try:
            self.journal.close()
        except WRITE_ERRORS as error:
            log.warning("the last events were not written, nor acknowledged", extra={"error": str(error)})
        self.compaction.ended.close()

    def listen(self, callback: Callable[[], None]) -> None:
        """Register a callback, called from any thread whenever orders or decisions changed."""
        self._listeners.append(callback)

    def _notify(self) -> None:
        for callback in self._listeners:
            callback()

    def _run(self) -> None:
        try:
            used = thread_time()
            while self.step():
                self._recorder.rest(pause_after(thread_time() - used))
                used = thread_time()
        except ShortOfDisk:
            log.warning("stopped while the journal could not be written")
        except Exception as error:
            self.failed = f"the control plane stopped deciding: {error}"
            log.exception("the loop died")
            with suppress(*WRITE_ERRORS):
                self.journal.commit()  # the events are kept, although no decision was made on them
            self.backend.fail(RuntimeError(self.failed))
            self._notify()

    def step(self) -> bool:
        """Run one cycle and, if the journal's segment is long enough, begin the next one; return false at the end."""
        self._lengths.catch_up(busy=self.backend.pending)
        if not self._loop.cycle():
            return False
        self._recorder.commit()
        if self.compaction.due() and self.compaction.run():
            self._lists.forget_ended()
            self._loop.review_at, self._loop.verdict_codes = -inf, self._loop.verdict_codes[:0]
        self.policies.take(self._loop, self.scheduler, self._adopt)
        self._notify()
        return True

    def _adopt(self, scheduler: Scheduler, policy: str) -> None:
        self._recorder.commit()
        self.scheduler, self.about = scheduler, replace(self.about, policy=policy)

    def _watch(self, snapshot: Snapshot, judgement: Judgement) -> None:
        """Keep a decision for views, and record the verdicts that differ from those before."""
        snapshot.columns.secure()  # other threads read it
        self._lengths.offer(snapshot.lengths)
        last = LastDecision(snapshot, judgement.verdicts, judgement.decision.carry, self._lengths)
        if self._last is not None:
            last.compare(self._last)
        words = ClockWords(self.about.epoch)
        for i in np.flatnonzero(last.changed).tolist():
            sentence = judgement.verdicts.reason(i).sentence(words)
            number = int(snapshot.columns.rows[i])
            self.journal.record_verdict(snapshot.now, number, sentence)
            self.accounts.changes.note_verdict(number)
        self._last = last
        self.policies.watch(snapshot, judgement)

    # ── requests ──────────────────────────────────────────────────────────────────────────────────────────────

    def submit(
        self, submissions: Sequence[wire.Submission], tenant: TenantId, sees: TenantId | None = None
    ) -> "Future[list[JobId]]":
        """Admit jobs, all or none; the future resolves to their identifiers once they are durable.

        They may depend on jobs that ``sees`` owns, or on any if None.

        A submission with the same key as an earlier one of its tenant returns that job. ``ShortOfDisk`` if the journal
        has no room for them.
        """
        self.disk.check(len(msgspec.msgpack.encode(submissions)))
        now = self.backend.clock.now()
        with self._lock:
            ids: list[JobId] = []
            admitted = []
            keys: dict[tuple[TenantId, str], JobId] = {}
            resolver = Resolver(self.accounts, self.compaction.ended_account, sees, self.about.epoch)
            for number, wanted in enumerate(submissions):
                owner = wanted.tenant or tenant
                key = owner, wanted.key
                known = self.accounts.keys.get(key, keys.get(key)) or self.compaction.ended.with_key(*key)
                id = known or self._job_ids.new(wanted.name, self._taken)
                if known is None:
                    try:
                        admitted.append(resolver.admitted(self.admission.admit(wanted, id, owner, now), wanted))
                        check_fits(wanted, self.backend.topology, self.backend.machines, self.members.away)
                    except InputError as error:
                        place = f"jobs[{number}]." if len(submissions) > 1 else ""
                        raise InputError(place + error.field, error.value, error.hint) from error
                    if wanted.key:
                        keys[key] = id
                ids.append(id)
            self._queue_limit.check(self.accounts, (spec for spec, _ in admitted))
            # Only when all are admitted: the key of a refused submission must not lead to a job.
            self.accounts.keys |= keys
            durable = self.backend.submit(admitted, ids)
            self._queue_limit.count([spec for spec, _ in admitted], durable)
            return durable

    def set_quota(self, wanted: wire.QuotaMessage) -> "Future[None]":
        """Set a tenant's quota, in place of the one before."""
        return self.backend.set_quota(wanted.tenant, quota_of(wanted))

    def quotas(self) -> list[wire.QuotaMessage]:
        """Return every quota, by name of its tenant."""
        with self._lock:
            return quota_rows(self.accounts)

    @property
    def verbs(self) -> JobVerbs:
        """Requests on single jobs: hold, release, requeue, priority."""
        return JobVerbs(self.backend, self.accounts, self._lock, self.disk, self._account)

    def _taken(self, id: JobId) -> bool:
        return id in self.accounts.numbers or self.compaction.ended.ever_known(id)

    def cancel(self, job: JobId, tenant: TenantId | None, *, force: bool = False) -> "Future[None]":
        """Cancel a job; its ranks are warned and, after their grace or with ``force`` at once, killed."""
        account = self._account(job, tenant)
        self.disk.check_writable()
        return self.backend.cancel(account.number, force=force)

    def reshape(self, job: JobId, shape: wire.Reshape, tenant: TenantId | None) -> "Future[None]":
        """Change the GPUs that a job asks for."""
        account = self._account(job, tenant)
        self.disk.check()
        if not account.live or account.state is JobState.CANCELLING:
            state = account.state.name.lower()
            raise InputError("job", job, f"is {state}: a job that has ended or was cancelled cannot be resized")
        return self.backend.reshape(
            account.number, *self.admission.gang(shape, account.spec.kinds, exclusive=account.spec.exclusive)
        )

    def drain(self, node: str, reason: str, by: str) -> "Future[None]":
        """Drain a node for the operator ``by``: it gets no new runs until it is resumed."""
        return self.backend.drain(node, reason, by)

    def resume_node(self, node: str) -> "Future[None]":
        """Resume a drained node."""
        return self.backend.resume_node(node)

    def _nodes_changed(self, present: Topology) -> None:
        self.admission = replace(self.admission, topology=present)
        self.about = replace(self.about, cluster=present.describe())

    def _account(self, job: JobId, tenant: TenantId | None) -> Account:
        with self._lock:
            number = self.accounts.numbers.get(job)
            account = None if number is None else self.accounts.accounts[number]
        if account is None:
            account = self.compaction.ended_account(job, tenant)
        if account is None or tenant not in (None, account.spec.tenant):
            raise UnknownJob(job)
        return account

    def offer(self, app: str, tenant: TenantId | None) -> wire.AppOffer:
        """Return an app's standing before the next auction."""
        return self._bidding(app).offer(app, tenant, self.about.epoch)

    def bid(self, app: str, bid: wire.AppBidMessage, tenant: TenantId | None) -> "Future[None]":
        """Record an app's valuation of GPUs."""
        checked = self._bidding(app).check_bid(app, bid, tenant)
        self.disk.check()
        return self.backend.bid(app, *checked)

    def _bidding(self, app: str) -> AppBidding:
        if self._last is None:
            raise UnknownApp(app)
        snapshot = replace(self._last.snapshot, carry=self._last.carry)
        return AppBidding(self.scheduler.policy, snapshot.without(snapshot.kept_from_policy))

    # ── views ─────────────────────────────────────────────────────────────────────────────────────────────────

    def jobs(self, tenant: TenantId | None, *, ended: bool = False, only: JobFilter = ANY_JOB) -> list[wire.JobRow]:
        """Return running, then waiting jobs, with ``ended`` also ended ones, of which ``only`` selects some."""
        self.jobs_read_at = monotonic()
        older = self.compaction.ended.latest(tenant, MOST_OLDER) if ended else ()
        listed = self._lists.read(tenant, only, ended=ended, forecasts=self.forecasts, older=older)
        return self._views(tenant).jobs(listed)

    @property
    def last_decision(self) -> LastDecision | None:
        """The last decision; None before the first."""
        return self._last

    @property
    def waiting(self) -> bool:
        """Whether any job waits for GPUs."""
        with self._lock:
            return any(
                account.state in (JobState.PENDING, JobState.SUSPENDED) for account in self.accounts.live.values()
            )

    def job(self, job: JobId, tenant: TenantId | None) -> wire.JobDetail:
        """Return everything about one job."""
        account = self._account(job, tenant)
        verdicts = self.compaction.verdicts(account.number)
        with self._lock:
            detail = self._views(tenant).job(account, verdicts)
        lines, waits = self.engine_lines(account)
        change = "; ".join(filter(None, (waits, detail.change)))
        return msgspec.structs.replace(detail, engine=lines, change=change)

    def nodes(self, tenant: TenantId | None) -> list[wire.NodeRow]:
        """Return every node, with the jobs on it that the tenant may see."""
        with self._lock:
            views = self._views(tenant)
            holdings = Holdings.of(self.accounts)
        reports = [self.backend.last_report(node) for node in range(len(views.topology.nodes))]
        rows = views.nodes(reports, holdings, self.members.away)
        return [self.backend.with_machine(row, self.engine_note(row.name)) for row in rows]

    def share(self, tenant: TenantId | None) -> list[wire.TenantRow]:
        """Return the GPUs held and GPU-seconds used by tenant; a tenant sees itself and all others as one."""
        with self._lock:
            return self._views(tenant).share()

    @property
    def pages(self) -> PageRows:
        """The rows that pages show and the command line does not."""
        return PageRows(self.accounts, self._lock, self._views, self.training, self._account)

    def acct(self, tenant: TenantId | None) -> list[wire.AcctRow]:
        """Return the ended jobs, in order of submission, and the resources they used."""
        before = self.compaction.ended.accounts(tenant)
        return self._views(tenant).acct(before)

    def _views(self, tenant: TenantId | None) -> ClusterViews:
        state, age = self.scheduler.state, monotonic() - self.forecast_at
        facts = state.topology, self.forecasts, self.backend.clock.now(), self.about.epoch
        return ClusterViews(self.accounts, self._last, *facts, tenant, state.nodes.drained, age, self.engine_note)

    def cluster(self) -> wire.ClusterRow:
        """Return the cluster's totals."""
        about, short = self.about, self.short_of_disk
        names = {"version": about.version, "policy": about.policy, "cluster": about.cluster}
        with self._lock:
            live, holdings, views = len(self.accounts.live), Holdings.of(self.accounts), self._views(None)
        return cluster_row(self.scheduler.state, views, holdings, live, **names, short_of_disk=short)

    @property
    def short_of_disk(self) -> str:
        """A sentence on why new work is refused for lack of disk space; empty if it is not."""
        return self.disk.shortage()

    def figures(self) -> ControlPlaneFigures:
        """Return the figures for the metrics."""
        times = self._recorder.decision_seconds, self._recorder.commit_seconds
        review_in = self._loop.review_at - self.backend.clock.now()
        with self._lock:
            return figures_of(self.scheduler.state, self.accounts, self._views(None), times, review_in)

    # ── agents and logs ───────────────────────────────────────────────────────────────────────────────────────

    def hello(self, hello: wire.Hello) -> wire.AgentOrders:
        """Register an agent; never blocks."""
        return self.backend.hello(hello)

    def sync(self, report: wire.AgentReport) -> wire.AgentOrders:
        """Process an agent's report and return its orders; never blocks."""
        orders = self.backend.sync(report)
        self.training.take(report, self.backend.clock.now())
        return self.compaction.with_forgotten(orders, report.old)

    def generation(self, node: str, allocation: str = "") -> int:
        """Return the generation of an agent's orders, which counts up with each change."""
        return self.backend.generation(node, allocation)

    def touched(self) -> list[str]:
        """Return the names of the nodes whose orders changed since the last call."""
        return self.backend.touched()

    def read_log(
        self, job: JobId, tenant: TenantId | None, *, incarnation: int | None, rank: int, offset: int, most: int
    ) -> "Future[wire.LogPart]":
        """Request at most ``most`` bytes of a rank's log, from byte ``offset`` on, from its node."""
        account = self._account(job, tenant)
        run = account.incarnation if incarnation is None else incarnation
        return read_log_part(self.backend, account, run, rank, offset=offset, most=most)

    # ── sessions ──────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def sessions(self) -> SessionRelay:
        """The sessions inside running jobs."""
        return self.backend.sessions

    def open_session(
        self, job: JobId, tenant: TenantId | None, wanted: wire.NewSession, caller: str
    ) -> wire.SessionOpened:
        """Start a command inside a running job, at one of its ranks."""
        return open_session(self.backend, self._account(job, tenant), wanted, caller)
