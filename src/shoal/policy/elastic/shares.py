"""The second stage of elastic policies: dividing the free GPUs by a rule, and the verdicts for the shares.

Stage one is ``admission.admit``: the fewest GPUs to each job in some order. ``divided`` then divides the free GPUs,
kind by kind and among elastic jobs only, by the policy's rule.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import gcd
from typing import TypeAlias

import numpy as np

from shoal.core.arrays import Floats, Int32s
from shoal.core.decision import Numbers, Verdicts
from shoal.core.reasons import FITS, NO_ROOM, OUTRANKED
from shoal.core.snapshot import Snapshot
from shoal.policy.base import explained
from shoal.policy.elastic.admission import Admitted
from shoal.policy.elastic.curves import CurveTable
from shoal.policy.shared_reasons import STRETCHED
from shoal.solve.afs_shares import Gains
from shoal.solve.network_packing import packing_units, regulated

Rule: TypeAlias = Callable[[Sequence[int], Sequence[Gains], Sequence[int], int], Sequence[int]]
"""Divides GPUs: (positions, gains by number of GPUs, GPUs of each job, free GPUs) → GPUs of each job after it."""


@lru_cache(maxsize=4096)
def _gains(curve: bytes) -> Gains:
    return Gains.of(np.frombuffer(curve).tolist())


def gains_of(curves: Sequence[Floats]) -> list[Gains]:
    """The gains of one more GPU along each curve; one object for equal curves, since many jobs train the same model."""
    known = {id(curve): curve for curve in curves}
    gains = {same: _gains(curve.tobytes()) for same, curve in known.items()}
    return [gains[id(curve)] for curve in curves]


def fewest_and_lengths(snapshot: Snapshot, table: CurveTable) -> tuple[Int32s, Floats]:
    """By job: the fewest GPUs it can run on, and the seconds it has left on them (infinity when not known).

    Both figures are for the kind the job holds, or else for its fastest kind.
    """
    columns = snapshot.columns
    fewest, lengths = columns.min_gpus.copy(), columns.remaining_seconds.copy()
    elastic = np.flatnonzero(columns.min_gpus < columns.max_gpus)
    if not len(elastic) or not snapshot.cluster.kinds:
        return fewest, lengths
    best = columns.speeds[elastic].argmax(axis=1)
    kinds = np.where(columns.kind[elastic] >= 0, columns.kind[elastic], best)
    rates = table.rates(elastic, kinds, fewest[elastic])
    for at in np.flatnonzero(~(rates > 0)).tolist():
        curve, low = table.curves[table.index[elastic[at], kinds[at]]], int(fewest[elastic[at]])
        while low < len(curve) - 1 and not curve[low] > 0:
            low += 1
        fewest[elastic[at]], rates[at] = low, curve[low]
    seconds = np.full(len(elastic), np.inf)
    np.divide(columns.remaining[elastic], rates, out=seconds, where=rates > 0)
    lengths[elastic] = seconds
    return fewest, lengths


def divided(snapshot: Snapshot, admitted: Admitted, rule: Rule, *, packing: bool = False) -> Int32s:
    """GPUs by job after the rule has divided the free GPUs of each kind among its elastic jobs.

    With ``packing`` shares are then rounded to factors and multiples of the GPUs per machine, their total unchanged.
    """
    gpus = admitted.low.copy()
    for k, free in enumerate(admitted.free):
        here = [i for i in admitted.curves if admitted.kinds[i] == k] if free else []
        if here:
            gains = gains_of([admitted.curves[i] for i in here])
            low = admitted.low[here].tolist()
            shares = rule(here, gains, low, free)
            gpus[here] = _packed(snapshot, k, gains, low, shares) if packing else shares
    return gpus


def _packed(
    snapshot: Snapshot, kind: int, gains: Sequence[Gains], low: Sequence[int], shares: Sequence[int]
) -> Sequence[int]:
    """The rounded shares; a job that rounding would bring below its fewest GPUs keeps its share."""
    machine = gcd(*(node.gpus for node in snapshot.cluster.nodes if node.kind == snapshot.cluster.kinds[kind]))
    units = packing_units(machine, max(shares))
    able = [at for at, share in enumerate(shares) if max((u for u in units if u <= share), default=0) >= low[at]]
    rounded = regulated([shares[at] for at in able], [gains[at].useful(low[at]) for at in able], machine)
    answer = list(shares)
    for at, share in zip(able, rounded, strict=True):
        answer[at] = share
    return answer


def explain(snapshot: Snapshot, admitted: Admitted, gpus: Int32s, name: str, key: Floats) -> Verdicts:
    """Return verdicts for shares that grew from each job's fewest GPUs, in ascending ``key`` (called ``name``)."""
    last, more = np.zeros(len(gpus)), np.zeros(len(gpus))
    codes = np.where(gpus > 0, FITS.code, NO_ROOM.code)
    grown = [i for i in np.flatnonzero(gpus > admitted.low).tolist() if i in admitted.curves]
    for i, k, gains in zip(grown, gpus[grown].tolist(), gains_of([admitted.curves[i] for i in grown]), strict=True):
        codes[i], last[i], more[i] = STRETCHED.code, 100.0 * gains.sooner[k - 1], 100.0 * max(gains.sooner[k], 0.0)
    served = key[gpus > 0]
    cut = float(served.max()) if len(served) else np.inf
    codes[(gpus == 0) & (key > cut)] = OUTRANKED.code
    numbers: Numbers = {
        STRETCHED: (gpus, last, more),
        FITS: (int(gpus.sum()), snapshot.cluster.total_gpus),
        OUTRANKED: (name, key, cut),
        NO_ROOM: (snapshot.columns.min_gpus, _most_left(snapshot, admitted, gpus)),
    }
    return explained(snapshot, gpus, codes, numbers, admitted.kinds)


def _most_left(snapshot: Snapshot, admitted: Admitted, gpus: Int32s) -> int:
    """The most GPUs of any one kind that no job got."""
    capacity = snapshot.cluster.capacity
    used = np.bincount(admitted.kinds[gpus > 0], weights=gpus[gpus > 0], minlength=len(capacity))
    return max((there - int(taken) for there, taken in zip(capacity, used, strict=True)), default=0)
