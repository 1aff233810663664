"""Handlers of the routes, called when the request's token, rate, role and types have been checked."""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct, ValidationError, convert, structs
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from shoal.core.errors import InputError
from shoal.live.job_lists import JobFilter
from shoal.live.log_reads import ForeignRead
from shoal.serve.agent_reports import check_agent, latest_orders
from shoal.serve.code_handlers import check_code
from shoal.serve.errors import RequestError, bad_input, unknown_app, unknown_job
from shoal.serve.metrics import MEDIA
from shoal.serve.route import AppContext, Call
from shoal.serve.tokens import Holder, LastAdmin, NameTaken
from shoal.wire import messages as wire
from shoal.wire.fields import Name, Natural, Text
from shoal.wire.messages import DEFAULT_TENANT
from shoal.wire.search_messages import SearchRow
from shoal.wire.training_messages import TrainingRows

_T = TypeVar("_T")

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,79}\Z")


class Health(Struct, frozen=True, omit_defaults=True):
    """Whether the loop is alive, the version, and why new work is refused, if it is: ``short_of_disk``."""

    version: str
    short_of_disk: bool = False


class JobsQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """Which jobs to list: live ones or all; of a tenant, of an app, with a name or the beginning of an id.

    At most ``limit`` are listed, from the one at ``offset`` on: running, then waiting by position, then ended ones, the
    last to end first.
    """

    all: bool = False
    tenant: Name | None = None
    app: Name | None = None
    match: Text | None = None
    offset: Natural = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class CancelQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """The query of a cancellation: whether to kill the job's ranks at once, without their grace period."""

    force: bool = False


class LogQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """Which part of which log; the latest incarnation by default."""

    incarnation: Natural | None = None
    rank: Natural = 0
    offset: Natural = 0
    most: Annotated[int, Meta(ge=1, le=2**20)] = 2**16


# ── jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def submit(context: AppContext, call: Call) -> wire.Submitted:
    """Submit a job; answered when it is durable."""
    body: wire.Submission = call.body
    return await _submit(context, call.holder, [body], "tenant")


async def submit_batch(context: AppContext, call: Call) -> wire.Submitted:
    """Submit many jobs, all or none; answered when they are durable."""
    body: wire.SubmissionBatch = call.body
    return await _submit(context, call.holder, body.jobs, "jobs[{}].tenant")


async def _submit(context: AppContext, holder: Holder, jobs: list[wire.Submission], field: str) -> wire.Submitted:
    for index, job in enumerate(jobs):
        _check_tenant(holder, job, field.format(index))
    owner = holder.tenant or DEFAULT_TENANT
    await check_code(context, jobs, owner)
    future = await asyncio.to_thread(context.control_plane.submit, jobs, owner, holder.sees)
    return wire.Submitted(await durable(context, future))


async def cancel(context: AppContext, call: Call) -> None:
    """Cancel a job."""
    job = call.path["job"]
    query: CancelQuery = call.query
    cancel = context.control_plane.cancel
    with not_found_as_404(job):
        await durable(context, await asyncio.to_thread(cancel, job, call.holder.sees, force=query.force))


async def reshape(context: AppContext, call: Call) -> None:
    """Change the bounds of a job's gang."""
    job = call.path["job"]
    body: wire.Reshape = call.body
    with not_found_as_404(job):
        await durable(context, await asyncio.to_thread(context.control_plane.reshape, job, body, call.holder.sees))


async def jobs(context: AppContext, call: Call) -> list[wire.JobRow]:
    """List the jobs the caller may see."""
    query: JobsQuery = call.query
    only = JobFilter(query.tenant, query.app, query.match, query.offset, query.limit)
    return await asyncio.to_thread(context.control_plane.jobs, call.holder.sees, ended=query.all, only=only)


async def job(context: AppContext, call: Call) -> wire.JobDetail:
    """Return everything about one job."""
    name = call.path["job"]
    with not_found_as_404(name):
        return await asyncio.to_thread(context.control_plane.job, name, call.holder.sees)


async def training(context: AppContext, call: Call) -> TrainingRows:
    """Return the figures of a job's training over time, as it reported them."""
    name = call.path["job"]
    with not_found_as_404(name):
        return TrainingRows(name, await asyncio.to_thread(context.control_plane.pages.training, name, call.holder.sees))


