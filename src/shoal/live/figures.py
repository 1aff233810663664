"""Figures of a control plane for its metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
