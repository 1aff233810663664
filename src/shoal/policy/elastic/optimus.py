"""Optimus: GPUs one by one to the job whose completion they bring forward most.

Jobs in order of arrival get the fewest GPUs they can run on, since Optimus gives everyone one unit and nobody
precedence; the rest go, one at a time, to the job whose estimated remaining time falls most by one more, until no job
gains. A job that declares no work is taken to be half done, or to have one interval left if that is more.

The division is made anew every ``interval`` seconds. In between, newcomers get their fewest GPUs and GPUs that come
free are given out, but nobody gives up a GPU to a better bid. Even at a review a GPU that a job has already counts a
little more, since to move one costs two restarts.

References: Optimus (EuroSys '18), as AFS (NSDI '21) §5 and Pollux (OSDI '21) §5.1 describe it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.decision import Decision, Verdicts
from shoal.core.reasons import FITS, NO_ROOM, ReasonTemplate
from shoal.core.snapshot import Snapshot
from shoal.policy.base import explained
from shoal.policy.elastic.max_min import Admitted, admit
from shoal.solve.marginal_gain import best_units

MARGINAL_GAIN = ReasonTemplate(
    5,
    "MARGINAL_GAIN",
    "runs on {0:,.0f} GPUs: its last one was worth {1:,.4g}, the next bidder's {2:,.4g}",
    ("GPUs granted", "gain of its last GPU", "largest gain refused"),
)

ATTACHED = 1.1
"""How much more a GPU is worth where it is, at a review: about what a restart costs of an interval."""

FASTENED = 1e6
"""The same between reviews: no other bid is so much higher."""


def by_marginal_gain(
    snapshot: Snapshot, admitted: Admitted, worth: Callable[[int, Floats], Floats], attachment: float
) -> Verdicts:
    """Verdicts after giving what is left, GPU by GPU, to the elastic job whose ``worth`` rises most by one more.

    ``worth(i, rates)`` is what job i makes of each of these rates; it must not fall where the rate rises.
    """
    columns, gpus = snapshot.columns, admitted.low.copy()
    last, refused = np.zeros(len(columns)), np.zeros(len(columns))
    for k, free in enumerate(admitted.free):
        bidders = [i for i in admitted.curves if admitted.kinds[i] == k] if free else []
        bids = []
        for i in bidders:
            least = int(admitted.low[i])
            bid = np.diff(worth(i, admitted.curves[i][least : min(int(columns.max_gpus[i]), least + free) + 1]))
            if columns.kind[i] == k:
                bid[: max(int(columns.held[i]) - least, 0)] *= attachment
            bids.append(bid)
        bought = best_units(bids, free)
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


def next_review(snapshot: Snapshot, interval: float) -> tuple[bool, float]:
    """Whether the review that was carried is due (or none was), and when the next one is."""
    due = snapshot.carry
    if isinstance(due, float) and snapshot.now < due <= snapshot.now + interval:
        return False, due
    return True, snapshot.now + interval


@dataclass(frozen=True, slots=True)
class Optimus:
    """Marginal gain in completion time."""

    reasons = (MARGINAL_GAIN,)
    interval: float = 600.0

    def __post_init__(self) -> None:
        if not 1.0 <= self.interval < inf:
            raise ValueError("interval must be a finite number of seconds, at least 1")

    def decide(self, snapshot: Snapshot) -> Decision:
        """A verdict for every live job, reviewed at the end of the interval while there is anyone to share among."""
        columns = snapshot.columns
        review, due = next_review(snapshot, self.interval)
        admitted = admit(snapshot, np.arange(len(columns)))
        # A job past its declared work still has some left, and must not be stripped for being late.
        left = np.maximum(columns.work - columns.done, 0.01 * columns.done)
        unknown = np.maximum(columns.done, columns.best_speed * self.interval)
        left = np.where(np.isinf(columns.work), unknown, left)

        def sooner(i: int, rates: Floats) -> Floats:
            earlier: Floats = -left[i] / np.maximum(rates, 1e-30)
            return earlier

        verdicts = by_marginal_gain(snapshot, admitted, sooner, ATTACHED if review else FASTENED)
        return Decision(verdicts, due if admitted.curves else inf, due)
