"""First in, first out: strict order of arrival; the head of the line blocks the rest until it fits.

With ``backfill`` later jobs may pass a head that does not fit. No job is ever preempted: one that was resized to more
GPUs keeps those it has until the others are free.
"""

from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Indices, Int32s
from shoal.core.decision import Decision, NumberColumn
from shoal.core.reasons import FITS, NO_ROOM, ReasonTemplate
from shoal.core.snapshot import Snapshot
from shoal.policy.base import all_fit, either_code, explained, serve

PASSED_AHEAD = ReasonTemplate(
    2,
    "PASSED_AHEAD",
    "runs ahead of its turn: it fits in {GPUs granted:,.0f} GPUs that the head of the line cannot use",
)
BEHIND_HEAD = ReasonTemplate(
    21,
    "BEHIND_HEAD",
    "waits its turn: {job at the head of the line} is first and needs {GPUs that job needs:,.0f} GPUs, with "
    "{free GPUs:,.0f} free",
)


@dataclass(frozen=True, slots=True)
class Fifo:
    """Serves running jobs, then waiting ones in order of arrival."""

    reasons = (PASSED_AHEAD, BEHIND_HEAD)
    backfill: bool = False

    def decide(self, snapshot: Snapshot) -> Decision:
        """Verdicts that only arrivals, completions and changes of the cluster can change."""
        if (fitting := all_fit(snapshot)) is not None:
            return Decision(fitting)
        columns, total = snapshot.columns, snapshot.cluster.total_gpus
        runs = columns.held > 0
        # A job that the cluster cannot hold must not block those behind it.
        waits = ~runs if snapshot.all_possible else snapshot.possible > runs
        running = runs.nonzero()[0]
        order = np.concatenate([running, waits.nonzero()[0]])
        served = serve(snapshot, order, strict=not self.backfill, demand=_demand(snapshot, running))
        granted = served.gpus > 0
        codes = either_code(granted, FITS, BEHIND_HEAD)
        numbers: dict[ReasonTemplate, tuple[NumberColumn, ...]] = {FITS: (total - served.free, total)}
        stopped = runs > granted
        refused = stopped if stopped.any() else waits > granted
        if refused.any():
            head = int(refused.argmax())
            codes[head + (granted > runs)[head:].nonzero()[0]] = PASSED_AHEAD.code
            codes[head] = NO_ROOM.code
            name = snapshot.register.ids[int(columns.rows[head])]
            numbers[PASSED_AHEAD] = (columns.gpus,)
            numbers[NO_ROOM] = (columns.gpus, served.free)
            numbers[BEHIND_HEAD] = (name, float(columns.gpus[head]), float(served.free))
        return Decision(explained(snapshot, served.gpus, codes, numbers, served.kinds))


def _demand(snapshot: Snapshot, running: Indices) -> Int32s:
    """Return the GPUs that each job is to get; a running job that cannot grow to its demand gets what it holds."""
    columns = snapshot.columns
    grown = running[columns.gpus[running] > columns.held[running]]
    if not len(grown):
        return columns.gpus
    demand = columns.gpus.copy()
    used = np.bincount(columns.kind[running], columns.held[running], len(snapshot.cluster.kinds))
    free = np.asarray(snapshot.cluster.capacity) - used
    for i in grown.tolist():
        more, kind = columns.gpus[i] - columns.held[i], columns.kind[i]
        if more <= free[kind]:
            free[kind] -= more
        else:
            demand[i] = columns.held[i]
    return demand
