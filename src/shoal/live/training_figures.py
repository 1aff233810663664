"""Figures of the training of live jobs over time, for pages: from agents' reports, in memory, thinned as they grow."""

import threading
from dataclasses import dataclass, field

from shoal.core.units import JobNumber, Seconds
from shoal.live.accounts import Account, Accounts
from shoal.live.report_filter import credible, possible_progress
from shoal.wire.agent_messages import AgentReport, RunReport
from shoal.wire.training_messages import TrainingPoint

_GAP: Seconds = 2.0
"""Seconds between the points of a job, at first; twice as long each time that its points are thinned."""
_MOST_POINTS = 240
_SLACK = 1000
"""Series of jobs no longer in the accounts that are kept before they are looked for."""


@dataclass(slots=True)
class _Series:
    gap: Seconds = _GAP
    saved: float = 0.0
    saved_at: float | None = None
    """The progress of its last checkpoint, and the Unix time at which that was first reported."""
    points: list[TrainingPoint] = field(default_factory=list)

    def add(self, account: Account, run: RunReport, at: float) -> None:
        if possible_progress(run.saved) and run.saved > self.saved:
            self.saved, self.saved_at = run.saved, at
        point = _point(account, run, at, self.saved_at)
        if self.points and point.at - self.points[-1].at < self.gap:
            return
        if len(self.points) >= _MOST_POINTS:
            self.points, self.gap = self.points[::2], 2 * self.gap
        self.points.append(point)


@dataclass(slots=True)
class TrainingFigures:
    """Keeps at most 240 points of each job in ``accounts``."""

    accounts: Accounts
    epoch: float
    _series: dict[JobNumber, _Series] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, report: AgentReport, now: Seconds) -> None:
        """Keep the figures of an agent's report that is about runs on its own node."""
        for run in report.runs:
            if run.session is None or run.phase != "running":
                continue
            account = self.accounts.live.get(run.job)
            if account is not None and run.incarnation == account.incarnation and self._is_there(account, report.node):
                account.links = tuple(run.session.links) or account.links
                with self._lock:
                    self._series.setdefault(run.job, _Series()).add(account, run, round(self.epoch + now, 1))
        if len(self._series) > len(self.accounts.accounts) + _SLACK:
            with self._lock:
                self._series = {job: kept for job, kept in self._series.items() if job in self.accounts.accounts}

    def of(self, job: JobNumber) -> list[TrainingPoint]:
        """Return the figures of a job, in order of time."""
        with self._lock:
            return list(self._series[job].points) if job in self._series else []

    def _is_there(self, account: Account, node: str) -> bool:
        seats = account.placement
        return seats is not None and any(self.accounts.nodes[index].name == node for index in seats.nodes)


def _point(account: Account, run: RunReport, at: float, saved: float | None) -> TrainingPoint:
    session = run.session
    assert session is not None
    profile = session.profile if session.profile is not None and credible(session.profile) else None
    batch = session.batch_size if profile is None else profile.batch.size
    first, rate = account.spec.batch_size, session.rate or account.rate or None
    throughput = None
    if profile is not None and first is not None and batch is not None and rate is not None:
        throughput = rate * (profile.noise + batch) / (profile.noise + first)
    return TrainingPoint(
        at=at,
        done=run.done if possible_progress(run.done) else None,
        rate=rate,
        throughput=throughput,
        batch_size=batch,
        learning_rate=session.learning_rate,
        noise=None if profile is None else profile.noise,
        loss=session.loss,
        saved=saved,
    )
