"""The steps every request takes, in this order, before its handler runs.

1. token  2. rate  3. method and role  4. host  5. loop alive  6. query parameters  7. body  8. turn  9. handler.
A body is read only for a caller who may send it, and no more of it than the route allows. A health check is answered
whatever its rate and host.
"""

import asyncio
import ipaddress
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.core.decoding import NotJson, convert, decode
from shoal.core.errors import InputError, ShoalError
from shoal.live.journal_disk import ShortOfDisk
from shoal.serve.connections import IDENTIFY
from shoal.serve.errors import RequestError, bad_input
from shoal.serve.hosts import is_own_host
from shoal.serve.limits import Buckets, Turns, read_body
from shoal.serve.logins import LoginCookie, check_origin
from shoal.serve.route import AppContext, Call, Route
from shoal.serve.tokens import Holder
from shoal.wire.disk import is_full

_access = logging.getLogger("shoal.http")
_errors = logging.getLogger("shoal.serve")

_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_ANONYMOUS = Holder("", "user")
"""Holder for a route that needs no token; no such route reads it."""


class RequestPipeline:
    """Checks requests and calls their handlers; one per application."""

    def __init__(self, context: AppContext) -> None:
        self.context = context
        self._known = Buckets(context.limits.known)
        self._unknown = Buckets(context.limits.unknown)
        self._turns = Turns(context.limits.waiting)

    async def answer(self, request: Request, methods: Mapping[str, Route]) -> tuple[ASGIApp, Holder | None]:
        """Return the response to a request for a path with these methods, and the token's holder."""
        cookie = LoginCookie.of(request)
        holder = self._holder(request, cookie)
        try:
            if "authorization" not in request.headers and cookie.secret:
                check_origin(request)
            self._rate(request, methods, holder)
            route = _route(request.method, methods)
            _role(request, route, holder)
            self._host(request, route)
            self._alive(route)
            query = _query(request, route)
            body = await self._body(request, route)
            call = Call(holder or _ANONYMOUS, request.path_params, query, body, cookie)
            return await self._handled(route, call), holder
        except RequestError as refusal:
            return _refused(refusal), holder
        except InputError as error:
            return _refused(bad_input(error)), holder
        except ShortOfDisk as error:
            return _refused(RequestError(507, str(error))), holder
        except ClientDisconnect:
            return _refused(RequestError(400, "the body ended early")), holder
        except Exception as error:
            return _refused(self._internal(request, error)), holder

    def _holder(self, request: Request, cookie: LoginCookie) -> Holder | None:
        scheme, _, secret = request.headers.get("authorization", "").partition(" ")
        holder = self.context.tokens.holder(secret.strip()) if scheme.lower() == "bearer" else None
        if not scheme and cookie.secret:
            login = self.context.logins.holder(cookie.secret)
            holder = None if login is None else login[0]
        identify = request.scope.get("extensions", {}).get(IDENTIFY)
        if holder is not None and not holder.expired and identify is not None:
            identify(holder.role, holder.name)
        return holder

    def _host(self, request: Request, route: Route) -> None:
        """Refuse a host name that is not this server's, since a foreign page can point its own name at this address."""
        given, hosts = request.headers.get("host", ""), self.context.hosts
        if hosts is None or (not route.roles and route.method == "GET") or is_own_host(given, hosts):
            return
        hint = "is not a name of this server; use its address, or let `shoal serve --allow-host` name it"
        raise RequestError(421, "wrong host", "Host", given[:200], hint)

    def _rate(self, request: Request, methods: Mapping[str, Route], holder: Holder | None) -> None:
        if methods and not any(route.roles for route in methods.values()):
            return
        if holder is None or holder.expired:
            self._unknown.take(request.client.host if request.client else "")
        elif holder.role != "agent" or not all(route.roles == {"agent"} for route in methods.values()):
            self._known.take(holder.name)

    def _alive(self, route: Route) -> None:
        if route.alive and self.context.control_plane.failed is not None:
            raise _stopped(self.context.control_plane.failed)

    async def _body(self, request: Request, route: Route) -> object:
        if route.body is None:
            return None
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise RequestError(415, "the body must be JSON", "Content-Type", kind, "send application/json")
        limits = self.context.limits
        most = limits.large_body_bytes if route.large else limits.body_bytes
        raw = await read_body(request, most, limits.body_seconds)
        try:
            return decode(raw, route.body)
        except NotJson as error:
            raise bad_input(error, 400) from error

    async def _handled(self, route: Route, call: Call) -> ASGIApp:
        if route.at_once is None:
            return await _served(route, await route.handler(self.context, call), call.headers)

        async def find() -> bytes:
            return await _encoded(await route.handler(self.context, call))

        question = (call.holder.sees, tuple(call.path.items()), call.query)
        content = await self._turns.answer((route.path, call.caller), route.at_once, question, find)
        return Response(content, route.status, media_type=route.media)

    def _internal(self, request: Request, error: Exception) -> RequestError:
        if self.context.control_plane.failed is not None:  # it died during this request
            return _stopped(self.context.control_plane.failed)
        if is_full(error):
            return RequestError(507, "the control plane's disk is full", hint="free some space and ask again")
        if isinstance(error, ShoalError):
            return RequestError(409, str(error))
        _errors.error("%s %s failed", request.method, request.scope["path"], exc_info=error)
        return RequestError(500, "internal error; the server's log has the details")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One path as an ASGI application: finds the method's route, answers, counts and logs."""

    pipeline: RequestPipeline
    path: str
    methods: Mapping[str, Route]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        begun = time.perf_counter()
        status = 499  # the caller disconnected before an answer
        holder: Holder | None = None

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                extra = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        try:
            answer, holder = await self.pipeline.answer(request, self.methods)
            await answer(scope, receive, sent)
        finally:
            context, seconds = self.pipeline.context, time.perf_counter() - begun
            context.metrics.answered(request.method, self.path, status)
            if context.traces is not None:
                parent = request.headers.get("traceparent", "")
                context.traces.request(request.method[:20], self.path, status, seconds, parent)
            _access.info("request", extra=_fields(request.method, self.path, status, seconds, holder))


