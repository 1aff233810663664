"""A fake control plane and the application in front of it, called without a socket or with one."""

import asyncio
import itertools
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from shoal.core.errors import InputError
from shoal.live.code_store import CodeStore
from shoal.live.figures import ControlPlaneFigures
from shoal.live.job_lists import ANY_JOB, JobFilter
from shoal.live.sessions import SessionRelay
from shoal.serve import Listening, ServerLimits, Tokens, make_app, serve
from shoal.serve.limits import Rate
from shoal.serve.route import AnswerWhatIf
from shoal.wire.decision_messages import DecisionDetail, DecisionMove, DecisionRow, VerdictRow
from shoal.wire.messages import (
    PROTOCOL,
    AcctRow,
    AgentOrders,
    AgentReport,
    AppBidMessage,
    AppOffer,
    CancelMany,
    ClusterRow,
    Hello,
    JobDetail,
    JobRow,
    LogPart,
    LogRead,
    Moment,
    NewNode,
    NewSession,
    NewToken,
    NodeRow,
    PrioritiseMany,
    QuotaMessage,
    Reshape,
    SessionOpened,
    Submission,
    TenantRow,
    WhatIf,
)
from shoal.wire.policy_messages import PolicyInForce
from shoal.wire.training_messages import TrainingPoint
from shoal.wire.watch_messages import FairnessRow, SeatRow

ARCHIVE = b"an archive"
CODE = sha256(ARCHIVE).hexdigest()


def owner_of(node: str, job: int, digest: str) -> str | None:
    """The node n0 has a run of ana's job 1 with this code."""
    return "ana" if (node, job, digest) == ("n0", 1, CODE) else None


class UnknownJob(LookupError):
    """Raised by the fake control plane, with a text that must not reach the caller."""


def done(value: Any) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_result(value)
    return future


FIGURES = ControlPlaneFigures(
    states={"running": 2, "pending": 1},
    gpus_up={"v100": 6, "k80": 2},
    gpus_used={"v100": 4, "k80": 0},
    nodes_up=2,
    nodes_down=1,
    decisions=7,
    decision_seconds=[0.001, 0.002],
    commit_seconds=[0.004],
    tenants=[
        TenantRow(tenant="ana", live=1, held=3, gpu_seconds=30.0, part_now=0.75, part_ever=0.6),
        TenantRow(tenant="bo", live=1, held=1, gpu_seconds=20.0, part_now=0.25, part_ever=0.4),
        TenantRow(tenant="gone", live=0, held=0, gpu_seconds=0.0, part_now=0.0, part_ever=0.0),
    ],
    lost_gpu_seconds=1.5,
    restarts=3,
    crashes=1,
    completed=4,
    submitted=9,
    review_in=float("inf"),
)


class FakePolicies:
    """Accepts every policy but ``wrong``."""

    def switch(self, policy: str) -> "Future[None]":
        self.shadow(policy)
        return done(None)

    def shadow(self, policy: str | None) -> None:
        if policy == "wrong":
            raise InputError("policy", policy, "unknown; choose las")

    def in_force(self, policy: str, tenant: str | None) -> PolicyInForce:
        return PolicyInForce(policy)


