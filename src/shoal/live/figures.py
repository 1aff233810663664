"""Figures of a control plane for its metrics."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.core.lifecycle import JobState
from shoal.core.units import Seconds
from shoal.engine.state import State
from shoal.live.accounts import Accounts
from shoal.live.holdings import Holdings
from shoal.live.views import ClusterViews
from shoal.wire import messages as wire


@dataclass(frozen=True, slots=True)
class ControlPlaneFigures:
    """Figures for the metrics; the two lists of seconds hold the measurements since the last call."""

    states: Mapping[str, int]
    gpus_up: Mapping[str, int]
    gpus_used: Mapping[str, int]
    nodes_up: int
    nodes_down: int
    decisions: int
    decision_seconds: Sequence[float]
    commit_seconds: Sequence[float]
    tenants: Sequence[wire.TenantRow]
    lost_gpu_seconds: float
    restarts: int
    crashes: int
    completed: int
    submitted: int
    review_in: float


def figures_of(
    state: State,
    accounts: Accounts,
    views: ClusterViews,
    times: tuple[deque[float], deque[float]],
    review_in: Seconds,
) -> ControlPlaneFigures:
    """Return the figures; ``times`` are those of decisions and commits, which are emptied."""
    topology = state.topology
    used = dict.fromkeys(topology.kinds, 0)
    for node, gpus in views.used_gpus(Holdings.of(accounts)).items():
        used[topology.nodes[node].kind] += gpus
    states = {s.name.lower(): 0 for s in JobState if s.live}
    for account in accounts.live.values():
        states[account.state.name.lower()] += 1
    decision_seconds, commit_seconds = ([each.popleft() for _ in range(len(each))] for each in times)
    return ControlPlaneFigures(
        states=states,
        gpus_up=dict(zip(topology.kinds, topology.capacity, strict=True)),
        gpus_used=used,
        nodes_up=len(topology.nodes) - len(topology.down),
        nodes_down=len(topology.down - topology.removed),
        decisions=state.cycle,
        decision_seconds=decision_seconds,
        commit_seconds=commit_seconds,
        tenants=views.share(),
        lost_gpu_seconds=accounts.lost_gpu_seconds,
        restarts=accounts.restarts,
        crashes=accounts.crashes,
        completed=accounts.completed,
        submitted=accounts.submitted,
        review_in=review_in,
    )
