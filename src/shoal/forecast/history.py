"""What a journal tells beside the state that is folded from it, for worlds that begin where it ends."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.commands import Decided, Stop
from shoal.core.decision import ReasonCode
from shoal.core.events import EventBatch, JobCompleted, JobCrashed, JobStopped
from shoal.core.units import Seconds
from shoal.store.codec import Record

_TOLD = np.array([ReasonCode.STOPPING], dtype=np.uint8)
"""A journal does not say what jobs were told last: somebody may have been kept waiting for a run to end."""


@dataclass(frozen=True, slots=True)
class WorkHistory:
    """When jobs that crashed come free again, by admission number, and how long completed jobs ran, ascending."""

    releases: Mapping[int, Seconds]
    run_times: Floats


@dataclass(slots=True)
class Memoir:
    """What a fold passes over, noted on the way: the ``past``, and when the next decision is due.

    ``review_at`` is minus infinity when one is due already, for want of a decision on what was heard or decided last.
    """

    releases: dict[int, Seconds] = field(default_factory=dict)
    run_times: list[Seconds] = field(default_factory=list)
    review_at: Seconds = inf
    records: int = 0
    _seated: dict[int, Seconds] = field(default_factory=dict)
    _ran: dict[int, Seconds] = field(default_factory=dict)
    _now: Seconds = 0.0

    def read(self, records: Iterable[Record]) -> Iterator[Record]:
        """The same records, taken note of."""
        for record in records:
            self.records += 1
            if isinstance(record, EventBatch):
                self._heard(record)
            elif isinstance(record, Decided):
                self._decided(record)
            else:
                self.review_at = -inf
            yield record

    def _heard(self, heard: EventBatch) -> None:
        self._now = heard.now
        if heard.calls_for_decision(self.review_at, _TOLD):
            self.review_at = -inf  # until the decision is read
        for event in heard.events:
            if isinstance(event, JobCompleted | JobCrashed | JobStopped):
                self._left(event.job, event.at)
            if isinstance(event, JobCrashed) and event.retry_in > 0:
                self.releases[event.job] = event.at + event.retry_in
            if isinstance(event, JobCompleted):
                self.run_times.append(self._ran.pop(event.job, 0.0))

    def _decided(self, decided: Decided) -> None:
        self.review_at = decided.review_at
        for command in decided.commands:
            self._left(command.job, self._now)
            if not isinstance(command, Stop):
                self._seated[command.job] = self._now

    def _left(self, job: int, at: Seconds) -> None:
        since = self._seated.pop(job, None)
        if since is not None:
            self._ran[job] = self._ran.get(job, 0.0) + at - since

    def past(self) -> WorkHistory:
        """What was noted so far."""
        return WorkHistory(dict(self.releases), np.sort(np.array(self.run_times)))