async def log(context: AppContext, call: Call) -> wire.LogPart:
    """Return a part of a rank's log."""
    name = call.path["job"]
    query: LogQuery = call.query
    with not_found_as_404(name):
        future = context.control_plane.read_log(name, call.holder.sees, **structs.asdict(query))
        if await _resolved(context, future, context.limits.log_seconds):
            return future.result()
    future.cancel()  # also withdraws the request from the node
    hint = "its node has not answered; try again when `shoal nodes` shows it up"
    raise bad_input(InputError("job", name, hint), 409)


# ── apps ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def offer(context: AppContext, call: Call) -> wire.AppOffer:
    """Return an app's standing before the next auction, and the GPUs that will be on offer."""
    app = call.path["app"]
    with not_found_as_404(app, unknown_app):
        return await asyncio.to_thread(context.control_plane.offer, app, call.holder.sees)


async def bid(context: AppContext, call: Call) -> None:
    """Record an app's valuation of GPUs, for the jobs it has now; answered when it is durable."""
    app = call.path["app"]
    body: wire.AppBidMessage = call.body
    with not_found_as_404(app, unknown_app):
        await durable(context, await asyncio.to_thread(context.control_plane.bid, app, body, call.holder.sees))


async def report_search(context: AppContext, call: Call) -> None:
    """Take the report of an app's search, for its page; the control plane keeps it in memory."""
    app, report = call.path["app"], call.body
    try:
        convert(app, Name)
    except ValidationError:
        raise unknown_app(app) from None
    at = await asyncio.to_thread(lambda: context.control_plane.cluster().now)
    context.searches.take(app, call.holder.tenant or DEFAULT_TENANT, at, report)
    context.notifier.notify()


async def searches(context: AppContext, call: Call) -> list[SearchRow]:
    """List the searches that have reported, the latest report first."""
    return context.searches.rows(call.holder.sees)


# ── the cluster ───────────────────────────────────────────────────────────────────────────────────────────────────


async def nodes(context: AppContext, call: Call) -> list[wire.NodeRow]:
    """List the nodes."""
    return await asyncio.to_thread(context.control_plane.nodes, call.holder.sees)


async def drain(context: AppContext, call: Call) -> None:
    """Give a node no new runs until it is resumed; its running jobs continue."""
    body: wire.DrainNode = call.body
    change = context.control_plane.drain
    await durable(context, await asyncio.to_thread(change, call.path["node"], body.reason, call.holder.name))


async def resume_node(context: AppContext, call: Call) -> None:
    """Give a drained node runs again."""
    await durable(context, await asyncio.to_thread(context.control_plane.resume_node, call.path["node"]))


async def share(context: AppContext, call: Call) -> list[wire.TenantRow]:
    """Return the GPUs held and the GPU time used, by tenant."""
    return await asyncio.to_thread(context.control_plane.share, call.holder.sees)


async def set_quota(context: AppContext, call: Call) -> None:
    """Set a tenant's quota, in place of the one before; answered when it is durable."""
    body: wire.QuotaMessage = call.body
    await durable(context, await asyncio.to_thread(context.control_plane.set_quota, body))


async def quotas(context: AppContext, call: Call) -> list[wire.QuotaMessage]:
    """List the quotas of tenants."""
    return await asyncio.to_thread(context.control_plane.quotas)


async def acct(context: AppContext, call: Call) -> list[wire.AcctRow]:
    """List the ended jobs and the resources they used."""
    return await asyncio.to_thread(context.control_plane.acct, call.holder.sees)


async def cluster(context: AppContext, call: Call) -> wire.ClusterRow:
    """Return the summary of the cluster."""
    return await asyncio.to_thread(context.control_plane.cluster)


async def what_if(context: AppContext, call: Call) -> Any:
    """Simulate other policies, more nodes or one more job from now on."""
    body: wire.WhatIf = call.body
    if body.job is not None:
        _check_tenant(call.holder, body.job, "job.tenant")
    return await answer_apart(context, call, lambda: context.what_if(body, call.holder.sees))


async def answer_apart(context: AppContext, call: Call, ask: Callable[[], _T]) -> _T:
    """Answer a question that takes long, in a thread of its own; at most a few of one caller at a time."""
    end_question = context.questions.begin(call.caller)
    answer: Future[_T] = Future()

    def work() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:
            answer.set_exception(error)

    answer.add_done_callback(lambda _: end_question())
    # A daemon thread: a long simulation must not delay a shutdown.
    threading.Thread(target=work, name="question", daemon=True).start()
    if await _resolved(context, answer, context.limits.question_seconds):
        return answer.result()
    raise RequestError(503, "not answered in time", hint="ask for less")


