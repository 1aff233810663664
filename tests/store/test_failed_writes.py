"""Writes of a journal that fail: a full disk, and a flush of which nobody knows what it left on the disk."""

import resource
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shoal.core.errors import JournalError
from shoal.core.events import EventBatch, JobStarted
from shoal.store.journal import JournalFile, SqliteJournal


def batch(number: int) -> EventBatch:
    return EventBatch(float(number), tuple(JobStarted(float(number), n, 1, 1.0, 0.0) for n in range(50)))


@contextmanager
def files_at_most(size: int) -> Iterator[None]:
    """No file of this process may grow beyond ``size`` bytes: as on a full disk, a write fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


class _FailingConnection(sqlite3.Connection):
    """Fails at COMMIT while ``armed``, before the transaction is written or after it."""

    armed: str | None = None

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if sql != "COMMIT" or type(self).armed is None:
            return super().execute(sql, *parameters)
        if type(self).armed == "after":
            super().execute(sql)
        raise sqlite3.OperationalError("disk I/O error")


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> type[_FailingConnection]:
    class Connection(_FailingConnection):
        pass

    monkeypatch.setattr("shoal.store.journal.sqlite3.connect", partial(sqlite3.connect, factory=Connection))
    return Connection


@pytest.mark.parametrize("moment", ["before", "after"])
def test_each_record_is_in_the_file_once_whether_or_not_the_failed_commit_reached_it(
    tmp_path: Path, failing: type[_FailingConnection], moment: str
) -> None:
    journal = SqliteJournal.begin(tmp_path / "j", {})
    journal.record_events(batch(1))
    journal.record_verdict(1.0, 0, "waits")
    failing.armed = moment
    for _ in range(3):
        with pytest.raises(sqlite3.OperationalError):
            journal.commit()
        journal.record_events(batch(2))  # as long as it fails, more is recorded
    failing.armed = None
    journal.record_verdict(2.0, 0, "runs")
    assert journal.commit()
    journal.close()
    file = JournalFile(tmp_path / "j")
    assert list(file.read())[1:] == [batch(1), batch(2), batch(2), batch(2)]
    assert (file.cut, file.verdicts(0)) == (None, [(1.0, "waits"), (2.0, "runs")])


def test_a_journal_that_has_lost_a_durable_record_is_not_written_to_again(
    tmp_path: Path, failing: type[_FailingConnection]
) -> None:
    journal = SqliteJournal.begin(tmp_path / "j", {})
    journal.record_events(batch(1))
    journal.commit()
    journal.record_events(batch(2))
    failing.armed = "after"
    with pytest.raises(sqlite3.OperationalError):
        journal.commit()
    failing.armed = None
    other = sqlite3.connect(tmp_path / "j")
    other.execute("DELETE FROM record WHERE seq >= 2")
    other.commit()
    other.close()
    with pytest.raises(JournalError, match="no longer ends with record 2"):
        journal.commit()


def test_on_a_full_disk_commits_fail_and_go_on_when_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = SqliteJournal.begin(path, {})
    with files_at_most(4096):
        journal.record_events(batch(1))
        for _ in range(2):
            with pytest.raises(sqlite3.OperationalError):
                journal.commit()
    assert journal.commit()
    assert not journal.commit()
    journal.close()
    assert list(JournalFile(path).read())[1:] == [batch(1)]


def test_a_journal_that_cannot_be_begun_leaves_no_file(tmp_path: Path) -> None:
    for size in (0, 4096):
        with files_at_most(size), pytest.raises(sqlite3.OperationalError):
            SqliteJournal.begin(tmp_path / "j", {"padding": "x" * 10_000})
        assert list(tmp_path.iterdir()) == []
    SqliteJournal.begin(tmp_path / "j", {}).close()


def test_closing_on_a_full_disk_keeps_everything_committed(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = SqliteJournal.begin(path, {})
    journal.record_events(batch(1))
    journal.commit()
    journal.record_events(batch(2))
    with files_at_most(path.with_name("j-wal").stat().st_size), pytest.raises(sqlite3.OperationalError):
        journal.close()
    assert list(JournalFile(path).read())[1:] == [batch(1)]
