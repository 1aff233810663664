"""What each route does, once its caller, its rate and its types are known to be right."""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct, structs
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from shoal.core.errors import InputError
from shoal.serve.errors import RequestError, bad_input, unknown_app, unknown_job
from shoal.serve.limits import too_many
from shoal.serve.metrics import MEDIA
from shoal.serve.route import AppContext, Call
from shoal.serve.tokens import Holder, LastAdmin, NameTaken
from shoal.wire.messages import (
    AcctRow,
    AgentOrders,
    AgentReport,
    AppBidMessage,
    AppOffer,
    ClusterRow,
    Hello,
    JobDetail,
    JobRow,
    LogPart,
    Natural,
    NewToken,
    NodeRow,
    ProblemDetails,
    Reshape,
    Submission,
    SubmissionBatch,
    Submitted,
    TenantRow,
    TokenRow,
    WhatIf,
)

_T = TypeVar("_T")

_NOBODYS = "default"
"""The tenant of an admin's jobs that name none."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,79}\Z")


class Health(Struct, frozen=True):
    """The loop is alive, and this is the version that runs."""

    version: str


class JobsQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """Which jobs to list."""

    all: bool = False


class LogQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """Which piece of which log; the latest incarnation where none is named."""

    incarnation: Natural | None = None
    rank: Natural = 0
    offset: Natural = 0
    most: Annotated[int, Meta(ge=1, le=2**20)] = 2**16


# ── jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def submit(room: AppContext, call: Call) -> Submitted:
    """Take in one job."""
    body: Submission = call.body
    return await _take_in(room, call.who, [body], "tenant")


async def submit_batch(room: AppContext, call: Call) -> Submitted:
    """Take in many jobs, all or none."""
    body: SubmissionBatch = call.body
    return await _take_in(room, call.who, body.jobs, "jobs[{}].tenant")


async def _take_in(room: AppContext, who: Holder, jobs: list[Submission], field: str) -> Submitted:
    for index, job in enumerate(jobs):
        _own_tenant(who, job, field.format(index))
    future = await asyncio.to_thread(room.desk.submit, jobs, who.tenant or _NOBODYS)
    return Submitted(await _durable(room, future))


async def cancel(room: AppContext, call: Call) -> None:
    """End a job."""
    job = call.path["job"]
    with _known(job):
        await _durable(room, await asyncio.to_thread(room.desk.cancel, job, call.who.sees))


async def reshape(room: AppContext, call: Call) -> None:
    """Give a job another gang."""
    job = call.path["job"]
    body: Reshape = call.body
    with _known(job):
        await _durable(room, await asyncio.to_thread(room.desk.reshape, job, body, call.who.sees))


async def jobs(room: AppContext, call: Call) -> list[JobRow]:
    """The jobs one may see."""
    query: JobsQuery = call.query
    return await asyncio.to_thread(room.desk.jobs, call.who.sees, ended=query.all)


async def job(room: AppContext, call: Call) -> JobDetail:
    """One job."""
    name = call.path["job"]
    with _known(name):
        return await asyncio.to_thread(room.desk.job, name, call.who.sees)


async def log(room: AppContext, call: Call) -> LogPart:
    """A piece of a log."""
    name = call.path["job"]
    query: LogQuery = call.query
    with _known(name):
        future = room.desk.read_log(
            name,
            call.who.sees,
            incarnation=query.incarnation,
            rank=query.rank,
            offset=query.offset,
            most=query.most,
        )
        if await _came(room, future, room.limits.log_seconds):
            return future.result()
    future.cancel()  # given up here, it is given up at the node too
    hint = "its node has not answered; try again when `shoal nodes` shows it up"
    raise bad_input(InputError("job", name, hint), 409)


# ── apps ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def offer(room: AppContext, call: Call) -> AppOffer:
    """How an app stands before the next auction."""
    app = call.path["app"]
    with _known(app, unknown_app):
        return await asyncio.to_thread(room.desk.offer, app, call.who.sees)


async def bid(room: AppContext, call: Call) -> None:
    """Hear what GPUs are worth to an app."""
    app = call.path["app"]
    body: AppBidMessage = call.body
    with _known(app, unknown_app):
        await _durable(room, await asyncio.to_thread(room.desk.bid, app, body, call.who.sees))


# ── the cluster ───────────────────────────────────────────────────────────────────────────────────────────────────


async def nodes(room: AppContext, call: Call) -> list[NodeRow]:
    """The nodes."""
    return await asyncio.to_thread(room.desk.nodes, call.who.sees)


async def share(room: AppContext, call: Call) -> list[TenantRow]:
    """Who holds and has had how much."""
    return await asyncio.to_thread(room.desk.share, call.who.sees)


async def acct(room: AppContext, call: Call) -> list[AcctRow]:
    """The jobs that ended."""
    return await asyncio.to_thread(room.desk.acct, call.who.sees)


async def cluster(room: AppContext, call: Call) -> ClusterRow:
    """The cluster in one look."""
    return await asyncio.to_thread(room.desk.cluster)


async def what_if(room: AppContext, call: Call) -> Any:
    """Answer a question about another policy, more machines or one more job."""
    body: WhatIf = call.body
    if body.job is not None:
        _own_tenant(call.who, body.job, "job.tenant")
    if not room.asks():
        raise too_many("other questions are being answered", 5.0)
    answer: Future[Any] = Future()

    def think() -> None:
        try:
            answer.set_result(room.what_if(body, call.who.sees))
        except Exception as error:
            answer.set_exception(error)

    answer.add_done_callback(lambda _: room.answered())
    # A thread that nobody waits for at the end: a long simulation must not hold up a shutdown.
    threading.Thread(target=think, name="what-if", daemon=True).start()
    if await _came(room, answer, room.limits.question_seconds):
        return answer.result()
    raise RequestError(503, ProblemDetails("not answered in time", hint="ask for fewer policies or seeds"))


@dataclass(frozen=True, slots=True)
class Listener:
    """An answer that goes on: counted from before its first byte to after its last."""

    room: AppContext

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the caller leaves or the server stops."""
        self.room.listeners += 1
        try:
            await StreamingResponse(self.room.news.stream(), media_type="text/event-stream")(scope, receive, send)
        finally:
            self.room.listeners -= 1


