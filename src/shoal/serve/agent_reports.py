"""Hellos and reports of agents, answered without the general path of requests.

With thousands of nodes nearly every request is an agent's report, and the general path costs five times as much as the
report itself. One that arrives whole and passes every check is answered here. Any other request takes the general path,
whose checks are the same (``request_pipeline``).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

import msgspec

from shoal.core.errors import InputError
from shoal.live.log_reads import ForeignRead
from shoal.serve.errors import RequestError, bad_input
from shoal.serve.hosts import is_own_host
from shoal.serve.order_waits import OrderWait
from shoal.serve.route import AppContext
from shoal.serve.tokens import Holder
from shoal.wire.messages import AgentOrders, AgentReport, Hello, ProblemDetails

_PATHS: dict[bytes, tuple[str, msgspec.json.Decoder[AgentReport] | msgspec.json.Decoder[Hello]]] = {
    b"POST /v1/agent/sync HTTP/1.1": ("/v1/agent/sync", msgspec.json.Decoder(AgentReport)),
    b"POST /v1/agent/hello HTTP/1.1": ("/v1/agent/hello", msgspec.json.Decoder(Hello)),
}

BEGINNING = b"POST /v1/agent/"

_FIELD = re.compile(rb"([A-Za-z-]+): ([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)")
_KNOWN = frozenset(
    (b"host", b"authorization", b"accept", b"accept-encoding", b"content-type", b"content-length", b"user-agent")
)
"""Fields of a head that need no more than is done here; a request with any other takes the general path."""

_ANSWER = (
    b"HTTP/1.1 %d %b\r\ncontent-length: %d\r\ncontent-type: application/json\r\n"
    b"cache-control: no-store\r\nx-content-type-options: nosniff\r\n\r\n"
)

_encode = msgspec.json.Encoder().encode


def read_whole(data: bytes) -> tuple[bytes, dict[bytes, bytes], bytes] | None:
    """Return first line, fields and body of a request; None if it is incomplete or not as agents send it."""
    head, found, body = data.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    if not found or first not in _PATHS:
        return None
    fields: dict[bytes, bytes] = {}
    for line in lines:
        match = _FIELD.fullmatch(line)
        if match is None or (name := match[1].lower()) in fields or name not in _KNOWN:
            return None
        fields[name] = match[2]
    return (first, fields, body) if fields.get(b"content-length") == b"%d" % len(body) else None


@dataclass(slots=True)
class PendingReport:
    """A report that was taken, with its answer or the wait for it."""

    holder: Holder
    answer: bytes = b""
    wait: OrderWait | None = None


@dataclass(frozen=True, slots=True)
class AgentReports:
    """Answers the reports of agents for one application."""

    context: AppContext

    def take(self, data: bytes, respond: Callable[[bytes], None]) -> PendingReport | None:
        """Take a report; if it has to wait, ``respond`` gets the answer later.

        None if the general path must answer, which may repeat the report.
        """
        request = read_whole(data)
        holder = None if request is None else self._holder(request[1])
        if request is None or holder is None or len(request[2]) > self.context.limits.body_bytes:
            return None
        path, decoder = _PATHS[request[0]]
        try:
            message = decoder.decode(request[2])
            check_agent(holder, message)
            return self._handle(path, message, holder, respond)
        except ForeignRead:
            return None
        except InputError as error:
            refusal = bad_input(error)
            return PendingReport(holder, self._answer(path, refusal.problem, refusal.status))
        except Exception:  # a message may be repeated: the general path says what is wrong with it
            return None

    def _handle(
        self, path: str, message: AgentReport | Hello, holder: Holder, respond: Callable[[bytes], None]
    ) -> PendingReport:
        context = self.context
        if isinstance(message, Hello):
            return PendingReport(holder, self._answer(path, context.control_plane.hello(message)))
        report, orders = message, context.control_plane.sync(message)
        context.reports[holder.agent] = report
        if orders.generation > report.known or orders.reads or report.wait <= 0:
            return PendingReport(holder, self._answer(path, orders))
        seconds = min(report.wait, context.limits.longest_wait)

        def done(changed: bool) -> None:
            respond(self._answer(path, self._latest(holder.agent, report, orders) if changed else orders))

        return PendingReport(holder, wait=context.order_waits.begin(holder.agent, report, seconds, done))

    def _latest(self, agent: str, report: AgentReport, orders: AgentOrders) -> AgentOrders:
        """Return the orders after a change; the earlier ones if the agent must register again, as it will learn."""
        try:
            return latest_orders(self.context, agent, report)
        except Exception:
            return orders

    def _holder(self, fields: dict[bytes, bytes]) -> Holder | None:
        """Return the agent whose token a request shows; None if any check fails."""
        context = self.context
        if fields.get(b"content-type") != b"application/json" or context.control_plane.failed is not None:
            return None
        if context.hosts is not None and not is_own_host(fields.get(b"host", b"").decode(), context.hosts):
            return None
        scheme, _, secret = fields.get(b"authorization", b"").decode().partition(" ")
        holder = context.tokens.holder(secret) if scheme == "Bearer" else None
        return None if holder is None or holder.role != "agent" or holder.expired else holder

    def _answer(self, path: str, content: AgentOrders | ProblemDetails, status: int = 200) -> bytes:
        body = _encode(content)
        self.context.metrics.answered("POST", path, status)
        return _ANSWER % (status, HTTPStatus(status).phrase.encode(), len(body)) + body


def latest_orders(context: AppContext, agent: str, report: AgentReport) -> AgentOrders:
    """Return an agent's orders after a change, in answer to a report that waited for it.

    The agent may have reported again meanwhile: repeating its latest report is harmless, an older one is not.
    """
    latest = context.reports[agent]
    report = latest if latest.boot == report.boot else report
    return context.control_plane.sync(msgspec.structs.replace(report, logs=[]))


def check_agent(holder: Holder, sent: Hello | AgentReport) -> None:
    """Refuse a message of an agent for another node or allocation than its token's."""
    if holder.allocation is not None or sent.allocation:
        if holder.allocation != sent.allocation:
            hint = f"it is for {holder.agent or 'no node'} alone"
            raise RequestError(403, "this token is another allocation's", "allocation", sent.allocation, hint)
    elif holder.node != sent.node:
        node = sent.node
        hint = f"it is for {holder.node} alone" if holder.node else "it names no node; create one with --node"
        raise RequestError(403, "this token is another node's", "node", node, hint)
