"""Sentences on held jobs: they wait for other jobs, a time, a person, a place in their array, or a retry."""

from collections.abc import Mapping

from shoal.core.units import JobId, JobNumber, TenantId
from shoal.live.accounts import Account, Accounts
from shoal.live.time_words import ClockWords

_WHEN = {"ok": "to complete", "any": "to end", "notok": "to fail", "start": "to start"}
_MOST_NAMED = 3


def why_held(account: Account, accounts: Accounts, words: ClockWords) -> str:
    """Return a sentence on the conditions a held job waits for."""
    parts = []
    if account.held_by:
        parts.append(f"held by {account.held_by} since {ClockWords(words.epoch).at(account.held_since)}")
    if account.starts:
        if account.held_until < float("inf"):
            again = f"it is tried again at {words.at(account.held_until)}"
            parts.append(f"it {account.held_after} ({account.cause}); {again}")
        return _waits(parts)
    conditions = account.spec.conditions
    if conditions is not None:
        after = [text for id, when in conditions.after if (text := _awaited(id, when, accounts.numbers, accounts.live))]
        if after:
            more = f" and {len(after) - _MOST_NAMED} more" if len(after) > _MOST_NAMED else ""
            parts.append(f"for {', '.join(after[:_MOST_NAMED])}{more}")
        if conditions.begin is not None and words.now is not None and conditions.begin > words.now:
            parts.append(f"it may start at {words.at(conditions.begin)}")
        if not parts and conditions.most_at_once:
            parts.append(f"{conditions.most_at_once} jobs of the array {conditions.array}, the most at once, go first")
    return _waits(parts)


def running_hold(account: Account, words: ClockWords) -> str:
    """Return a sentence part on the hold of a job that runs or is suspended; empty if it is not held."""
    if not account.held_by:
        return ""
    again = "is not resumed" if account.bound is not None else "does not start again once it stops"
    since = ClockWords(words.epoch).at(account.held_since)
    return f"; held by {account.held_by} since {since}: it {again} until `shoal release`"


def remedy_of(account: Account, tenant: TenantId | None = None) -> str:
    """Return a hint on how to let a held job start, for a tenant or, if None, for an administrator."""
    if account.held_by:
        whose = "an administrator's " if account.held_by_admin and tenant is not None else ""
        return f"{whose}`shoal release` lets it start"
    if account.starts:
        return "`shoal logs` shows what it wrote before it died; `shoal cancel` ends the tries"
    return ""


def _waits(parts: list[str]) -> str:
    if not parts:
        return "waits: its conditions are being checked"
    return f"waits {'; '.join(parts)}" if parts[0].startswith("for ") else f"waits: {'; '.join(parts)}"


def _awaited(id: JobId, when: str, numbers: Mapping[JobId, JobNumber], live: Mapping[JobNumber, Account]) -> str:
    """Return the job that is waited for, with the awaited change; empty if that has happened."""
    other = live.get(numbers.get(id, -1))
    if other is None or (when == "start" and other.started is not None):
        return ""
    return f"{id} {_WHEN[when]}"