class FakeControlPlane:
    """Keeps jobs in a dictionary; with ``stuck`` its futures never resolve."""

    def __init__(self) -> None:
        self.failed: str | None = None
        self.short_of_disk = ""
        self.stuck = False
        self.owners: dict[str, str] = {"hers-aaaa": "ana", "his-bbbb": "bo"}
        self.reports: list[AgentReport] = []
        self.generations = {"n0": 1, "n1": 1}
        self._touched: set[str] = set()
        self.reads: list[LogRead] = []
        self.asked: list[str] = []
        self.asked_by: list[str] = []
        names = (f"s{number}" for number in itertools.count())
        self.sessions = SessionRelay(new_name=lambda: next(names))
        self.sessions.open(NewSession(command=["true"]), (0, 1, 0), (0, "n0"), caller="ana", tenant="ana")
        self._listeners: list[Callable[[], None]] = []

    def change(self, node: str | None = None) -> None:
        if node is not None:
            self.generations[node] += 1
            self._touched.add(node)
        for callback in self._listeners:
            callback()

    def listen(self, callback: Callable[[], None]) -> None:
        self._listeners.append(callback)

    def _promise(self, value: Any) -> "Future[Any]":
        return Future() if self.stuck else done(value)

    def _seen(self, job: str, tenant: str | None) -> str:
        self.asked.append(job)
        if job not in self.owners or tenant not in (None, self.owners[job]):
            raise UnknownJob(f"{job} of {self.owners.get(job)}")
        return job

    def submit(self, submissions: Sequence[Submission], tenant: str, sees: str | None = None) -> "Future[list[str]]":
        ids = []
        for submission in submissions:
            if submission.gpus > 8:
                raise InputError("gpus", submission.gpus, "this cluster has 8")
            ids.append(f"{submission.name}-{len(self.owners):04d}")
            self.owners[ids[-1]] = submission.tenant or tenant
        return self._promise(ids)

    def cancel(self, job: str, tenant: str | None, *, force: bool = False) -> "Future[None]":
        self._seen(job, tenant)
        return self._promise(None)

    @property
    def verbs(self) -> "FakeControlPlane":
        return self

    def hold(self, job: str, tenant: str | None, by: str) -> "Future[None]":
        self.asked_by.append(by)
        self._seen(job, tenant)
        return self._promise(None)

    release = requeue = hold

    def prioritise(self, job: str, priority: int, tenant: str | None, by: str) -> "Future[None]":
        return self.hold(job, tenant, by)

    def prioritise_many(self, which: PrioritiseMany, tenant: str | None, by: str) -> "tuple[list[str], Future[None]]":
        return self.cancel_many(CancelMany(), tenant)

    def cancel_many(self, which: CancelMany, tenant: str | None) -> "tuple[list[str], Future[None]]":
        return [job for job, owner in self.owners.items() if tenant in (None, owner)], self._promise(None)

    def reshape(self, job: str, shape: Reshape, tenant: str | None) -> "Future[None]":
        self._seen(job, tenant)
        if shape.gpus > 8:
            raise InputError("gpus", shape.gpus, "this cluster has 8")
        return self._promise(None)

    def _row(self, job: str) -> JobRow:
        return JobRow(
            id=job, name="job", tenant=self.owners[job], state="running", gpus_held=1, gpus_wanted=1, submitted=1.0,
            started=2.0, ended=None, done=0.5, work=None, kind="v100", nodes=["n0"], reason="runs",
        )  # fmt: skip

    def jobs(self, tenant: str | None, *, ended: bool = False, only: JobFilter = ANY_JOB) -> list[JobRow]:
        rows = [self._row(job) for job, owner in self.owners.items() if tenant in (None, owner)]
        return rows[only.offset :][: only.limit]

    def job(self, job: str, tenant: str | None) -> JobDetail:
        return JobDetail(
            job=self._row(self._seen(job, tenant)), command=["true"], workdir=None, ranks="gpu", grace=1.0,
            incarnation=1, restarts=0, crashes=0, gpu_seconds=1.0, rate=1.0, decision="runs", decided=1.0, change="",
            story=[Moment(1.0, "submitted")],
        )  # fmt: skip

    def _app(self, app: str, tenant: str | None) -> str:
        if app != "sweep" or tenant not in (None, "ana"):
            raise UnknownJob(f"{app} of ana")
        return app

    def set_quota(self, wanted: QuotaMessage) -> "Future[None]":
        return self._promise(None)

    def quotas(self) -> list[QuotaMessage]:
        return [QuotaMessage(tenant="ana", gpus=4)]

    def offer(self, app: str, tenant: str | None) -> AppOffer:
        return AppOffer(app=self._app(app, tenant), auctioned=True, rho=1.5, kind="v100", most=8)

    def bid(self, app: str, valuation: AppBidMessage, tenant: str | None) -> "Future[None]":
        self._app(app, tenant)
        if valuation.jobs != ["hers-aaaa"]:
            raise InputError("jobs", valuation.jobs, "its jobs are others now")
        return self._promise(None)

    def nodes(self, tenant: str | None) -> list[NodeRow]:
        return [NodeRow(name="n0", kind="v100", gpus=4, rack="", up=True, used=1, jobs=[], heard=None)]

    @property
    def members(self) -> "FakeControlPlane":
        return self

    def add(self, wanted: NewNode, *, again: bool = False) -> "Future[None]":
        if wanted.name in self.generations and not again:
            raise InputError("node", wanted.name, "is a node of this cluster already")
        self.generations[wanted.name] = 1
        return self._promise(None)

    def remove(self, name: str) -> "Future[None]":
        return self.resume_node(name)

    def drain(self, node: str, reason: str, by: str) -> "Future[None]":
        return self.resume_node(node)

    def resume_node(self, node: str) -> "Future[None]":
        if node != "n0":
            raise InputError("node", node, "unknown; this cluster has n0")
        return self._promise(None)

    def share(self, tenant: str | None) -> list[TenantRow]:
        return [row for row in FIGURES.tenants if tenant in (None, row.tenant)]

    @property
    def policies(self) -> "FakePolicies":
        return FakePolicies()

    @property
    def pages(self) -> "FakeControlPlane":
        return self

    def changed_jobs(self, tenant: str | None, since: int) -> tuple[int, list[JobRow] | None, list[str]]:
        return 0, None, []

    def seats(self, tenant: str | None) -> list[SeatRow]:
        return [
            SeatRow(job=job, tenant=owner, run=1, node="n0", gpus=1, began=1.0)
            for job, owner in self.owners.items()
            if tenant in (None, owner)
        ]

    def decisions(
        self, tenant: str | None, before: int | None = None, job: str | None = None, limit: int = 50
    ) -> list[DecisionRow]:
        return [DecisionRow(number=3, at=1.0, moves=[DecisionMove("start", "hers-aaaa", "ana")])]

    def fairness(self, tenant: str | None) -> list[FairnessRow]:
        owners = {owner for owner in self.owners.values() if tenant in (None, owner)}
        return [FairnessRow(tenant=owner, jobs=1, held=2, rho=1.5, worst=2.0, dollars=60.0) for owner in sorted(owners)]

    def training(self, job: str, tenant: str | None) -> list[TrainingPoint]:
        self._seen(job, tenant)
        return [TrainingPoint(at=1.0, loss=0.5), TrainingPoint(at=3.0, loss=0.25)]

    def acct(self, tenant: str | None) -> list[AcctRow]:
        return []

    def cluster(self) -> ClusterRow:
        return ClusterRow(
            version="1", protocol=PROTOCOL, policy="las", cluster="v100:2x4", now=1.0, up_gpus=8, used_gpus=4,
            running=2, waiting=1, ended=0, decisions=sum(self.generations.values()),
        )  # fmt: skip

    def _orders(self, node: str) -> AgentOrders:
        if node not in self.generations:
            raise InputError("node", node, "unknown; choose one of n0, n1")
        return AgentOrders(protocol=PROTOCOL, generation=self.generations[node], lease=10.0, runs=[], reads=self.reads)

    def hello(self, hello: Hello) -> AgentOrders:
        return self._orders(hello.node)

    def sync(self, report: AgentReport) -> AgentOrders:
        self.reports.append(report)
        return self._orders(report.node)

    def touched(self) -> set[str]:
        touched, self._touched = self._touched, set()
        return touched

    def generation(self, node: str, allocation: str = "") -> int:
        return self.generations[node]

    def read_log(
        self, job: str, tenant: str | None, *, incarnation: int | None, rank: int, offset: int, most: int
    ) -> "Future[LogPart]":
        text = "ünd so weiter\n"[offset : offset + most]
        return self._promise(
            LogPart(self._seen(job, tenant), incarnation or 1, rank, offset, 14, text, True, offset + len(text))
        )

    def open_session(self, job: str, tenant: str | None, wanted: NewSession, caller: str) -> SessionOpened:
        owner = self.owners[self._seen(job, tenant)]
        name = self.sessions.open(wanted, (0, 1, wanted.rank), (0, "n0"), caller=caller, tenant=owner)
        return SessionOpened(name, "n0")

    def figures(self) -> ControlPlaneFigures:
        return FIGURES


