"""The figures of jobs and of a run: the rows of ``jobs.parquet`` and the figures of ``summary.json``.

Finish-time fairness ρ has four definitions, each reported by its name. All are the job completion time (JCT) over what
it would have been with some notion of a fair share, so above 1 is worse than fair:

- ``themis``: JCT / (T_cluster · N_avg). Read per job: T_cluster is the job's completion time were only the jobs of its
  app submitted (sharing the cluster equally among themselves), N_avg the number of apps with a live job, averaged over
  the job's own life. A job without an app is an app of one, whose T_cluster is its exclusive run time.
- ``isolated``: JCT / JCT in a separate run of the whole trace in which each of the n jobs then live holds exactly 1/n
  of the GPUs of each kind, and uses no more than its gang. Cancelled and failed jobs take no part in that run.
- ``contention``: JCT / (exclusive run time · max(1, jobs in the trace / GPUs)).
- ``shockwave``: JCT / (exclusive run time · contention), contention being GPUs asked for by live jobs over all GPUs,
  averaged over the job's life and at least 1.

References: Mahajan et al., NSDI 2020 (eq. 1); Narayanan et al., OSDI 2020 (§4.2); Zheng et al., NSDI 2023 (eq. 9).
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shoal.core.arrays import Flags, Floats, Int64s
from shoal.core.lifecycle import JobState
from shoal.core.units import JobId, TenantId
from shoal.perf.catalog import Catalog, catalog
from shoal.report.apps import app_table, live_apps, searched_together
from shoal.report.history import History
from shoal.report.isolated_run import Alone, run_alone
from shoal.report.processor_sharing import share_equally
from shoal.report.step_functions import Steps

DEFINITIONS = ("themis", "isolated", "contention", "shockwave")
"""The names of the four definitions of finish-time fairness."""

THRESHOLDS = (1.0, 1.05, 1.1)
"""The values of ρ above which a summary counts jobs."""

_ROUNDING = 1e-9
"""Fraction by which ρ must exceed a threshold: times are sums of many floating-point numbers."""

UNFAIR_ABOVE = 1.0
"""The threshold of every table: a job whose isolated ρ exceeds it had less than a fair share."""

_IDENTITY = ("policy", "seed", "cluster", "workload", "knowledge")
"""Settings of a journal's header that a summary has at its top level."""

Summary: TypeAlias = dict[str, Any]
"""The figures of a run as in ``summary.json``; None where there is none."""


@dataclass(frozen=True, slots=True)
class JobResults:
    """One row per job, by admission number; times in seconds, NaN for what never happened or cannot be known.

    ``restarts`` counts starts after the first and resizes; ``gpu_seconds`` are those held, a shared GPU counting for
    each holder; ``queueing`` the time live without GPUs; ``exclusive`` the run time alone in the cluster; ``rho`` has a
    column for each of ``DEFINITIONS``.
    """

    id: list[JobId]
    tenant: list[TenantId]
    submitted: Floats
    started: Floats
    completed: Floats
    jct: Floats
    gpus: Int64s
    restarts: Int64s
    gpu_seconds: Floats
    queueing: Floats
    exclusive: Floats
    rho: Mapping[str, Floats]

    def __len__(self) -> int:
        return len(self.id)

    def rows(self) -> list[dict[str, Any]]:
        """The rows as dictionaries, None in place of NaN, as ``--per-job`` prints them."""
        columns = {f.name: _plain(getattr(self, f.name)) for f in fields(self) if f.name != "rho"}
        rhos = zip(*map(_plain, self.rho.values()), strict=True)
        columns["rho"] = [dict(zip(self.rho, values, strict=True)) for values in rhos]
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _plain(values: list[str] | NDArray[Any]) -> list[Any]:
    if isinstance(values, list):
        return values
    return [None if value != value else value for value in values.tolist()]  # noqa: PLR0124  NaN


