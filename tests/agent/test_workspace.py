"""A node's folder: no name leads out of it, and what a job writes there is not trusted."""

import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.agent.workspace import MOST_LOG_BYTES, KeeperRecord, Workspace
from shoal.core.errors import InputError
from shoal.wire.messages import LogRead, SessionReport


@pytest.fixture
def folder(tmp_path: Path) -> Workspace:
    folder = Workspace(tmp_path, "n1")
    os.close(folder.lock())
    return folder


def test_a_log_is_read_where_it_lies(folder: Workspace) -> None:
    (folder.logs("job-a") / "2.5.log").write_bytes(b"0123456789")
    pieces = {(0, 4): b"0123", (8, 100): b"89", (10, 5): b"", (99, 5): b"", (-3, 2): b"01", (0, -1): b""}
    for (offset, most), data in pieces.items():
        answer = folder.read_log(LogRead(7, "job-a", 2, 5, offset, most))
        assert (answer.read, answer.size, answer.data) == (7, 10, data)


def test_no_piece_is_longer_than_the_bound(folder: Workspace) -> None:
    (folder.logs("job-a") / "1.0.log").write_bytes(b"x" * (MOST_LOG_BYTES + 1))
    answer = folder.read_log(LogRead(1, "job-a", 1, 0, 0, 2**60))
    assert (answer.size, len(answer.data)) == (MOST_LOG_BYTES + 1, MOST_LOG_BYTES)


@pytest.mark.parametrize("job", ["", ".", "..", "../n2", "a/b", "/etc", "a\0b", "linked", "absent", "a\n"])
def test_a_log_name_from_outside_leads_nowhere_else(folder: Workspace, tmp_path: Path, job: str) -> None:
    (tmp_path / "1.0.log").write_text("secret")
    (tmp_path / "nodes" / "n1" / "logs" / "linked").symlink_to(tmp_path)
    answer = folder.read_log(LogRead(1, job, 1, 0, 0, 100))
    assert (answer.size, answer.data) == (-1, b"")


def test_a_log_that_is_not_a_plain_file_is_not_read(folder: Workspace, tmp_path: Path) -> None:
    logs = folder.logs("job-a")
    (tmp_path / "secret").write_text("secret")
    (logs / "1.0.log").symlink_to(tmp_path / "secret")
    os.mkfifo(logs / "1.1.log")
    for rank in (0, 1):
        assert folder.read_log(LogRead(1, "job-a", 1, rank, 0, 100)).size == -1


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", "a" * 161])
def test_names_that_are_no_names_are_refused(folder: Workspace, tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"must be letters, digits.* begin with a letter or digit"):
        folder.job(name)
    with pytest.raises(InputError, match=r"must be letters, digits.* begin with a letter or digit"):
        Workspace(tmp_path, name)


PROGRESS = {
    "12": (12.0, None, None),
    "12.5 10\n": (12.5, 10.0, None),
    "1e3 0": (1000.0, 0.0, None),
    '5 4\n{"rate": 2, "batch_size": 64, "more": 1}\n': (5.0, 4.0, SessionReport(rate=2.0, batch_size=64)),
    '5 4\n{"rate": "fast"}': (5.0, 4.0, None),
    '5 4\n{"rate": 2': (5.0, 4.0, None),
    '5 4\n{"more": ' + 4000 * "[" + 4000 * "]" + "}": (5.0, 4.0, None),
    '5 4\n{"profile": {"fits": [["\xff", {}]]}}': (5.0, 4.0, None),
    "": None,
    "1 2 3": None,
    "nan": None,
    "inf 1": None,
    "-1": None,
    "half": None,
    "\xff": None,
}


@pytest.mark.parametrize(("text", "expected"), PROGRESS.items(), ids=(repr(text)[:60] for text in PROGRESS))
def test_progress_is_one_line_of_numbers_and_perhaps_a_report_or_nothing(
    folder: Workspace, text: str, expected: tuple[float, float | None, SessionReport | None] | None
) -> None:
    folder.record((1, 2), KeeperRecord(1, 1, "boot", "machine"))
    assert folder.read_progress((1, 2)) is None
    folder.progress((1, 2)).write_text(text, encoding="latin-1")
    assert folder.read_progress((1, 2)) == expected


def test_records_tell_of_keepers_and_of_folders_without_one(folder: Workspace) -> None:
    folder.record((1, 2), KeeperRecord(11, 22, "boot", "machine"))
    folder.record((1, 3), KeeperRecord(11, 22, "boot", "machine"))
    (folder.run((1, 3)) / "keeper.json").write_text("{")
    assert sorted((path.name, record) for path, record in folder.records()) == [
        ("1.2", KeeperRecord(11, 22, "boot", "machine")),
        ("1.3", None),
    ]
    folder.forget(folder.run((1, 2)))
    assert [path.name for path, _ in folder.records()] == ["1.3"]


