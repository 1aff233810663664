"""Isolated: every job as if it owned exactly 1/n of the cluster, n being the jobs that are there.

A job of gang g earns min(g, G/n) GPU-seconds a second and can spend them only in whole gangs, so it runs some rounds
and not others: each time, it runs if that leaves it nearer to what it has earned by the end of the round than not
running would. GPUs that nobody has earned stay idle; that is the point, since this is the yardstick for fairness
(``rho_isolated``), not a way to run a cluster. Received service stays within about a round of what was earned wherever
whole gangs can be packed so; where they cannot (gangs of 8 and 1 on 8 GPUs), those owed the most rounds go first.
A job with less than a round's work left, if it says so, is weighed by what is left.

G counts GPUs of every kind alike, and a job runs on the fastest kind with room. What was earned is carried from one
decision to the next; without it, today's share is taken to have held since each job was submitted.

References: Gavel (OSDI '20) §4.1 and Pollux (OSDI '21) §5.3 divide by the completion time under such a share.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices
from shoal.core.decision import Decision, Numbers
from shoal.core.reasons import NO_ROOM, ReasonTemplate
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds
from shoal.policy.base import check_round, explained, round_end, serve
from shoal.policy.shared_reasons import FAIR_SHARE

SHARE_TOO_SMALL = ReasonTemplate(
    26,
    "SHARE_TOO_SMALL",
    "waits: its share is {0:,.4g} GPUs, it needs {1:,.0f}",
    ("GPUs of its share", "GPUs it needs"),
)


@dataclass(frozen=True, slots=True, eq=False)
class _Ledger:
    """When the round ends, and by admission number: what was earned until ``at``, and how fast since then."""

    end: Seconds
    at: Seconds
    rows: Indices
    earned: Floats
    share: Floats


@dataclass(frozen=True, slots=True)
class Isolated:
    """Runs each job for its 1/n and no longer, by rounds."""

    reasons = (FAIR_SHARE, SHARE_TOO_SMALL)
    round: float = 360.0

    def __post_init__(self) -> None:
        check_round(self.round)

    def decide(self, snapshot: Snapshot) -> Decision:
        """A verdict for every live job, reviewed when the round ends unless all have their gangs; carries a ledger."""
        columns, now = snapshot.columns, snapshot.now
        gang, able = columns.gpus, snapshot.possible
        before = snapshot.carry if isinstance(snapshot.carry, _Ledger) else None
        inside = before is not None and now < before.end
        end = before.end if before is not None and inside else round_end(now, self.round)
        kept = columns.held > 0 if inside else np.zeros(len(columns), dtype=bool)
        equal = snapshot.cluster.total_gpus / max(int(able.sum()), 1)
        share: Floats = np.where(able, np.minimum(gang, equal), 0.0)
        earned = _earned(snapshot, before, share)
        owed = (earned - columns.attained + share * (end - now)) / gang
        unit = np.minimum(end - now, columns.remaining_seconds)
        # Half a unit either way is the nearest a whole gang comes to its share.
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
        for array in (earned, share):
            array.flags.writeable = False
        carry = _Ledger(end, now, columns.rows, earned, share)
        verdicts = explained(snapshot, served.gpus, codes, numbers, served.kinds)
        return Decision(verdicts, self._review(snapshot, granted, share, owed, end), carry)

    def _review(
        self,
        snapshot: Snapshot,
        granted: Flags,
        share: Floats,
        owed: Floats,
        end: Seconds,
    ) -> Seconds:
        """When rounds next make a difference: never if all have their gangs, later if nobody has earned a turn."""
        gang, able = snapshot.columns.gpus, share > 0
        if (granted | ~able).all() and (share[able] == gang[able]).all():
            return float("inf")
        if granted.any():
            return end
        unit = np.minimum(self.round, snapshot.columns.remaining_seconds[able])
        rounds = (unit / 2 - owed[able]) * gang[able] / (share[able] * self.round) - 1
        return end + max(ceil(float(rounds.min())), 0) * self.round


def _earned(snapshot: Snapshot, before: _Ledger | None, share: Floats) -> Floats:
    """GPU-seconds each job has earned until now."""
    columns, now = snapshot.columns, snapshot.now
    earned: Floats = share * (now - columns.submitted)
    if before is not None and len(before.rows):
        at = np.minimum(np.searchsorted(before.rows, columns.rows), len(before.rows) - 1)
        known = before.rows[at] == columns.rows
        earned[known] = (before.earned[at] + before.share[at] * (now - before.at))[known]
    return earned
