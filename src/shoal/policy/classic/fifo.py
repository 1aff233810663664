"""First in, first out: strict order of arrival, and the head of the line blocks until it fits.

With ``backfill`` later jobs may pass a head that does not fit. Nobody is ever preempted.
"""

from dataclasses import dataclass

import numpy as np

from shoal.core.decision import Decision, Numbers, ReasonCode
from shoal.core.snapshot import Snapshot
from shoal.policy.base import all_fit, explained, serve

_FITS, _BEHIND_HEAD = np.uint8(ReasonCode.FITS), np.uint8(ReasonCode.BEHIND_HEAD)


@dataclass(frozen=True, slots=True)
class Fifo:
    """Serves running jobs, then waiting ones in order of arrival."""

    backfill: bool = False

    def decide(self, snapshot: Snapshot) -> Decision:
        """A verdict for every live job; only arrivals and completions change it."""
        if (easy := all_fit(snapshot)) is not None:
            return Decision(easy)
        columns, total = snapshot.columns, snapshot.cluster.total_gpus
        waiting = columns.held == 0
        # A job that the cluster cannot hold must not block everyone behind it.
        line = (waiting & snapshot.possible).nonzero()[0]
        served = serve(snapshot, np.concatenate([(~waiting).nonzero()[0], line]), strict=not self.backfill)
        granted = served.gpus > 0
        refused = line[~granted[line]]
        codes = np.where(granted, _FITS, _BEHIND_HEAD)
        numbers: Numbers = {ReasonCode.FITS: (total - served.free, total)}
        if not len(refused):
            return Decision(explained(snapshot, served.gpus, codes, numbers, served.kinds))
        head = int(refused[0])
        codes[head:][granted[head:]] = ReasonCode.PASSED_AHEAD
        codes[granted & ~waiting] = ReasonCode.FITS
        codes[head] = ReasonCode.NO_ROOM
        story: Numbers = {
            **numbers,
            ReasonCode.PASSED_AHEAD: (columns.gpus,),
            ReasonCode.NO_ROOM: (columns.gpus, served.free),
            ReasonCode.BEHIND_HEAD: (
                snapshot.register.ids[int(columns.rows[head])],
                float(columns.gpus[head]),
                float(served.free),
            ),
        }
        return Decision(explained(snapshot, served.gpus, codes, story, served.kinds))
