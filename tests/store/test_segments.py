"""Segments of a journal: a switch that is interrupted anywhere leaves a journal that can be opened and read whole."""

import errno
import os
import sqlite3
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from tests.refusals import refusal

from shoal.core.events import EventBatch, NodeLost
from shoal.store.codec import Base, Header, Record
from shoal.store.journal import JournalFile, SqliteJournal
from shoal.store.segments import ARCHIVE, archived, last_verdicts, recover, segments, switch

SETTINGS = {"policy": "fifo"}
STEPS = ("written", "closed", "linked", "replaced")


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it is carried out."""


def batch(n: int) -> EventBatch:
    return EventBatch(float(n), (NodeLost(float(n), 0),))


def begun(folder: Path) -> SqliteJournal:
    journal = SqliteJournal.begin(folder / "journal.sqlite", SETTINGS)
    journal.record_events(batch(1))
    journal.commit()
    return journal


def everything(path: Path) -> list[Record]:
    found: list[Record] = []
    for file in segments(path):
        reader = JournalFile(file)
        found += [record for record in reader.read() if not isinstance(record, Header | Base)]
        assert reader.cut is None
    return found


def test_a_new_segment_begins_with_the_header_and_the_base(tmp_path: Path) -> None:
    journal, path = begun(tmp_path), tmp_path / "journal.sqlite"
    assert switch(journal, Base(b"state", b"live"))
    journal.record_events(batch(2))
    assert (journal.records, journal.bytes > 0) == (3, True)
    journal._uncertain = (1, 0)  # as after a failed write, of which the file has nothing
    journal.commit()
    journal.close()
    assert list(JournalFile(path).read()) == [Header(SETTINGS), Base(b"state", b"live"), batch(2)]
    assert [file.name for file in archived(path)] == ["000001.sqlite"]
    assert list(JournalFile(archived(path)[0]).read()) == [Header(SETTINGS), batch(1)]
    again = SqliteJournal.resume(path, SETTINGS)
    assert switch(again, Base(b"later"))
    again.close()
    assert [file.name for file in archived(path)] == ["000001.sqlite", "000002.sqlite"]
    assert everything(path) == [batch(1), batch(2)]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["archive", "journal.sqlite"]


@pytest.mark.parametrize("at", STEPS)
def test_a_switch_that_is_killed_after_any_step_loses_nothing(
    tmp_path: Path, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, path = begun(tmp_path), tmp_path / "journal.sqlite"

    def kill(step: str) -> None:
        if step == at:
            monkeypatch.setattr("shoal.store.segments.recover", lambda _: None)
            raise Killed

    with pytest.raises(Killed):
        switch(journal, Base(b"state"), kill)
    journal._connection.close()
    monkeypatch.undo()
    recover(path)
    resumed = SqliteJournal.resume(path, SETTINGS)
    resumed.record_events(batch(2))
    resumed.close()
    assert everything(path) == [batch(1), batch(2)]
    assert len(archived(path)) == (at == "replaced")
    assert not list(tmp_path.glob("next*"))


def test_the_last_verdicts_of_a_job_are_read_from_as_many_segments_as_have_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.store.segments._MOST_VERDICTS", 3)
    journal, path = begun(tmp_path), tmp_path / "journal.sqlite"
    for at in range(1, 7):
        journal.record_verdict(float(at), 0, f"verdict {at}")
        journal.record_verdict(float(at), 1, "of another job")
        journal.commit()
        if at in (2, 3):
            assert switch(journal, Base(b"state"))
    journal.close()
    archived(path)[0].write_bytes(b"")  # the last two segments have enough
    assert last_verdicts(path, 0) == [(4.0, "verdict 4"), (5.0, "verdict 5"), (6.0, "verdict 6")]


def test_a_journal_has_at_most_a_million_segments(tmp_path: Path) -> None:
    journal = begun(tmp_path)
    archive = tmp_path / ARCHIVE
    archive.mkdir()
    (archive / "999999.sqlite").touch()
    with refusal(f"archive: '{archive}': holds a million segments; move them away"):
        switch(journal, Base(b"state"))
    journal.close()


def test_a_journal_that_is_being_read_is_not_switched(tmp_path: Path) -> None:
    journal, path = begun(tmp_path), tmp_path / "journal.sqlite"
    reader = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    rows = reader.execute("SELECT * FROM record")
    rows.fetchone()
    assert not switch(journal, Base(b"state"))
    journal.record_events(batch(2))
    rows.close()
    reader.close()
    assert switch(journal, Base(b"state"))
    journal.close()
    assert everything(path) == [batch(1), batch(2)]


@pytest.mark.parametrize("failing", range(3))
def test_a_folder_that_cannot_be_flushed_during_a_switch_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    journal, path, calls = begun(tmp_path), tmp_path / "journal.sqlite", count()
    journal.record_events(batch(2))
    journal.commit()

    def fsync(file: int) -> None:
        if next(calls) == failing:
            raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    with suppress(OSError):
        switch(journal, Base(b"state", b"live"))
    journal.record_events(batch(3))
    journal._uncertain = (1, 0)  # as after a failed write, of which the file has nothing
    journal.commit()
    journal.close()
    assert everything(path) == [batch(1), batch(2), batch(3)]
    # Once the new segment has the journal's name, the switch is done.
    assert len(archived(path)) == (failing == 2)


def test_a_journal_that_cannot_be_opened_after_a_switch_is_opened_by_the_next_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, path = begun(tmp_path), tmp_path / "journal.sqlite"

    def full(*_: object, **__: object) -> sqlite3.Connection:
        raise sqlite3.OperationalError("unable to open database file")

    def fill(step: str) -> None:
        if step == "replaced":
            monkeypatch.setattr(sqlite3, "connect", full)

    assert switch(journal, Base(b"state", b"live"), fill)
    journal.record_events(batch(2))
    with pytest.raises(sqlite3.OperationalError):
        journal.commit()
    monkeypatch.undo()
    journal.commit()
    journal.close()
    assert everything(path) == [batch(1), batch(2)]
