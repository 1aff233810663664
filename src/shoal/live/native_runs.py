"""Native mode: an allocation for each part of a run, and nodes that are up while their engine says so.

Bookkeeping; the caller holds the backend's lock. A report of the engine does not prove that a process has ended. It
ends a part of a run only if no agent of that part ever got an order, or if the engine is certain that no process is
left.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from shoal.core.events import NodeLost, NodeReturned
from shoal.core.units import Seconds
from shoal.live.agent_status import AgentStatus
from shoal.live.gang import End, Gang, RunEnd
from shoal.live.runs import RunRegistry
from shoal.provider.protocol import AllocationState, Seen

START_SECONDS: Seconds = 40.0
"""Seconds beyond its lease in which the agent of an allocation that has begun must connect."""

_SHARED = "the engine gives each run GPUs of its own: two jobs on one GPU are not possible in native mode"


@dataclass(frozen=True, slots=True)
class RunPart:
    """A part of a run that needs an allocation, on ``gpus`` GPUs of a node."""

    allocation: str
    node: int
    gpus: int
    gang: Gang
    began: bool
    """Whether the allocation has begun once: it must not be opened again."""
    follows: bool
    """Whether it waits for GPUs that a run which is being stopped still holds."""


def run_parts(runs: RunRegistry) -> list[RunPart]:
    """Return the parts of runs that need an allocation."""
    found = []
    for agent in runs.agents.of_runs:
        for gang in agent.gangs.values():
            if not gang.parts[agent.node].phase.over:
                others = (other for other in runs.agents.nodes[agent.node].gangs.values() if other is not gang)
                follows = any(other.stopping and not other.parts[agent.node].phase.over for other in others)
                gpus, began = dict(gang.own_seats)[agent.node], agent.up or agent.boot is not None
                found.append(RunPart(agent.allocation, agent.node, gpus, gang, began, follows))
    return found


def set_up(runs: RunRegistry, up: Collection[int], now: Seconds) -> None:
    """Mark exactly those nodes as up that the engine reports as ``up``; runs on the others continue."""
    for index, node in enumerate(runs.agents.nodes):
        if node.up != (index in up):
            node.up = not node.up
            runs.events.append(NodeReturned(now, index) if node.up else NodeLost(now, index))


def see(runs: RunRegistry, seen: Mapping[str, Seen], now: Seconds) -> None:
    """Process the engine's reports on allocations; ``seen`` is by name of the allocation."""
    for agent in tuple(runs.agents.of_runs):
        one = seen.get(agent.allocation)
        if one is None or not agent.gangs:
            continue
        if one.cleared and agent.boot is not None:
            runs.lose(agent.key, now)
        elif agent.boot is None and one.state is AllocationState.WAITING:
            agent.up = False
        elif agent.boot is None and one.state is AllocationState.UP and not agent.up:
            agent.up, agent.last_contact = True, now + START_SECONDS
        elif agent.boot is None and not one.state.open and (one.cleared or not _may_run(agent)):
            node = runs.nodes[agent.node].name
            fail(
                runs, agent, f"its allocation on {node} ended before its agent connected ({one.why or one.state})", now
            )


def _may_run(agent: AgentStatus) -> bool:
    """Return whether an agent that has not connected may have got orders of an earlier control plane."""
    return any(gang.resumed for gang in agent.gangs.values())


def fail(runs: RunRegistry, agent: AgentStatus, cause: str, now: Seconds) -> None:
    """End the part of a run whose agent cannot start it, for a cause that is not the job's fault."""
    for gang in tuple(agent.gangs.values()):
        gang.fail(agent.node, cause)
        runs._advance(gang.job, now)


def withdraw(runs: RunRegistry, now: Seconds) -> None:
    """End the parts of stopped runs whose agents never connected, and runs that were to share their GPUs."""
    for agent in tuple(runs.agents.of_runs):
        for gang in tuple(agent.gangs.values()):
            if gang.partner is not None and not gang.end_reported and not gang.stopping:
                runs._report_end(runs._jobs[gang.job], gang, RunEnd(End.LOST, _SHARED), now)
            if gang.stopping and agent.boot is None and not gang.resumed and not gang.parts[agent.node].phase.over:
                gang.lose(agent.node)
                runs._advance(gang.job, now)
