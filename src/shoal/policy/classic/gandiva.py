"""Gandiva: time slices, packing by trial and error, and migration by profile.

- *Time slicing*: when not all jobs fit, the jobs served change at the end of each quantum, all at the same time; least
  attained service for its weight goes first, which is how Gavel models Gandiva's round robin.
- *Packing* (``space_sharing``): once a quantum, while jobs wait, some of those served are joined on their GPUs by a
  random waiting job of the same gang. After ``trial`` seconds a pair is judged by its measured rates: the sum of each
  one's rate over its rate alone. Above 1 they stay together, in later turns as well; otherwise the one that joined
  leaves, and the pair is not tried again. When no job would have to wait, pairs part.
- *Migration*: a job moves to a kind of GPU that is free and faster by a tenth, if that saves more than a minute;
  without ``migrate`` it does not, as in the baseline that Gavel calls least attained service with Gandiva's sharing.

References: Gandiva (OSDI '18); Gavel (OSDI '20) §7.3 for the model of it.
"""

from dataclasses import dataclass, replace
from math import floor, inf

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices
from shoal.core.decision import Decision, Grant, Verdict, Verdicts
from shoal.core.reasons import Reason, ReasonTemplate, in_words
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds
from shoal.policy.base import MIGRATION, MigrationTuning, Served, check_round, ranked_verdicts, serve
from shoal.policy.classic.trial_pairs import PACKING, PackingTuning, TrialPair, TrialPairsCarry, judged, trials
from shoal.solve.migrations import faster_kinds

PACKED = ReasonTemplate(
    7,
    "PACKED",
    "shares GPUs with {the other job}: together they make {progress of both over that of one alone:,.4g} times the "
    "progress",
)


@dataclass(frozen=True, slots=True)
class GandivaTuning:
    """Constants of packing and migration."""

    packing: PackingTuning = PACKING
    migration: MigrationTuning = MIGRATION


@dataclass(frozen=True, slots=True)
class Gandiva:
    """Slices of ``quantum`` seconds; pairs are judged after ``trial`` seconds."""

    reasons = (PACKED,)
    tuning = GandivaTuning()
    quantum: float = 600.0
    space_sharing: bool = False
    trial: float = 60.0
    migrate: bool = True

    def __post_init__(self) -> None:
        check_round(self.quantum, "quantum")
        if not 1.0 <= self.trial <= self.quantum:
            raise ValueError("trial must be at least 1 second and no longer than the quantum")

    def decide(self, snapshot: Snapshot) -> Decision:
        """Verdicts for this quantum, reviewed when a trial ends, or with the quantum while a job waits."""
        columns, now = snapshot.columns, snapshot.now
        before = snapshot.carry if isinstance(snapshot.carry, TrialPairsCarry) else TrialPairsCarry()
        turn = floor(now / self.quantum)
        attained: Floats = columns.attained / columns.weight
        keeping = (columns.held > 0) & (np.floor(columns.since / self.quantum) == turn)
        line = snapshot.possible.copy()
        served = serve(snapshot, _order(attained, keeping, line))
        waits = bool((served.gpus[line] == 0).any())
        pairs: tuple[TrialPair, ...] = ()
        barred = before.barred
        if waits and self.space_sharing:
            pairs, barred = judged(snapshot, before, self.trial)
            keeping[[snapshot.position_of(guest) for _, guest in barred - before.barred]] = False
            line[[snapshot.position_of(p.guest) for p in pairs]] = False
            served = serve(snapshot, _order(attained, keeping, line))
            if turn != before.turn:
                pairs += trials(snapshot, served.gpus, pairs, barred, self.trial)
        if self.migrate:
            served = _migrated(snapshot, served, [p.host for p in pairs])
        verdicts, ends = _explain(snapshot, served, attained, pairs)
        review_at = min([(turn + 1) * self.quantum if waits else inf, *(end for end in ends if end > now)])
        carry = TrialPairsCarry(turn, pairs, barred)
        return Decision(verdicts, review_at if review_at > now else now + self.trial, carry)


def _order(attained: Floats, keeping: Flags, line: Flags) -> Indices:
    order = np.lexsort((attained, ~keeping))
    return order[line[order]]


def _migrated(snapshot: Snapshot, served: Served, hosts: list[int]) -> Served:
    """Return the same jobs served, with some that run alone moved to a faster kind with free GPUs."""
    columns, granted = snapshot.columns, served.gpus > 0
    if served.kinds is None or not served.free:
        return served
    used = np.bincount(served.kinds[granted], served.gpus[granted], len(snapshot.cluster.kinds))
    movable = granted & (columns.held > 0) & ~np.isin(columns.rows, hosts)
    free = (np.asarray(snapshot.cluster.capacity) - used).astype(np.int32)
    now = np.where(movable, served.kinds, -1).astype(np.int8)
    best = faster_kinds(
        columns.speeds, served.gpus, now, free, columns.remaining, gain=MIGRATION.gain, saves=MIGRATION.saves
    )
    return replace(served, kinds=np.where(movable, best, served.kinds))


def _explain(
    snapshot: Snapshot, served: Served, attained: Floats, pairs: tuple[TrialPair, ...]
) -> tuple[Verdicts, list[Seconds]]:
    """Verdicts in which guests share their hosts' GPUs, and the times at which these pairs are judged."""
    gpus, partners = served.gpus.copy(), np.full(len(served.gpus), -1, dtype=np.int32)
    kinds = np.zeros(len(gpus), dtype=np.int8) if served.kinds is None else served.kinds.copy()
    own: dict[int, Verdict] = {}
    ends: list[Seconds] = []
    for p in pairs:
        i, j = snapshot.position_of(p.host), snapshot.position_of(p.guest)
        if not gpus[i] or snapshot.columns.speeds[j, kinds[i]] <= 0:
            continue
        gpus[j], kinds[j], partners[i], partners[j] = gpus[i], kinds[i], j, i
        ends.append(p.judged_at)
        for member, other in ((i, snapshot.ids[j]), (j, snapshot.ids[i])):
            trial = in_words(f"shares GPUs with {other} on trial until t = {p.judged_at:,.6g} s")
            reason = Reason(PACKED, (other, p.worth)) if p.worth else trial
            own[member] = Grant(int(gpus[i]), snapshot.cluster.kinds[kinds[i]], other, reason=reason)
    alone = ranked_verdicts(snapshot, replace(served, gpus=gpus), "attained service in GPU-seconds", attained)
    if not pairs:
        return alone, ends
    own |= {i: alone.at(i) for i in np.flatnonzero(~snapshot.possible).tolist()}
    kinds[gpus == 0] = -1
    shared = Verdicts(snapshot, gpus=gpus, codes=alone.codes, numbers=alone.numbers, kinds=kinds, partners=partners)
    return shared.overruled(own), ends
