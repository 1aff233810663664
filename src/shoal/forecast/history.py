"""The time at which the next decision of a journal is due."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf

import numpy as np

from shoal.core.commands import Decided
from shoal.core.events import EventBatch
from shoal.core.reasons import STOPPING
from shoal.core.units import Seconds
from shoal.store.codec import Record

_STOPPING = np.array([STOPPING.code], dtype=np.uint8)
"""A journal does not hold the last verdicts, so a job may have been waiting for a run to stop."""


@dataclass(slots=True)
class NextReview:
    """The time of the next review after the ``records`` read: −∞ if a decision is due already."""

    at: Seconds = inf
    records: int = 0

    def read(self, records: Iterable[Record]) -> Iterator[Record]:
        """Yield the same records, and keep the time up to date."""
        for record in records:
            self.records += 1
            if isinstance(record, Decided):
                self.at = record.review_at
            elif not isinstance(record, EventBatch) or record.calls_for_decision(self.at, _STOPPING):
                self.at = -inf  # until the decision is read
            yield record
