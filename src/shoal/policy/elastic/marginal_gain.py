"""Greedy division of GPUs, for Optimus and SLAQ: each GPU goes to the job that gains most by one more.

Between reviews no job gives up a GPU to a higher bid. At a review the gain of a GPU that a job holds is multiplied by a
factor above 1, since moving it costs two restarts.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Floats, Indices, Int32s
from shoal.core.decision import Verdicts
from shoal.core.reasons import FITS, NO_ROOM, ReasonTemplate
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds
from shoal.policy.base import explained
from shoal.policy.elastic.admission import Admitted
from shoal.policy.elastic.curves import CurveTable
from shoal.policy.tuning import constant
from shoal.solve.marginal_gain import best_units

MARGINAL_GAIN = ReasonTemplate(
    5,
    "MARGINAL_GAIN",
    "runs on {GPUs granted:,.0f} GPUs: its last one was worth {gain of its last GPU:,.4g}, the next bidder's "
    "{largest gain refused:,.4g}",
)


@dataclass(frozen=True, slots=True)
class HoldingTuning:
    """Factors on the gain of a GPU that a job holds already."""

    at_review: float = constant(1.1, "factor on a held GPU's gain at a review: about a restart's cost in an interval")
    between: float = constant(1e6, "the same between reviews; no other bid is so much higher")

    def factor(self, review: bool) -> float:
        """The factor at a review, or between two."""
        return self.at_review if review else self.between


HOLDING = HoldingTuning()


@dataclass(frozen=True, slots=True, eq=False)
class ReviewCarry:
    """Carry: the time of the next review in seconds, and the jobs' rate curves."""

    due: Seconds
    table: CurveTable


def by_marginal_gain(
    snapshot: Snapshot, admitted: Admitted, worth: Callable[[Indices, Floats], Floats], holding: float
) -> Verdicts:
    """Return verdicts after each free GPU went to the elastic job whose ``worth`` rises most by one more.

    ``worth(jobs, rates)`` is the worth of these rates, a row for each of the jobs; it must not fall where a rate rises.
    ``holding`` is the factor on the gain of GPUs that a job holds already.
    """
    columns, gpus = snapshot.columns, admitted.low.copy()
    last, refused = np.zeros(len(columns)), np.zeros(len(columns))
    for k, free in enumerate(admitted.free):
        bidders = admitted.growing[admitted.kinds[admitted.growing] == k] if free else admitted.growing[:0]
        least, most = admitted.low[bidders], np.minimum(columns.max_gpus[bidders], admitted.low[bidders] + free)
        held = np.where(columns.kind[bidders] == k, columns.held[bidders] - least, 0)

        def bids(
            some: Indices, count: int, bidders: Indices = bidders, least: Int32s = least, held: Int32s = held
        ) -> Floats:
            rates = admitted.rates(bidders[some], least[some, None] + np.arange(count + 1))
            bid: Floats = np.diff(worth(bidders[some], rates), axis=1)
            return np.where(np.arange(count) < held[some, None], bid * holding, bid)

        bought = best_units(bids, (most - least).astype(np.int64), free)
        gpus[bidders] += bought.counts.astype(np.int32)
        last[bidders], refused[bidders] = bought.last, bought.refused
    codes = np.where(gpus > admitted.low, MARGINAL_GAIN.code, FITS.code)
    codes[gpus == 0] = NO_ROOM.code
    numbers = {
        MARGINAL_GAIN: (gpus, last, refused),
        FITS: (int(gpus.sum()), snapshot.cluster.total_gpus),
        NO_ROOM: (columns.min_gpus, max(admitted.free, default=0)),
    }
    return explained(snapshot, gpus, codes, numbers, admitted.kinds)
