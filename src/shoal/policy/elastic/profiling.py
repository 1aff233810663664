"""Learning the throughput of elastic jobs while they train: overestimate first, re-adjust later.

A job without measurements is assumed to scale linearly, and gets at most an equal part of the GPUs. Once it runs,
its share shrinks to each smaller allocatable one in turn, long enough to measure it; the GPUs it does not use meanwhile
stay reserved for it. Between measured shares its throughput is interpolated, beyond the largest it is linear again, and
GPUs are divided afresh by the new curve. All of this follows from the measurements in the snapshot; nothing is carried.

Reference: AFS (NSDI '21) §4.5.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement
from shoal.policy.elastic.admission import Admitted
from shoal.solve.network_packing import packing_units

_OWN = frozenset(("measured", "extrapolated", "unknown"))
"""Bases of estimates of a speed model that knows only the job's own measurements."""


@dataclass(frozen=True, slots=True)
class LearnedCurves:
    """Admitted jobs with their measured curves, and by job the smaller share on which it is to be measured now.

    ``open``: whether measuring continues, because a job is on trial or was never measured.
    """

    admitted: Admitted
    trials: Mapping[int, int]
    open: bool


def learned_curves(snapshot: Snapshot, admitted: Admitted) -> LearnedCurves:
    """Return curves from measurements, or the admitted jobs as they are if the speed model knows their curves."""
    if not admitted.curves or not _only_measures(snapshot, admitted):
        return LearnedCurves(admitted, {}, open=False)
    curves, trials, unmeasured = dict[int, Floats](), dict[int, int](), False
    jobs_of_kind = np.bincount(admitted.kinds[admitted.kinds >= 0], minlength=len(snapshot.cluster.kinds))
    for i, guess in admitted.curves.items():
        kind, low = int(admitted.kinds[i]), int(admitted.low[i])
        seen = _seen(snapshot, i, kind)
        if not seen:
            equal = snapshot.cluster.capacity[kind] // max(int(jobs_of_kind[kind]), 1)
            curves[i], unmeasured = _flat_from(guess, max(equal, low)), True
            continue
        curves[i], most = _through(seen, len(guess)), max(seen)
        units = packing_units(snapshot.cluster.node_size[kind], most - 1)
        unseen = [unit for unit in units if unit >= low and unit not in seen]
        if unseen:
            curves[i], trials[i] = _flat_from(curves[i], most), unseen[-1]
    return LearnedCurves(replace(admitted, curves=curves), trials, open=unmeasured or bool(trials))


def _only_measures(snapshot: Snapshot, admitted: Admitted) -> bool:
    i = next(iter(admitted.curves))
    node = snapshot.cluster.node_kind.index(int(admitted.kinds[i]))
    return snapshot.perf.rate(snapshot.jobs.at(i), Placement(((node, 1),))).basis in _OWN


def _seen(snapshot: Snapshot, i: int, kind: int) -> dict[int, float]:
    """Return, by number of GPUs of a kind, the rate last measured at the job's present batch size."""
    size = snapshot.jobs.at(i).batch_size or 0
    found: dict[int, float] = {}
    for m in snapshot.measurements(i):
        if m.kind == kind and m.rate > 0 and size in (0, m.batch_size):
            found.setdefault(m.gpus, m.rate)
    return found


def _through(seen: Mapping[int, float], length: int) -> Floats:
    """The curve through measured rates: linear between them, and beyond the largest in proportion to the GPUs."""
    counts = sorted(seen)
    k = np.arange(length)
    curve: Floats = np.interp(k, [0, *counts], [0.0, *(seen[n] for n in counts)])
    beyond = k > counts[-1]
    curve[beyond] = seen[counts[-1]] * k[beyond] / counts[-1]
    return curve


def _flat_from(curve: Floats, most: int) -> Floats:
    flat = curve.copy()
    flat[most + 1 :] = flat[min(most, len(flat) - 1)]
    return flat
