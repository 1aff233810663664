"""Compaction of a live journal: when a segment is long enough, the next one begins with images of the state.

Ended jobs move from memory to a table on disk, and are dropped after the retention, as are archived segments.
"""

import ctypes
import logging
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from threading import Lock, RLock

import msgspec

from shoal.core.errors import InputError, JournalError
from shoal.core.units import JobId, JobNumber, Seconds, TenantId
from shoal.engine.state import State
from shoal.engine.state_image import UnreadableBase, decode_image, encode_image, image_of, restore
from shoal.live.accounts import Account, Accounts
from shoal.live.backend import LiveBackend
from shoal.live.ended_jobs import EndedJobs
from shoal.live.live_image import encode_live
from shoal.store.codec import Base
from shoal.store.journal import JournalFile, SqliteJournal
from shoal.store.segments import archived, last_verdicts, switch
from shoal.wire.messages import AgentOrders

log = logging.getLogger(__name__)

KEEP: Seconds = 30 * 86_400.0
"""Seconds for which ended jobs and archived segments are kept, unless the operator sets another time."""

MOST_RECORDS = 50_000
MOST_BYTES = 64 * 2**20
"""Length of a segment after which the next one begins, in records or in bytes of them."""

MOST_ENDED = 10_000
"""Ended jobs in memory after which the next segment begins, or as many as are live: few records can end many jobs."""

_PAUSE = 1000
"""Records to wait for after a switch that failed."""


@dataclass(slots=True)
class Compaction:
    """Closes segments of a control plane's journal; called by the loop's thread between two cycles."""

    journal: SqliteJournal
    state: State
    accounts: Accounts
    backend: LiveBackend
    ended: EndedJobs
    epoch: float
    """Unix time at which the journal began."""
    keep: Seconds = KEEP
    lock: RLock = field(default_factory=RLock)
    """Guards the accounts."""
    most_records: int = MOST_RECORDS
    most_ended: int = MOST_ENDED
    step: Callable[[str], None] = field(default=lambda _: None)
    """Called after each step, by tests that interrupt there."""
    _not_before: int = 0
    _files: Lock = field(default_factory=Lock)
    """Held while a request reads segments, and while they are replaced or dropped."""

    def due(self) -> bool:
        """Return whether the segment is long enough to be closed."""
        journal, live = self.journal, len(self.accounts.live)
        if journal.records < self._not_before:
            return False
        long = journal.records >= self.most_records or journal.bytes >= MOST_BYTES
        return long or len(self.accounts.accounts) - live >= max(self.most_ended, live)

    def run(self) -> bool:
        """Begin the next segment and drop ended jobs from memory; return False if it cannot now.

        The caller has committed the journal, and no command is on its way to the backend. Afterwards the state has no
        ``carry``, as after a restart.
        """
        began = time.process_time()
        ended = self.accounts.ended()
        try:
            self.ended.add(ended)
            self.step("ended jobs stored")
            image = image_of(self.state)
            with self.lock:
                base = Base(encode_image(image), encode_live(self.accounts))
            with self._files:
                switched = switch(self.journal, base, self.step)
            if not switched:
                self._not_before = self.journal.records + _PAUSE
                return False
        except (OSError, sqlite3.Error, InputError) as error:
            log.warning("the journal was not compacted", extra={"error": str(error)})
            self._not_before = self.journal.records + _PAUSE
            return False
        self._not_before = 0
        restore(self.state, image)
        with self.lock:
            self.accounts.forget(ended)
        self.backend.forget(account.number for account in ended)
        try:
            with self._files:
                self._drop_old()
        except (OSError, sqlite3.Error, JournalError) as error:  # the next time drops them
            log.warning("old jobs or segments were not dropped", extra={"error": str(error)})
        _give_back_memory()
        seconds = round(time.process_time() - began, 3)
        log.info("began a segment", extra={"ended": len(ended), "live": len(image.jobs), "cpu_seconds": seconds})
        return True

    def ended_account(self, job: JobId, tenant: TenantId | None) -> Account | None:
        """Return the account of an ended job that is no longer in memory; ``InputError`` if it was dropped."""
        account = self.ended.account(job)
        at = None if account is not None else self.ended.dropped(job, tenant)
        if at is not None:
            when = time.strftime("%Y-%m-%d", time.gmtime(self.epoch + at))
            hint = f"ended on {when} and was dropped after {self.keep / 86_400:.3g} days, as `--keep` says"
            raise InputError("job", job, hint)
        return account

    def verdicts(self, job: JobNumber) -> list[tuple[Seconds, str]]:
        """Return (time, sentence) of a job's last verdicts, in order."""
        with self._files:
            return last_verdicts(self.journal.path, job)

    def with_forgotten(self, orders: AgentOrders, old: Sequence[JobId]) -> AgentOrders:
        """Return an agent's orders with the retention and the ids of those jobs it named that are not known here."""
        gone = [job for job in old if job not in self.accounts.numbers and not self.ended.known(job)]
        return msgspec.structs.replace(orders, keep=self.keep, forget=gone)

    def _drop_old(self) -> None:
        """Drop accounts and segments older than the retention, by the journal's time; the last closed segment stays."""
        oldest = self.state.now - self.keep
        self.ended.drop(oldest)
        old: list[Path] = []
        for path, following in pairwise(archived(self.journal.path)):
            old.append(path)
            try:
                ended = _begins(following)
            except UnreadableBase:  # a later compaction drops it
                continue
            if ended >= oldest:
                return
            for file in old:
                file.unlink()
            old.clear()


def _give_back_memory() -> None:
    """Let the C library return freed pages; it keeps them otherwise, and its heap grows a little with each segment."""
    with suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


def _begins(segment: Path) -> Seconds:
    """Return the time of the base of a segment, at which the one before it ends."""
    states = (record.state for record in JournalFile(segment).read() if isinstance(record, Base))
    return decode_image(next(states, b"")).now
