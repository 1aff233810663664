"""As a new user would: a cluster on this machine, three jobs, the questions one asks, and Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shoal.live.home import JOURNAL
from shoal.scenario.replay import replay_file

JOB = """
import os, signal, sys, time

def save(*_):
    print("saved", flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "on", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    time.sleep(0.05)
print("done", flush=True)
"""


class Person:
    """Somebody at a terminal, with a home of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "SHOAL_HOME": str(folder / "home"), "COLUMNS": "160"}
        (folder / "job.py").write_text(JOB)

    def says(self, *words: str, rc: int = 0, timeout: float = 60) -> str:
        command = [sys.executable, "-m", "shoal", *words]
        done = subprocess.run(
            command, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=timeout, check=False
        )
        assert (done.returncode, "Traceback" in done.stderr) == (rc, False), done.stderr
        return done.stdout + done.stderr if rc else done.stdout

    def asks(self, *words: str) -> Any:
        return json.loads(self.says(*words, "--json"))

    def submits(self, seconds: float, *options: str) -> str:
        return self.says("submit", *options, "--", sys.executable, "-S", "job.py", str(seconds)).strip()

    @contextmanager
    def up(self, *options: str) -> Iterator["subprocess.Popen[str]"]:
        command = [sys.executable, "-m", "shoal", "up", "--port", "0", "--json", *options]
        with subprocess.Popen(
            command, cwd=self.folder, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                assert json.loads(process.stdout.readline())["server"].startswith("http://127.0.0.1:")
                yield process
            finally:
                process.kill()

    def left(self) -> list[str]:
        """Processes that have to do with this home, other than this one."""
        found = []
        for path in Path("/proc").iterdir():
            if path.name.isdigit() and int(path.name) != os.getpid():
                try:
                    about = (path / "environ").read_bytes() + (path / "cmdline").read_bytes()
                    running = (path / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
                except OSError:
                    continue
                if running and str(self.folder).encode() in about:
                    found.append((path / "cmdline").read_bytes().decode().replace("\0", " "))
        return found


def soon(happens: Callable[[], bool], seconds: float = 40) -> None:
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.1)


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_three_jobs_from_submission_to_ctrl_c(person: Person) -> None:
    assert "shoal up" in person.says("queue", rc=2)
    with person.up("--nodes", "2x2", "--policy", "fifo") as up:
        soon(lambda: all(node["up"] for node in person.asks("nodes")))
        wide = person.submits(120, "--name", "wide", "--gpus", "3")
        waits = person.submits(0.1, "--name", "waits", "--gpus", "2")
        short = person.submits(0.1, "--name", "short")
        soon(lambda: {row["id"]: row["state"] for row in person.asks("queue")["jobs"]}[wide] == "running")
        assert f"{waits} waits: needs 2 GPUs; 1 left when its turn comes" in person.says("why", "waits")
        assert "submitted by default" in person.says("why", waits, "--detail")
        assert waits in person.says("why", short)
        assert "rank 2 of 3" in person.says("logs", wide, "--rank", "2")
        person.says("cancel", wide)
        followed = person.says("logs", waits, "-f")
        assert "rank 0 of 2" in followed
        assert "done" in followed
        soon(lambda: not person.asks("queue")["jobs"])
        assert "saved" in person.says("logs", wide)
        assert {row["id"]: row["state"] for row in person.asks("acct")} == {
            wide: "cancelled",
            waits: "completed",
            short: "completed",
        }
        assert "did you mean" in person.says("up", "--policy", "fifi", rc=2)
        last = person.submits(120, "--name", "last")
        soon(lambda: person.asks("job", last)["job"]["state"] == "running")
        up.send_signal(signal.SIGINT)
        _, said = up.communicate(timeout=30)
        assert (up.returncode, "Traceback" in said) == (0, False)
        assert "stopping 1 running job" in said
    soon(lambda: not person.left())
    assert "is `shoal up` running?" in person.says("queue", rc=1)
    with person.up("--nodes", "2x2", "--policy", "las") as up:
        soon(lambda: person.asks("job", last)["job"]["state"] == "running")
        assert person.asks("job", last)["incarnation"] == 2
        up.kill()
    soon(lambda: not person.left())
    derived, _, _ = replay_file(person.folder / "home" / JOURNAL)
    assert derived.decisions > 0
