"""A control plane whose disk is full or failing: it refuses work, runs what runs, loses nothing and goes on."""

import sqlite3
from pathlib import Path

import pytest
from tests.live.test_control_plane import job, obey, opened, soon, state, submit, sync
from tests.refusals import refusal

from shoal.core.errors import InputError
from shoal.live.home import JOURNAL
from shoal.live.journal_disk import NEEDED_BYTES, ShortOfDisk
from shoal.scenario.replay import replay_file
from shoal.store.journal import SqliteJournal
from shoal.wire.messages import Reshape


class Disk:
    """A disk with ``free`` bytes; while ``error`` is set every commit fails, before it is written or after it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = 2**40
        self.error = ""
        self.written = False
        self.attempts = 0
        commit = SqliteJournal.commit

        def fail_or_commit(journal: SqliteJournal) -> bool:
            if not self.error:
                return commit(journal)
            self.attempts += 1
            if self.written:
                commit(journal)
            raise sqlite3.OperationalError(self.error)

        monkeypatch.setattr(SqliteJournal, "commit", fail_or_commit)
        monkeypatch.setattr("shoal.live.journal_disk.free_bytes", lambda _: self.free)
        monkeypatch.setattr("shoal.live.journal_disk._LONGEST_PAUSE", 0.01)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("error", ["database or disk is full", "disk I/O error"])
def test_while_the_journal_cannot_be_written_runs_go_on_and_every_acknowledged_job_is_kept(
    tmp_path: Path, disk: Disk, error: str, written: bool
) -> None:
    with opened(tmp_path, "gpu:1x2") as plane:
        runs, waits = submit(plane, job("runs", 2), job("waits", 2))
        obey(plane, "gpu-0")
        soon(lambda: state(plane, runs) == "running")
        disk.error, disk.written = error, written
        orders = obey(plane, "gpu-0", (0, 0))  # the running job ends now
        soon(lambda: disk.attempts > 3)
        assert plane.failed is None
        assert error in plane.short_of_disk
        # Orders and leases go on. The ended run is not forgotten and nothing starts, since neither is durable.
        assert [order.job for order in sync(plane, "gpu-0", []).runs] == [orders[0].job]
        for refused in (
            lambda: plane.submit([job("new")], "ann"),
            lambda: plane.cancel(waits, None),
            lambda: plane.reshape(waits, Reshape(1), None),
        ):
            with pytest.raises(ShortOfDisk, match="cannot write its journal"):
                refused()
        disk.error = ""
        soon(lambda: state(plane, runs) == "completed")
        soon(lambda: not plane.short_of_disk)
        soon(lambda: [order.id for order in sync(plane, "gpu-0", []).runs] == [waits])
        (new,) = submit(plane, job("new"))
    with opened(tmp_path, "gpu:1x2") as plane:
        assert [row.id for row in plane.jobs(None, ended=True)] == [waits, new, runs]
    derived, _, _ = replay_file(tmp_path / "home" / JOURNAL)
    assert derived.decisions > 0


def test_a_submission_that_meets_the_full_disk_is_refused_and_its_key_leads_to_one_job_later(
    tmp_path: Path, disk: Disk
) -> None:
    with opened(tmp_path) as plane:
        disk.error = "database or disk is full"
        with refusal(
            "the control plane cannot write its journal (database or disk is full); running jobs go on, "
            "new work is refused meanwhile; it is not known whether this request will count: ask again",
            ShortOfDisk,
        ):
            submit(plane, job("a", key="k"))
        disk.error = ""
        soon(lambda: not plane.short_of_disk)
        assert submit(plane, job("a", key="k")) == [row.id for row in plane.jobs(None)]


def test_a_control_plane_stops_while_its_disk_is_full_keeps_what_it_acknowledged_and_logs_it(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as plane:
        (kept,) = submit(plane, job("kept"))
        disk.error = "database or disk is full"
        with pytest.raises(ShortOfDisk):
            submit(plane, job("refused"))
    lines = [record for record in caplog.records if record.name == "shoal.live.control_plane"]
    stopped = "stopped while the journal could not be written"
    assert ("WARNING", stopped) in [(line.levelname, line.getMessage()) for line in lines]
    disk.error = ""
    with opened(tmp_path) as plane:
        assert [row.id for row in plane.jobs(None)] == [kept]


def test_with_little_room_new_work_is_refused_and_a_job_may_be_cancelled(tmp_path: Path, disk: Disk) -> None:
    with opened(tmp_path) as plane:
        (id,) = submit(plane, job("a"))
        disk.free = NEEDED_BYTES - 1
        with refusal(
            "the control plane is short of disk: its disk has 16.0 MB free and it needs 16.0 MB; running "
            "jobs go on, new work is refused meanwhile",
            ShortOfDisk,
        ):
            submit(plane, job("b"))
        with pytest.raises(ShortOfDisk):
            plane.reshape(id, Reshape(2), None)
        assert "short of disk" in plane.cluster().short_of_disk
        plane.cancel(id, None).result(20)
        assert state(plane, id) == "cancelling"
        disk.free = NEEDED_BYTES + 4096
        submit(plane, job("b"))
        with pytest.raises(ShortOfDisk):  # a small one fits, a large one does not
            submit(plane, job("c", env={"A": "x" * 4000}))


def test_the_journal_has_blocks_of_its_own(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        submit(plane, job("a"))
        wal = plane.journal.path.with_name(f"{JOURNAL}-wal").stat()
        assert wal.st_size < NEEDED_BYTES <= wal.st_blocks * 512


def test_starting_on_a_full_disk_is_refused_in_one_line_and_writes_nothing(tmp_path: Path, disk: Disk) -> None:
    disk.free = 2**20
    with pytest.raises(InputError, match=r"has 1.0 MB free and a control plane needs 16.0 MB"), opened(tmp_path):
        pass
    disk.free = 2**40
    disk.error = "database or disk is full"
    with pytest.raises(InputError, match="cannot be written: database or disk is full"), opened(tmp_path):
        pass
    disk.error = ""
    with opened(tmp_path) as plane:
        submit(plane, job())
