"""Old folders on a node: those of jobs that the control plane has dropped are removed, and no others."""

import os
import time
from pathlib import Path

import msgspec

from shoal.agent import old_folders
from shoal.agent.old_folders import OldFolders
from shoal.agent.workspace import Workspace
from shoal.core.decoding import decode
from shoal.wire.messages import MOST_OLD, PROTOCOL, AgentOrders, AgentReport

DAY = 86_400.0


def orders(*forget: str) -> AgentOrders:
    return AgentOrders(protocol=PROTOCOL, generation=1, lease=20.0, runs=[], keep=DAY, forget=list(forget))


def made(home: Path, *jobs: str, age: float = 2 * DAY) -> OldFolders:
    workspace = Workspace(home, "node")
    os.close(workspace.lock())
    for job in jobs:
        (workspace.logs(job) / "1.0.log").write_text("text")
        for folder in (workspace.logs(job), workspace.job(job)):
            os.utime(folder, (time.time() - age, time.time() - age))
    return OldFolders(workspace)


def test_only_old_jobs_are_named_and_only_those_to_forget_are_removed(tmp_path: Path) -> None:
    made(tmp_path, "young", age=0.5 * DAY)
    old = made(tmp_path, "gone", "kept", "again")
    (tmp_path / "jobs" / "link").symlink_to(tmp_path / "jobs" / "young")
    old.follow(orders(), running=())
    assert old.names == ["again", "gone", "kept"]
    old.follow(orders("gone", "again", "young", "../jobs"), running={"again"})
    assert sorted(path.name for path in (tmp_path / "jobs").iterdir()) == ["again", "kept", "link", "young"]
    assert sorted(path.name for path in (tmp_path / "nodes" / "node" / "logs").iterdir()) == ["again", "kept", "young"]


def test_a_report_may_name_the_old_folder_of_the_job_with_the_longest_name(tmp_path: Path) -> None:
    old = made(tmp_path, f"{'x' * 64}-abcde")
    old.follow(orders(), running=())
    report = AgentReport(protocol=PROTOCOL, node="node", boot="boot", known=1, runs=[], old=old.names)
    assert decode(msgspec.json.encode(report), AgentReport).old == [f"{'x' * 64}-abcde"]


def test_without_a_retention_nothing_is_read_and_names_are_not_repeated_for_ever(tmp_path: Path) -> None:
    old = made(tmp_path, "job")
    old.follow(AgentOrders(protocol=PROTOCOL, generation=1, lease=20.0, runs=[]), running=())
    assert old.names == []
    old.follow(orders(), running=())
    for _ in range(old_folders._REPORTS - 1):
        assert old.names == ["job"]
        old.follow(orders(), running=())
    old.follow(orders(), running=())
    assert old.names == []


def test_more_jobs_than_a_report_can_name_are_all_removed(tmp_path: Path) -> None:
    old = made(tmp_path, *(f"job-{n}" for n in range(MOST_OLD + 50)))
    for _ in range(3):
        old.follow(orders(*old.names), running=())
    assert list((tmp_path / "jobs").iterdir()) == []
