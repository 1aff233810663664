"""Handlers of sessions: a client and an agent exchange the bytes of a command that runs inside a job."""

import asyncio
from collections.abc import Callable
from typing import Annotated

from msgspec import Meta, Struct

from shoal.core.errors import InputError
from shoal.live.sessions import RelayedSession
from shoal.serve.errors import RequestError, bad_input, unknown_job
from shoal.serve.route import AppContext, Call
from shoal.wire import messages as wire
from shoal.wire.fields import Natural


class OutputQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """The number of the first piece of output wanted, and the seconds to wait for it."""

    after: Natural = 0
    wait: Annotated[float, Meta(ge=0, le=60)] = 0.0


async def open_session(context: AppContext, call: Call) -> wire.SessionOpened:
    """Start a command inside a running job, at one of its ranks."""
    job, wanted = call.path["job"], call.body
    try:
        return await asyncio.to_thread(context.control_plane.open_session, job, call.holder.sees, wanted, call.caller)
    except LookupError as error:
        if type(error) in (KeyError, IndexError):  # a bug in the control plane, not an unknown job
            raise
        raise unknown_job(job) from error


async def put_input(context: AppContext, call: Call) -> wire.PiecesWanted:
    """Send input to a session; answered when there was room for some of it."""
    body: wire.SessionInput = call.body
    relay, session = context.control_plane.sessions, _of_client(context, call)
    await _until(context, lambda: relay.room(session, session.input))
    return wire.PiecesWanted(relay.put_input(session, body.first, body.pieces), session.ended)


async def get_output(context: AppContext, call: Call) -> wire.SessionPieces:
    """Receive output of a session; answered when there is some, at its end, or after ``wait`` seconds."""
    query: OutputQuery = call.query
    relay, session = context.control_plane.sessions, _of_client(context, call)
    await _until(context, lambda: not relay.waits(session, session.output, query.after), query.wait)
    return relay.get_output(session, query.after)


async def close(context: AppContext, call: Call) -> None:
    """Close a session: its command is ended."""
    context.control_plane.sessions.close(_of_client(context, call))


async def get_input(context: AppContext, call: Call) -> wire.SessionPieces:
    """Receive the input of a session, as the agent of its node."""
    poll: wire.SessionInputPoll = call.body
    relay, session = context.control_plane.sessions, _of_agent(context, call)
    relay.get_input(session, poll.after)  # the agent is there, and has the pieces before
    await _until(context, lambda: not relay.waits(session, session.input, poll.after), poll.wait)
    return relay.get_input(session, poll.after)


async def put_output(context: AppContext, call: Call) -> wire.PiecesWanted:
    """Send output of a session, as the agent of its node; answered when there was room for some of it."""
    sent: wire.SessionOutput = call.body
    relay, session = context.control_plane.sessions, _of_agent(context, call)
    await _until(context, lambda: relay.room(session, session.output))
    return wire.PiecesWanted(relay.put_output(session, sent), session.ended and not sent.ended)


async def _until(context: AppContext, holds: Callable[[], bool], seconds: float = wire.LONGEST_POLL_SECONDS) -> None:
    longest = min(wire.LONGEST_POLL_SECONDS, context.limits.longest_wait)
    await context.session_notifier.until(holds, min(seconds, longest))


def _of_client(context: AppContext, call: Call) -> RelayedSession:
    try:
        return context.control_plane.sessions.of_client(call.path["session"], call.holder.sees)
    except LookupError:
        raise _unknown(call.path["session"]) from None


def _of_agent(context: AppContext, call: Call) -> RelayedSession:
    try:
        return context.control_plane.sessions.of_agent(call.path["session"], call.holder.agent)
    except LookupError:
        raise _unknown(call.path["session"]) from None


def _unknown(session: str) -> RequestError:
    return bad_input(InputError("session", session, "is over, or the control plane has restarted; open another"), 404)
