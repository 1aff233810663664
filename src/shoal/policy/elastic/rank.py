"""Rank: GPUs by weighted speed-up; the weight rises with a job's rank among the live jobs.

Ours. Where a live job may adapt its batch size, all jobs are allotted GPUs and seats by goodput (``rank_goodput``), at
every arrival and departure and every ``interval`` seconds. Otherwise it is for elastic jobs of known length: they are
ranked by remaining one-GPU work, the largest first; the weight of rank i is √(2i + 9), from heSRPT's shares for
speed-ups like √k. The shortest jobs, as many as can have GPUs at all, are candidates, and each GPU goes to the highest
weight × further speed-up. There is no first stage: a short job may get its second GPU before a long one gets its first.
Where speed-ups are linear this is shortest first.

References: heSRPT (Berg et al., 2019) for the weights; the division is our own.
"""

from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from shoal.core.arrays import Floats, Int32s
from shoal.core.decision import Decision
from shoal.core.snapshot import Snapshot
from shoal.policy.base import check_round, round_end
from shoal.policy.carried_rows import match_rows
from shoal.policy.elastic.admission import Admitted, admit
from shoal.policy.elastic.curves import CurveTable, curve_table
from shoal.policy.elastic.rank_goodput import TUNING, weigh
from shoal.policy.elastic.shares import explain, fewest_and_lengths
from shoal.policy.goodput_options import ALLOTTED, WORTH_LESS, adapts, allotted, goodput_options
from shoal.policy.shared_reasons import STRETCHED
from shoal.solve.allotment import allot
from shoal.solve.rank_shares import AHEAD, EXPONENT, by_weighted_speedup, rank_weights


@dataclass(frozen=True, slots=True)
class Rank:
    """Weighted speed-up; ``exponent`` is that of usual speed-ups, ``ahead`` the ranks left free for larger jobs.

    The other options count where a job adapts its batch size: ``power`` of the speed-up, below 1 where the makespan
    matters, ``restart`` the cost of a change of seats in seconds, ``memory`` whether a job starts from the reports of
    earlier jobs of its model.
    """

    reasons = (STRETCHED, ALLOTTED, WORTH_LESS)
    tuning = TUNING
    exponent: float = EXPONENT
    ahead: float = AHEAD
    power: float = 1.0
    interval: float = 60.0
    restart: float = 30.0
    memory: bool = True

    def __post_init__(self) -> None:
        if not 0.0 <= self.exponent < 1.0:
            raise ValueError("exponent must lie from 0 to below 1")
        if not (isfinite(self.ahead) and self.ahead >= 0.0):
            raise ValueError("ahead must be a finite number, at least 0")
        if not 0.0 < self.power <= 1.0:
            raise ValueError("power must lie from above 0 to 1")
        check_round(self.interval)
        if not (isfinite(self.restart) and self.restart >= 0.0):
            raise ValueError("restart must be a finite number of seconds, at least 0")

    def decide(self, snapshot: Snapshot) -> Decision:
        """Decide shares by rank or, where a job may adapt its batch size, by goodput with a review every interval."""
        if _adapting(snapshot):
            return self._by_goodput(snapshot)
        table = curve_table(snapshot, snapshot.carry, rigid=True)
        fewest, lengths = fewest_and_lengths(snapshot, table)
        work = lengths * fewest
        order = np.argsort(work, kind="stable")
        places = np.empty(len(order))
        places[order] = np.arange(len(order), 0, -1)
        admitted = admit(snapshot, order, table)
        gpus = self._shares(snapshot, admitted, rank_weights(places, self.exponent, self.ahead))
        return Decision(explain(snapshot, admitted, gpus, "remaining work in one-GPU seconds", work), inf, table)

    def _by_goodput(self, snapshot: Snapshot) -> Decision:
        found = goodput_options(snapshot, memory=self.memory, aware=True)
        weighed = weigh(snapshot, found, self.restart, self.power)
        options = found.valued(weighed.worth)
        verdicts = allotted(snapshot, found, options, allot(options), weighed.weights)
        return Decision(verdicts, round_end(snapshot.now, self.interval))

    def _shares(self, snapshot: Snapshot, admitted: Admitted, weights: Floats) -> Int32s:
        gpus, table = np.zeros(len(admitted.low), dtype=np.int32), admitted.table
        for k, capacity in enumerate(snapshot.cluster.capacity):
            here = np.flatnonzero(admitted.kinds == k)
            if not len(here):
                continue
            fewest = admitted.low[here].tolist()
            keys = list(zip(table.index[here, k].tolist(), fewest, strict=True))
            known = {(curve, few): _speedup(table.curves[curve], few) for curve, few in set(keys)}
            speedups = [known[key] for key in keys]
            gpus[here] = by_weighted_speedup(speedups, weights[here].tolist(), fewest, capacity)
        return gpus


def _adapting(snapshot: Snapshot) -> bool:
    """Whether a live job may adapt its batch size; of the jobs in a carried table none does."""
    if not isinstance(snapshot.carry, CurveTable):
        return any(map(adapts, snapshot.specs))
    rows, specs = snapshot.columns.rows, snapshot.register.specs
    _, known = match_rows(snapshot.carry.rows, rows)
    return any(adapts(specs[row]) for row in rows[~known].tolist())


def _speedup(curve: Floats, fewest: int) -> list[float]:
    """Return the curve over the rate of one GPU, which is the mean rate per GPU on the fewest the job runs on."""
    speedup: list[float] = (curve * (fewest / max(float(curve[fewest]), 1e-300))).tolist()
    return speedup
