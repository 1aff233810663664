"""Lists of jobs in the order in which they are shown, sorted once for each change of the jobs.

The sort takes milliseconds with ten thousand jobs, so it is done without the control plane's lock.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from itertools import chain, islice
from math import inf
from operator import attrgetter
from typing import TypeAlias

from shoal.core.lifecycle import JobState
from shoal.core.units import JobId, TenantId
from shoal.live.accounts import Account, Accounts
from shoal.wire.messages import StartForecast

WAITING = (JobState.PENDING, JobState.HELD, JobState.SUSPENDED)

Listed: TypeAlias = tuple[Account, int | None]
"""A job and its position from 1 among the waiting jobs of its list; None for a job that does not wait."""

_Parts: TypeAlias = tuple[list[Account], list[Account], list[Account]]
"""Running jobs, waiting ones and ended ones, each in order."""

_Made: TypeAlias = tuple[int, Mapping[JobId, StartForecast], _Parts]
"""A list with the version of the accounts and the forecasts that it was made from."""

MOST_OLDER = 10_000
"""Most ended jobs, beside those in memory, that a list goes back to; ``acct`` has them all."""

_MOST_LISTS = 64
"""Most lists kept; the one not read for longest is forgotten first."""


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs to list: of a tenant, of an app, with a name or the beginning of an id; ``limit`` from ``offset`` on.

    None stands for any.
    """

    tenant: TenantId | None = None
    app: str | None = None
    match: str | None = None
    offset: int = 0
    limit: int | None = None

    def select(self, listed: Iterable[Listed]) -> list[Listed]:
        """Return the jobs of a list that the filter keeps; no more of the list is read than is needed."""
        if (self.tenant, self.app, self.match) != (None, None, None):
            listed = (entry for entry in listed if self._fits(entry[0]))
        return list(islice(listed, self.offset, None if self.limit is None else self.offset + self.limit))

    def _fits(self, account: Account) -> bool:
        spec, text = account.spec, self.match
        return (
            self.tenant in (None, spec.tenant)
            and self.app in (None, spec.app)
            and (text is None or account.launch.name == text or spec.id.startswith(text))
        )


ANY_JOB = JobFilter()


@dataclass(slots=True)
class JobLists:
    """Cached lists of jobs, one for each tenant with and without ended jobs; ``accounts_lock`` guards the accounts."""

    accounts: Accounts
    accounts_lock: threading.RLock
    _lists: dict[tuple[TenantId | None, bool], _Made] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read(
        self,
        tenant: TenantId | None,
        only: JobFilter,
        *,
        ended: bool,
        forecasts: Mapping[JobId, StartForecast],
        older: Iterable[Account] = (),
    ) -> list[Listed]:
        """Return copies of the jobs that a tenant (None: an admin) sees and the filter keeps, in order.

        ``older`` are ended jobs that are no longer in memory, the latest first.
        """
        parts = self._listed(tenant, ended, forecasts)
        known = {account.number for part in parts for account in part} if ended else set()
        unknown = ((account, None) for account in older if account.number not in known)
        page = only.select(chain(_numbered(parts), unknown))
        with self.accounts_lock:
            return [(copy(account), position) for account, position in page]

    def forget_ended(self) -> None:
        """Drop the lists with ended jobs, some of which are no longer in memory."""
        with self._lock:
            self._lists = {key: made for key, made in self._lists.items() if not key[1]}

    def _listed(self, tenant: TenantId | None, ended: bool, forecasts: Mapping[JobId, StartForecast]) -> _Parts:
        with self._lock:
            version = self.accounts.changes[tenant]
            made = self._lists.pop((tenant, ended), None)
            if made is None or made[0] != version or made[1] is not forecasts:
                with self.accounts_lock:
                    everyone = list((self.accounts.accounts if ended else self.accounts.live).values())
                seen = (account for account in everyone if tenant in (None, account.spec.tenant))
                made = version, forecasts, _in_order(seen, forecasts)
            while len(self._lists) >= _MOST_LISTS:
                del self._lists[next(iter(self._lists))]
            self._lists[tenant, ended] = made
            return made[2]


def _in_order(accounts: Iterable[Account], forecasts: Mapping[JobId, StartForecast]) -> _Parts:
    """Return running jobs by start, waiting ones by expected start, and ended ones, the last to end first."""
    running: list[Account] = []
    waiting: list[Account] = []
    ended: list[Account] = []
    for account in accounts:
        if account.state in WAITING:
            waiting.append(account)
        elif account.ended is not None:
            ended.append(account)
        else:
            running.append(account)
    for part in (running, waiting, ended):
        part.sort(key=attrgetter("number"))
    running.sort(key=lambda account: account.submitted if account.started is None else account.started)
    ended.sort(key=lambda account: -inf if account.ended is None else -account.ended)
    if forecasts:  # of the first jobs in the line only
        soon = [account for account in waiting if account.spec.id in forecasts]
        soon.sort(key=lambda account: forecasts[account.spec.id].median)
        waiting = [*soon, *(account for account in waiting if account.spec.id not in forecasts)]
    return running, waiting, ended


def _numbered(parts: _Parts) -> Iterator[Listed]:
    """Yield the jobs of a list with their positions, as far as they are read."""
    running, waiting, ended = parts
    for account in running:
        yield account, None
    for position, account in enumerate(waiting, start=1):
        yield account, position
    for account in ended:
        yield account, None
