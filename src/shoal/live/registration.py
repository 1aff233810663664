"""Registration of agents by their hellos. Bookkeeping; the caller holds the backend's lock."""

import logging
import secrets

from shoal.core.errors import InputError
from shoal.core.events import NodeReturned
from shoal.core.units import Seconds
from shoal.live import leaving
from shoal.live.agent_status import AgentKey, AgentStatus
from shoal.live.runs import RunRegistry
from shoal.live.suspension import ability_event
from shoal.wire.messages import Hello

log = logging.getLogger(__name__)

_MOST_REPLACED = 3
"""Times that another boot may replace an agent's before the agent is refused."""

_MOST_BOOTS = 8
"""Replaced boots that are remembered for each agent."""


def agent_of(runs: RunRegistry, index: int, allocation: str) -> AgentKey:
    """Return which agent serves this node or allocation; ``InputError`` if no run wants the allocation any more."""
    if not allocation:
        if runs.agents.native:
            hint = "the engine says which nodes are up, and agents belong to runs: start none by hand"
            raise InputError("node", runs.nodes[index].name, hint)
        return index
    if allocation not in runs.agents or runs.agents[allocation].node != index:
        raise InputError("allocation", allocation, "has no run on this node any more: end the agent")
    return allocation


def register(runs: RunRegistry, key: AgentKey, hello: Hello, now: Seconds, lease: Seconds) -> None:
    """Register an agent that started, or was asked to register again; runs of an earlier boot are lost.

    ``lease`` is the time in which a run without grace ends by itself, with the margin for killing it.
    """
    agent = runs.agents[key]
    _check_gpus(runs, agent, hello)
    if agent.place not in ("", hello.place):
        _move(runs, agent, hello, now, lease)
    if agent.boot is not None and agent.boot != hello.boot:
        _replace_boot(agent, agent.boot, hello)
        runs.reboot(key, now, hello.kept)
    agent.boot, agent.address, agent.last_contact = hello.boot, hello.address, now
    moved, agent.place = agent.place != hello.place, hello.place
    agent.session = secrets.token_hex(8)
    came, agent.up = moved or not agent.up, True
    if agent.allocation:
        return
    if came:
        runs.agents.nodes[agent.node].up = True
        runs.events.append(NodeReturned(now, agent.node, hello.place))
    leaving.returned(runs, key, now)
    if hello.suspension is not None and hello.suspension != agent.suspension:
        agent.suspension = hello.suspension
        runs.events.append(ability_event(agent.node, hello.suspension, now))


def _check_gpus(runs: RunRegistry, agent: AgentStatus, hello: Hello) -> None:
    """Refuse an agent with other GPUs than the cluster's node, or its part of a run, has."""
    node = runs.nodes[agent.node]
    gpus = sum(gpus for gang in agent.gangs.values() for at, gpus in gang.own_seats if at == agent.node)
    wanted = gpus if agent.gangs and agent.allocation else node.gpus
    if (hello.kind, hello.gpus) != (node.kind, wanted) and not (agent.allocation and not agent.gangs):
        given = f"{hello.gpus} x {hello.kind}"
        raise InputError(f"node {node.name}", given, f"this cluster has it with {wanted} x {node.kind}")


def _move(runs: RunRegistry, agent: AgentStatus, hello: Hello, now: Seconds, lease: Seconds) -> None:
    """Lose an agent that another one replaces elsewhere; ``InputError`` while its runs may be alive."""
    graces = [gang.launch.grace for gang in agent.gangs.values() if not gang.parts[agent.node].phase.over]
    left = agent.last_contact + lease + max(graces, default=0.0) - now
    if left > 0 and (agent.up or agent.gangs):
        log.warning("two agents have the name of one node", extra={"node": hello.node, "address": hello.address})
        hint = f"an agent of this name runs elsewhere{f' ({agent.address})' * bool(agent.address)}"
        raise InputError("node", hello.node, f"{hint}: name another node, or stop that one and wait {left:,.0f} s")
    if agent.up:
        runs.lose(agent.key, now, agent.last_contact + lease)


def _replace_boot(agent: AgentStatus, boot: str, hello: Hello) -> None:
    """Count that the agent of ``boot`` is replaced; ``InputError`` if the new agent was itself replaced too often.

    A restarted agent replaces the earlier one for good. Two agents that run under one name replace each other in turn;
    a late hello of a dead agent may replace a live one once.
    """
    if hello.boot in agent.replaced:
        addresses = {"node": hello.node, "address": hello.address, "other": agent.address}
        log.warning("two agents have the name of one node", extra=addresses)
        if agent.replaced[hello.boot] >= _MOST_REPLACED:
            hint = f"another agent of this name runs at {agent.address}: stop one of them, or name another node"
            raise InputError("node", hello.node, hint)
    agent.replaced[boot] = agent.replaced.pop(boot, 0) + 1
    if len(agent.replaced) > _MOST_BOOTS:
        del agent.replaced[next(iter(agent.replaced))]
