"""Runs in cgroups: where they may be made, and that nothing leaves them."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agent.conftest import until

from shoal.agent.cgroups import end_cgroup, find, own_folder, run_folder, usable
from shoal.agent.orphans import clear_earlier, machine_boot
from shoal.agent.workspace import KeeperRecord, Workspace

_V1 = "30 24 0:26 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids"
_V2 = "31 24 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw"
_HYBRID = "32 24 0:28 / /sys/fs/cgroup/unified rw - cgroup2 none rw"
_BOUND = "33 24 0:29 /pod/a /sys/fs/cgroup rw - cgroup2 cgroup rw"

FOUND = {
    "version 2 only": (_V2, "0::/user.slice/x", "/sys/fs/cgroup/user.slice/x"),
    "both versions": (f"{_V1}\n{_HYBRID}", "4:pids:/a\n0::/", "/sys/fs/cgroup/unified"),
    "a container that sees its own subtree": (_BOUND, "0::/pod/a/b", "/sys/fs/cgroup/b"),
    "a process outside the subtree that is mounted": (_BOUND, "0::/pod/ab", ""),
    "version 1 only": (_V1, "4:pids:/a", ""),
    "nothing": ("", "", ""),
}


@pytest.mark.parametrize(("mounts", "own", "folder"), FOUND.values(), ids=FOUND.keys())
def test_the_cgroup_of_a_process_is_found_by_its_mounts(mounts: str, own: str, folder: str) -> None:
    assert find(mounts, own) == folder


def test_what_keeps_runs_from_having_cgroups_is_named(tmp_path: Path) -> None:
    assert "no cgroups of version 2" in usable("")
    assert "not delegated" in usable(str(tmp_path))
    (tmp_path / "cgroup.procs").touch()
    assert "no cgroup.kill" in usable(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["cgroup.procs"]


def test_a_cgroup_with_processes_is_killed_and_stays_until_they_are_gone(tmp_path: Path) -> None:
    folder = tmp_path / "1.1"
    inner = folder / "inner"
    inner.mkdir(parents=True)
    (inner / "process").touch()  # what keeps a folder of the fake tree, as a process keeps a cgroup
    assert end_cgroup(str(folder)) is False
    assert (folder / "cgroup.kill").read_text() == "1"
    (inner / "process").unlink()
    (folder / "cgroup.kill").unlink()
    inner.rmdir()
    assert end_cgroup(str(folder)) is True
    assert not folder.exists()
    assert end_cgroup(str(folder)) is True
    assert end_cgroup("") is True


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A real cgroup, where this machine allows one."""
    own, reason = own_folder()
    if not own:
        pytest.skip(reason)
    made = Path(own) / f"shoal-test-{os.getpid()}"
    made.mkdir()
    yield made
    until(lambda: end_cgroup(str(made / "1.1")), "the run's cgroup is gone")
    if made.exists():
        made.rmdir()


def test_a_starting_agent_kills_what_hides_in_the_cgroups_of_earlier_runs(cgroup: Path, tmp_path: Path) -> None:
    run = cgroup / "1.1"
    run.mkdir()
    hides = subprocess.Popen(["sh", "-c", f"echo 0 > {run}/cgroup.procs; exec setsid env -i sleep 600"])
    until(lambda: (run / "cgroup.procs").read_text().split(), "it is in the cgroup")
    workspace = Workspace(tmp_path, "node")
    os.close(workspace.lock())
    workspace.record((1, 1), KeeperRecord(0, 0, "no such boot", machine_boot(), str(run)))
    assert clear_earlier(workspace, lambda: False)
    assert hides.wait() == -9
    assert not cgroup.exists()


def test_a_run_whose_record_was_removed_is_found_by_its_cgroup(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, "node")
    os.close(workspace.lock())
    own = tmp_path / "own[1]"
    own.mkdir()
    runs = {name: Path(run_folder(str(own), name, "boot", (7, 2))) for name in (workspace.identity, "another")}
    for run in runs.values():
        run.mkdir()
    assert clear_earlier(workspace, lambda: False, str(own))
    assert [run.parent.exists() for run in runs.values()] == [False, True]
