"""Rank: GPUs by weighted speed-up, the weight rising with a job's place among those there.

Ours. Where a live job may adapt its batch size, everyone is allotted GPUs and seats by goodput (``rank_goodput``), at
every arrival and departure and every ``interval`` seconds. Otherwise it is for elastic jobs of known length: they are
ranked by remaining one-GPU work, the largest first; the weight of rank i is √(2i + 9), from heSRPT's shares for
speed-ups like √k. The shortest, as many as can have GPUs at all, are candidates, and each GPU goes to the highest
weight × further speed-up. There is no first stage: a short job may have its second GPU before a long one has its first.
Where speed-ups are linear this is shortest first.

References: heSRPT (Berg et al., 2019) for the weights; the division is this house's.
"""

from dataclasses import dataclass
from math import isfinite

import numpy as np

from shoal.core.arrays import Floats, Int32s
from shoal.core.decision import Decision
from shoal.core.snapshot import Snapshot
from shoal.policy.base import check_round, round_end
from shoal.policy.elastic.max_min import Admitted, admit
from shoal.policy.elastic.rank_goodput import weighed
from shoal.policy.elastic.shares import fewest_and_lengths, told
from shoal.policy.goodput_options import ALLOTTED, WORTH_LESS, adapts, allotted, prospects
from shoal.policy.shared_reasons import STRETCHED
from shoal.solve.allotment import allot
from shoal.solve.rank_shares import AHEAD, EXPONENT, by_weighted_speedup, rank_weight


@dataclass(frozen=True, slots=True)
class Rank:
    """Weighted speed-up; ``exponent`` is that of usual speed-ups, ``ahead`` the ranks left to larger jobs.

    The other options are read where a job adapts: ``power`` of the speed-up, below 1 where the makespan matters,
    ``restart`` what a change of seats costs, ``memory`` whether a model is remembered by what its jobs reported.
    """

    reasons = (STRETCHED, ALLOTTED, WORTH_LESS)
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
        """A verdict for every live job; the next comes with the next arrival or departure."""
        if any(map(adapts, snapshot.specs)):
            return self._by_goodput(snapshot)
        fewest, lengths = fewest_and_lengths(snapshot)
        work = lengths * fewest
        order = np.argsort(work, kind="stable")
        places = np.empty(len(order), dtype=np.int64)
        places[order] = np.arange(len(order), 0, -1)
        admitted = admit(snapshot, order)
        gpus = self._shares(snapshot, admitted, places.tolist())
        return Decision(told(snapshot, admitted, gpus, "remaining work in one-GPU seconds", work))

    def _by_goodput(self, snapshot: Snapshot) -> Decision:
        found = prospects(snapshot, memory=self.memory, aware=True)
        weighed_options = weighed(snapshot, found, self.restart, self.power)
        menu = found.menu(weighed_options.worth)
        verdicts = allotted(snapshot, found, menu, allot(menu), weighed_options.weights)
        return Decision(verdicts, round_end(snapshot.now, self.interval))

    def _shares(self, snapshot: Snapshot, admitted: Admitted, places: list[int]) -> Int32s:
        names, gpus = snapshot.cluster.kinds, np.zeros(len(admitted.low), dtype=np.int32)
        for k, capacity in enumerate(snapshot.cluster.capacity):
            here = np.flatnonzero(admitted.kinds == k).tolist()
            if not here:
                continue
            fewest = admitted.low[here].tolist()
            speedups = [
                _speedup(_curve(snapshot, admitted, i, names[k]), low) for i, low in zip(here, fewest, strict=True)
            ]
            weights = [rank_weight(places[i], self.exponent, self.ahead) for i in here]
            gpus[here] = by_weighted_speedup(speedups, weights, fewest, capacity)
        return gpus


def _curve(snapshot: Snapshot, admitted: Admitted, i: int, kind: str) -> Floats:
    found = admitted.curves.get(i)
    return snapshot.perf.curve(snapshot.jobs.at(i), kind) if found is None else found


def _speedup(curve: Floats, fewest: int) -> list[float]:
    """The curve counted in what one GPU makes, by the average of the fewest a job runs on."""
    speedup: list[float] = (curve * (fewest / max(float(curve[fewest]), 1e-300))).tolist()
    return speedup
