"""Handlers for shipped code: users send archives, agents fetch those of the runs on their node."""

import asyncio
from typing import Annotated

from msgspec import Meta, Struct

from shoal.core.errors import InputError
from shoal.live.code_store import CodeStore
from shoal.serve.errors import bad_input
from shoal.serve.route import AppContext, Call
from shoal.wire import messages as wire
from shoal.wire.fields import Name, Natural


class CodeQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """The tenant for which an admin sends code; a user sends it for its own tenant."""

    tenant: Name | None = None


class FetchQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """The byte to send from, and the job whose run on the node needs the code."""

    job: Natural = 0
    offset: Annotated[int, Meta(ge=0, le=wire.MOST_CODE_BYTES)] = 0


async def code_status(context: AppContext, call: Call) -> wire.CodeStatus:
    """Return how many bytes of an archive of shipped code are there."""
    return await asyncio.to_thread(_store(context).status, _tenant(call), call.path["digest"])


async def send_code(context: AppContext, call: Call) -> wire.CodeStatus:
    """Store a part of an archive of shipped code."""
    body: wire.CodePart = call.body
    return await asyncio.to_thread(_store(context).receive, _tenant(call), call.path["digest"], body)


async def fetch_code(context: AppContext, call: Call) -> wire.CodePart:
    """Return a part of the archive of a run on the agent's node."""
    query: FetchQuery = call.query
    agent, digest = call.holder.agent, call.path["digest"]
    tenant = _store(context).owner_of(agent, query.job, digest) if agent else None
    if tenant is None:
        raise bad_input(InputError("job", query.job, "has no run with this code on the token's node"), 404)
    return await asyncio.to_thread(_store(context).read, tenant, digest, query.offset)


async def check_code(context: AppContext, jobs: list[wire.Submission], default: str) -> None:
    """Raise ``InputError`` unless the code of each submission is there, sent by the job's tenant."""
    for job in jobs:
        if job.code is not None:
            await asyncio.to_thread(_store(context).check, job.tenant or default, job.code)


def _store(context: AppContext) -> CodeStore:
    if context.code is None:
        raise InputError("code", None, "this server keeps no code")
    return context.code


def _tenant(call: Call) -> str:
    query: CodeQuery = call.query
    if call.holder.role == "admin":
        return query.tenant or call.holder.tenant or wire.DEFAULT_TENANT
    if query.tenant not in (None, call.holder.tenant):
        raise InputError("tenant", query.tenant, f"this token acts for {call.holder.tenant}; leave tenant out")
    assert call.holder.tenant is not None
    return call.holder.tenant