def answer(question: WhatIf, tenant: str | None) -> dict[str, Any]:
    if "wrong" in question.policies:
        raise InputError("policies", "wrong", "unknown; choose las")
    return {"policies": question.policies, "tenant": tenant}


def decide_again(number: int, tenant: str | None, limit: int) -> DecisionDetail:
    if number >= 7:
        raise UnknownJob(number)
    row = VerdictRow(job="hers-aaaa", tenant="ana", state="running", wanted=1, held=1, granted=1, reason="runs")
    jobs = [row] if tenant in (None, "ana") else []
    return DecisionDetail(
        number=number, at=1.0, policy="las", same=True, difference="", review_at=None, gpus=8, granted=1,
        all_jobs=len(jobs), jobs=jobs, nodes=[], foreign=1 - len(jobs),
    )  # fmt: skip


@dataclass
class Harness:
    """A fake control plane, the application, and a secret for each kind of caller."""

    control_plane: FakeControlPlane
    tokens: Tokens
    app: Starlette
    secrets: dict[str, str]

    def call(self, method: str, path: str, who: str | None = "admin", **more: Any) -> httpx.Response:
        """One request, without a socket, from an address that is not this machine's."""

        async def ask() -> httpx.Response:
            async with self.client() as client:
                return await client.request(method, path, **self.authorized(who, more))

        return asyncio.run(ask())

    def client(self, address: str = "192.0.2.7") -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=True, client=(address, 1))
        return httpx.AsyncClient(transport=transport, base_url="http://shoal")

    def authorized(self, who: str | None, more: dict[str, Any]) -> dict[str, Any]:
        own = {"Authorization": f"Bearer {self.secrets[who]}"} if who else {}
        return {**more, "headers": {**own, **more.get("headers", {})}}


