"""The rule for crashed jobs: when one is tried again, and when it has failed. Every fold of a journal uses it.

Three counts, each of crashes *in a row*, decide how long a job waits; every count makes its waits double:

* Crashes that are the job's own fault. After the n-th the job waits ``first · 2ⁿ⁻¹`` seconds, at most
  ``LONGEST_RETRY``; after ``MOST_CRASHES`` it has failed. A run that made progress takes one crash off the count for
  each ``FORGIVING_RUN`` it lasted: progress in a short run, real or pretended, does not.
* Crashes that are not, such as the loss of a node. The first costs no wait, the n-th ``first · 2ⁿ⁻²`` seconds; the job
  never fails of them. Here any run takes one crash off for each ``FORGIVING_RUN`` it lasted.
* Starts that failed: a node could not start the job's ranks. The waits are those of the second count, since the next
  try avoids that node. After ``MOST_CRASHES`` failed starts in a row the job has failed, unless only nodes were at
  fault.
"""

from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple

from shoal.core.events import JobCrashed
from shoal.core.units import Seconds

MOST_CRASHES = 5
"""Blamed crashes in a row, or failed starts in a row, after which a job has failed."""

FIRST_RETRY: Seconds = 10.0
LONGEST_RETRY: Seconds = 600.0

FORGIVING_RUN: Seconds = 300.0
"""Seconds that a run must last to take one crash off a count."""


@dataclass(frozen=True, slots=True)
class Crashes:
    """A job's crashes: the three counts, and its progress after the last blamed one (−1 before the first)."""

    blamed: float = 0.0
    done: float = -1.0
    blameless: float = 0.0
    failed_starts: int = 0

    @property
    def in_a_row(self) -> int:
        """Crashes in a row that are the job's own fault."""
        return ceil(self.blamed)

    def after(
        self,
        done: float,
        *,
        blamed: bool,
        ran: Seconds | None = None,
        began: bool = True,
        first_retry: Seconds = FIRST_RETRY,
    ) -> "AfterCrash":
        """Return the consequences of a crash that left the job at progress ``done``.

        ``ran`` is how long the run lasted; None, as in journals of older versions, is long enough to clear the counts.
        ``began`` is false if a node could not start the ranks.
        """
        forgiven = self.blamed + self.blameless if ran is None else ran / FORGIVING_RUN
        if not began:
            crashes = replace(self, failed_starts=self.failed_starts + 1)
            failed = blamed and crashes.failed_starts >= MOST_CRASHES
            return AfterCrash(crashes, failed, 0.0 if failed else retry_after(crashes.failed_starts - 1, first_retry))
        if not blamed:
            count = max(0.0, self.blameless - forgiven) + 1.0
            crashes = replace(self, blameless=count, failed_starts=0)
            return AfterCrash(crashes, failed=False, retry_in=retry_after(count - 1.0, first_retry))
        count = max(0.0, self.blamed - (forgiven if done > self.done else 0.0)) + 1.0
        crashes = replace(self, blamed=count, done=done, failed_starts=0)
        failed = crashes.in_a_row >= MOST_CRASHES
        return AfterCrash(crashes, failed, 0.0 if failed else retry_after(count, first_retry))

    def fold(self, event: JobCrashed) -> "AfterCrash":
        """Return the consequences of a crash in a journal; the wait is the one that the event gives."""
        return self.after(event.done, blamed=event.blamed, ran=event.ran, began=event.failed_on is None)


NO_CRASHES = Crashes()
"""The counts of a job that has not crashed yet."""


class AfterCrash(NamedTuple):
    """The consequences of a crash: the new counts, whether the job has failed and, if not, the seconds it must wait."""

    crashes: Crashes
    failed: bool
    retry_in: Seconds


def retry_after(in_a_row: float, first: Seconds = FIRST_RETRY) -> Seconds:
    """Return the wait after this many blamed crashes in a row: it doubles from ``first`` up to ``LONGEST_RETRY``.

    A ``first`` above ``LONGEST_RETRY`` is the wait after every crash. There is no wait after 0 crashes.
    """
    doubled = min(ceil(in_a_row) - 1, 64)
    return min(first * 2.0**doubled, max(first, LONGEST_RETRY)) if doubled >= 0 else 0.0