@dataclass(frozen=True, slots=True)
class EventStream:
    """Response that streams cluster events; ``end`` is called when it is over."""

    context: AppContext
    end: Callable[[], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream until the caller disconnects or the server stops."""
        try:
            await StreamingResponse(self.context.feed.stream(), media_type="text/event-stream")(scope, receive, send)
        finally:
            self.end()


async def events(context: AppContext, call: Call) -> EventStream:
    """Server-sent events: `changed` with a ClusterRow at each change."""
    return EventStream(context, context.listeners.begin(call.caller))


# ── agents ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def hello(context: AppContext, call: Call) -> wire.AgentOrders:
    """Register an agent."""
    body: wire.Hello = call.body
    check_agent(call.holder, body)
    return context.control_plane.hello(body)


async def sync(context: AppContext, call: Call) -> wire.AgentOrders:
    """Take an agent's report and return its orders.

    Answered at once where the orders are new to the agent, else at their next change or after the report's ``wait``.
    """
    report: wire.AgentReport = call.body
    check_agent(call.holder, report)
    try:
        orders = context.control_plane.sync(report)
    except ForeignRead as error:
        raise bad_input(error, 403) from error
    agent = call.holder.agent
    context.reports[agent] = report
    if orders.generation > report.known or orders.reads or report.wait <= 0:
        return orders
    seconds = min(report.wait, context.limits.longest_wait)
    changed = await context.order_waits.changed(agent, report, seconds)
    return latest_orders(context, agent, report) if changed else orders


# ── the server itself ─────────────────────────────────────────────────────────────────────────────────────────────


async def create_token(context: AppContext, call: Call) -> wire.TokenRow:
    """Create a token; only this answer holds its secret."""
    body: wire.NewToken = call.body
    try:
        return context.tokens.create(body)
    except NameTaken as error:
        raise bad_input(error, 409) from error


async def tokens(context: AppContext, call: Call) -> list[wire.TokenRow]:
    """List the tokens."""
    return context.tokens.rows()


async def revoke_token(context: AppContext, call: Call) -> None:
    """Revoke a token."""
    name = call.path["token"]
    try:
        context.tokens.revoke(name)
    except KeyError as error:
        raise bad_input(InputError("token", name, "there is no such token"), 404) from error
    except LastAdmin as error:
        raise bad_input(error, 409) from error


async def metrics(context: AppContext, call: Call) -> Response:
    """Return metrics for Prometheus; also without a token from the same machine."""
    return Response(await asyncio.to_thread(context.metrics.text), headers={"Content-Type": MEDIA})


async def health(context: AppContext, call: Call) -> Health:
    """Return whether the loop is alive."""
    return Health(context.version, bool(context.control_plane.short_of_disk))


async def openapi(context: AppContext, call: Call) -> dict[str, Any]:
    """Return this description."""
    return context.description


# ── shared helpers ────────────────────────────────────────────────────────────────────────────────────────────────


def _check_tenant(holder: Holder, job: wire.Submission, field: str) -> None:
    if holder.role != "admin" and job.tenant not in (None, holder.tenant):
        raise InputError(field, job.tenant, f"this token acts for {holder.tenant}; leave tenant out")


@contextmanager
def not_found_as_404(name: str, unknown: Callable[[str], RequestError] = unknown_job) -> Iterator[None]:
    """Answer 404 to a ``LookupError`` of the control plane, and to a name that no job or app can have."""
    if not _ID.match(name):
        raise unknown(name)
    try:
        yield
    except LookupError as error:
        if type(error) in (KeyError, IndexError):  # a bug in the control plane, not an unknown job
            raise
        raise unknown(name) from error


async def _resolved(context: AppContext, future: "Future[_T]", seconds: float) -> bool:
    """Wait for a future that may take long; return False on time-out or when the server stops."""
    future.add_done_callback(lambda _: context.notifier.notify())
    return await context.notifier.until(future.done, seconds)


async def durable(context: AppContext, future: "Future[_T]") -> _T:
    """Return the result of a future that resolves when a change is durable; a ``RequestError`` if that takes long."""
    try:
        async with asyncio.timeout(context.limits.durable_seconds):
            # Shielded: the future must not be cancelled when the caller disconnects.
            return await asyncio.shield(asyncio.wrap_future(future))
    except TimeoutError as error:
        hint = "ask again; a submission's key keeps it from doubling"
        raise RequestError(503, "not known to be durable yet", hint=hint) from error
