"""What the kernel keeps a job's processes from doing to others, even to those of the same user."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shoal.agent import confinement, keeper
from shoal.agent.confinement import landlock_version

pytestmark = pytest.mark.skipif(landlock_version() < 6, reason="needs Linux 6.12: Landlock with scopes")

MEET = """
import os, pathlib, socket, time

def soon(find):
    for _ in range(600):
        if found := find():
            return found
        time.sleep(0.05)
    raise TimeoutError

folder, rank, name = pathlib.Path(os.environ["LOGS"]), os.environ["RANK"], chr(0) + os.environ["LOGS"]
if rank == "0":
    served = socket.create_server(name, family=socket.AF_UNIX)
    (folder / "pid").write_text(str(os.getpid()))
    served.accept()[0].sendall(b"hello")
else:
    pid = int(soon(lambda: (folder / "pid").exists() and (folder / "pid").read_text()))
    os.kill(pid, 0)
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(name)
        assert asked.recv(9) == b"hello"
"""


@contextmanager
def run(folder: Path, argv: list[str], ranks: int = 1) -> Iterator[tuple[int, "subprocess.Popen[str]"]]:
    """A run of its own keeper; the process of its first rank, and the keeper."""
    folder.mkdir()
    told: dict[str, Any] = {
        "argv": argv,
        "cwd": str(folder.resolve()),
        "env": {"PATH": "/usr/bin:/bin", "LOGS": str(folder)},
        "logs": str(folder),
        "lease": time.monotonic() + 600,
        "grace": 0,
        "ranks": [{"rank": rank, "env": {"RANK": str(rank)}, "log": f"1.{rank}.log"} for rank in range(ranks)],
    }
    command = [sys.executable, "-I", "-S", keeper.__file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps(told), file=process.stdin, flush=True)
        yield json.loads(process.stdout.readline())["pids"]["0"], process
        process.stdin.close()
        process.stdout.read()


def statuses(process: "subprocess.Popen[str]") -> list[int]:
    assert process.stdout is not None
    said = [json.loads(line) for line in process.stdout]
    return [line["status"] for line in said if line["event"] == "ended"]


def test_a_job_can_neither_signal_nor_trace_another_of_the_same_user(tmp_path: Path) -> None:
    with run(tmp_path / "a", ["sleep", "600"]) as (victim, _):
        os.kill(victim, 0)  # this process may
        with run(tmp_path / "b", ["sh", "-c", f"kill -0 {victim}"]) as (_, process):
            assert statuses(process) == [1]
        with run(tmp_path / "c", ["sh", "-c", f"exec 3< /proc/{victim}/mem"]) as (_, process):
            assert statuses(process) != [0]
        assert "not permitted" in (tmp_path / "b" / "1.0.log").read_text()
        assert "Permission denied" in (tmp_path / "c" / "1.0.log").read_text()


def test_an_agent_finds_out_whether_the_kernel_confines_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert confinement.unconfined() == ""
    monkeypatch.setattr(confinement, "enter_domain", lambda: False)
    assert confinement.unconfined() == "the kernel refuses a Landlock domain"
    monkeypatch.setattr(confinement, "landlock_version", lambda: -1)
    assert confinement.unconfined() == "the kernel has no Landlock"


def test_the_ranks_of_one_run_may_signal_each_other_and_meet_on_abstract_sockets(tmp_path: Path) -> None:
    with run(tmp_path / "a", [sys.executable, "-S", "-c", MEET], ranks=2) as (_, process):
        assert statuses(process) == [0, 0], (tmp_path / "a" / "1.1.log").read_text()
