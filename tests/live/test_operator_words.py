"""What an operator greps for: the log of the control plane, and what a home holds after a start and a restart."""

import logging
import sqlite3
import stat
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.live.test_backend_requests import backend
from tests.live.test_control_plane import cancel, job, obey, opened, settings, soon, state, submit, sync
from tests.refusals import refusal

from shoal.core.topology import parse_cluster
from shoal.live.control_plane import ControlPlane
from shoal.live.ended_jobs import EndedJobs
from shoal.live.home import JOURNAL, known_cluster, make_home, open_control_plane
from shoal.live.journal_disk import JournalDisk, ShortOfDisk
from shoal.store.journal import JournalFile, SqliteJournal, settings_of
from shoal.wire.messages import PROTOCOL, AgentReport, Hello, LogAnswer, LogPart, NewSession, SignalRequest


def logged(caplog: pytest.LogCaptureFixture, module: str, *fields: str) -> list[tuple[object, ...]]:
    """The level, message and these fields of each record of a module."""
    records = [record for record in caplog.records if record.name == f"shoal.live.{module}"]
    return [(each.levelname, each.getMessage(), *(vars(each)[field] for field in fields)) for each in records]


def header(folder: Path) -> dict[str, Any]:
    """The header of the last control plane on a home."""
    headers = [record[2] for record in JournalFile(folder / "home" / JOURNAL).raw() if record[0] == 0]
    assert headers
    return dict(headers[-1])


def test_the_header_says_with_what_the_cluster_began_and_for_how_long_it_was_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with opened(tmp_path, "gpu:1x2", lease=15.0) as plane:
        first = settings_of(JournalFile(tmp_path / "home" / JOURNAL).read)
        submit(plane, job())
        soon(lambda: plane.last_decision is not None)
        epoch = plane.about.epoch
        about = (plane.about.policy, plane.about.cluster, plane.about.retired)
    written = len(list(JournalFile(tmp_path / "home" / JOURNAL).raw()))
    assert logged(caplog, "home") == []
    assert about == ("fifo", "gpu:1x2", frozenset())
    assert (first["epoch"], first["lease"], first["joined"], "away" in first) == (epoch, 15.0, [], False)
    assert first["opened"] == pytest.approx(epoch, abs=60.0)
    with opened(tmp_path, "gpu:1x2", lease=15.0) as plane:
        assert plane.about.epoch == pytest.approx(epoch, abs=1e-3)
    ((level, message, records, live),) = logged(caplog, "home", "records", "live")
    assert (level, message, live) == ("INFO", "journal taken up again", 1)
    assert records == written


def test_a_home_knows_its_nodes_and_their_prices_after_the_cluster_has_changed(tmp_path: Path) -> None:
    assert known_cluster(tmp_path / "home") is None
    with opened(tmp_path, "gpu:2x2"):
        pass
    known = known_cluster(tmp_path / "home")
    assert known is not None
    assert [node.name for node in known.nodes] == ["gpu-0", "gpu-1"]
    with opened(tmp_path, "gpu:1x2,big:1x8") as plane:
        assert [node.name for node in plane.backend.topology.nodes] == ["gpu-0", "gpu-1", "big-0"]
        assert plane.about.retired == {1}
        assert plane.about.cluster == "gpu:1x2,big:1x8"


def test_a_home_is_private_unless_its_users_may_pass_and_its_key_stays(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for mode, kept in ((0o755, 0o700), (0o711, 0o711)):
        home.mkdir(exist_ok=True)
        home.chmod(mode)
        make_home(home)
        assert stat.S_IMODE(home.stat().st_mode) == kept
    with opened(tmp_path) as plane:
        key = plane.backend.store_key
    assert (len(key), stat.S_IMODE((home / "store.key").stat().st_mode)) == (32, 0o600)
    with opened(tmp_path) as plane:
        assert plane.backend.store_key == key


def test_the_settings_of_a_home_reach_jobs_and_agents(tmp_path: Path) -> None:
    mine = replace(settings(tmp_path, "gpu:1x2", lease=17.0), roots=["/data"], max_grace=5.0, keep=86_400.0)
    with open_control_plane(mine) as plane:
        plane.hello(Hello(PROTOCOL, "gpu-0", "boot", "gpu", 2, "127.0.0.1"))
        with refusal("workdir: '/tmp': must lie in /data, or be left out"):
            submit(plane, job(workdir="/tmp", grace=5.0))
        with refusal("grace: 6.0: this cluster allows at most 5 seconds (`--max-grace` of its control plane)"):
            submit(plane, job(grace=6.0))
        report = AgentReport(protocol=PROTOCOL, node="gpu-0", boot="boot", known=0, runs=[], old=["gone-abcde"])
        orders = plane.sync(report)
        assert (orders.lease, orders.keep, orders.forget) == (17.0, 86_400.0, ["gone-abcde"])
        assert plane.job(submit(plane, job(grace=5.0))[0], None).grace == 5.0


def test_a_job_is_expected_to_run_at_its_models_rate_or_as_its_declared_gang(tmp_path: Path) -> None:
    with opened(tmp_path, "v100:2x4") as plane:
        plain, wide, model = submit(
            plane,
            job("plain", 2, max_gpus=4),
            job("wide", 2, kinds=["v100"]),
            job("model", 1, model="ResNet-18", batch_size=32),
        )
        for node in ("v100-0", "v100-1"):
            obey(plane, node)
        soon(lambda: [state(plane, id) for id in (plain, wide, model)] == ["running"] * 3)
        rates = [plane.job(id, None).rate for id in (plain, wide, model)]
        alone = plane.admission.catalog.profile("ResNet-18")
        placement = plane.accounts.accounts[2].placement
        assert placement is not None
        expected = alone.rate("v100", 1, plane.backend.topology.locality(placement), 32)
        held = plane.job(plain, None).job.gpus_held
        assert rates == [held / 2, 1.0, pytest.approx(expected)]


def test_a_loop_that_dies_says_why_in_the_log_and_to_everyone_who_asks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path, "gpu:1x2") as plane:

        def broken(*arguments: object) -> None:
            raise ValueError("no such luck")

        plane._loop.judge = broken  # type: ignore[assignment]
        asked = plane.submit([job()], "ann")
        soon(lambda: plane.failed is not None)
        assert plane.failed == "the control plane stopped deciding: no such luck"
        assert asked.exception(20) is not None or asked.done()
    (record,) = (record for record in caplog.records if record.name == "shoal.live.control_plane")
    assert (record.levelname, record.getMessage()) == ("ERROR", "the loop died")
    assert record.exc_info is not None
    assert record.exc_info[0] is ValueError


