"""Forecasts of all live jobs as columns, recomputed only for jobs that changed."""

from math import isinf

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices
from shoal.core.columns import sealed
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds
from shoal.perf.regime_forecast import RegimeForecast, forecast
from shoal.policy.carried_rows import match_rows
from shoal.policy.shockwave.carry import JobForecasts


def job_forecasts(
    snapshot: Snapshot,
    before: JobForecasts | None,
    rule: str,
    rounds: int,
    seconds: Seconds,
    *,
    renew: bool,
    noise: float = 0.0,
) -> JobForecasts:
    """Every live job's forecast; with ``renew`` jobs that ran, adapted or were measured since get a new one.

    With ``noise`` p, run times are off by a factor from 1 − p to 1 + p.
    """
    columns, count = snapshot.columns, len(snapshot.columns)
    exact = np.stack([columns.done, np.zeros(count), np.zeros(count), np.zeros(count)])
    keys = np.stack([columns.batch_size, columns.measured])
    gained = np.zeros((count, rounds + 1))
    fresh = snapshot.possible.copy()
    if before is not None and before.gained.shape[1] == rounds + 1:
        at, known = _kept(snapshot, before, renew)
        exact[:, known] = np.stack([before.done, before.seconds, before.optimistic, before.whole])[:, at]
        keys[:, known] = np.stack([before.batches, before.measured])[:, at]
        gained[known] = before.gained[at]
        fresh &= ~known
    done, left, optimistic, whole = exact
    jobs = snapshot.jobs
    ends: Floats = np.arange(rounds + 1, dtype=np.float64) * float(seconds)
    for i in np.flatnonzero(fresh).tolist():
        job = jobs.at(i)
        ahead = forecast(snapshot, job, rule, noise)
        if isinf(ahead.seconds):  # a batch size that it declared or is predicted fits nowhere; the present one does
            ahead = forecast(snapshot, job, "reactive", noise)
        left[i], optimistic[i], whole[i] = ahead.seconds, ahead.optimistic, job.done + ahead.work
        gained[i] = work_by_round(ahead, ends)
    for array in (exact, keys, gained):
        sealed(array)
    return JobForecasts(columns.rows, done, keys[0], keys[1], left, optimistic, whole, gained)


def _kept(snapshot: Snapshot, before: JobForecasts, renew: bool) -> tuple[Indices, Flags]:
    """Return positions of the forecasts that still hold, and which jobs have one; a job that could not run has none."""
    columns = snapshot.columns
    at, known = match_rows(before.rows, columns.rows)
    known &= before.whole[at] > 0.0
    if renew:
        known &= before.done[at] == columns.done
        known &= (before.batches[at] == columns.batch_size) & (before.measured[at] == columns.measured)
    return at[known], known


def work_by_round(ahead: RegimeForecast, ends: Floats) -> Floats:
    """Return the work done by the end of each round; a job's last round counts as a full round of work."""
    times, works = [0.0], [0.0]
    for regime in ahead.ahead:
        times.append(times[-1] + regime.seconds)
        works.append(works[-1] + regime.work)
    end = times[-1]
    whole = max(float(np.ceil(end / ends.item(1) - 1e-9)) * ends.item(1), end)
    table: Floats = np.interp(ends, [*times, whole], [*works, works[-1] + (whole - end) * ahead.ahead[-1].rate])
    return table
