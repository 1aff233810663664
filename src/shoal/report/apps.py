"""Figures of apps: the jobs of one search together, as Themis defines them.

An app arrives with its first job and ends with its last, completed or not. A job that names no app is an app of one.

Reference: Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling", NSDI 2020, §4.3, equations 1 and 2.
"""

from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Floats, Int64s
from shoal.report.history import History
from shoal.report.step_functions import Steps


@dataclass(frozen=True, slots=True)
class AppTable:
    """One row per app, in order of arrival; NaN for an app that has not ended.

    ``seconds`` is the time from arrival to end. ``ideal`` is T_cluster: the GPU-seconds of its jobs' work, each job on
    its gang seated well, divided by the most GPUs it asked for at once or the cluster's, whichever are fewer.
    ``contention`` is the number of live apps, averaged over its life, and ``rho`` = seconds / (ideal · contention).
    """

    app: list[str]
    seconds: Floats
    ideal: Floats
    contention: Floats
    rho: Floats

    def __len__(self) -> int:
        return len(self.app)


def app_table(history: History, exclusive: Floats) -> AppTable:
    """The apps of a history; ``exclusive`` is each job's run time alone in the cluster."""
    members: dict[tuple[bool, str], list[int]] = {}
    for job, (name, app) in enumerate(zip(history.ids, history.apps, strict=True)):
        members.setdefault((app is None, app or name), []).append(job)
    groups = [np.array(jobs) for jobs in members.values()]
    submitted = np.array([history.submitted[jobs].min() for jobs in groups])
    ended = np.array([history.ended[jobs].max() for jobs in groups])
    seconds = np.where(np.isfinite(ended), ended, np.nan) - submitted
    work = exclusive * history.gpus * _part_done(history)
    gpus = sum(history.topology.installed)
    ideal = np.array([work[jobs].sum() / min(_most_wanted(history, jobs), gpus) for jobs in groups])
    contention = live_apps(history).mean(submitted, np.minimum(ended, history.end))
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = seconds / (ideal * contention)
    return AppTable([name for _, name in members], seconds, ideal, contention, rho)


def _part_done(history: History) -> Floats:
    """The fraction of its work that each job did: 1 unless it failed or was cancelled."""
    rates = history.rates
    did = np.bincount(history.holds.job[rates.hold], rates.rate * (rates.until - rates.since), len(history))
    with np.errstate(divide="ignore", invalid="ignore"):
        part: Floats = np.where(history.completed, 1.0, np.minimum(did / history.work, 1.0))
    return part


def _most_wanted(history: History, jobs: Int64s) -> float:
    """Return the most GPUs that an app's live jobs asked for at one time."""
    times = np.concatenate([history.ended[jobs], history.submitted[jobs]])
    change = np.concatenate([-history.gpus[jobs], history.gpus[jobs]])
    return float(np.cumsum(change[np.argsort(times, kind="stable")]).max())


def searched_together(history: History) -> list[Int64s]:
    """The jobs of each app that has more than one."""
    numbers: dict[str, list[int]] = {}
    for job, app in enumerate(history.apps):
        if app is not None:
            numbers.setdefault(app, []).append(job)
    return [np.array(jobs) for jobs in numbers.values() if len(jobs) > 1]


def live_apps(history: History) -> Steps:
    """The number of apps with a live job over time."""
    since, until, weight = history.submitted, history.live_until.copy(), np.ones(len(history))
    for jobs in searched_together(history):
        # In order of submission, a job adds to the union of lives only what lies beyond all earlier ends.
        reach = np.maximum.accumulate(until[jobs])
        covered = np.concatenate([[-np.inf], reach[:-1]])
        begins = np.maximum(since[jobs], covered)
        weight[jobs] = 0.0
        fresh = begins < until[jobs]
        since, until = np.concatenate([since, begins[fresh]]), np.concatenate([until, until[jobs][fresh]])
        weight = np.concatenate([weight, np.ones(int(fresh.sum()))])
    return Steps.of(since, until, weight)
