"""Which jobs changed when: lists are sorted again after changes, and pages are sent the changes."""

import threading
from collections import Counter
from dataclasses import dataclass, field
from itertools import takewhile

from shoal.core.units import JobId, JobNumber, TenantId

_MOST_REMEMBERED = 20_000
"""Most jobs whose last change is remembered, the latest."""


@dataclass(slots=True)
class JobChanges:
    """Counts the changes of jobs, and remembers the last one of each job that changed lately."""

    counts: Counter[TenantId | None] = field(default_factory=Counter)
    """How often jobs have changed: by tenant, and under None in all."""
    number: int = 0
    """Number of the last change, also of a verdict alone."""
    _forgotten: int = 0
    _last: dict[JobNumber, tuple[int, JobId]] = field(default_factory=dict)
    """By job, the number of its last change, and its id unless only its verdict changed; the earliest first."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __getitem__(self, tenant: TenantId | None) -> int:
        """Return how often the jobs of a tenant have changed; None stands for all tenants."""
        return self.counts[tenant]

    def note(self, job: JobNumber, id: JobId, tenant: TenantId) -> None:
        """Count a change of a job."""
        self.counts.update((None, tenant))
        self.note_verdict(job, id)

    def note_verdict(self, job: JobNumber, id: JobId = "") -> None:
        """Remember a change of a job's verdict, which moves no job in a list."""
        with self._lock:
            self.number += 1
            _, known = self._last.pop(job, (0, ""))
            self._last[job] = self.number, id or known
            if len(self._last) > _MOST_REMEMBERED:
                self._forgotten, _ = self._last.pop(next(iter(self._last)))

    def since(self, number: int) -> tuple[int, list[tuple[JobNumber, JobId]] | None]:
        """Return the number of the last change, and the jobs that changed after change ``number``.

        None stands for jobs that are no longer known.
        """
        with self._lock:
            if number < self._forgotten or number < 0:
                return self.number, None
            later = takewhile(lambda entry: entry[1][0] > number, reversed(self._last.items()))
            return self.number, [(job, id) for job, (_, id) in later]
