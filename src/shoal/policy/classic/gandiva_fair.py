"""Gandiva-Fair: stride scheduling with tickets, gang by gang and round by round.

Every job has a pass that grows by the GPU-seconds it receives over its tickets; each round the least pass goes first.
A gang that does not fit is passed over and keeps its pass while the others' grow, until it is first with the whole
cluster before it: wide jobs do not starve. All rounds end at the same time, since leases that end one by one would
never free enough GPUs at once. A new job starts at the least pass of the live jobs, so it is neither ahead nor behind.
GPUs that come free within a round go to waiting jobs that fit.

``tickets_per`` says what has equal tickets: ``tenant`` as in Gandiva-Fair (a tenant's tickets are the largest weight
among its jobs, split among them by weight), ``job`` (a job's weight), or ``gpu`` (weight times gang, with which
Shockwave §8 compares: wide jobs then get proportionally more). GPU kinds are not traded.

References: Gandiva-Fair (EuroSys '20), gang-aware split stride; Waldspurger (1995), stride scheduling.
"""

from dataclasses import dataclass
from math import inf

import numpy as np

from shoal.core.arrays import Floats, Indices
from shoal.core.columns import sealed
from shoal.core.decision import Decision
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds
from shoal.policy.base import check_round, ranked_verdicts, round_end, serve
from shoal.policy.carried_rows import match_rows

TICKETS = ("tenant", "job", "gpu")
"""Values of ``tickets_per``."""


@dataclass(frozen=True, slots=True, eq=False)
class _Passes:
    """The end of the round, and by job its pass, its attained service at that pass and its tickets since then."""

    end: Seconds
    rows: Indices
    value: Floats
    attained: Floats
    tickets: Floats


@dataclass(frozen=True, slots=True)
class GandivaFair:
    """Serves jobs by ascending pass, afresh each round."""

    tickets_per: str = "tenant"
    round: float = 360.0

    def __post_init__(self) -> None:
        check_round(self.round)
        if self.tickets_per not in TICKETS:
            raise ValueError(f"tickets_per must be one of {', '.join(TICKETS)}, not {self.tickets_per!r}")

    def decide(self, snapshot: Snapshot) -> Decision:
        """Verdicts for the jobs in that order, reviewed at the end of the round if a job waits. Carries the passes."""
        columns, now = snapshot.columns, snapshot.now
        before = snapshot.carry if isinstance(snapshot.carry, _Passes) else None
        tickets = self._tickets(snapshot)
        value = _advanced(snapshot, before, tickets)
        inside = before is not None and now < before.end
        kept = columns.held > 0 if inside else np.zeros(len(columns), dtype=bool)
        end = before.end if before is not None and inside else round_end(now, self.round)
        served = serve(snapshot, np.lexsort((value, ~kept)))
        waiting = bool((snapshot.possible & ~(served.gpus > 0)).any())
        name = "pass in GPU-seconds per ticket"
        verdicts = ranked_verdicts(snapshot, served, name, value, leased=kept, until=end)
        sealed(value)
        sealed(tickets)
        carry = _Passes(end, columns.rows, value, columns.attained, tickets)
        return Decision(verdicts, end if waiting else inf, carry)

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
    """Return each job's pass now; without a carry, as if the job had always had its present tickets."""
    columns = snapshot.columns
    if before is None or not len(before.rows):
        return columns.attained / tickets
    at, known = match_rows(before.rows, columns.rows)
    value: Floats = before.value[at] + (columns.attained - before.attained[at]) / before.tickets[at]
    least = value[known & snapshot.possible].min(initial=np.inf)
    value[~known] = least if np.isfinite(least) else 0.0
    return value
