"""Handlers of policies: which there are, which decides, and a shadow policy beside it."""

import asyncio

from shoal.policy.registry import POLICIES
from shoal.serve.handlers import durable
from shoal.serve.route import AppContext, Call
from shoal.wire.policy_messages import PolicyChoice, PolicyInForce, PolicyRow, ShadowChoice


async def policies(context: AppContext, call: Call) -> list[PolicyRow]:
    """List the policies that a what-if can try."""
    return [PolicyRow(name, entry.summary, entry.paper) for name, entry in POLICIES.items()]


async def in_force(context: AppContext, call: Call) -> PolicyInForce:
    """Return the policy that decides, and how the decisions of a shadow policy would have differed."""
    return context.control_plane.policies.in_force(context.control_plane.cluster().policy, call.holder.sees)


async def switch(context: AppContext, call: Call) -> None:
    """Let another policy decide, until the control plane restarts; answered when it is durable."""
    body: PolicyChoice = call.body
    await durable(context, await asyncio.to_thread(context.control_plane.policies.switch, body.policy))


async def shadow(context: AppContext, call: Call) -> None:
    """Ask another policy beside the deciding one, on each snapshot, and keep how its verdicts differ."""
    body: ShadowChoice = call.body
    await asyncio.to_thread(context.control_plane.policies.shadow, body.policy)