def test_a_disk_that_fails_and_recovers_is_logged_once_each(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "journal.sqlite-wal").touch()
    disk = JournalDisk(tmp_path / "journal.sqlite")
    disk.stopping.set()
    meanwhile = "running jobs go on, new work is refused meanwhile"
    disk.check(0)
    for _ in range(2):
        error = disk.failed(OSError(28, "No space left on device"))
        assert disk.wait()
    assert str(error) == (
        f"the control plane cannot write its journal ([Errno 28] No space left on device); {meanwhile}; "
        "it is not known whether this request will count: ask again"
    )
    with refusal(
        f"the control plane cannot write its journal ([Errno 28] No space left on device); {meanwhile}", ShortOfDisk
    ):
        disk.check_writable()
    disk.recovered()
    disk.recovered()
    assert (disk.failure, disk.shortage()) == ("", "")
    failed, again = (record for record in caplog.records if record.name == "shoal.live.journal_disk")
    assert (failed.levelname, failed.getMessage()) == ("ERROR", "the journal cannot be written")
    assert (vars(failed)["error"], vars(failed)["full"]) == ("[Errno 28] No space left on device", True)
    assert (again.levelname, again.getMessage()) == ("INFO", "the journal is written again")
    assert vars(again)["attempts"] == 2


def test_a_journal_without_a_reserve_on_its_disk_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    JournalDisk(tmp_path / "journal.sqlite")
    ((level, message, error),) = logged(caplog, "journal_disk", "error")
    assert (level, message) == ("WARNING", "no space is reserved for the journal")
    assert f"No such file or directory: '{tmp_path}/journal.sqlite-wal'" in str(error)


def test_the_pause_after_each_failed_write_doubles_up_to_ten_seconds(tmp_path: Path) -> None:
    paused: list[float] = []

    class Stopping:
        def wait(self, seconds: float) -> bool:
            paused.append(seconds)
            return False

    disk = JournalDisk(tmp_path / "journal.sqlite", Stopping())  # type: ignore[arg-type]
    for _ in range(8):
        disk.failed(OSError("full"))
        assert not disk.wait()
    assert paused == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    disk.recovered()
    disk.wait()
    assert paused[-1] == 0.2


def test_a_new_segment_is_logged_with_what_it_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with opened(tmp_path, "gpu:1x2") as plane:
        gone, _ = submit(plane, job(), job())
        cancel(plane, gone)
        plane.compaction.most_records = 1
        submit(plane, job())
        soon(lambda: bool(logged(caplog, "compaction")))
        plane.compaction.most_records = 10_000
    level, message, ended, live, seconds = logged(caplog, "compaction", "ended", "live", "cpu_seconds")[0]
    assert (level, message, ended) == ("INFO", "began a segment", 1)
    assert live in {1, 2}, "the third job may come before or after"
    assert isinstance(seconds, float)


@pytest.mark.parametrize(
    ("step", "line"),
    [("add", "the journal was not compacted"), ("drop", "old jobs or segments were not dropped")],
)
def test_a_compaction_that_the_disk_does_not_allow_is_logged_with_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str, line: str
) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with opened(tmp_path, "gpu:1x2") as plane:
        monkeypatch.setattr(EndedJobs, step, full)
        plane.compaction.most_records = 1
        submit(plane, job())
        soon(lambda: bool(logged(caplog, "compaction")))
        plane.compaction.most_records = 10_000
        assert plane.failed is None
    assert logged(caplog, "compaction", "error")[0] == ("WARNING", line, "database or disk is full")


