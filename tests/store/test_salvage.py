"""Salvage of a damaged journal: what is before the damage is saved, and what is behind it is named."""

import sqlite3
from pathlib import Path

import pytest
from tests.refusals import refusal

from shoal.core.errors import JournalError
from shoal.core.events import EventBatch, JobCancelled, JobSubmitted
from shoal.core.job import JobSpec
from shoal.store.codec import Base
from shoal.store.journal import JournalFile, SqliteJournal
from shoal.store.salvage import Salvaged, salvage


def written(folder: Path) -> Path:
    """A journal of nine records: a header, submissions at 1 to 7 s, and at 8 s a cancellation of the third job."""
    journal = SqliteJournal.begin(folder / "journal.sqlite", {"policy": "fifo"})
    for n in range(1, 8):
        journal.record_events(EventBatch(n, (JobSubmitted(n, JobSpec(f"job-{n}", n, 1, 1.0, 1, 1)),)))
    journal.record_events(EventBatch(8.0, (JobCancelled(8.0, 2),)))
    journal.close()
    return folder / "journal.sqlite"


def damage(path: Path, command: str) -> bytes:
    with sqlite3.connect(path) as connection:
        connection.execute(command)
    connection.close()
    return path.read_bytes()


def test_a_damaged_record_ends_what_is_saved(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = list(JournalFile(path).read())
    bytes_before = damage(path, "UPDATE record SET body = x'00' WHERE seq = 6")
    found = salvage(path, tmp_path / "new.sqlite")
    assert found == Salvaged(5, 4.0, "cut after record 5: the checksum of record 6 does not match", 4, 4.0, "job-3")
    reader = JournalFile(tmp_path / "new.sqlite")
    assert list(reader.read()) == whole[:5]
    assert reader.cut is None
    assert path.read_bytes() == bytes_before


def test_missing_records_are_counted(tmp_path: Path) -> None:
    path = written(tmp_path)
    damage(path, "DELETE FROM record WHERE seq > 7")
    found = salvage(path, tmp_path / "new.sqlite")
    assert (found.records, found.until, found.lost_records, found.last_job) == (7, 6.0, 2, None)
    assert found.cut == "cut after record 7: records 8 to 9 are missing"


def test_a_whole_journal_loses_nothing(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert salvage(path, tmp_path / "new.sqlite") == Salvaged(9, 8.0, None)
    assert (tmp_path / "new.sqlite").read_bytes() == path.read_bytes()


def test_an_existing_file_is_not_overwritten_and_garbage_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    with refusal(f"out: '{path}': exists already; name another file"):
        salvage(path, path)
    (tmp_path / "noise.sqlite").write_bytes(b"noise" * 1000)
    with pytest.raises(JournalError, match="damaged from the start"):
        salvage(tmp_path / "noise.sqlite", tmp_path / "new.sqlite")
    assert not (tmp_path / "new.sqlite").exists()


def test_a_lost_record_names_a_job_by_number_where_its_name_is_not_in_the_file(tmp_path: Path) -> None:
    submitted = EventBatch(1.0, (JobSubmitted(1.0, JobSpec("job", 1.0, 1, 1.0, 1, 1)),))
    for base, cancelled in ((Base(b"state"), 41), (None, 1)):
        path = tmp_path / f"{cancelled}.sqlite"
        journal = SqliteJournal.begin(path, {"policy": "fifo"}, base)
        journal.record_events(submitted)
        journal.record_events(EventBatch(2.0, (JobCancelled(2.0, 0),)))
        journal.record_events(EventBatch(3.0, (JobCancelled(3.0, cancelled),)))
        journal.close()
        whole = 3 if base else 2
        damage(path, f"UPDATE record SET body = x'00' WHERE seq = {whole + 1}")
        found = salvage(path, tmp_path / f"{cancelled}.new")
        assert (found.records, found.lost_records, found.lost_seconds, found.last_job) == (whole, 2, 2.0, cancelled)
