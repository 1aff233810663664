"""The throughput curves of elastic jobs, looked up once for each job and kind and carried to the next decision."""

from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Floats, Indices, Int8s, Int32s
from shoal.core.interfaces import PerfModel
from shoal.core.snapshot import Snapshot
from shoal.policy.carried_rows import match_rows

_SPARE = 1000
"""Curves beyond one for each live job and kind after which the table is made anew."""


@dataclass(frozen=True, slots=True, eq=False)
class CurveTable:
    """By job and kind the index of its curve in ``curves``; −1 for a rigid job.

    A curve is the rate by number of GPUs. Equal curves have one index. Curves were computed from ``perf`` and
    ``basis``, which show which rows are still valid.
    """

    perf: PerfModel
    rows: Indices
    basis: Int32s
    index: Int32s
    curves: tuple[Floats, ...]
    joined: Floats
    """All curves, one after the other."""
    begins: Indices
    """By curve its place in ``joined``."""
    lengths: Indices
    """By curve its numbers of GPUs, 0 included."""

    def rates(self, jobs: Indices, kinds: Indices | Int8s, gpus: Int32s) -> Floats:
        """The rates of these elastic jobs on these kinds and numbers of GPUs, none beyond the job's most."""
        rates: Floats = self.joined[self.begins[self.index[jobs, kinds]] + gpus]
        return rates


def curve_table(snapshot: Snapshot, before: object | None, *, rigid: bool = False) -> CurveTable:
    """Return the curves of a snapshot's elastic jobs, or with ``rigid`` of all jobs; ``before`` is an earlier table."""
    columns, names = snapshot.columns, snapshot.cluster.kinds
    basis = np.stack([columns.batch_size, columns.measured, columns.gpus, columns.min_gpus, columns.max_gpus])
    index = np.full((len(columns), len(names)), -1, dtype=np.int32)
    wanted = np.ones(len(columns), dtype=bool) if rigid else columns.min_gpus < columns.max_gpus
    curves: list[Floats] = []
    joined, begins, lengths = np.zeros(0), np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.intp)
    if isinstance(before, CurveTable) and before.perf is snapshot.perf:
        at, same = match_rows(before.rows, columns.rows)
        if len(before.rows) and len(before.curves) <= len(columns) * len(names) + _SPARE:
            same &= (before.basis[:, at] == basis).all(axis=0)
            index[same], curves, wanted = before.index[at[same]], list(before.curves), wanted & ~same
            joined, begins, lengths = before.joined, before.begins, before.lengths
    new = np.flatnonzero(wanted).tolist()
    known = {curve.tobytes(): c for c, curve in enumerate(curves)} if new else {}
    jobs, perf = snapshot.jobs, snapshot.perf
    for i in new:
        job = jobs.at(i)
        for k, name in enumerate(names):
            curve = perf.curve(job, name)
            index[i, k] = c = known.setdefault(curve.tobytes(), len(curves))
            if c == len(curves):
                curves.append(curve)
    if len(curves) > len(begins):
        joined, lengths = np.concatenate(curves), np.array([len(curve) for curve in curves], dtype=np.intp)
        begins = np.cumsum(lengths) - lengths
    return CurveTable(perf, columns.rows, basis, index, tuple(curves), joined, begins, lengths)
