"""Contention that jobs have met, and the finish-time fairness ρ that each is heading for.

``peak`` is ours: N is the most live jobs at once since the job arrived, over GPUs, and a job's time left is its run
time alone from now on, at its fastest known batch size: (L + W + R) / (P · N). ``mean`` is eq. 9 of the paper: N is the
number of live jobs averaged over the job's life, over GPUs, and its time left is the predicted one under that
contention: (L + W + R · N) / (P · N). N is at least 1 in both.

References: Shockwave (NSDI '23) §6.2, eq. 9; Themis (NSDI '20).
"""

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.columns import sealed
from shoal.core.snapshot import Snapshot
from shoal.policy.carried_rows import match_rows
from shoal.policy.shockwave.carry import JobContention, JobForecasts, ShockwaveCarry
from shoal.policy.shockwave.window_jobs import predicted_rho

MEASURES = ("peak", "mean")
"""Names of the two readings of ρ."""


def met_contention(snapshot: Snapshot, before: ShockwaveCarry | None) -> JobContention:
    """Return the contention that every live job has met, as far as the carry goes back.

    The number of live jobs is constant between two decisions, since each arrival and each end asks for one.
    """
    columns, live = snapshot.columns, int(snapshot.possible.sum())
    peak_jobs = np.full(len(columns.rows), live, dtype=np.int32)
    job_seconds = live * np.maximum(snapshot.now - columns.submitted, 0.0)
    if before is not None:
        at, known = match_rows(before.rows, columns.rows)
        at, met = at[known], before.contention
        peak_jobs[known] = np.maximum(peak_jobs[known], met.peak_jobs[at])
        job_seconds[known] = met.job_seconds[at] + met.jobs * (snapshot.now - met.at)
    for array in (peak_jobs, job_seconds):
        sealed(array)
    return JobContention(snapshot.now, live, peak_jobs, job_seconds)


def heading_for(snapshot: Snapshot, known: JobForecasts, met: JobContention, measure: str) -> Floats:
    """Return by job the ρ at its end by one of ``MEASURES``."""
    columns, gpus = snapshot.columns, max(snapshot.cluster.total_gpus, 1)
    age = snapshot.now - columns.submitted
    if measure == "peak":
        return predicted_rho(age, columns.run_seconds, known.optimistic, met.peak_jobs / gpus)
    mean = np.divide(met.job_seconds, age, out=np.full(len(age), float(met.jobs)), where=age > 0.0)
    contention = np.maximum(mean / gpus, 1.0)
    alone = np.maximum(columns.run_seconds + known.seconds, 1e-9)
    rho: Floats = np.maximum((age + known.seconds * contention) / (alone * contention), 1e-9)
    return rho
