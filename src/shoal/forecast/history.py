"""Facts of a journal that the folded state does not hold, for simulations that begin where the journal ends."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.commands import Stop
from shoal.core.decision import ReasonCode
from shoal.core.events import EventBatch, JobCompleted, JobCrashed, JobStopped
from shoal.core.units import Seconds
from shoal.store.codec import Decided, Record

_LAST_REASONS = np.array([ReasonCode.STOPPING], dtype=np.uint8)
"""A journal does not hold the last reasons of waiting jobs: one may wait for another to stop."""


@dataclass(frozen=True, slots=True)
class WorkHistory:
    """Release times of jobs held back after a crash, by admission number; run times of completed jobs, ascending."""

    releases: Mapping[int, Seconds]
    run_times: Floats


@dataclass(slots=True)
class HistoryReader:
    """Collects a `WorkHistory` from records on their way to a fold, and when the next decision is due.

    ``review_at`` is minus infinity where a decision is due already, since the last events were not decided on.
    """

    releases: dict[int, Seconds] = field(default_factory=dict)
    run_times: list[Seconds] = field(default_factory=list)
    review_at: Seconds = inf
    records: int = 0
    _seated: dict[int, Seconds] = field(default_factory=dict)
    _ran: dict[int, Seconds] = field(default_factory=dict)
    _now: Seconds = 0.0

    def read(self, records: Iterable[Record]) -> Iterator[Record]:
        """Yield the same records."""
        for record in records:
            self.records += 1
            if isinstance(record, EventBatch):
                self._note_events(record)
            elif isinstance(record, Decided):
                self._note_decision(record)
            else:
                self.review_at = -inf
            yield record

    def _note_events(self, batch: EventBatch) -> None:
        self._now = batch.now
        if batch.calls_for_decision(self.review_at, _LAST_REASONS):
            self.review_at = -inf  # until the decision is read
        for event in batch.events:
            if isinstance(event, JobCompleted | JobCrashed | JobStopped):
                self._note_leave(event.job, event.at)
            if isinstance(event, JobCrashed) and event.retry_in > 0:
                self.releases[event.job] = event.at + event.retry_in
            if isinstance(event, JobCompleted):
                self.run_times.append(self._ran.pop(event.job, 0.0))

    def _note_decision(self, decided: Decided) -> None:
        self.review_at = decided.review_at
        for command in decided.commands:
            self._note_leave(command.job, self._now)
            if not isinstance(command, Stop):
                self._seated[command.job] = self._now

    def _note_leave(self, job: int, at: Seconds) -> None:
        since = self._seated.pop(job, None)
        if since is not None:
            self._ran[job] = self._ran.get(job, 0.0) + at - since

    def past(self) -> WorkHistory:
        """The history of all records read so far."""
        return WorkHistory(dict(self.releases), np.sort(np.array(self.run_times)))