@pytest.mark.parametrize("removed", ["logs", "runs", "jobs", "all"])
def test_a_folder_removed_under_a_running_agent_is_made_again(folder: Workspace, removed: str) -> None:
    node = folder.run((1, 1)).parents[1]
    shutil.rmtree({"all": node, "jobs": folder.home / "jobs"}.get(removed, node / removed))
    folder.home.chmod(0o711)
    assert folder.logs("job").is_dir()
    assert folder.job("job").is_dir()
    folder.record((1, 1), KeeperRecord(1, 1, "boot", "machine"))
    assert [path.name for path, _ in folder.records()] == ["1.1"]
    if removed != "logs":
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.passages} == {0o711}, "tenants may pass"


RECORD = KeeperRecord(1, 1, "a boot with a long name", "machine")


def test_the_next_run_gets_the_folder_of_one_that_left_nothing_with_a_record_and_a_lease_of_its_own(
    folder: Workspace,
) -> None:
    folder.record((1, 1), RECORD, 1_000_000.5)
    files = {path.stat().st_ino for path in [*folder.run((1, 1)).iterdir(), folder.run((1, 1))]}
    folder.forget(folder.run((1, 1)))
    assert list(folder.records()) == []
    later = KeeperRecord(2, 2, "boot", "machine")
    folder.record((2, 1), later, 7.0)
    assert {path.stat().st_ino for path in [*folder.run((2, 1)).iterdir(), folder.run((2, 1))]} == files
    assert list(folder.records()) == [(folder.run((2, 1)), later)]
    assert json.loads(folder.lease((2, 1)).read_bytes()) == {"until": 7.0, "stopping": False}
    folder.forget(folder.run((2, 1)))
    folder.record((3, 1), RECORD)
    assert not folder.lease((3, 1)).exists()


def _replace_by_link(run: Path) -> None:
    (run / "own").rmdir()
    (run / "own").symlink_to(run)


LEFT: dict[str, Callable[[Path], object]] = {
    "a file of the job": lambda run: (run / "own" / "progress").write_text("1"),
    "a file beside": lambda run: (run / "other").write_text("1"),
    "a link in place of its folder": _replace_by_link,
    "no folder": lambda run: (run / "own").rmdir(),
    "a folder open to others": lambda run: (run / "own").chmod(0o777),
}


@pytest.mark.parametrize("leave", LEFT.values(), ids=LEFT)
def test_a_folder_in_which_a_run_left_something_is_removed(folder: Workspace, leave: Callable[[Path], object]) -> None:
    folder.record((1, 1), RECORD, 1.0)
    leave(folder.run((1, 1)))
    before = folder.run((1, 1)).stat()
    folder.forget(folder.run((1, 1)))
    assert list(folder.records()) == []
    assert not [*folder.folder.glob("spare/*")]
    folder.record((2, 1), RECORD, 1.0)
    assert sorted(path.name for path in folder.run((2, 1)).iterdir()) == ["keeper.json", "lease", "own"]
    assert stat.S_IMODE(folder.own((2, 1)).stat().st_mode) == 0o700
    assert before.st_mode == folder.run((2, 1)).stat().st_mode


def test_what_a_run_made_of_the_files_of_its_folder_leads_nowhere(folder: Workspace, tmp_path: Path) -> None:
    folder.record((1, 1), RECORD, 1.0)
    (tmp_path / "victim").write_text("untouched")
    for name in ("keeper.json", "lease"):
        (folder.run((1, 1)) / name).unlink()
        (folder.run((1, 1)) / name).symlink_to(tmp_path / "victim")
    folder.forget(folder.run((1, 1)))
    folder.record((2, 1), RECORD, 1.0)
    assert (tmp_path / "victim").read_text() == "untouched"
    assert list(folder.records()) == [(folder.run((2, 1)), RECORD)]


def test_folders_kept_for_the_next_runs_are_removed_when_an_agent_starts_and_their_number_is_bounded(
    folder: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.agent.workspace._MOST_SPARE", 2)
    for job in range(4):
        folder.record((job, 1), RECORD, 1.0)
    for job in range(4):
        folder.forget(folder.run((job, 1)))
    assert len([*folder.folder.glob("spare/*")]) == 2
    os.close(Workspace(folder.home, "n1").lock())
    assert not [*folder.folder.glob("spare/*")]
    folder.record((5, 1), RECORD, 1.0)
    assert list(folder.records()) == [(folder.run((5, 1)), RECORD)]
