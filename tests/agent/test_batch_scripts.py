"""Batch scripts of the kinds that people have run through the agent's launch code, each as its user wrote it.

``batch_scripts/*.sbatch`` are run with the programs in ``batch_scripts/bin`` on the PATH. A line ``#> TEXT`` is a line
of the expected output, in any order; ``#@ …`` lines say how to run it: GPUs of each machine (by default all on one),
the array's task, a signal to send once a line is printed, the exit status, and notes expected at submission.
"""

import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shoal.agent.launch import Launcher
from shoal.agent.node_state import StartRanks
from shoal.agent.workspace import Workspace
from shoal.jobspec.job_file import read_script
from shoal.wire.messages import RunOrder

FOLDER = Path(__file__).parent / "batch_scripts"
SCRIPTS = sorted(FOLDER.glob("*.sbatch"))
DEADLINE_SECONDS = 60.0
_JOB = 41


@dataclass(frozen=True)
class Expected:
    """How to run a script, and what should come of it."""

    lines: list[str]
    settings: dict[str, list[str]]

    def words(self, name: str) -> list[str]:
        return " ".join(self.settings.get(name, [])).split()


def expectations(text: str) -> Expected:
    settings: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("#@ "):
            name, _, rest = line[3:].partition(" ")
            settings.setdefault(name, []).append(rest)
    return Expected([line[3:] for line in text.splitlines() if line.startswith("#> ")], settings)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


class BatchRun:
    """A batch script's job on machines that are all this one."""

    def __init__(self, script: Path, folder: Path, home: Path, **changed: Any) -> None:
        text = script.read_text()
        self.expected = expectations(text)
        self.folder = folder
        environ = dict(pair.split("=", 1) for pair in self.expected.words("env"))
        environ = {name: value.format(folder=FOLDER) for name, value in environ.items()}
        found = read_script(text, script, folder=folder, environ=environ, **changed)
        self.notes = found.notes
        self.job = found.jobs[int((self.expected.words("task") or ["0"])[0])]
        self.machines = [int(word) for word in self.expected.words("machines")] or [self.job.gpus]
        assert sum(self.machines) == self.job.gpus
        self.incarnation = 2 if "restart" in self.expected.settings else 1
        self.spaces = [Workspace(home, f"{script.stem}-{i}") for i in range(len(self.machines))]

    def start(self) -> list[subprocess.Popen[str]]:
        port, secret = free_port(), "the run's secret"
        processes = []
        for node, gpus in enumerate(self.machines):
            hosts = [("127.0.0.1", count) for count in self.machines]
            order = RunOrder(
                job=_JOB, incarnation=self.incarnation, phase="go", id="job-41", command=self.job.command,
                env=self.job.env, workdir=self.job.workdir, ranks="node", grace=1.0, gpus=gpus, shared_with=None,
                node_rank=node, nodes=len(hosts), first_rank=node, local_ranks=1, world=len(hosts), master="127.0.0.1",
                port=port, hosts=hosts, secret=secret,
            )  # fmt: skip
            processes.append(self._rank(node, StartRanks(order, tuple(range(gpus)), port)))
        return processes

    def _rank(self, node: int, start: StartRanks) -> subprocess.Popen[str]:
        space = self.spaces[node]
        (space.own((_JOB, self.incarnation))).mkdir(parents=True, exist_ok=True)
        path = f"{FOLDER / 'bin'}{os.pathsep}{os.environ['PATH']}"
        environ = {"PATH": path, "HOME": str(self.folder)}
        launcher = Launcher(space, "127.0.0.1", "v100", "boot")
        run = launcher.keeper_input(start, workdir=str(self.folder), lease=0.0, environ=environ)
        env = {**run["env"], **run["ranks"][0]["env"]}
        with open(self.folder / f"rank-{node}.log", "w") as log:
            return subprocess.Popen(
                run["argv"], env=env, cwd=run["cwd"], stdout=log, stderr=log, stdin=subprocess.DEVNULL, text=True,
                process_group=0,
            )  # fmt: skip

    def output(self, node: int = 0) -> str:
        return (self.folder / f"rank-{node}.log").read_text()

    def finish(self, processes: list[subprocess.Popen[str]]) -> list[int]:
        """Wait for the ranks, send the signal that the script waits for, and return their exit statuses."""
        wanted = self.expected.words("signal")
        deadline = time.monotonic() + DEADLINE_SECONDS
        try:
            while wanted and wanted[1] not in self.output():
                assert time.monotonic() < deadline
                time.sleep(0.02)
            if wanted:
                processes[0].send_signal(signal.Signals[f"SIG{wanted[0]}"])
            return [process.wait(max(0.1, deadline - time.monotonic())) for process in processes]
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home that all scripts share, with the programs installed once; others could read it."""
    folder: Path = tmp_path_factory.mktemp("home")
    (folder / "jobs").mkdir()
    return folder


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_batch_script_runs_as_it_is(script: Path, tmp_path: Path, home: Path) -> None:
    run = BatchRun(script, tmp_path, home)
    (tmp_path / "logs").mkdir()
    statuses = run.finish(run.start())
    output = run.output()
    assert sorted(output.splitlines()) == sorted(run.expected.lines), output
    assert statuses == [int((run.expected.words("status") or ["0"])[0])] + [0] * (len(run.machines) - 1)
    for note in run.expected.settings.get("note", ()):
        assert any(note in said for said in run.notes), run.notes
    for pattern in run.expected.words("file"):
        (file,) = tmp_path.glob(pattern)
        assert file.read_text().strip() in output
        assert file.read_text().strip()
    assert run.spaces[0].asked_to_requeue((_JOB, run.incarnation)) == ("requeued" in run.expected.settings)
