"""First in, first out: strict order of arrival, and the head of the line blocks until it fits.

With ``backfill`` later jobs may pass a head that does not fit. Nobody is ever preempted.
"""

from dataclasses import dataclass

import numpy as np

from shoal.core.decision import Decision, Numbers
from shoal.core.reasons import FITS, NO_ROOM, ReasonTemplate
from shoal.core.snapshot import Snapshot
from shoal.policy.base import all_fit, explained, serve

PASSED_AHEAD = ReasonTemplate(
    2,
    "PASSED_AHEAD",
    "runs ahead of its turn: it fits in {0:,.0f} GPUs that the head of the line cannot use",
    ("GPUs granted",),
)
BEHIND_HEAD = ReasonTemplate(
    21,
    "BEHIND_HEAD",
    "waits its turn: {0} is first and needs {1:,.0f} GPUs, with {2:,.0f} free",
    ("job at the head of the line", "GPUs that job needs", "free GPUs"),
)


@dataclass(frozen=True, slots=True)
class Fifo:
    """Serves running jobs, then waiting ones in order of arrival."""

    reasons = (PASSED_AHEAD, BEHIND_HEAD)
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
        codes = np.where(granted, FITS.code, BEHIND_HEAD.code)
        numbers: Numbers = {FITS: (total - served.free, total)}
        if not len(refused):
            return Decision(explained(snapshot, served.gpus, codes, numbers, served.kinds))
        head = int(refused[0])
        codes[head:][granted[head:]] = PASSED_AHEAD.code
        codes[granted & ~waiting] = FITS.code
        codes[head] = NO_ROOM.code
        story: Numbers = {
            **numbers,
            PASSED_AHEAD: (columns.gpus,),
            NO_ROOM: (columns.gpus, served.free),
            BEHIND_HEAD: (
                snapshot.register.ids[int(columns.rows[head])],
                float(columns.gpus[head]),
                float(served.free),
            ),
        }
        return Decision(explained(snapshot, served.gpus, codes, story, served.kinds))
