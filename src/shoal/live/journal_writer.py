"""The journal as the loop of a live control plane writes it: nothing is sent or acknowledged before it is durable."""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import RLock
from time import perf_counter, thread_time

from shoal.core.commands import Decided
from shoal.core.events import EventBatch
from shoal.live.accounts import Accounts
from shoal.live.backend import LiveBackend
from shoal.live.journal_disk import WRITE_ERRORS, JournalDisk
from shoal.store.journal import SqliteJournal

_MOST_TIMINGS = 10_000

_LONG, _IN_A_ROW = 0.005, 3
"""CPU seconds that each of this many decisions in a row took if requests are not to wait for the next."""

_SOON = 0.01
"""Seconds for which the loop rests on when a request comes that is not to wait."""


def _timings() -> deque[float]:
    return deque(maxlen=_MOST_TIMINGS)


@dataclass(slots=True)
class JournalWriter:
    """Writes events and decisions, folds them into the accounts, and acknowledges them once they are durable.

    While the journal cannot be written, the loop waits here: agents get orders and leases as before, no command is
    sent, and requests that wait for the journal are refused. ``on_failure`` is called after each failed attempt.
    """

    journal: SqliteJournal
    accounts: Accounts
    backend: LiveBackend
    disk: JournalDisk
    lock: RLock
    """Guards the accounts."""
    on_failure: Callable[[], None]
    long: float = _LONG
    """CPU seconds of a decision for which no request is to wait."""
    decision_seconds: deque[float] = field(default_factory=_timings)
    commit_seconds: deque[float] = field(default_factory=_timings)
    _cpu_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_IN_A_ROW))
    """CPU seconds of the latest decisions."""
    _began: float = 0.0
    _cpu_began: float = 0.0
    _now: float = 0.0

    def record_events(self, batch: EventBatch) -> None:
        """Record events; the decision on them, or ``commit``, makes them durable.

        Where decisions take long, events that a request waits for are made durable before the decision.
        """
        with suppress(*WRITE_ERRORS):  # of a commit where many records wait; the next one tries again
            self.journal.record_events(batch)
        with self.lock:
            self.accounts.apply_events(batch.events)
        if self.backend.awaited and self.slow:
            self.commit()
        self._now, self._began, self._cpu_began = batch.now, perf_counter(), thread_time()

    @property
    def slow(self) -> bool:
        """Whether decisions take so long that no request should wait for one."""
        return len(self._cpu_seconds) == _IN_A_ROW and min(self._cpu_seconds) > self.long

    def rest(self, seconds: float) -> None:
        """Sleep between two cycles, so that events gather in one batch and threads that answer requests can run.

        While decisions are slow it sleeps for a short time only, since requests wait for their acknowledgement.
        """
        if left := self.backend.rest.sleep(seconds):
            self.disk.stopping.wait(min(left, _SOON) if self.slow else left)

    def record_decision(self, decided: Decided) -> None:
        """Record a decision, and make it and the events before it durable."""
        self.decision_seconds.append(perf_counter() - self._began)
        self._cpu_seconds.append(thread_time() - self._cpu_began)
        with suppress(*WRITE_ERRORS):
            self.journal.record_decision(decided)
        self._make_durable()
        with self.lock:
            self.accounts.decisions.took = perf_counter() - self._began
            self.accounts.apply_commands(self._now, decided.commands)
        self.backend.confirm()

    def commit(self) -> None:
        """Make everything recorded durable, and acknowledge it."""
        self._make_durable()
        self.backend.confirm()

    def _make_durable(self) -> None:
        """Commit; while that fails, refuse the requests that wait and try again, until the control plane stops."""
        while True:
            begin = perf_counter()
            try:
                written = self.journal.commit()
            except WRITE_ERRORS as error:
                refusal = self.disk.failed(error)
                self.backend.fail(refusal)
                self.on_failure()
                if self.disk.wait():
                    raise refusal from error
            else:
                break
        self.disk.recovered()
        if written:
            self.commit_seconds.append(perf_counter() - begin)
