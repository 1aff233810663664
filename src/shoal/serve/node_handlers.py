"""Handlers for nodes that join a running cluster and nodes that are removed."""

import asyncio

from shoal.serve.handlers import durable
from shoal.serve.route import AppContext, Call
from shoal.wire.messages import NewToken
from shoal.wire.node_messages import NewNode, NodeAdded, NodeToken


async def add_node(context: AppContext, call: Call) -> NodeAdded:
    """Add a node to the cluster; answered when it is durable."""
    body: NewNode = call.body
    await durable(context, await asyncio.to_thread(context.control_plane.members.add, body))
    return NodeAdded(body.name, await asyncio.to_thread(context.node_token_file, body.name))


async def remove_node(context: AppContext, call: Call) -> None:
    """Remove a node without runs from the cluster."""
    node = call.path["node"]
    await durable(context, await asyncio.to_thread(context.control_plane.members.remove, node))
    for row in [row for row in context.tokens.rows() if row.role == "agent" and row.node == node]:
        context.tokens.remove(row.name)


async def join(context: AppContext, call: Call) -> NodeToken:
    """Let an agent with a join token join the cluster as a new node, or as one that is down."""
    body: NewNode = call.body
    await durable(context, await asyncio.to_thread(context.control_plane.members.add, body, again=True))
    name = f"joined-{body.name}"[:64]
    if any(row.name == name for row in context.tokens.rows()):
        context.tokens.remove(name)
    secret = context.tokens.create(NewToken(name, "agent", node=body.name)).secret
    assert secret is not None
    return NodeToken(body.name, secret)
