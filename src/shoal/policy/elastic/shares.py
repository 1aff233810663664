"""What elastic policies of this house share: how long jobs would take on few GPUs, and saying what a share rests on.

Stage one is ``admit``: the fewest GPUs to each in some order. What is left is then divided by ``divided``, kind by kind
and among elastic jobs only, by whatever rule the policy has.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import gcd
from typing import TypeAlias

import numpy as np

from shoal.core.arrays import Floats, Int32s
from shoal.core.decision import NumberColumn, Verdicts
from shoal.core.reasons import FITS, NO_ROOM, OUTRANKED, ReasonTemplate
from shoal.core.snapshot import Snapshot
from shoal.policy.base import explained
from shoal.policy.elastic.max_min import Admitted
from shoal.policy.shared_reasons import STRETCHED
from shoal.solve.afs_shares import Gains
from shoal.solve.network_packing import packing_units, regulated

Rule: TypeAlias = Callable[[Sequence[int], Sequence[Gains], Sequence[int], int], Sequence[int]]
"""Divides GPUs: (positions, what each gains by how many, what each has, GPUs left) → what each then has."""


@lru_cache(maxsize=4096)
def _gains(curve: bytes) -> Gains:
    return Gains.of(np.frombuffer(curve).tolist())


def gains_of(curve: Floats) -> Gains:
    """What one more GPU gains along a curve; remembered, since many jobs train the same model."""
    return _gains(curve.tobytes())


def fewest_and_lengths(snapshot: Snapshot) -> tuple[Int32s, Floats]:
    """By job: the fewest GPUs it would run on, and the seconds it then has left; infinity when that is not known.

    Judged on the kind it holds, or else on the one it is fastest on.
    """
    columns, jobs, names = snapshot.columns, snapshot.jobs, snapshot.cluster.kinds
    fewest, lengths = columns.min_gpus.copy(), columns.remaining_seconds.copy()
    elastic = np.flatnonzero(columns.min_gpus < columns.max_gpus)
    if not len(elastic) or not names:
        return fewest, lengths
    best = columns.speeds[elastic].argmax(axis=1)
    kinds = np.where(columns.kind[elastic] >= 0, columns.kind[elastic], best).tolist()
    rates = np.empty(len(elastic))
    for at, (i, k) in enumerate(zip(elastic.tolist(), kinds, strict=True)):
        curve, low = snapshot.perf.curve(jobs.at(i), names[k]), int(fewest[i])
        while low < len(curve) - 1 and not curve[low] > 0:
            low += 1
        fewest[i], rates[at] = low, curve[low]
    seconds = np.full(len(elastic), np.inf)
    np.divide(columns.remaining[elastic], rates, out=seconds, where=rates > 0)
    lengths[elastic] = seconds
    return fewest, lengths


def divided(snapshot: Snapshot, admitted: Admitted, rule: Rule, *, packing: bool = False) -> Int32s:
    """GPUs by job after the rule has divided what stage one left of each kind among its elastic jobs.

    With ``packing`` shares are then rounded to factors and multiples of the GPUs per machine, their total unchanged.
    """
    gpus = admitted.low.copy()
    for k, free in enumerate(admitted.free):
        here = [i for i in admitted.curves if admitted.kinds[i] == k] if free else []
        if here:
            gains = [gains_of(admitted.curves[i]) for i in here]
            low = admitted.low[here].tolist()
            shares = rule(here, gains, low, free)
            gpus[here] = _packed(snapshot, k, gains, low, shares) if packing else shares
    return gpus


def _packed(
    snapshot: Snapshot, kind: int, gains: Sequence[Gains], low: Sequence[int], shares: Sequence[int]
) -> Sequence[int]:
    """The shares regulated; a job that the rounding would bring below its fewest GPUs keeps its share as it is."""
    machine = gcd(*(node.gpus for node in snapshot.cluster.nodes if node.kind == snapshot.cluster.kinds[kind]))
    units = packing_units(machine, max(shares))
    able = [at for at, share in enumerate(shares) if max((u for u in units if u <= share), default=0) >= low[at]]
    rounded = regulated([shares[at] for at in able], [gains[at].useful(low[at]) for at in able], machine)
    answer = list(shares)
    for at, share in zip(able, rounded, strict=True):
        answer[at] = share
    return answer


def told(snapshot: Snapshot, admitted: Admitted, gpus: Int32s, name: str, key: Floats) -> Verdicts:
    """Verdicts for shares that grew from the fewest GPUs, given in ascending ``key`` (called ``name``)."""
    last, more = np.zeros(len(gpus)), np.zeros(len(gpus))
    codes = np.where(gpus > 0, FITS.code, NO_ROOM.code)
    for i, curve in admitted.curves.items():
        k = int(gpus[i])
        if k > admitted.low[i]:
            sooner = gains_of(curve).sooner
            codes[i], last[i], more[i] = STRETCHED.code, 100.0 * sooner[k - 1], 100.0 * max(sooner[k], 0.0)
    served = key[gpus > 0]
    cut = float(served.max()) if len(served) else np.inf
    codes[(gpus == 0) & (key > cut)] = OUTRANKED.code
    numbers: dict[ReasonTemplate, tuple[NumberColumn, ...]] = {
        STRETCHED: (gpus, last, more),
        FITS: (int(gpus.sum()), snapshot.cluster.total_gpus),
        OUTRANKED: (name, key, cut),
        NO_ROOM: (snapshot.columns.min_gpus, _most_left(snapshot, admitted, gpus)),
    }
    return explained(snapshot, gpus, codes, numbers, admitted.kinds)


def _most_left(snapshot: Snapshot, admitted: Admitted, gpus: Int32s) -> int:
    """The most GPUs of any one kind that nobody got."""
    capacity = snapshot.cluster.capacity
    used = np.bincount(admitted.kinds[gpus > 0], weights=gpus[gpus > 0], minlength=len(capacity))
    return max((there - int(taken) for there, taken in zip(capacity, used, strict=True)), default=0)
