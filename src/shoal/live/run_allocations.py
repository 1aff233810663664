"""Native mode: the allocations that runs need, and the engine's reports on those of a job."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from shoal.core.topology import Node
from shoal.core.units import Seconds
from shoal.live.native_runs import RunPart
from shoal.provider.protocol import AgentCall, Allocation, AllocationState, Seen

_LIMIT_MARGIN: Seconds = 120.0
"""Seconds beyond a job's time limit and grace for which the engine may let its allocation run."""

RunCall = Callable[[Node, str, int], AgentCall]
"""Returns how to start the agent of an allocation of this name, with this many GPUs of a node."""


def wanted_allocations(
    parts: Iterable[RunPart],
    nodes: Mapping[int, Node],
    seen: Mapping[str, Seen],
    call: RunCall,
    patience: Seconds | None,
    home: Path,
) -> list[Allocation]:
    """Return an allocation for each part of a run; one that has begun and ended is not opened again."""
    wanted = []
    for part in parts:
        one, node, launch = seen.get(part.allocation), nodes[part.node], part.gang.launch
        if part.began and (one is None or not one.state.open):
            continue
        ranks = 1 if launch.ranks == "node" else part.gpus
        time = part.gang.time
        wanted.append(
            Allocation(
                part.allocation,
                node.name,
                node.kind,
                part.gpus,
                call(node, part.allocation, part.gpus),
                owner=part.gang.tenant,
                image=launch.image,
                grace=launch.grace,
                limit=None if time is None else time + launch.grace + _LIMIT_MARGIN,
                patience=None if part.follows else patience,
                group=f"{part.gang.id}.{part.gang.incarnation}",
                account=launch.account,
                cpus=None if launch.cpus is None else launch.cpus * ranks,
                memory=launch.memory,
                folders=(str(home / "jobs" / part.gang.id), str(home / "nodes" / part.allocation)),
            )
        )
    return wanted


def engine_words(name: str, node: str, one: Seen | None, refused: str) -> str:
    """Return a line on the allocation of a run's part on a node; empty if the engine has reported nothing."""
    if one is None:
        return f"{node}: {name} refused it: {refused}" if refused else ""
    state = {AllocationState.WAITING: "waits", AllocationState.UP: "runs"}.get(one.state, str(one.state))
    why = f" ({one.why})" if one.why else ""
    return f"{node}: {name} {one.ref} {state}{why}"
