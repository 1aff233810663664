"""The two Slurms of the tests, with the same verbs: the script `fake_slurm`, and a real one."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest
from tests.provider.slurm_cluster import ROOT, SlurmCluster, slurm_cluster

NODES = ("n1", "n2", "n3")
PATIENCE_SECONDS = 30.0


def wait_for(true: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    """Poll until ``true()`` holds."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.1)


class SlurmSite(Protocol):
    """A cluster of three nodes with two V100 each."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment of Slurm's programs."""
        ...

    def away(self) -> AbstractContextManager[None]:
        """Stop the controller within the ``with`` block."""
        ...


def command(site: SlurmSite, *words: str) -> str:
    """Return what a program of Slurm prints."""
    done = subprocess.run(words, env=dict(site.environment), capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def stranger(site: SlurmSite, node: str, gpus: int) -> str:
    """Submit another's job that sleeps with GPUs of a node, wait until it runs, and return its number."""
    words = (f"--nodelist={node}", f"--gres=gpu:v100:{gpus}", "--output=/dev/null", "--wrap=sleep 600")
    ref = command(site, "sbatch", "--parsable", *words)
    wait_for(lambda: f"{ref}|RUNNING" in command(site, "squeue", "--noheader", "--format=%i|%T|%r|%N|%j"))
    return ref


@dataclass(slots=True)
class FakeSite:
    """Slurm's programs as scripts."""

    folder: Path
    environment: Mapping[str, str]

    @contextmanager
    def away(self) -> Iterator[None]:
        """Let the programs fail within the ``with`` block."""
        (self.folder / "away").touch()
        yield
        (self.folder / "away").unlink()


@contextmanager
def fake_site(folder: Path, names: Sequence[str] = NODES) -> Iterator[FakeSite]:
    """A fake Slurm; its processes are killed at the end."""
    (folder / "bin").mkdir(parents=True)
    (folder / "jobs").mkdir()
    nodes = {name: {"kind": "v100", "gpus": 2, "state": "idle", "reason": "none"} for name in names}
    (folder / "nodes.json").write_text(json.dumps(nodes))
    for program in ("sbatch", "squeue", "scancel", "sinfo", "scontrol"):
        file = folder / "bin" / program
        file.write_text(f"#!{sys.executable} -IS\n" + Path(__file__).with_name("fake_slurm.py").read_text())
        file.chmod(0o755)
    path = f"{folder}/bin:{os.environ['PATH']}"
    try:
        yield FakeSite(folder, {**os.environ, "PATH": path, "FAKE_SLURM": str(folder)})
    finally:
        for file in (folder / "jobs").glob("*.json"):
            if (pid := json.loads(file.read_text())["pid"]) is not None:
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                wait_for(file.with_suffix(".status").exists)


@dataclass(slots=True)
class RealSite:
    """A real Slurm."""

    cluster: SlurmCluster

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment of Slurm's programs."""
        return self.cluster.environment

    @contextmanager
    def away(self) -> Iterator[None]:
        """Stop the controller, and start it again after the ``with`` block."""
        self.cluster.kill("slurmctld", signal.SIGTERM)
        yield
        self.cluster.start_controller()


def missing() -> str:
    """Return why the real Slurm cannot be started here; empty if it can."""
    if os.geteuid() != 0:
        return "a Slurm of one's own needs root"
    return "" if (ROOT / ".ready").exists() else "no Slurm below .engines: `make engines` unpacks it"


@contextmanager
def real_site(folder: Path, nodes: Sequence[str] = NODES) -> Iterator[RealSite]:
    """A real Slurm; without one the test is skipped, and fails in CI."""
    if why := missing():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(why)
    with slurm_cluster(folder, nodes, kill_wait=2) as cluster:
        yield RealSite(cluster)
    shutil.rmtree(folder, ignore_errors=True)
