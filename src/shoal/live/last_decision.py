"""The last decision, kept for asking: what each job was told, whether that was news, and what would change it."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from shoal.core.arrays import Flags
from shoal.core.decision import Verdicts
from shoal.core.lifecycle import JobState
from shoal.core.reasons import NO_KIND
from shoal.core.snapshot import Snapshot
from shoal.core.units import JobNumber
from shoal.live.accounts import Account

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]*")


@dataclass(slots=True)
class LastDecision:
    """A moment and its verdicts. ``news`` marks, by position, the jobs whose verdict is of another kind than before."""

    snapshot: Snapshot
    verdicts: Verdicts
    carry: object | None = None
    """What the policy remembers of it."""
    news: Flags = field(init=False)

    def __post_init__(self) -> None:
        self.news = np.ones(len(self.verdicts.gpus), dtype=bool)

    def remember(self, before: "LastDecision") -> None:
        """Count as news only what differs from the board before in its code or its GPUs."""
        mine, theirs = self.snapshot.columns.rows, before.snapshot.columns.rows
        if not len(theirs) or not len(mine):
            return
        at = np.minimum(np.searchsorted(theirs, mine), len(theirs) - 1)
        same = theirs[at] == mine
        same &= self.verdicts.codes == before.verdicts.codes[at]
        same &= self.verdicts.gpus == before.verdicts.gpus[at]
        self.news = ~same

    def sentence(self, job: JobNumber) -> str | None:
        """What a job was told; None if it was not there yet."""
        at = self.snapshot.position_of(job)
        return None if at < 0 else self.verdicts.reason(at).sentence()

    def partner(self, job: JobNumber) -> JobNumber | None:
        """The job it shares GPUs with."""
        at = self.snapshot.position_of(job)
        if at < 0 or self.verdicts.partners is None or self.verdicts.partners[at] < 0:
            return None
        return int(self.snapshot.columns.rows[self.verdicts.partners[at]])

    def change(self, account: Account, seated: Sequence[Account]) -> str:
        """What would change a job's fortune, in a sentence; empty where nothing is amiss. ``seated`` hold the GPUs."""
        if account.state is JobState.HELD:
            return "`shoal logs` shows what it said before it died; `shoal cancel` ends the tries"
        at = self.snapshot.position_of(account.number)
        if at < 0 or self.verdicts.gpus[at] or not account.live:
            return ""
        cluster, speeds, wanted = self.snapshot.cluster, self.snapshot.columns.speeds[at], account.spec.gpus
        usable = [k for k in range(len(cluster.kinds)) if speeds[k] > 0]
        most = max((cluster.capacity[k] for k in usable), default=0)
        if self.verdicts.codes[at] == NO_KIND.code:
            return f"it would run if its `kinds` named one of {', '.join(cluster.kinds)}"
        if not most:
            return "it would run when a node it can use comes up (`shoal nodes`)"
        if wanted > most:
            return f"it would run on {most} GPUs or fewer (`shoal resize`), or when more nodes come up"
        ahead = [a for a in seated if a.placement is not None and cluster.kind_of(a.placement) in usable]
        free = {k: cluster.capacity[k] for k in usable}
        for other in ahead:
            assert other.placement is not None
            partner = self.partner(other.number)
            if partner is not None and partner < other.number:
                continue  # they share the same GPUs
            free[cluster.kind_of(other.placement)] -= other.placement.gpus
        room = max(free.values())
        if room < wanted:
            return f"it would start when {_gpus(wanted - room)} more come free: {self._next_end(ahead)}"
        return f"there is room for it, {_gpus(room)} free, but others are before it: {self._next_end(ahead)}"

    def _next_end(self, ahead: Sequence[Account]) -> str:
        if not ahead:
            return "nothing runs there now"
        places = [self.snapshot.position_of(account.number) for account in ahead]
        left = [float(self.snapshot.columns.remaining_seconds[at]) for at in places if at >= 0]
        soonest = min(left, default=inf)
        when = f"the next is expected to end in {soonest:,.0f} s" if soonest < inf else "none says when it ends"
        return f"{len(ahead)} job{'s hold' if len(ahead) > 1 else ' holds'} GPUs there, {when}"

    @staticmethod
    def veil(sentence: str, hidden: Callable[[str], bool]) -> str:
        """The sentence with every word that is hidden replaced."""
        return _WORD.sub(lambda word: "another job" if hidden(word[0]) else word[0], sentence)


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count != 1)}"
