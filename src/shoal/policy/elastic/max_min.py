"""Max-min fair GPU counts: no job could have one more GPU without a job with as few or fewer having one less.

Each job gets its fewest GPUs first (a rigid gang's fewest is the whole gang), then GPUs go one at a time to the job
that holds the fewest for its weight, as long as one more makes it faster. When not all jobs fit, the jobs served change
at the end of each quantum, all at the same time so that wide gangs find enough free GPUs: least attained service for
its weight first, the narrowest first among equals. On a cluster of several kinds counts are max-min fair within each.

References: AFS (NSDI '21) §2.2 and §5.2 use it as a baseline.
"""

from dataclasses import dataclass
from math import floor, inf

import numpy as np

from shoal.core.arrays import Floats, Int32s
from shoal.core.decision import Decision, Numbers
from shoal.core.reasons import NO_ROOM
from shoal.core.snapshot import Snapshot
from shoal.policy.base import check_round, explained, round_end
from shoal.policy.elastic.admission import Admitted, admit
from shoal.policy.elastic.curves import curve_table
from shoal.policy.elastic.shares import gains_of
from shoal.policy.shared_reasons import FAIR_SHARE
from shoal.solve.max_min_counts import fair_counts


@dataclass(frozen=True, slots=True)
class MaxMin:
    """Fair counts; with too many jobs, fair turns of ``quantum`` seconds."""

    reasons = (FAIR_SHARE,)
    quantum: float = 600.0

    def __post_init__(self) -> None:
        check_round(self.quantum, "quantum")

    def decide(self, snapshot: Snapshot) -> Decision:
        """Fair counts for the jobs whose turn it is, reviewed at the end of the quantum if a job waits."""
        columns = snapshot.columns
        turn = floor(snapshot.now / self.quantum)
        keeping = (columns.held > 0) & (np.floor(columns.since / self.quantum) == turn)
        order = np.lexsort((columns.min_gpus, columns.attained / columns.weight, ~keeping))
        table = curve_table(snapshot, snapshot.carry)
        admitted = admit(snapshot, order, table)
        gpus = self._counts(snapshot, admitted)
        share: Floats = snapshot.cluster.total_gpus * columns.weight / max(float(columns.weight.sum()), 1e-300)
        codes = np.where(gpus > 0, FAIR_SHARE.code, NO_ROOM.code)
        left = max(admitted.free, default=0)
        numbers: Numbers = {FAIR_SHARE: (gpus, share), NO_ROOM: (columns.min_gpus, left)}
        waiting = bool(((gpus == 0) & snapshot.possible).any())
        review_at = round_end(snapshot.now, self.quantum) if waiting else inf
        return Decision(explained(snapshot, gpus, codes, numbers, admitted.kinds), review_at, table)

    def _counts(self, snapshot: Snapshot, admitted: Admitted) -> Int32s:
        columns, gpus = snapshot.columns, admitted.low.copy()
        high = admitted.low.copy()
        low, most, kinds = admitted.low.tolist(), columns.max_gpus.tolist(), admitted.kinds.tolist()
        growing = [i for i in admitted.curves if admitted.free[kinds[i]]]
        gains = gains_of([admitted.curves[i] for i in growing])
        high[growing] = [min(known.useful(low[i]), most[i]) for i, known in zip(growing, gains, strict=True)]
        held = np.where(columns.kind == admitted.kinds, columns.held, 0)
        for k, free in enumerate(admitted.free):
            here = np.flatnonzero(admitted.kinds == k)
            gpus[here] = fair_counts(free, gpus[here], high[here], columns.weight[here], held[here])
        return gpus
