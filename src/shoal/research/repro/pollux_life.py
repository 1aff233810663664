"""Pollux's jobs over time (OSDI '21 figures 5 to 7, §5.3.2): GPUs, batch sizes, efficiency, fairness, exploration.

``live_through`` simulates one workload and samples, every ten minutes, the cluster and its long jobs. A job's
efficiency is that of the published trainings at its batch size and progress. All figures use the same runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from shoal.core.arrays import Floats, Int64s
from shoal.core.decision import Decision
from shoal.core.goodput import GoodputReport
from shoal.core.interfaces import Policy
from shoal.core.job import BatchSetting
from shoal.core.snapshot import Snapshot
from shoal.core.topology import parse_cluster
from shoal.perf.goodput import efficiency
from shoal.perf.measured_profile import MeasuredProfile
from shoal.perf.profile_files import read_profiles
from shoal.policy.registry import parse_policy
from shoal.report.compare import half_width
from shoal.report.history import History, read_history
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.workload.files import read_workload
from shoal.workload.importers.pollux import APPLICATIONS

CLUSTER, TRACES = "t4:16x4", "pollux/traces"
EVERY = 600.0
"""Seconds between two samples."""

LONG_MODELS = ("imagenet", "yolov3")
"""Models of the jobs that figure 6 follows; of the second at most two jobs."""

OPTIMUS, TIRESIAS = "optimus", "tiresias:thresholds=57600"
SEEDED = "pollux:memory=true"
"""The policy that reads the reports it is seeded with."""


@dataclass(frozen=True, slots=True)
class SeededReports:
    """Wraps a policy: on every model it sees a goodput report, as if jobs of that model had been tuned before."""

    policy: Policy
    reports: Mapping[str, GoodputReport]

    def decide(self, snapshot: Snapshot) -> Decision:
        """Return the policy's decision with these reports as those remembered."""
        return self.policy.decide(replace(snapshot, model_reports=self.reports))


def offline_reports(profiles: Mapping[str, MeasuredProfile], seen: int) -> dict[str, GoodputReport]:
    """Return by model a report fitted to all measurements; it counts as tried on ``seen`` GPUs."""
    return {
        model: GoodputReport(
            one.fits(), one.noise_scale(0.0), one.initial_batch, seen, BatchSetting(one.initial_batch), remembered=True
        )
        for model, one in profiles.items()
    }


def live_through(data: Path, number: int, policy: str, seen: int = 0, jobs: int | None = None) -> dict[str, Any]:
    """Simulate one of the eight workloads and return its jobs' figures and its samples over time as plain lists.

    If ``seen`` is above 0, the policy knows offline fits of all models from the start, and each of its jobs counts as
    tried on ``seen`` GPUs.
    """
    rows = read_workload(data / f"pollux/workloads/workload-{number}.csv", "pollux")
    rows = rows if jobs is None else rows.first(jobs)
    profiles = _profiles(data)
    cluster = parse_cluster(CLUSTER)
    scenario = Scenario(cluster, policy, restart_cost="30", profiles=(str(data / TRACES),))
    seeds = SeededReports(parse_policy(policy), offline_reports(profiles, seen)) if seen else None
    outcome = run(scenario, rows, policy=seeds)
    assert outcome.journal is not None
    history = read_history(outcome.journal.raw())
    times = np.arange(EVERY / 2, float(np.nanmax(outcome.jobs.completed)), EVERY)
    samples = Samples.of(history, profiles, times)
    models = [model or "" for model in (history.types[t].model for t in history.type.tolist())]
    return {
        "models": models,
        "jct": outcome.jobs.jct.tolist(),
        "rho": outcome.jobs.rho["isolated"].tolist(),
        "hours": (times / 3600.0).tolist(),
        "live": samples.live.tolist(),
        "gpus": samples.gpus.sum(axis=0).tolist(),
        "efficiency": [float(x) for x in samples.mean_efficiency()],
        "followed": {history.ids[i]: samples.of_job(i) for i in _followed(models)},
    }


def _profiles(data: Path) -> dict[str, MeasuredProfile]:
    known = read_profiles((str(data / TRACES),), APPLICATIONS)
    found: dict[str, MeasuredProfile] = {}
    for model in APPLICATIONS:
        profile = known.profile(model)
        assert isinstance(profile, MeasuredProfile)
        found[model] = profile
    return found


def _followed(models: Sequence[str]) -> list[int]:
    first, second = ([i for i, model in enumerate(models) if model == name] for name in LONG_MODELS)
    return [*first, *second[:2]]


