"""The rule for crashed jobs: when one is tried again, and when it has failed. Every fold of a journal uses it.

Three counts, each of crashes *in a row*, decide how long a job waits; every count makes its waits double:

* Crashes that are the job's own fault. After the n-th the job waits ``first · 2ⁿ⁻¹`` seconds, at most
  ``LONGEST_RETRY``; when there are more than its retries it has failed. A run that made progress takes one crash off
  the count for each ``FORGIVING_RUN`` it lasted: progress in a short run, real or pretended, does not. A job chooses
  its number of retries; by default it has ``RETRIES``, and none if a run that began without saved progress crashed
  within ``QUICK_FAILURE`` seconds.
* Crashes that are not, such as the loss of a node. The first costs no wait, the n-th ``first · 2ⁿ⁻²`` seconds; the job
  never fails of them. Here any run takes one crash off for each ``FORGIVING_RUN`` it lasted.
* Starts that failed: a node could not start the job's ranks. The waits are those of the second count, since the next
  try avoids that node. After ``MOST_FAILED_STARTS`` in a row the job has failed, and at once if it is ``unrunnable``:
  its program or folder is missing and there is no other node to try; but never if only nodes were at fault.

The backend decides whether a crash is the last and records that in the event; folds follow the event.
"""

from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple

from shoal.core.events import JobCrashed
from shoal.core.units import Seconds

RETRIES = 3
"""Retries of a job that does not choose their number."""

QUICK_FAILURE: Seconds = 30.0
"""Seconds within which the crash of a run without saved progress is final, if the job does not choose its retries."""

MOST_FAILED_STARTS = 5
"""Failed starts in a row after which a job has failed."""

OLD_RETRIES = 4
"""Retries in journals of older versions, whose crashes do not say whether they were the last."""

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
        fresh: bool = False,
        unrunnable: bool = False,
        retries: int | None = None,
        first_retry: Seconds = FIRST_RETRY,
    ) -> "AfterCrash":
        """Return the consequences of a crash that left the job at progress ``done``.

        ``ran`` is how long the run lasted; None, as in journals of older versions, is long enough to clear the counts.
        ``began`` is false if a node could not start the ranks, ``unrunnable`` if then no other node is worth a try.
        ``fresh``: the run began without saved progress. ``retries`` is the job's own choice.
        """
        forgiven = self.blamed + self.blameless if ran is None else ran / FORGIVING_RUN
        if not began:
            crashes = replace(self, failed_starts=self.failed_starts + 1)
            failed = blamed and (unrunnable or crashes.failed_starts >= MOST_FAILED_STARTS)
            return AfterCrash(crashes, failed, 0.0 if failed else retry_after(crashes.failed_starts - 1, first_retry))
        if not blamed:
            count = max(0.0, self.blameless - forgiven) + 1.0
            crashes = replace(self, blameless=count, failed_starts=0)
            return AfterCrash(crashes, failed=False, retry_in=retry_after(count - 1.0, first_retry))
        count = max(0.0, self.blamed - (forgiven if done > self.done else 0.0)) + 1.0
        crashes = replace(self, blamed=count, done=done, failed_starts=0)
        failed = crashes.in_a_row > retries_of(retries, quick=fresh and ran is not None and ran < QUICK_FAILURE)
        return AfterCrash(crashes, failed, 0.0 if failed else retry_after(count, first_retry))

    def fold(self, event: JobCrashed) -> "AfterCrash":
        """Return the consequences of a crash in a journal; the event states whether it was the last, and the wait."""
        return self.fold_fields(event.done, event.blamed, event.ran, event.failed_on, event.failed)

    def fold_fields(
        self, done: float, blamed: bool, ran: Seconds | None, failed_on: int | None, failed: bool | None
    ) -> "AfterCrash":
        """Do as ``fold``, with the fields of an event that is not decoded."""
        after = self.after(done, blamed=blamed, ran=ran, began=failed_on is None, retries=OLD_RETRIES)
        return after if failed is None else after._replace(failed=failed)


NO_CRASHES = Crashes()
"""The counts of a job that has not crashed yet."""


class AfterCrash(NamedTuple):
    """The consequences of a crash: the new counts, whether the job has failed and, if not, the seconds it must wait."""

    crashes: Crashes
    failed: bool
    retry_in: Seconds


def retries_of(chosen: int | None, *, quick: bool = False) -> int:
    """Return a job's number of retries: its own choice, else ``RETRIES``, or none after a ``quick`` failure."""
    return (0 if quick else RETRIES) if chosen is None else chosen


def retry_after(in_a_row: float, first: Seconds = FIRST_RETRY) -> Seconds:
    """Return the wait after this many blamed crashes in a row: it doubles from ``first`` up to ``LONGEST_RETRY``.

    A ``first`` above ``LONGEST_RETRY`` is the wait after every crash. There is no wait after 0 crashes.
    """
    doubled = min(ceil(in_a_row) - 1, 64)
    return min(first * 2.0**doubled, max(first, LONGEST_RETRY)) if doubled >= 0 else 0.0
