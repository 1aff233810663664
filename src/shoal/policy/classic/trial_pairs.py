"""Gandiva's packing: random pairs of jobs share GPUs on trial and are kept or barred by their measured rates.

References: Gandiva (OSDI '18) §4; Gavel (OSDI '20) §7.3 for the model of it.
"""

from dataclasses import dataclass, replace

import numpy as np

from shoal.core.arrays import Int32s
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds
from shoal.policy.tuning import constant
from shoal.solve.random_pairs import random_pairs


@dataclass(frozen=True, slots=True)
class PackingTuning:
    """Constants of the trials."""

    most_barred: int = constant(10_000, "pairs barred from further trials; beyond that those of the oldest jobs go")
    hosts_per_trial: int = constant(4, "jobs served alone for each new trial at once")


PACKING = PackingTuning()


@dataclass(frozen=True, slots=True)
class TrialPair:
    """Two jobs by admission number, the time they are judged, and their joint worth (0: not known yet).

    The worth is the sum of the fractions of their own rates that the two keep; above 1 sharing pays.
    """

    host: int
    guest: int
    judged_at: Seconds
    worth: float = 0.0


@dataclass(frozen=True, slots=True)
class TrialPairsCarry:
    """The quantum in which pairs were last tried, the pairs that share, and those barred from another trial."""

    turn: int = -1
    pairs: tuple[TrialPair, ...] = ()
    barred: frozenset[tuple[int, int]] = frozenset()


def judged(
    snapshot: Snapshot, carry: TrialPairsCarry, trial: Seconds
) -> tuple[tuple[TrialPair, ...], frozenset[tuple[int, int]]]:
    """The pairs that continue to share, and all barred ones, including those whose trial was interrupted."""
    columns, now = snapshot.columns, snapshot.now
    going: list[TrialPair] = []
    barred = {(a, b) for a, b in carry.barred if snapshot.position_of(a) >= 0 and snapshot.position_of(b) >= 0}
    for p in carry.pairs:
        i, j = snapshot.position_of(p.host), snapshot.position_of(p.guest)
        if i < 0 or j < 0 or not (snapshot.possible[i] and snapshot.possible[j]):
            continue
        measured = columns.rate[i] > 0 and columns.rate[j] > 0
        if columns.partner[i] != p.guest:
            worth = p.worth  # interrupted: it resumes if it was judged good before
        elif now < p.judged_at or not measured:
            going.append(p if measured else replace(p, judged_at=max(p.judged_at, now + trial)))
            continue
        else:
            worth = _kept(snapshot, i) + _kept(snapshot, j)
        if worth > 1.0 + 1e-9:
            going.append(TrialPair(p.host, p.guest, now, worth))
        else:
            barred.add((p.host, p.guest))
    return tuple(going), frozenset(sorted(barred)[-PACKING.most_barred :])


def trials(
    snapshot: Snapshot, gpus: Int32s, pairs: tuple[TrialPair, ...], barred: frozenset[tuple[int, int]], trial: Seconds
) -> tuple[TrialPair, ...]:
    """New pairs, drawn at random: a job served alone, and a waiting job of the same gang."""
    rows, position = snapshot.columns.rows, snapshot.position_of
    alone = ~np.isin(rows, [n for p in pairs for n in (p.host, p.guest)])
    hosts = np.flatnonzero(alone & (gpus > 0))
    waiting = np.flatnonzero(alone & (gpus == 0) & snapshot.possible)
    excluded = {pair for a, b in barred for pair in ((position(a), position(b)), (position(b), position(a)))}
    rng, most = np.random.default_rng([snapshot.seed, snapshot.cycle]), len(hosts) // PACKING.hosts_per_trial + 1
    drawn = random_pairs(rng, hosts, waiting, snapshot.columns.gpus, most=most, barred=excluded)
    return tuple(TrialPair(int(rows[i]), int(rows[j]), snapshot.now + trial) for i, j in drawn)


def _kept(snapshot: Snapshot, i: int) -> float:
    """Return the part of its rate alone that a sharing job keeps; the rate alone is measured, or else estimated."""
    columns = snapshot.columns
    rate, gpus, kind = float(columns.rate[i]), int(columns.held[i]), int(columns.kind[i])
    seen = max((m.rate for m in snapshot.measurements(i) if (m.kind, m.gpus) == (kind, gpus)), default=0.0)
    curve = snapshot.perf.curve(snapshot.jobs.at(i), snapshot.cluster.kinds[kind])
    return rate / (seen if seen > rate * (1.0 + 1e-9) else max(float(curve[gpus]), rate))