async def events(room: AppContext, call: Call) -> Listener:
    """Server-sent events, one at each change."""
    if room.listeners >= room.limits.listeners:
        raise too_many("too many listeners", 5.0)
    return Listener(room)


# ── agents ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def hello(room: AppContext, call: Call) -> AgentOrders:
    """An agent introduces itself."""
    body: Hello = call.body
    _own_node(call.who, body.node)
    return room.desk.hello(body)


async def sync(room: AppContext, call: Call) -> AgentOrders:
    """Hear an agent and give its orders: at once when they are news to it, else when they change or it has waited."""
    report: AgentReport = call.body
    _own_node(call.who, report.node)
    orders = room.desk.sync(report)
    room.reports[report.node] = report
    if orders.generation > report.known or orders.reads or report.wait <= 0:
        return orders
    wait = min(report.wait, room.limits.longest_wait)
    if not await room.bell.until(lambda: room.desk.generation(report.node) > report.known, wait):
        return orders
    # The agent may have said more meanwhile: repeating its latest words is harmless, repeating older ones is not.
    latest = room.reports[report.node]
    return room.desk.sync(structs.replace(latest if latest.boot == report.boot else report, logs=[]))


# ── the door itself ───────────────────────────────────────────────────────────────────────────────────────────────


async def create_token(room: AppContext, call: Call) -> TokenRow:
    """Make a token."""
    body: NewToken = call.body
    try:
        return room.tokens.create(body)
    except NameTaken as error:
        raise bad_input(error, 409) from error


async def tokens(room: AppContext, call: Call) -> list[TokenRow]:
    """The tokens there are."""
    return room.tokens.rows()


async def revoke_token(room: AppContext, call: Call) -> None:
    """End a token."""
    name = call.path["token"]
    try:
        room.tokens.revoke(name)
    except KeyError as error:
        raise bad_input(InputError("token", name, "there is no such token"), 404) from error
    except LastAdmin as error:
        raise bad_input(error, 409) from error


async def metrics(room: AppContext, call: Call) -> Response:
    """The figures for Prometheus."""
    return Response(await asyncio.to_thread(room.metrics.text), headers={"Content-Type": MEDIA})


async def health(room: AppContext, call: Call) -> Health:
    """Whether the loop lives."""
    return Health(room.version)


async def openapi(room: AppContext, call: Call) -> dict[str, Any]:
    """The description of all this."""
    return room.description


# ── what several of them need ─────────────────────────────────────────────────────────────────────────────────────


def _own_tenant(who: Holder, job: Submission, field: str) -> None:
    if who.role != "admin" and job.tenant not in (None, who.tenant):
        raise InputError(field, job.tenant, f"this token acts for {who.tenant}; leave tenant out")


def _own_node(who: Holder, node: str) -> None:
    if who.node not in (None, node):
        raise RequestError(
            403, ProblemDetails("this token is another node's", "node", node, f"it speaks for {who.node} alone")
        )


@contextmanager
def _known(name: str, unknown: Callable[[str], RequestError] = unknown_job) -> Iterator[None]:
    """An unknown job, or app, is a 404 that says the same whoever's it may be."""
    if not _ID.match(name):  # the cluster is not even asked about what cannot be an identifier
        raise unknown(name)
    try:
        yield
    except LookupError as error:
        if type(error) in (KeyError, IndexError):  # the cluster's own slip, not an unknown job
            raise
        raise unknown(name) from error


async def _came(room: AppContext, future: "Future[_T]", seconds: float) -> bool:
    """Wait for a promise that may take long; False when the time is over or the server stops."""
    future.add_done_callback(lambda _: room.bell.ring())
    return await room.bell.until(future.done, seconds)


async def _durable(room: AppContext, future: "Future[_T]") -> _T:
    try:
        async with asyncio.timeout(room.limits.durable_seconds):
            # Shielded: whoever resolves it must not find it cancelled because the caller went away.
            return await asyncio.shield(asyncio.wrap_future(future))
    except TimeoutError as error:
        problem = ProblemDetails(
            "not known to be durable yet", hint="ask again; a submission's key keeps it from doubling"
        )
        raise RequestError(503, problem) from error
