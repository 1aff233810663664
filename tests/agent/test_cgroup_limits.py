"""Limits of a run's CPUs and memory: where they may be set, what is written, and what is said when one is reached."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from shoal.agent import keeper
from shoal.agent.cgroup_limits import enable_limits, ran_out_of_memory, set_limits


def fake(folder: Path, **files: str) -> Path:
    """A folder with the files of a cgroup; dots in their names are written as double underscores."""
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def test_limits_need_both_controllers(tmp_path: Path) -> None:
    own = fake(tmp_path, cgroup__controllers="cpu io\n")
    assert enable_limits(str(own), "leaf") == f"the cgroup controllers memory are not delegated to {own}"
    assert "No such file" in enable_limits(str(tmp_path / "none"), "leaf")


def test_controllers_are_enabled_for_the_runs_below(tmp_path: Path) -> None:
    own = fake(tmp_path, cgroup__controllers="cpu memory pids\n", cgroup__subtree_control="")
    assert enable_limits(str(own), "leaf") == ""
    assert (own / "cgroup.subtree_control").read_text() == "+cpu +memory"
    assert not (own / "leaf").exists()


def test_an_agent_moves_no_other_processes_out_of_its_cgroup(tmp_path: Path) -> None:
    procs = f"{os.getpid()}\n{os.getppid()}\n"
    own = fake(tmp_path, cgroup__controllers="cpu memory\n", cgroup__procs=procs)  # enabling fails: no such file
    assert "other processes are in the agent's cgroup" in enable_limits(str(own), "leaf")
    assert not (own / "leaf").exists()


def test_what_is_asked_for_is_written_and_nothing_else(tmp_path: Path) -> None:
    names = ("memory__max", "memory__oom__group", "memory__swap__max", "cpu__max")
    for limits, written in (
        ({"memory": 2**34, "cpus": 6}, ["17179869184", "1", "0", "600000 100000"]),
        ({"memory": None, "cpus": 1}, ["", "", "", "100000 100000"]),
        ({}, ["", "", "", ""]),
    ):
        folder = fake(tmp_path, **dict.fromkeys(names, ""))
        set_limits(str(folder), limits)
        assert [(folder / name.replace("__", ".")).read_text() for name in names] == written
    (tmp_path / "memory.swap.max").unlink()
    set_limits(str(tmp_path), {"memory": 2**20})
    (tmp_path / "memory.max").unlink()
    with pytest.raises(FileNotFoundError):
        set_limits(str(tmp_path), {"memory": 2**20})


def test_a_kill_for_memory_is_found_in_the_events(tmp_path: Path) -> None:
    assert not ran_out_of_memory(str(tmp_path))
    assert not ran_out_of_memory(str(fake(tmp_path, memory__events="low 0\noom 3\noom_kill 0\n")))
    assert ran_out_of_memory(str(fake(tmp_path, memory__events="low 0\noom 3\noom_kill 2\n")))


FAKE_CGROUPS = """
import os, sys
sys.path.append(sys.argv[1])
from shoal.agent import keeper
make = os.mkdir
def mkdir(folder):
    make(folder)
    for name in ("cgroup.procs", "memory.max", "memory.oom.group", "cpu.max"):
        open(f"{folder}/{name}", "w").close()
    with open(f"{folder}/memory.events", "w") as file:
        file.write("oom_kill 1\\n")
os.mkdir = mkdir
keeper.end_cgroup = lambda folder: True
keeper.handle_signals()
sys.exit(keeper.keep())
"""


@pytest.mark.parametrize(("ranks", "user"), [(1, "it used more than its 16 GB of memory"), (2, "on one node")])
def test_a_rank_killed_at_its_memory_limit_is_reported_with_that_cause(tmp_path: Path, ranks: int, user: str) -> None:
    run: dict[str, Any] = {
        "argv": ["sh", "-c", "kill -9 $$"],
        "cwd": str(tmp_path.resolve()),
        "env": {"PATH": "/usr/bin:/bin"},
        "logs": str(tmp_path),
        "lease": time.monotonic() + 600,
        "grace": 600,
        "cgroup": str(tmp_path / "1.1"),
        "limits": {"memory": 2**34, "cpus": None, "shown": "16 GB"},
        "ranks": [{"rank": rank, "env": {}, "log": f"1.{rank}.log"} for rank in range(ranks)],
    }
    root = str(Path(keeper.__file__).parents[2])
    command = [sys.executable, "-I", "-S", "-c", FAKE_CGROUPS, root]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps(run), file=process.stdin, flush=True)
        said = [json.loads(line) for line in process.stdout]
    causes = [line["cause"] for line in said if line["event"] == "failed"]
    assert len(causes) == 1
    assert causes[0].startswith("rank ")
    assert causes[0].endswith(user)
    assert (tmp_path / "1.1" / "memory.max").read_text() == str(2**34)