def test_a_journal_that_cannot_be_closed_is_logged_with_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    close = SqliteJournal.close

    def closed(journal: SqliteJournal) -> None:
        close(journal)
        raise sqlite3.OperationalError("disk I/O error")

    with opened(tmp_path, "gpu:1x2"):
        monkeypatch.setattr(SqliteJournal, "close", closed)
    line = "the last events were not written, nor acknowledged"
    assert logged(caplog, "control_plane", "error") == [("WARNING", line, "disk I/O error")]


def test_two_agents_of_one_name_are_logged_with_their_addresses(caplog: pytest.LogCaptureFixture) -> None:
    it, clock = backend("gpu:1x2")
    it.hello(Hello(PROTOCOL, "gpu-0", "here", "gpu", 2, "host-a", place="a"))
    clock.time = 1.0
    there = Hello(PROTOCOL, "gpu-0", "there", "gpu", 2, "host-b", place="b")
    hint = "name another node, or stop that one and wait 6 s"
    with refusal(f"node: 'gpu-0': an agent of this name runs elsewhere (host-a): {hint}"):
        it.hello(there)
    assert logged(caplog, "registration", "node", "address") == [
        ("WARNING", "two agents have the name of one node", "gpu-0", "host-b")
    ]
    caplog.clear()
    for boot in ("one", "two", "one"):
        it.hello(Hello(PROTOCOL, "gpu-0", boot, "gpu", 2, f"host of {boot}", place="a"))
    assert logged(caplog, "registration", "node", "address", "other") == [
        ("WARNING", "two agents have the name of one node", "gpu-0", "host of one", "host of two")
    ]


def read(plane: ControlPlane, id: str, run: int | None = None, rank: int = 0) -> "Future[LogPart]":
    return plane.read_log(id, None, incarnation=run, rank=rank, offset=10, most=100)


def test_a_log_and_a_session_that_cannot_be_had_are_refused_with_what_there_is(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:1x2") as plane:
        runs, waits = submit(plane, job("runs", 2), job("waits", 2, signal=SignalRequest("TERM", 5.0), time=60.0))
        soon(lambda: state(plane, runs) == "starting")
        wanted = NewSession(command=["sh"], rank=2)
        with refusal("incarnation: 0: has not run yet: see `shoal why`"):
            read(plane, waits)
        with refusal("incarnation: 2: has runs 1 to 1"):
            read(plane, runs, 2)
        with refusal("rank: 2: run 1 has ranks 0 to 1"):
            read(plane, runs, 1, 2)
        with refusal(f"job: '{runs}': is not running (starting); see `shoal why {runs}`"):
            plane.open_session(runs, None, wanted, "root")
        obey(plane, "gpu-0")
        soon(lambda: state(plane, runs) == "running")
        with refusal("rank: 2: run 1 has ranks 0 to 1"):
            plane.open_session(runs, None, wanted, "root")
        found = plane.open_session(runs, None, NewSession(command=["sh"], rank=1), "root")
        assert found.node == "gpu-0"
        (order,) = sync(plane, "gpu-0", []).sessions
        assert (order.session, order.job, order.incarnation, order.rank) == (found.session, 0, 1, 1)


def test_a_part_of_a_log_is_whole(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:1x2") as plane:
        (id,) = submit(plane, job("a", 2, ranks="node"))
        asked = read(plane, id)
        soon(lambda: bool(sync(plane, "gpu-0", []).reads))
        (order,) = sync(plane, "gpu-0", []).reads
        assert (order.id, order.incarnation, order.rank, order.offset, order.most) == (id, 1, 0, 10, 100)
        answers = [LogAnswer(order.read, 50, b"text \xe2\x80")]
        plane.sync(AgentReport(protocol=PROTOCOL, node="gpu-0", boot="boot", known=0, runs=[], logs=answers))
        assert asked.result(20) == LogPart(id, 1, 0, 10, 50, "text ", True, 15, 1)
        assert sync(plane, "gpu-0", []).reads == []
        dropped = read(plane, id)
        assert len(sync(plane, "gpu-0", []).reads) == 1
        dropped.cancel()
        assert sync(plane, "gpu-0", []).reads == []


def test_nodes_show_what_their_agents_said_of_the_machine(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:2x2") as plane:
        plane.hello(Hello(PROTOCOL, "gpu-0", "boot", "gpu", 2, "h", cpus=8, memory=2**33, no_limits="no cgroup v2"))
        plane.sync(AgentReport(protocol=PROTOCOL, node="gpu-0", boot="boot", known=0, runs=[], disk_free=123))
        first, second = plane.nodes(None)
        assert (first.cpus, first.memory, first.no_limits, first.disk_free) == (8, 2**33, "no cgroup v2", 123)
        assert (second.cpus, second.memory, second.no_limits, second.disk_free) == (None, None, "", None)
        assert plane.cluster().cluster == parse_cluster("gpu:2x2").describe()
