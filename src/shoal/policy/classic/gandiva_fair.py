"""Gandiva-Fair: stride scheduling with tickets, gang by gang and round by round.

Every job has a pass that grows by the GPU-seconds it receives over its tickets; each round the least pass goes first.
A gang that does not fit is passed over and keeps its pass while the others' grow, so its turn comes with the whole
cluster free before it: wide jobs do not starve. Rounds end at the same moment for all, since leases that end one by one
would never free enough GPUs at once. A newcomer starts at the least pass of those already there, neither owed a past
nor behind. GPUs left free within a round go to whoever waits and fits.

``tickets_per`` says who is equal: ``tenant`` as in Gandiva-Fair (a tenant's tickets are the largest weight among its
jobs, split among them by weight), ``job`` (a job's weight), or ``gpu`` (weight times gang, which Shockwave §8 compares
against: wide jobs then get proportionally more). Trading between kinds of GPU is not done here.

References: Gandiva-Fair (EuroSys '20), gang-aware split stride; Waldspurger (1995), stride scheduling.
"""

from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Floats, Indices
from shoal.core.decision import Decision
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds
from shoal.policy.base import check_round, ranked_verdicts, round_end, serve

TICKETS = ("tenant", "job", "gpu")
"""Who may be equal."""


@dataclass(frozen=True, slots=True, eq=False)
class _Passes:
    """When the round ends, and by admission number: pass, attained service at that pass, and tickets held since."""

    end: Seconds
    rows: Indices
    value: Floats
    attained: Floats
    tickets: Floats


@dataclass(frozen=True, slots=True)
class GandivaFair:
    """Serves jobs by ascending pass, anew each round."""

    tickets_per: str = "tenant"
    round: float = 360.0

    def __post_init__(self) -> None:
        check_round(self.round)
        if self.tickets_per not in TICKETS:
            raise ValueError(f"tickets_per must be one of {', '.join(TICKETS)}, not {self.tickets_per!r}")

    def decide(self, snapshot: Snapshot) -> Decision:
        """A verdict for every live job, reviewed at the end of the round if anybody waits. Carries the passes."""
        columns, now = snapshot.columns, snapshot.now
        before = snapshot.carry if isinstance(snapshot.carry, _Passes) else None
        tickets = self._tickets(snapshot)
        value = _advanced(snapshot, before, tickets)
        inside = before is not None and now < before.end
        kept = columns.held > 0 if inside else np.zeros(len(columns), dtype=bool)
        end = before.end if before is not None and inside else round_end(now, self.round)
        served = serve(snapshot, np.lexsort((value, ~kept)))
        waiting = bool((snapshot.possible & ~(served.gpus > 0)).any())
        told = "pass in GPU-seconds per ticket"
        verdicts = ranked_verdicts(snapshot, served, told, value, leased=kept, until=end)
        for array in (value, tickets):
            array.flags.writeable = False
        carry = _Passes(end, columns.rows, value, columns.attained, tickets)
        return Decision(verdicts, end if waiting else float("inf"), carry)

    def _tickets(self, snapshot: Snapshot) -> Floats:
        columns = snapshot.columns
        weight, tenant = columns.weight, columns.tenant
        if self.tickets_per == "job":
            return weight.copy()
        if self.tickets_per == "gpu":
            return weight * columns.gpus
        count = len(snapshot.tenant_service)
        # A job that cannot run at all must not take tickets from its tenant's other jobs.
        shares = np.bincount(tenant, weights=weight * snapshot.possible, minlength=count)
        most = np.zeros(count)
        np.maximum.at(most, tenant, weight)
        tickets: Floats = most[tenant] * weight / np.maximum(shares[tenant], weight)
        return tickets


def _advanced(snapshot: Snapshot, before: _Passes | None, tickets: Floats) -> Floats:
    """Every job's pass now. Without a memory, as if it had always had today's tickets."""
    columns = snapshot.columns
    if before is None or not len(before.rows):
        return columns.attained / tickets
    at = np.minimum(np.searchsorted(before.rows, columns.rows), len(before.rows) - 1)
    known = before.rows[at] == columns.rows
    value: Floats = before.value[at] + (columns.attained - before.attained[at]) / before.tickets[at]
    least = value[known & snapshot.possible].min(initial=np.inf)
    value[~known] = least if np.isfinite(least) else 0.0
    return value