def job_table(history: History, known: Catalog | None = None) -> JobResults:
    """Return the figures of each job; ``known`` is the catalogue of its speeds, the built-in one unless given."""
    holds, count = history.holds, len(history)
    starts = np.bincount(holds.job, minlength=count)
    for job, times in history.resumed.items():  # a suspended run is not started again
        starts[job] -= times
    started = np.full(count, np.nan)
    started[holds.job[::-1]] = holds.since[::-1]
    run_seconds = _sums(holds.job, holds.until - holds.since, count)
    completed = np.where(history.completed, history.ended, np.nan)
    jct = completed - history.submitted
    alone = run_alone(history, known or catalog())
    return JobResults(
        id=history.ids,
        tenant=history.tenants,
        submitted=history.submitted,
        started=started,
        completed=completed,
        jct=jct,
        gpus=history.gpus,
        restarts=np.maximum(starts - 1, 0),
        gpu_seconds=_sums(holds.job, holds.gpu_seconds, count),
        queueing=np.maximum(history.live_until - history.submitted - run_seconds, 0.0),
        exclusive=alone.exclusive,
        rho=_fairness(history, jct, alone),
    )


def _sums(jobs: Int64s, values: Floats, count: int) -> Floats:
    return np.asarray(np.bincount(jobs, weights=values, minlength=count), dtype=np.float64)


def _fairness(history: History, jct: Floats, alone: Alone) -> dict[str, Floats]:
    """Return ρ by definition; NaN for a live run, whose jobs' lengths on other GPUs nothing has measured."""
    if "epoch" in history.settings:
        return {name: np.full(len(history), np.nan) for name in DEFINITIONS}
    gpus, exclusive = sum(history.topology.installed), alone.exclusive
    lives = history.submitted, history.live_until
    demand = Steps.of(*lives, history.gpus.astype(np.float64)).mean(*lives)
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "themis": jct / (_alone_with_app(history, exclusive, gpus) * live_apps(history).mean(*lives)),
            "isolated": jct / (_in_isolation(history, alone.spread, gpus) - history.submitted),
            "contention": jct / (exclusive * max(1.0, len(history) / gpus)),
            "shockwave": jct / (exclusive * np.maximum(demand / gpus, 1.0)),
        }


def _in_isolation(history: History, length: Floats, gpus: int) -> Floats:
    """Return the time at which each job would complete if each of n live jobs always held 1/n of the cluster."""
    given_up = (history.outcome == JobState.CANCELLED) | (history.outcome == JobState.FAILED)
    return _shared_run(history, np.flatnonzero(~given_up & np.isfinite(length)), length, gpus)


def _shared_run(history: History, jobs: Int64s, length: Floats, gpus: int) -> Floats:
    finish = np.full(len(history), np.nan)
    finish[jobs] = share_equally(history.submitted[jobs], length[jobs], history.gpus[jobs], gpus)
    return finish


def _alone_with_app(history: History, exclusive: Floats, gpus: int) -> Floats:
    """Each job's completion time if only the jobs of its app had been submitted."""
    seconds = exclusive.copy()
    for jobs in searched_together(history):
        known = jobs[np.isfinite(exclusive[jobs])]
        seconds[known] = _shared_run(history, known, exclusive, gpus)[known] - history.submitted[known]
    return seconds


