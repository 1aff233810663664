"""Compaction of a live journal: what people see, and what a restart finds, is the same before and after."""

import os
import shutil
import sqlite3
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from tests.live.test_control_plane import cancel, job, obey, opened, settings, soon, state, submit
from tests.refusals import refusal

from shoal.core.errors import InputError, JournalError
from shoal.core.job import JobSpec, Launch
from shoal.engine.state_image import UnreadableBase
from shoal.forecast.what_if import forecast
from shoal.live import compaction
from shoal.live.accounts import Account, Accounts
from shoal.live.compaction import KEEP
from shoal.live.control_plane import ControlPlane
from shoal.live.ended_jobs import EndedJobs
from shoal.live.home import ENDED, JOURNAL, open_control_plane
from shoal.live.live_image import encode_live, restore_live
from shoal.scenario.replay import policies_of, read_stories, replay_file
from shoal.store.journal import JournalFile
from shoal.store.segments import ARCHIVE, archived
from shoal.wire.messages import PROTOCOL, AgentReport, CancelMany

STEPS = ("ended jobs stored", "written", "closed", "linked", "replaced")


def compact(plane: ControlPlane) -> None:
    """Let the loop begin a new segment at its next cycle."""
    segments = len(archived(plane.journal.path))
    plane.compaction.most_records = 1
    cancel(plane, submit(plane, job("nothing"))[0])
    soon(lambda: len(archived(plane.journal.path)) > segments)
    plane.compaction.most_records = 10**9


def finish(plane: ControlPlane, id: str) -> None:
    soon(lambda: state(plane, id) == "starting")
    obey(plane, "gpu-0")
    obey(plane, "gpu-0", (0,))
    soon(lambda: state(plane, id) == "completed")


