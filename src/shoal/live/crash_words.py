"""Parts of sentences on crashes: the failures counted, and why a job is not tried again."""

from math import ceil
from typing import TYPE_CHECKING

from shoal.core.events import JobCrashed
from shoal.core.retry import MOST_FAILED_STARTS, QUICK_FAILURE, Crashes, retries_of

if TYPE_CHECKING:
    from shoal.live.accounts import Account


def counted(crashes: Crashes, event: JobCrashed) -> str:
    """Return a sentence part on the failures counted: crashes, failed starts, or ends that were not the job's fault."""
    if event.failed_on is not None:
        return f"could not be started{_times(crashes.failed_starts)}"
    if event.blamed:
        return f"crashed{_times(crashes.in_a_row)}"
    return f"was ended{_times(ceil(crashes.blameless))} through no fault of its own"


def _times(count: int) -> str:
    return "" if count == 1 else f" {count} times in a row"


def why_last(account: "Account", event: JobCrashed) -> str:
    """Return a sentence part on why a job is not tried again after this crash."""
    retries = account.launch.retries
    if event.failed_on is not None and account.crashes.failed_starts < MOST_FAILED_STARTS:
        return "not tried again, since the cause is in the job itself"
    if event.failed_on is not None:
        return f"not tried again, since it {account.held_after}"
    if retries is None and account.crashes.in_a_row <= retries_of(None):
        return f"not tried again, since it failed within {QUICK_FAILURE:g} s of its start (--retries N has it tried)"
    tries = retries_of(retries)
    has = {0: "has no retries", 1: "has 1 retry"}.get(tries, f"has {tries} retries")
    return f"not tried again, since it {account.held_after} and {has}"
