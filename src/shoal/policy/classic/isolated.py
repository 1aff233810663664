"""Isolated: every job runs as if it owned exactly 1/n of the cluster, n being the number of live jobs.

A job of gang g earns min(g, G/n) GPU-seconds a second and can spend them only in whole gangs, so it runs in some
rounds and not in others: it runs if that leaves it closer to what it has earned by the end of the round than waiting
would. GPUs that no job has earned stay idle, since this policy defines the fairness metric ``rho_isolated`` and is not
a way to run a cluster. Received service stays within about a round of what was earned wherever whole gangs can be
packed so; where they cannot (gangs of 8 and 1 on 8 GPUs), the jobs owed the most rounds go first. A job that declares
less than a round's work left is weighed by what is left.

G counts GPUs of every kind alike, and a job runs on the fastest kind with enough free GPUs. Earnings are carried from
one decision to the next; without them, the present share is assumed since each job was submitted.

References: Gavel (OSDI '20) §4.1 and Pollux (OSDI '21) §5.3 divide by the completion time under such a share.
"""

from dataclasses import dataclass
from math import ceil, inf

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices
from shoal.core.columns import sealed
from shoal.core.decision import Decision, Numbers
from shoal.core.reasons import NO_ROOM, ReasonTemplate
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds
from shoal.policy.base import check_round, explained, round_end, serve
from shoal.policy.carried_rows import match_rows
from shoal.policy.shared_reasons import FAIR_SHARE

SHARE_TOO_SMALL = ReasonTemplate(
    26,
    "SHARE_TOO_SMALL",
    "waits: its share is {GPUs of its share:,.4g} GPUs, it needs {GPUs it needs:,.0f}",
)


@dataclass(frozen=True, slots=True, eq=False)
class _Earnings:
    """The end of the round, and by job the GPU-seconds earned until ``at`` and those earned per second since then."""

    end: Seconds
    at: Seconds
    rows: Indices
    earned: Floats
    share: Floats


@dataclass(frozen=True, slots=True)
class Isolated:
    """Runs each job by rounds until it has received its 1/n of the cluster's GPU-seconds, and no longer."""

    reasons = (FAIR_SHARE, SHARE_TOO_SMALL)
    round: float = 360.0

    def __post_init__(self) -> None:
        check_round(self.round)

    def decide(self, snapshot: Snapshot) -> Decision:
        """Verdicts by what each job has earned, reviewed at the end of the round unless all jobs have their gangs."""
        columns, now = snapshot.columns, snapshot.now
        gang, able = columns.gpus, snapshot.possible
        before = snapshot.carry if isinstance(snapshot.carry, _Earnings) else None
        inside = before is not None and now < before.end
        end = before.end if before is not None and inside else round_end(now, self.round)
        kept = columns.held > 0 if inside else np.zeros(len(columns), dtype=bool)
        equal = snapshot.cluster.total_gpus / max(int(able.sum()), 1)
        share: Floats = np.where(able, np.minimum(gang, equal), 0.0)
        earned = _earned(snapshot, before, share)
        owed = (earned - columns.attained + share * (end - now)) / gang
        unit = np.minimum(end - now, columns.remaining_seconds)
        # A whole gang can come no closer to its share than half a unit either way.
        due = able & (owed >= unit / 2)
        line = np.flatnonzero(kept | due)
        served = serve(snapshot, line[np.lexsort((-owed[line], ~kept[line]))])
        granted = served.gpus > 0
        codes = np.where(due, NO_ROOM.code, SHARE_TOO_SMALL.code)
        codes[granted] = FAIR_SHARE.code
        numbers: Numbers = {
            FAIR_SHARE: (share, equal),
            SHARE_TOO_SMALL: (share, gang),
            NO_ROOM: (gang, float(served.free)),
        }
        sealed(earned)
        sealed(share)
        carry = _Earnings(end, now, columns.rows, earned, share)
        verdicts = explained(snapshot, served.gpus, codes, numbers, served.kinds)
        return Decision(verdicts, self._review(snapshot, granted, share, owed, end), carry)

    def _review(self, snapshot: Snapshot, granted: Flags, share: Floats, owed: Floats, end: Seconds) -> Seconds:
        """Return the next round end that can change a verdict: infinity if all have gangs, a later end if none runs."""
        gang, able = snapshot.columns.gpus, share > 0
        if (granted | ~able).all() and (share[able] == gang[able]).all():
            return inf
        if granted.any():
            return end
        unit = np.minimum(self.round, snapshot.columns.remaining_seconds[able])
        rounds = (unit / 2 - owed[able]) * gang[able] / (share[able] * self.round) - 1
        return end + max(ceil(float(rounds.min())), 0) * self.round


def _earned(snapshot: Snapshot, before: _Earnings | None, share: Floats) -> Floats:
    """Return the GPU-seconds that each job has earned until now."""
    columns, now = snapshot.columns, snapshot.now
    earned: Floats = share * (now - columns.submitted)
    if before is not None:
        at, known = match_rows(before.rows, columns.rows)
        at = at[known]
        earned[known] = before.earned[at] + before.share[at] * (now - before.at)
    return earned
