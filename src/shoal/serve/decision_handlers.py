"""Handlers about past decisions."""

import asyncio
from typing import Annotated

from msgspec import Meta, Struct

from shoal.serve.errors import RequestError
from shoal.serve.handlers import answer_apart
from shoal.serve.route import AppContext, Call
from shoal.wire.decision_messages import DecisionDetail, DecisionRow
from shoal.wire.fields import JobName, Natural


class DecisionsQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """Which decisions to list: before this number, of this job; at most ``limit``, the latest first."""

    before: Natural | None = None
    job: JobName | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 50


class DecisionQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """The most jobs to list, those that moved first."""

    limit: Annotated[int, Meta(ge=1, le=5000)] = 1000


async def decisions(context: AppContext, call: Call) -> list[DecisionRow]:
    """List the latest decisions that moved jobs of the caller."""
    query: DecisionsQuery = call.query
    find = context.control_plane.pages.decisions
    return await asyncio.to_thread(find, call.holder.sees, query.before, query.job, query.limit)


async def decision(context: AppContext, call: Call) -> DecisionDetail:
    """Make a past decision again: its snapshot, all verdicts with their reasons, and whether it comes out the same."""
    text, query = call.path["decision"], call.query
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        raise _unknown(text)
    try:
        return await answer_apart(context, call, lambda: context.decide_again(int(text), call.holder.sees, query.limit))
    except LookupError as error:
        if type(error) in (KeyError, IndexError):
            raise
        raise _unknown(text) from error


def _unknown(number: str) -> RequestError:
    return RequestError(404, "there is no such decision", "decision", number, "`GET /v1/decisions` lists the latest")