@dataclass(frozen=True, slots=True)
class Samples:
    """By time the live jobs; by job and time its GPUs, batch size (0: does not train) and statistical efficiency."""

    live: Int64s
    gpus: Int64s
    batch: Int64s
    efficiency: Floats

    @classmethod
    def of(cls, history: History, profiles: Mapping[str, MeasuredProfile], times: Floats) -> "Samples":
        """Return the samples of a run's history; without a batch size in it a job trains at its declared one."""
        count = len(history)
        gpus = np.zeros((count, len(times)), dtype=np.int64)
        batch, found = np.zeros_like(gpus), np.full((count, len(times)), np.nan)
        holds, rates = history.holds, history.rates
        for h in range(len(holds.job)):
            gpus[holds.job[h], (times >= holds.since[h]) & (times < holds.until[h])] = holds.gpus[h]
        done = np.zeros(count)
        for r in np.argsort(rates.since, kind="stable").tolist():
            job = int(holds.job[rates.hold[r]])
            here = np.flatnonzero((times >= rates.since[r]) & (times < rates.until[r]))
            kind = history.types[int(history.type[job])]
            profile = profiles.get(kind.model or "")
            size = int(rates.batch_size[r]) or kind.batch_size or 0
            for t in here.tolist() if profile is not None else ():
                reached = done[job] + float(rates.rate[r]) * (times[t] - float(rates.since[r]))
                batch[job, t] = size
                found[job, t] = _efficiency(profiles[kind.model or ""], reached / float(history.work[job]), size)
            done[job] += float(rates.rate[r]) * (float(rates.until[r]) - float(rates.since[r]))
        until = history.live_until
        live = ((history.submitted[:, None] <= times) & (times < until[:, None])).sum(axis=0)
        return cls(live, gpus, batch, found)

    def mean_efficiency(self) -> Floats:
        """Return by time the mean efficiency of the jobs that train, weighted by their GPUs; NaN without any."""
        weight = np.where(np.isfinite(self.efficiency), self.gpus, 0)
        total = weight.sum(axis=0)
        mean: Floats = np.divide(
            (np.nan_to_num(self.efficiency) * weight).sum(axis=0),
            total,
            out=np.full(len(total), np.nan),
            where=total > 0,
        )
        return mean

    def of_job(self, i: int) -> dict[str, list[float]]:
        """Return a job's samples as plain lists."""
        return {
            "gpus": self.gpus[i].tolist(),
            "batch": self.batch[i].tolist(),
            "efficiency": np.nan_to_num(self.efficiency[i]).tolist(),
        }


def _efficiency(profile: MeasuredProfile, progress: float, size: int) -> float:
    phi = profile.noise_scale(min(max(progress, 0.0), 1.0), size)
    return float(efficiency(phi, profile.initial_batch, max(size, profile.initial_batch)))


# ── statements over several workloads ─────────────────────────────────────────────────────────────────────────────


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of a mean over workloads; of a single value, the value twice."""
    known = [value for value in values if value == value]  # noqa: PLR0124  NaN
    if not known:
        return float("nan"), float("nan")
    mean, count = fmean(known), len(known)
    if count == 1:
        return mean, mean
    half = half_width(known)
    return mean - half, mean + half


def ranked_alike(one: Floats, other: Floats) -> float:
    """Return Spearman's rank correlation; NaN if either does not vary."""
    if len(one) < 3 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return float("nan")
    ranks = [
        np.searchsorted(np.sort(x), x, side="left") + np.searchsorted(np.sort(x), x, side="right") for x in (one, other)
    ]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def phases(live: Sequence[float], job: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]] | None:
    """Return the means of a job's samples at low contention early (A), high contention (B), low contention late (C).

    Contention is high while more jobs are live than the median over the job's samples. B begins with the first such
    sample and ends with the last. None if a phase has no sample.
    """
    count = np.asarray(live, dtype=np.float64)
    columns = {name: np.asarray(values, dtype=np.float64) for name, values in job.items()}
    trains = np.flatnonzero((columns["batch"] > 0) & (columns["gpus"] > 0))
    if len(trains) < 3:
        return None
    high = trains[count[trains] > np.median(count[trains])]
    if not len(high):
        return None
    parts = {"A": trains[trains < high[0]], "B": high, "C": trains[trains > high[-1]]}
    if not all(len(part) for part in parts.values()):
        return None
    columns["local"] = columns["batch"] / np.maximum(columns["gpus"], 1.0)
    return {name: {of: float(values[part].mean()) for of, values in columns.items()} for name, part in parts.items()}