def _route(method: str, methods: Mapping[str, Route]) -> Route:
    if not methods:
        raise RequestError(404, "there is nothing here", hint="see /v1/openapi.json for what there is")
    if method not in methods:
        allowed = ", ".join(sorted(methods))
        hint = f"use {allowed}"
        raise RequestError(405, "not a method of this path", "method", method[:20], hint, headers={"Allow": allowed})
    return methods[method]


def _stopped(why: str) -> RequestError:
    return RequestError(
        503, f"the loop has stopped: {why}", hint="restart `shoal serve`; the journal has all it acknowledged"
    )


def _role(request: Request, route: Route, holder: Holder | None) -> None:
    if not route.roles or (route.local and _is_local(request)):
        return
    if holder is None:
        hint = "send the header `Authorization: Bearer TOKEN`"
        raise RequestError(401, "no valid token", hint=hint, headers={"WWW-Authenticate": "Bearer"})
    if holder.expired:
        day = datetime.fromtimestamp(holder.expires, UTC).date()
        text = f"the token {holder.name} expired on {day}; an admin creates another with `shoal token create`"
        raise RequestError(401, text, headers={"WWW-Authenticate": "Bearer"})
    if holder.role not in route.roles:
        allowed = " or ".join(sorted(route.roles))
        raise RequestError(403, f"a token with the role {holder.role} may not do this", hint=f"it takes {allowed}")


def _is_local(request: Request) -> bool:
    """Whether the caller is on this machine; False behind a proxy, where it cannot be known."""
    if request.client is None or "x-forwarded-for" in request.headers or "forwarded" in request.headers:
        return False
    try:
        return ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False


def _query(request: Request, route: Route) -> object:
    if route.query is None:
        return None
    given = request.query_params.multi_items()
    query = dict(given)
    if len(query) < len(given):
        repeated = next(name for name, _ in given if [other for other, _ in given].count(name) > 1)
        raise bad_input(InputError(repeated, query[repeated], "must be given once"))
    return convert(query, route.query, whole="query", strict=False)


async def _served(route: Route, result: object, headers: Mapping[str, str]) -> ASGIApp:
    if route.media != "application/json":
        return cast(ASGIApp, result)
    if route.status == 204:
        return Response(status_code=route.status, headers=headers)
    return Response(await _encoded(result), route.status, headers, media_type=route.media)


async def _encoded(result: object) -> bytes:
    # Encoding ten thousand rows would hold up the event loop, and with it the agents.
    return (
        await asyncio.to_thread(msgspec.json.encode, result)
        if isinstance(result, list)
        else msgspec.json.encode(result)
    )


def _refused(refusal: RequestError) -> Response:
    content = msgspec.json.encode(refusal.problem)
    return Response(content, refusal.status, refusal.headers, media_type="application/json")


def _fields(method: str, path: str, status: int, seconds: float, holder: Holder | None) -> dict[str, object]:
    """The fields logged for a request: the token's name, never its secret."""
    return {
        "method": method[:20],
        "route": path,
        "status": status,
        "ms": round(seconds * 1000, 3),
        "token": holder.name if holder else None,
    }
