"""An app's bid in an auction of GPUs: its valuation of an offer from the work left and the phases it plans.

Pure, and computed by the functions that the policy uses for apps that do not bid.

References: Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling", NSDI 2020, §4.2 and §4.3.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.perf.app_valuation import Work, finish_seconds, valuation_rows
from shoal.wire.messages import AppBidMessage, AppOffer, WorkLeft


@dataclass(frozen=True, slots=True)
class PhasePlan:
    """A future phase: number of parallel jobs, the most GPUs of each, and GPU-seconds of each."""

    jobs: int
    gpus: int
    gpu_seconds: float


def valued(offer: AppOffer, plans: Sequence[PhasePlan]) -> AppBidMessage | None:
    """The app's valuation of GPUs; None where it can use none."""
    works = [_work(left) for left in offer.jobs if left.seconds]
    ahead = [[Work.linear(plan.gpu_seconds, 1, plan.gpus)] * plan.jobs for plan in plans]
    rows = valuation_rows(finish_seconds([works, *ahead], offer.most)) if works else ()
    return AppBidMessage([left.id for left in offer.jobs], list(rows)) if rows else None


def gpu_seconds_left(offer: AppOffer) -> dict[str, float]:
    """GPU-seconds left by job id, at the job's most efficient number of GPUs."""
    return {left.id: _work(left).gpu_seconds for left in offer.jobs if left.seconds}


def _work(left: WorkLeft) -> Work:
    seconds = np.concatenate([np.full(left.least, np.inf), left.seconds])
    return Work(seconds, left.least, len(seconds) - 1)
