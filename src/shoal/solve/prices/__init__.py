"""Exact water filling by a search over one price per machine type, with a certificate."""

from shoal.solve.prices.fairness import (
    Filling,
    equal_share_speed,
    finish_time_fairness,
    hierarchical,
    isolated_speed,
    makespan,
    max_min,
)
from shoal.solve.prices.filling import StageCertificate
from shoal.solve.prices.paths import ShareNode

__all__ = [
    "Filling",
    "ShareNode",
    "StageCertificate",
    "equal_share_speed",
    "finish_time_fairness",
    "hierarchical",
    "isolated_speed",
    "makespan",
    "max_min",
]
