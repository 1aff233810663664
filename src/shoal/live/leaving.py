"""Nodes whose agents are ending: no new run starts there, and their jobs are moved before the node is lost."""

from shoal.core.units import Seconds
from shoal.live.agent_status import AgentKey
from shoal.live.runs import RunRegistry

LEAVING = "its agent"
"""Who drained a node that is leaving; the next agent of the node resumes it."""


def leave(runs: RunRegistry, key: AgentKey, seconds: Seconds, now: Seconds) -> None:
    """Put the jobs with runs of an agent that ends in ``seconds`` back into the queue, and drain a node that it serves.

    Where a job resized in place has workers on other nodes, its workers on this one leave by themselves.
    """
    agent = runs.agents[key]
    index, name = agent.node, runs.nodes[agent.node].name
    if not agent.allocation and runs.health.drained_by(index) is None:
        reason = f"is leaving: its agent was stopped and ends within {seconds:,.0f} s"
        runs.events += runs.health.drain(index, reason, now, LEAVING)
    for gang in tuple(agent.gangs.values()):
        latest = runs.latest_gang(gang.job)
        if gang is latest and (gang.workers is None or gang.nodes == {index}):
            by = f"{name}, which is leaving" if not agent.allocation else f"{name}, where its allocation is closed"
            runs.requeue(gang.job, now, by)


def gone(runs: RunRegistry, key: AgentKey, now: Seconds) -> None:
    """Mark an agent and its node as lost after the last report of the agent, which lists no run."""
    runs.lose(key, now, now)
    if key in runs.agents:
        returned(runs, key, now)


def returned(runs: RunRegistry, key: AgentKey, now: Seconds) -> None:
    """Resume a node that was drained because its agent ended."""
    agent = runs.agents[key]
    if not agent.allocation and runs.health.drained_by(agent.node) == LEAVING:
        runs.events += runs.health.resume(agent.node, now)
