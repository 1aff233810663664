"""The rule for crashed jobs: when one is tried again, and when it has failed. Every fold of a journal uses it.

A crash counts only if the job itself is to blame, not its node, and only crashes *in a row* count: after more
progress than at the last crash the count starts at 1 again. After the n-th in a row the job waits ``first · 2ⁿ⁻¹``
seconds, at most ``LONGEST_RETRY``; after ``MOST_CRASHES`` in a row it has failed.
"""

from dataclasses import dataclass
from typing import NamedTuple

from shoal.core.units import Seconds

MOST_CRASHES = 5
"""Blamed crashes in a row after which a job has failed."""

FIRST_RETRY: Seconds = 10.0
LONGEST_RETRY: Seconds = 600.0


@dataclass(frozen=True, slots=True)
class Crashes:
    """A job's blamed crashes: how many in a row, and its progress after the last (−1 before the first)."""

    in_a_row: int = 0
    done: float = -1.0

    def after(self, done: float, *, blamed: bool, first_retry: Seconds = FIRST_RETRY) -> "AfterCrash":
        """Return the consequences of a crash that left the job at progress ``done``.

        A crash that is not the job's fault changes nothing, and the job may start again at once.
        """
        if not blamed:
            return AfterCrash(self, failed=False, retry_in=0.0)
        crashes = Crashes(1 if done > self.done else self.in_a_row + 1, done)
        if crashes.in_a_row >= MOST_CRASHES:
            return AfterCrash(crashes, failed=True, retry_in=0.0)
        return AfterCrash(crashes, failed=False, retry_in=retry_after(crashes.in_a_row, first_retry))


NO_CRASHES = Crashes()
"""The count of a job that has not crashed yet."""


class AfterCrash(NamedTuple):
    """The consequences of a crash: the new count, whether the job has failed and, if not, the seconds it must wait."""

    crashes: Crashes
    failed: bool
    retry_in: Seconds


def retry_after(in_a_row: int, first: Seconds = FIRST_RETRY) -> Seconds:
    """Return the wait after this many crashes in a row: it doubles from ``first`` up to ``LONGEST_RETRY``.

    A ``first`` above ``LONGEST_RETRY`` is the wait after every crash.
    """
    return min(first * 2.0 ** (in_a_row - 1), max(first, LONGEST_RETRY))
