"""Gandiva's packing: pairs tried at random, judged by what was measured, kept or remembered as bad.

References: Gandiva (OSDI '18) §4; Gavel (OSDI '20) §7.3 for the model of it.
"""

from dataclasses import dataclass, replace

import numpy as np

from shoal.core.arrays import Int32s
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds
from shoal.solve.random_pairs import random_pairs

_MOST_BAD = 10_000
"""Pairs remembered as bad; beyond that those of the oldest jobs are forgotten."""

_TRIED = 4
"""At most one in so many of the jobs served is joined by somebody new at once."""


@dataclass(frozen=True, slots=True)
class TrialPair:
    """Two jobs by admission number, when they are judged, and what they were worth together (0: not known yet)."""

    host: int
    guest: int
    judged_at: Seconds
    worth: float = 0.0


@dataclass(frozen=True, slots=True)
class TrialPairsCarry:
    """The quantum in which pairs were last tried, those that share, and those not to be tried again."""

    turn: int = -1
    pairs: tuple[TrialPair, ...] = ()
    bad: frozenset[tuple[int, int]] = frozenset()


def judged(
    snapshot: Snapshot, memory: TrialPairsCarry, trial: Seconds
) -> tuple[tuple[TrialPair, ...], frozenset[tuple[int, int]]]:
    """The pairs to go on with, and all that are known as bad: a trial that broke off is."""
    columns, now = snapshot.columns, snapshot.now
    going: list[TrialPair] = []
    bad = {(a, b) for a, b in memory.bad if snapshot.position_of(a) >= 0 and snapshot.position_of(b) >= 0}
    for p in memory.pairs:
        i, j = snapshot.position_of(p.host), snapshot.position_of(p.guest)
        if i < 0 or j < 0 or not (snapshot.possible[i] and snapshot.possible[j]):
            continue
        measured = columns.rate[i] > 0 and columns.rate[j] > 0
        if columns.partner[i] != p.guest:
            worth = p.worth  # suspended, to be resumed together, unless it was never seen to be good
        elif now < p.judged_at or not measured:
            going.append(p if measured else replace(p, judged_at=max(p.judged_at, now + trial)))
            continue
        else:
            worth = _kept(snapshot, i) + _kept(snapshot, j)
        if worth > 1.0 + 1e-9:
            going.append(TrialPair(p.host, p.guest, now, worth))
        else:
            bad.add((p.host, p.guest))
    return tuple(going), frozenset(sorted(bad)[-_MOST_BAD:])


def trials(
    snapshot: Snapshot, gpus: Int32s, pairs: tuple[TrialPair, ...], bad: frozenset[tuple[int, int]], trial: Seconds
) -> tuple[TrialPair, ...]:
    """New pairs: somebody served alone, and somebody of the same gang who waits."""
    rows, position = snapshot.columns.rows, snapshot.position_of
    alone = ~np.isin(rows, [n for p in pairs for n in (p.host, p.guest)])
    hosts = np.flatnonzero(alone & (gpus > 0))
    waiting = np.flatnonzero(alone & (gpus == 0) & snapshot.possible)
    barred = {pair for a, b in bad for pair in ((position(a), position(b)), (position(b), position(a)))}
    chance = np.random.default_rng([snapshot.seed, snapshot.cycle])
    drawn = random_pairs(chance, hosts, waiting, snapshot.columns.gpus, most=len(hosts) // _TRIED + 1, barred=barred)
    return tuple(TrialPair(int(rows[i]), int(rows[j]), snapshot.now + trial) for i, j in drawn)


def _kept(snapshot: Snapshot, i: int) -> float:
    """What part of its rate alone a sharing job keeps; alone it was measured on such seats before, or is estimated."""
    columns = snapshot.columns
    rate, gpus, kind = float(columns.rate[i]), int(columns.held[i]), int(columns.kind[i])
    seen = max((m.rate for m in snapshot.measurements(i) if (m.kind, m.gpus) == (kind, gpus)), default=0.0)
    curve = snapshot.perf.curve(snapshot.jobs.at(i), snapshot.cluster.kinds[kind])
    return rate / (seen if seen > rate * (1.0 + 1e-9) else max(float(curve[gpus]), rate))
