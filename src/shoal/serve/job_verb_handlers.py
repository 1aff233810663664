"""Handlers of requests on submitted jobs."""

import asyncio

from shoal.serve.handlers import durable, not_found_as_404
from shoal.serve.route import AppContext, Call
from shoal.serve.tokens import Holder
from shoal.wire import messages as wire


async def hold(context: AppContext, call: Call) -> None:
    """Hold a job: it is not started until it is released; a running job is not stopped."""
    job, verb = call.path["job"], context.control_plane.verbs.hold
    with not_found_as_404(job):
        await durable(context, await asyncio.to_thread(verb, job, call.holder.sees, _who(call.holder)))


async def release(context: AppContext, call: Call) -> None:
    """Release a held job."""
    job, verb = call.path["job"], context.control_plane.verbs.release
    with not_found_as_404(job):
        await durable(context, await asyncio.to_thread(verb, job, call.holder.sees, _who(call.holder)))


async def requeue(context: AppContext, call: Call) -> None:
    """Stop a running job and put it back into the queue; what it has not saved is lost."""
    job, verb = call.path["job"], context.control_plane.verbs.requeue
    with not_found_as_404(job):
        await durable(context, await asyncio.to_thread(verb, job, call.holder.sees, _who(call.holder)))


async def prioritise(context: AppContext, call: Call) -> None:
    """Change a job's priority among the jobs of its tenant."""
    job, body = call.path["job"], call.body
    assert isinstance(body, wire.PriorityMessage)
    verb = context.control_plane.verbs.prioritise
    with not_found_as_404(job):
        await durable(context, await asyncio.to_thread(verb, job, body.priority, call.holder.sees, _who(call.holder)))


async def prioritise_many(context: AppContext, call: Call) -> wire.Submitted:
    """Change the priority of the caller's live jobs of a name, an array or a state; the answer names them."""
    body: wire.PrioritiseMany = call.body
    verb = context.control_plane.verbs.prioritise_many
    ids, future = await asyncio.to_thread(verb, body, call.holder.sees, _who(call.holder))
    await durable(context, future)
    return wire.Submitted(ids)


async def cancel_many(context: AppContext, call: Call) -> wire.Submitted:
    """Cancel the caller's live jobs of a name, an array or a state; the answer names them."""
    body: wire.CancelMany = call.body
    ids, future = await asyncio.to_thread(context.control_plane.verbs.cancel_many, body, call.holder.sees)
    await durable(context, future)
    return wire.Submitted(ids)


def _who(holder: Holder) -> str:
    """Return the caller's name in histories: the tenant of a user, else the token's name."""
    return holder.tenant or holder.name