NewHarness = Callable[..., Harness]


@dataclass(frozen=True)
class Keys:
    """A file of tokens, made once and copied, and the secrets that go with it."""

    path: Path
    secrets: dict[str, str]


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    path = tmp_path_factory.mktemp("keys") / "tokens.sqlite"
    tokens = Tokens.begin(path)
    wanted = (
        NewToken("admin", "admin"),
        NewToken("ana", "user", "ana"),
        NewToken("bo", "user", "bo"),
        NewToken("agent", "agent", None, "n0"),
        NewToken("agent-n1", "agent", None, "n1"),
        NewToken("agent-n0", "agent", None, "n0"),
    )
    secrets = {new.name: tokens.create(new).secret or "" for new in wanted}
    tokens.close()
    return Keys(path, secrets)


@contextmanager
def harnesses(keys: Keys, folder: Path) -> Iterator[NewHarness]:
    with ExitStack() as opened:

        def build(
            limits: ServerLimits | None = None,
            what_if: AnswerWhatIf = answer,
            hosts: frozenset[str] | None = None,
        ) -> Harness:
            copy = shutil.copy(keys.path, tempfile.mkdtemp(dir=folder))
            tokens = opened.enter_context(closing(Tokens.open(Path(copy))))
            control_plane = FakeControlPlane()
            code = CodeStore(Path(copy).parent / "code", frozenset, owner_of)
            app = make_app(
                control_plane, tokens, what_if=what_if, decide_again=decide_again, version="1.2", limits=limits,
                hosts=hosts, code=code,
            )  # fmt: skip
            return Harness(control_plane, tokens, app, dict(keys.secrets))

        yield build


@pytest.fixture
def new_harness(keys: Keys, tmp_path: Path) -> Iterator[NewHarness]:
    with harnesses(keys, tmp_path) as build:
        yield build


@pytest.fixture(scope="module")
def crowd(keys: Keys, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """No waiting, no listeners and no rate limit: generated requests would otherwise wait for a minute each."""
    with harnesses(keys, tmp_path_factory.mktemp("crowd")) as build:
        yield build(ServerLimits(known=Rate(1e9, 1e9), unknown=Rate(1e9, 1e9), longest_wait=0.0, listeners=0))


@pytest.fixture
def harness(new_harness: NewHarness) -> Harness:
    return new_harness()


Serving = Callable[..., Listening]


@pytest.fixture
def serving(harness: Harness) -> Iterator[Serving]:
    """Runs the harness's application, or the one given, on a real socket, in a thread, until the test is over."""
    running: list[tuple[Listening, threading.Thread]] = []

    def start(app: Starlette | None = None, **more: Any) -> Listening:
        ready: Future[Listening] = Future()
        wanted = {"listening": ready.set_result, **more}
        thread = threading.Thread(target=serve, args=(app or harness.app,), kwargs=wanted)
        thread.start()
        running.append((ready.result(10), thread))
        return running[-1][0]

    yield start
    for listening, thread in running:
        listening.stop()
        thread.join(10)
        assert not thread.is_alive(), "the server did not stop"


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


@pytest.fixture
def chunked() -> Callable[..., AsyncIterator[bytes]]:
    return chunks
