"""An app's own side of the auction: what it makes of an offer, from what is left of its jobs and what it means to run.

Pure: the same offer and the same plans give the same valuation, by the functions that the policy uses for apps that do
not speak for themselves.

References: Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling", NSDI 2020, §4.2 and §4.3.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.perf.app_valuation import Work, finish_seconds, valuation_rows
from shoal.wire.messages import AppBidMessage, AppOffer, WorkLeft


@dataclass(frozen=True, slots=True)
class PhasePlan:
    """A phase to come: so many jobs side by side, of so many GPUs at most and so many GPU-seconds each."""

    jobs: int
    gpus: int
    gpu_seconds: float


def valued(offer: AppOffer, plans: Sequence[PhasePlan]) -> AppBidMessage | None:
    """What GPUs are worth to the app; None where it could do nothing with any."""
    works = [_work(left) for left in offer.jobs if left.seconds]
    ahead = [[Work.linear(plan.gpu_seconds, 1, plan.gpus)] * plan.jobs for plan in plans]
    rows = valuation_rows(finish_seconds([works, *ahead], offer.most)) if works else ()
    return AppBidMessage([left.id for left in offer.jobs], list(rows)) if rows else None


def gpu_seconds_left(offer: AppOffer) -> dict[str, float]:
    """By job: the GPU-seconds that are left of it on the number of GPUs it makes the most of."""
    return {left.id: _work(left).gpu_seconds for left in offer.jobs if left.seconds}


def _work(left: WorkLeft) -> Work:
    seconds = np.concatenate([np.full(left.least, np.inf), left.seconds])
    return Work(seconds, left.least, len(seconds) - 1)
