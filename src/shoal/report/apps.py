"""How each app fared: the jobs of one search taken together, as Themis counts.

An app comes with its first job and is done with the end of its last, whether that did its work or was given up. A job
that names no app is an app of one.

Reference: Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling", NSDI 2020, §4.3, equations 1 and 2.
"""

from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Floats, Int64s
from shoal.report.history import History
from shoal.report.step_functions import Steps


@dataclass(frozen=True, slots=True)
class AppTable:
    """One row per app, in order of arrival. NaN stands for what never happened or cannot be known.

    ``seconds`` is from arrival to the end. ``ideal`` is T_cluster: the GPU-seconds of what its jobs did, each on its
    gang seated well, over the most GPUs it wanted at once or the cluster's, whichever are fewer. ``contention`` is how
    many apps were live, averaged over its life, and ``rho`` = seconds / (ideal · contention).
    """

    app: list[str]
    jobs: Int64s
    submitted: Floats
    completed: Floats
    seconds: Floats
    gpu_seconds: Floats
    ideal: Floats
    contention: Floats
    rho: Floats

    def __len__(self) -> int:
        return len(self.app)


def app_table(history: History, exclusive: Floats, gpu_seconds: Floats) -> AppTable:
    """How the apps of a history fared; ``exclusive`` and ``gpu_seconds`` are its jobs', as in their table."""
    members: dict[tuple[bool, str], list[int]] = {}
    for job, (name, app) in enumerate(zip(history.ids, history.apps, strict=True)):
        members.setdefault((app is None, app or name), []).append(job)
    groups = [np.array(jobs) for jobs in members.values()]
    submitted = np.array([history.submitted[jobs].min() for jobs in groups])
    ended = np.array([history.ended[jobs].max() for jobs in groups])
    completed = np.where(np.isfinite(ended), ended, np.nan)
    work = exclusive * history.gpus * _part_done(history)
    gpus = sum(history.topology.installed)
    ideal = np.array([work[jobs].sum() / min(_most_wanted(history, jobs), gpus) for jobs in groups])
    contention = live_apps(history).mean(submitted, np.minimum(ended, history.end))
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = (completed - submitted) / (ideal * contention)
    return AppTable(
        app=[name for _, name in members],
        jobs=np.array([len(jobs) for jobs in groups]),
        submitted=submitted,
        completed=completed,
        seconds=completed - submitted,
        gpu_seconds=np.array([gpu_seconds[jobs].sum() for jobs in groups]),
        ideal=ideal,
        contention=contention,
        rho=rho,
    )


def _part_done(history: History) -> Floats:
    """What part of its work each job did: all of it, unless it was given up on the way."""
    rates = history.rates
    did = np.bincount(history.holds.job[rates.hold], rates.rate * (rates.until - rates.since), len(history))
    with np.errstate(divide="ignore", invalid="ignore"):
        part: Floats = np.where(history.completed, 1.0, np.minimum(did / history.work, 1.0))
    return part


def _most_wanted(history: History, jobs: Int64s) -> float:
    """The most GPUs that the jobs of an app wanted at one time; at a moment, the end of one comes before another."""
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
    """How many apps have a live job: the union of its jobs' lives counts once for each app."""
    since, until, weight = history.submitted, history.gone.copy(), np.ones(len(history))
    for jobs in searched_together(history):
        # In order of submission, a job adds to the union only what lies beyond all ends before it.
        reach = np.maximum.accumulate(until[jobs])
        covered = np.concatenate([[-np.inf], reach[:-1]])
        begins = np.maximum(since[jobs], covered)
        weight[jobs] = 0.0
        fresh = begins < until[jobs]
        since, until = np.concatenate([since, begins[fresh]]), np.concatenate([until, until[jobs][fresh]])
        weight = np.concatenate([weight, np.ones(int(fresh.sum()))])
    return Steps.of(since, until, weight)
