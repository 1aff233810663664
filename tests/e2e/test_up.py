"""As a new user would: a cluster on this machine, three jobs, the questions one asks, and Ctrl-C."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from shoal.agent.confinement import landlock_version
from shoal.agent.processes import all_processes, descendants
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
                    arguments = (path / "cmdline").read_bytes()
                    about = (path / "environ").read_bytes() + arguments
                    running = (path / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
                except OSError:
                    continue
                if running and str(self.folder).encode() in about:
                    found.append(arguments.decode().replace("\0", " "))
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
        assert said.count("jobs of all tenants run as user") == 1
    soon(lambda: not person.left())
    assert "is `shoal up` running?" in person.says("queue", rc=1)
    with person.up("--nodes", "2x2", "--policy", "las") as up:
        soon(lambda: person.asks("job", last)["job"]["state"] == "running")
        assert person.asks("job", last)["incarnation"] == 2
        up.kill()
    soon(lambda: not person.left())
    derived, _, _ = replay_file(person.folder / "home" / JOURNAL)
    assert derived.decisions > 0


SPY = """
import json, os, pathlib, socket, sys

home, found = pathlib.Path(os.environ["SHOAL_DIR"]).parents[1], {}

def attempt(name, act):
    try:
        found[name] = act()
    except OSError as error:
        found[name] = type(error).__name__

def ask():
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(chr(0) + json.loads((home / "client.json").read_text())["socket"])
        return asked.recv(4096).decode()

files = [path for path in home.rglob("*") if path.is_file()]
found["files"] = [str(path) for path in files if b"shoal_" in path.read_bytes()]
attempt("socket", ask)
pid, above = os.getppid(), []
while pid > 1:
    above.append(pid)
    pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
agent = above[1]
attempt("memory", lambda: len(pathlib.Path(f"/proc/{agent}/mem").open("rb").read(0)))
attempt("signal", lambda: os.kill(agent, 0))
print(json.dumps(found), flush=True)
"""


def with_secrets(top: int) -> dict[str, bool]:
    """The arguments of a process and its descendants, and whether a token stands in them or in the environment."""
    found = {}
    for pid in [top, *(process.pid for process in descendants([top], all_processes()))]:
        with suppress(OSError):
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
            about = arguments + Path(f"/proc/{pid}/environ").read_bytes()
            secret = re.search(rb"shoal_[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])", about)
            found[arguments.decode().replace("\0", " ")] = secret is not None
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_a_job_reads_the_admins_token_neither_in_files_nor_in_processes_nor_over_the_socket(person: Person) -> None:
    (person.folder / "spy.py").write_text(SPY)
    home = person.folder / "home"
    home.mkdir()
    (home / "admin.token").write_text("shoal_left-by-an-earlier-version\n")
    with person.up("--nodes", "1x1") as up:
        job = person.says("submit", "--", sys.executable, "-S", "spy.py").strip()
        waits = person.submits(60)
        said = json.loads(person.says("logs", job, "-f"))
        soon(lambda: person.asks("job", waits)["job"]["state"] == "running")
        found = with_secrets(up.pid)
        assert all(any(word in line for line in found) for word in ("shoal up", "shoal.agent", "keeper", "job.py"))
        assert not any(found.values()), found
        assert person.asks("job", job)["job"]["state"] == "completed"
    assert said.pop("files") == []
    assert "shoal_" not in said["socket"], said
    version = landlock_version()
    if version >= 1:
        assert said["memory"] == "PermissionError"
    if version >= 6:
        assert (said["socket"], said["signal"]) == ("PermissionError", "PermissionError")
    soon(lambda: not person.left())