def summarize(history: History, jobs: JobResults, *, measured: Mapping[str, Any] | None = None) -> Summary:
    """The figures of a run, under the names of ``summary.json``.

    ``measured`` adds figures that only the process that ran it knows, such as ``decision_seconds cpu_seconds
    peak_rss_mb``.
    """
    jct = jobs.jct[np.isfinite(jobs.jct)]
    ended = jobs.completed[np.isfinite(jobs.completed)]
    makespan = float(ended.max() - history.begin) if len(ended) else None
    settings = history.settings
    return {
        **{key: settings.get(key) for key in ("policy", "seed")},
        "cluster": settings.get("cluster") or history.topology.describe(),
        **{key: settings.get(key) for key in ("workload", "knowledge")},
        "settings": {key: value for key, value in settings.items() if key not in (*_IDENTITY, "cluster_nodes")},
        "window": None,  # always; readers of earlier summaries may look for it
        "jobs": len(jobs),
        "completed": len(jct),
        "avg_jct": _mean(jct),
        "median_jct": _quantile(jct, 0.5),
        "p99_jct": _quantile(jct, 0.99),
        "makespan": makespan,
        "utilization": None if not makespan else _utilization(history, makespan),
        "gpu_seconds": float(jobs.gpu_seconds.sum()),
        "cost": _cost(history),
        "restarts": int(jobs.restarts.sum()),
        "rho": {name: _fairness_figures(jobs.rho[name]) for name in DEFINITIONS},
        "queueing": {"mean": _mean(jobs.queueing), "p99": _quantile(jobs.queueing, 0.99)},
        "deadlines": _deadlines(history),
        "apps": _apps(history, jobs),
        "decisions": history.decisions,
        **(measured or {}),
    }


def _apps(history: History, jobs: JobResults) -> dict[str, Any] | None:
    """The figures of the run's apps; None where no job names one."""
    if not any(history.apps):
        return None
    apps = app_table(history, jobs.exclusive)
    seconds = apps.seconds[np.isfinite(apps.seconds)]
    return {
        "count": len(apps),
        "completed": len(seconds),
        "avg_seconds": _mean(seconds),
        "rho": _fairness_figures(apps.rho),
    }


def _deadlines(history: History) -> dict[str, int]:
    """The number of jobs with a deadline, and of those that missed it or had not completed when the run ended."""
    asked = np.isfinite(history.deadline)
    done = np.where(history.completed, history.ended, np.inf)
    return {"jobs": int(asked.sum()), "missed": int((asked & (done > history.deadline)).sum())}


def _utilization(history: History, makespan: float) -> float:
    """The fraction of GPU-seconds in use from the first submission to the last completion; a shared GPU counts once."""
    begin, end = history.begin, history.begin + makespan

    def clipped(since: Floats, until: Floats, gpus: Int64s) -> float:
        return float((np.maximum(np.minimum(until, end) - np.maximum(since, begin), 0.0) * gpus).sum())

    holds, overlaps = history.holds, history.overlaps
    held = clipped(holds.since, holds.until, holds.gpus) - clipped(overlaps.since, overlaps.until, overlaps.gpus)
    return held / history.nodes.gpu_seconds(begin, end)


def _cost(history: History) -> float | None:
    """Dollars for the GPU-seconds in use; None where a kind has no price."""
    known = [kind.price_per_hour for kind in history.topology.types if kind.price_per_hour is not None]
    if len(known) < len(history.topology.types):
        return None
    prices = np.array(known) / 3600.0
    holds, overlaps = history.holds, history.overlaps
    held = float((holds.gpu_seconds * prices[holds.kind]).sum())
    return held - float(((overlaps.until - overlaps.since) * overlaps.gpus * prices[overlaps.kind]).sum())


def unfair(rho: Floats, limit: float) -> Flags:
    """Mask of the jobs whose ρ exceeds a threshold by more than rounding."""
    exceeds: Flags = rho > limit * (1 + _ROUNDING)
    return exceeds


def _fairness_figures(rho: Floats) -> dict[str, float | None]:
    known = rho[np.isfinite(rho)]
    fractions = {f"unfair_{limit}": _mean(unfair(known, limit)) for limit in THRESHOLDS}
    return {"mean": _mean(known), "max": float(known.max()) if len(known) else None, **fractions}


def _mean(values: NDArray[Any]) -> float | None:
    return float(values.mean()) if len(values) else None


def _quantile(values: Floats, q: float) -> float | None:
    return float(np.quantile(values, q)) if len(values) else None