def test_a_compacted_cluster_shows_the_same_and_goes_on(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        (first,) = submit(plane, job("first", key="k"))
        finish(plane, first)
        running, waiting = submit(plane, job("running", 4), job("waiting", 4, key="w"))
        soon(lambda: state(plane, running) == "starting")
        before = {row.id: row.state for row in plane.jobs(None, ended=True)}
        shares, story = plane.share(None), plane.job(first, None).story
        compact(plane)
        after = {row.id: row.state for row in plane.jobs(None, ended=True) if row.name != "nothing"}
        assert after == before
        assert plane.share(None)[0].gpu_seconds >= shares[0].gpu_seconds > 0
        assert plane.job(first, None).story == story
        assert [row.id for row in plane.acct(None) if row.name != "nothing"] == [first]
        assert submit(plane, job("first", key="k"), job("waiting", key="w")) == [first, waiting]
        assert (len(plane.accounts.accounts), len(plane.backend._runs._jobs)) == (2, 2)
        assert len(plane.scheduler.state.register.specs) == 2
        cancel(plane, running)
        soon(lambda: state(plane, waiting) == "starting")
    with opened(tmp_path) as plane:
        assert [row.id for row in plane.jobs(None)] == [waiting]
        assert {row.id: row.state for row in plane.jobs(None, ended=True)}[first] == "completed"
        assert submit(plane, job("first", key="k"), job("waiting", key="w")) == [first, waiting]
        (later,) = submit(plane, job("later"))
        assert state(plane, later) == "pending"
    home = tmp_path / "home"
    whole, _, _ = replay_file(home)
    parts = [replay_file(path)[0].decisions for path in (*archived(home / JOURNAL), home / JOURNAL)]
    assert len(parts) >= 2
    assert whole.decisions == sum(parts) > 0
    assert isinstance(forecast(home / JOURNAL, 10**6), dict)


@pytest.mark.parametrize("at", STEPS)
def test_a_control_plane_killed_during_compaction_loses_nothing(tmp_path: Path, at: str) -> None:
    killed = tmp_path / "killed"
    with opened(tmp_path) as plane:
        (done,) = submit(plane, job("done", key="d"))
        finish(plane, done)
        (live,) = submit(plane, job("live", key="l"))

        def copy(step: str) -> None:
            """Keep the folder as SIGKILL would leave it at this step, hard links included."""
            if step == at and not killed.exists():
                killed.mkdir()
                subprocess.run(["cp", "-a", tmp_path / "home", killed], check=True, timeout=60)

        plane.compaction.step = copy
        plane.compaction.most_records = 1
        plane.backend.submit([], None)
        soon(lambda: len(archived(plane.journal.path)) > 0)
    with opened(killed) as plane:
        assert [row.id for row in plane.jobs(None, ended=True)] == [live, done]
        assert submit(plane, job(key="d"), job(key="l")) == [done, live]
        compact(plane)
        assert [row.id for row in plane.jobs(None)] == [live]
    for home in (killed / "home", tmp_path / "home"):
        assert replay_file(home)[0].decisions > 0
        assert not list(home.glob("next*"))


def test_ended_jobs_and_segments_are_dropped_after_the_retention(tmp_path: Path) -> None:
    with open_control_plane(replace(settings(tmp_path), keep=0.0)) as plane:
        (gone,) = submit(plane, job("gone", key="k"))
        cancel(plane, gone)
        plane.compaction.most_records = 1
        (live,) = submit(plane, job("live"))
        soon(lambda: plane.compaction.ended.dropped(gone, None) is not None)
        with pytest.raises(InputError, match=r"'gone-.....': ended on 20..-..-.. and was dropped after 0 days"):
            plane.job(gone, "ann")
        with pytest.raises(LookupError):
            plane.job(gone, "bob")
        plane.backend.submit([], None)
        soon(lambda: len(archived(plane.journal.path)) <= 1)
        assert [row.id for row in plane.jobs(None, ended=True)] == [live]
        assert [row.tenant for row in plane.share(None)] == ["ann"]


def test_segments_are_kept_for_the_retention_whatever_the_machines_clock_says(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        compact(plane)
        for path in archived(plane.journal.path):
            os.utime(path, (0.0, 0.0))  # written while the clock stood in 1970
        compact(plane)
        plane.compaction.epoch += 3e8  # ten years ahead, as after a restart with such a clock
        compact(plane)
        assert archived(plane.journal.path)[0].name == "000001.sqlite"


def test_a_job_is_read_before_or_after_a_switch_of_segments_and_not_during_it(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        (id,) = submit(plane, job("job"))
        story, read, waited = plane.job(id, None).story, list[int](), list[bool]()
        reader = threading.Thread(target=lambda: read.append(len(plane.job(id, None).story)))

        def read_during(step: str) -> None:
            if step == "closed" and not waited:
                reader.start()
                reader.join(0.2)
                waited.append(reader.is_alive())

        plane.compaction.step = read_during
        compact(plane)
        reader.join(20)
        assert waited == [True]
        assert read[0] >= len(story)


def test_what_cannot_be_dropped_does_not_stop_the_control_plane(tmp_path: Path) -> None:
    with open_control_plane(replace(settings(tmp_path), keep=0.0)) as plane:
        stuck = tmp_path / "home" / ARCHIVE / "000001.sqlite"
        stuck.mkdir(parents=True)
        os.utime(stuck, (0.0, 0.0))
        compact(plane)
        (id,) = submit(plane, job("later"))
        assert plane.failed is None
        assert stuck.is_dir()
        assert id in plane.accounts.numbers


def test_after_a_failed_write_ended_jobs_are_stored_all_or_none(tmp_path: Path) -> None:
    spec, launch = JobSpec("a", 0.0, 1, None, 1, 1), Launch("a", ("true",))
    good = Account(0, spec, launch, 0.0, ended=1.0)
    ended = EndedJobs(tmp_path / "some.sqlite")
    with pytest.raises(sqlite3.IntegrityError):
        ended.add([good, replace(good, number=1, spec=replace(spec, id="b"), ended=None)])
    assert ended.count() == 0
    ended.add([good])
    assert [account.spec.id for account in ended.accounts(None)] == ["a"]
    ended.close()


def test_a_base_that_cannot_be_read_is_made_again_from_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as plane:
        (done,) = submit(plane, job("done"))
        finish(plane, done)
        (live,) = submit(plane, job("live"))
        compact(plane)

    def unreadable(*_: object) -> None:
        raise UnreadableBase("of another version")

    monkeypatch.setattr("shoal.live.home.restore_live", unreadable)
    with opened(tmp_path) as plane:
        assert [row.id for row in plane.jobs(None)] == [live]
        assert state(plane, done) == "completed"
    archived(tmp_path / "home" / JOURNAL)[0].unlink()
    with pytest.raises(UnreadableBase), open_control_plane(settings(tmp_path)):
        pass


def test_ended_jobs_are_read_in_pages_by_tenant(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        ids = submit(plane, *[job(f"j{i}") for i in range(5)])
        other = submit(plane, job("other"), tenant="bob")
        for id in [*ids, *other]:
            cancel(plane, id)
        soon(lambda: len(plane.accounts.ended()) == 6)
        ended = EndedJobs(tmp_path / "some.sqlite")
        ended.add(plane.accounts.ended())
        ended.add(plane.accounts.ended())
        assert [a.spec.id for a in ended.latest("ann", 3)] == ids[:1:-1]
        assert [a.spec.id for a in ended.accounts(None)] == [*ids, *other]
        assert ended.drop(1e9) == 6
        assert (ended.count(), ended.known(ids[0]), ended.dropped(ids[0], "bob")) == (0, False, None)
        ended.close()


def test_a_disk_that_fails_while_old_jobs_are_dropped_does_not_end_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(EndedJobs, "drop", full)
    with opened(tmp_path) as plane:
        (first,) = submit(plane, job("first"))
        finish(plane, first)
        compact(plane)
        (second,) = submit(plane, job("second"))
        finish(plane, second)
        assert (state(plane, first), plane.failed) == ("completed", None)


@pytest.mark.parametrize(
    ("base", "why"),
    [(b"", "it has version none"), (b"\x7f\x01", "it has version 7f"), (encode_live(Accounts([]))[:1] + b"?", None)],
)
def test_a_base_of_another_version_or_with_damage_cannot_be_read(base: bytes, why: str | None) -> None:
    with pytest.raises(UnreadableBase) as refused:
        restore_live(Accounts([]), base)
    cause = refused.value.__cause__
    assert str(refused.value) == f"the base of this segment cannot be read: {why or cause}"
    assert (cause is None) == (why is not None)


def test_the_key_of_a_submission_that_is_not_in_the_journal_yet_is_not_in_a_base() -> None:
    accounts = Accounts([])
    accounts.keys["ann", "k"] = "job-abcde"  # admitted; its event waits for the next cycle
    restored = Accounts([])
    restore_live(restored, encode_live(accounts))
    assert restored.keys == {}


def test_a_journal_older_than_the_table_of_ended_jobs_is_refused_before_it_gives_a_number_twice(tmp_path: Path) -> None:
    old = tmp_path / "old.sqlite"
    with opened(tmp_path) as plane:
        (first,) = submit(plane, job("first"))
        finish(plane, first)
    shutil.copy(tmp_path / "home" / JOURNAL, old)
    with opened(tmp_path) as plane:
        compact(plane)
        compact(plane)
    os.replace(old, tmp_path / "home" / JOURNAL)
    before = old_records(tmp_path)
    with pytest.raises(InputError, match=r"has job number [12], and the journal beside it has 1") as refused:
        opened(tmp_path).__enter__()
    assert (refused.value.field, refused.value.value) == ("ended jobs", str(tmp_path / "home" / ENDED))
    assert old_records(tmp_path) == before
    (tmp_path / "home" / ENDED).rename(tmp_path / "away.sqlite")
    with opened(tmp_path) as plane:
        assert [row.id for row in plane.jobs(None, ended=True)] == [first]


def old_records(folder: Path) -> int:
    return sum(1 for _ in JournalFile(folder / "home" / JOURNAL).raw())


def test_an_agent_forgets_only_jobs_that_are_not_known(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        (ended,) = submit(plane, job("ended"))
        cancel(plane, ended)
        compact(plane)
        (live,) = submit(plane, job("live"))
        old = [ended, live, "dropped-12345"]
        answer = plane.sync(AgentReport(protocol=PROTOCOL, node="gpu-0", boot="boot", known=0, runs=[], old=old))
        assert (answer.forget, answer.keep) == (["dropped-12345"], KEEP)


def test_a_report_reads_all_segments_and_refuses_a_home_without_the_first(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        (done,) = submit(plane, job("done"))
        finish(plane, done)
        compact(plane)
        (live,) = submit(plane, job("live"))
    home = tmp_path / "home"
    told, difference = read_stories(home)
    assert difference == ""
    assert [story.id for story in told if not story.id.startswith("nothing")] == [done, live]
    assert [policy for policy, _ in policies_of(home)] == ["fifo"]
    archived(home / JOURNAL)[0].unlink()
    with refusal("the journal's first segments were dropped: `shoal acct` lists the jobs that are kept", JournalError):
        read_stories(home)


def test_a_key_of_an_ended_job_is_found_without_reading_the_others(tmp_path: Path) -> None:
    ended, steps = EndedJobs(tmp_path / "ended.sqlite"), 0
    spec = JobSpec("job", 0.0, 1, None, 1, 1)
    launches = [replace(spec, id=f"job-{n}") for n in range(500)]
    ended.add(Account(n, s, Launch("job", (), key=f"k{n}"), 0.0, ended=1.0) for n, s in enumerate(launches))

    def count() -> None:
        nonlocal steps
        steps += 1

    ended._connection.set_progress_handler(count, 1)
    assert ended.with_key("default", "k250") == "job-250"
    assert ended.with_key("default", "other") is None
    assert steps < 200
    ended.close()


def test_many_ended_jobs_begin_a_segment_however_few_records_they_took(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        plane.compaction.most_ended = 20
        (live,) = submit(plane, job("live", 4))
        for _ in range(3):
            submit(plane, *(job("many", 4) for _ in range(10)))
            _, ended = plane.verbs.cancel_many(CancelMany(name="many"), None)
            ended.result(20)
        soon(lambda: len(archived(plane.journal.path)) == 1)
        assert plane.journal.records < 100
        assert len(plane.accounts.accounts) < 20
        assert plane.compaction.ended.count() >= 20
        assert [row.id for row in plane.jobs(None)] == [live]


def test_a_failed_switch_is_not_tried_again_at_every_cycle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = 0

    def fails(_: str) -> None:
        nonlocal tried
        tried += 1
        raise OSError("the disk fails")

    with opened(tmp_path) as plane:
        plane.compaction.step = fails
        monkeypatch.setattr(compaction, "MOST_BYTES", 1)
        submit(plane, job("first"))
        soon(lambda: tried > 0)
        for number in range(5):
            submit(plane, job(f"later-{number}"))
        assert tried == 1
