"""`shoal serve` on a Slurm, fake or real, by default in native mode, and what tests ask of it."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest
from tests.e2e.site import _free_port
from tests.provider.slurm_sites import SlurmSite, command

from shoal.core.errors import ShoalError
from shoal.wire.client import Client
from shoal.wire.messages import JobDetail, LogPart, NodeRow, Submission, Submitted

_T = TypeVar("_T")

PATIENCE_SECONDS = 120.0


@dataclass
class NativeCluster:
    """A control plane in native mode; its home is reachable by the tenants' users."""

    site: SlurmSite
    folder: Path
    python: str
    process: "subprocess.Popen[bytes] | None" = None
    policy: str = "fifo"
    patience: float = 300.0
    on: str = ""
    """The engine, if it is not Slurm in native mode."""
    port: int = field(default_factory=_free_port)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def start(self) -> None:
        """Start the control plane, or start it again; return when it answers."""
        words = [
            "serve",
            "--on",
            self.on or f"slurm:mode=native,python={self.python}",
            "--home",
            str(self.home),
            "--port",
            str(self.port),
        ]
        words += ["--policy", self.policy, "--lease", "5", "--retry", "0.5", "--patience", str(self.patience)]
        with (self.folder / "serve.log").open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "shoal", *words], env=dict(self.site.environment), stdout=out, stderr=out
            )
        self.until(lambda: self.nodes() and all(row.up for row in self.nodes()), "every node is up by the survey")

    def kill(self) -> None:
        """Kill the control plane."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def get(self, path: str, answer: type[_T]) -> _T:
        with closing(self._client()) as client:
            return client.get(path, answer)

    def _client(self) -> Client:
        found = json.loads((self.home / "client.json").read_text())
        return Client(found["server"], found["token"])

    def nodes(self) -> list[NodeRow]:
        try:
            return self.get("/v1/nodes", list[NodeRow])
        except (ShoalError, OSError):
            return []

    def submit(self, tenant: str, *words: str, gpus: int = 1, **given: object) -> str:
        wanted = Submission(command=list(words), gpus=gpus, tenant=tenant, preemptible="yes", **given)  # type: ignore[arg-type]
        with closing(self._client()) as client:
            return client.post("/v1/jobs", wanted, Submitted).jobs[0]

    def job(self, job: str) -> JobDetail:
        return self.get(f"/v1/jobs/{job}", JobDetail)

    def until(self, true: Callable[[], object], what: str) -> None:
        """Poll until ``true()`` holds, and print how long that took."""
        began = time.monotonic()
        deadline = began + PATIENCE_SECONDS
        while not true():
            assert self.process is None or self.process.poll() is None, (self.folder / "serve.log").read_text()[-3000:]
            if time.monotonic() > deadline:
                logs = [self.folder / "serve.log", *(self.home / "slurm" / "logs").glob("*")]
                texts = "\n".join(f"== {file.name}\n{file.read_text(errors='replace')[-1500:]}" for file in logs)
                raise AssertionError(f"never came true: {what}\n{texts}")
            time.sleep(0.1)
        print(f"{time.monotonic() - began:6.2f} s  {what}")

    def ends(self, job: str, state: str = "completed") -> JobDetail:
        """Wait until a job has ended, in this state."""
        self.until(lambda: self.job(job).job.ended is not None, f"{job} ends")
        found = self.job(job)
        assert found.job.state == state, found
        return found

    def text(self, job: str) -> str:
        """Return the log of rank 0 of a job's last run."""
        return self.get(f"/v1/jobs/{job}/log", LogPart).text

    def refs(self) -> list[str]:
        """Return the numbers of the Slurm jobs in the queue that are Shoal's."""
        lines = command(self.site, "squeue", "--noheader", "--states=all", "--format=%i|%T|%r|%N|%j").splitlines()
        rows = [line.split("|") for line in lines]
        ours = [row for row in rows if row[4].startswith("shoal-")]
        return [row[0] for row in ours if row[1] in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")]


def tenants_python(folder: Path) -> str:
    """Return an interpreter with Shoal that every user can run: this one, or the system's of the same version."""
    real = Path(sys.executable).resolve()
    if all(above.stat().st_mode & stat.S_IXOTH for above in real.parents):
        return sys.executable
    version = subprocess.run(["/usr/bin/python3", "-V"], capture_output=True, text=True, check=False).stdout.split()
    if version[-1:] == [] or version[-1].rpartition(".")[0] != f"{sys.version_info[0]}.{sys.version_info[1]}":
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no interpreter that other users can run")
    python = folder / "venv" / "bin" / "python3"
    if not python.exists():
        subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
        (packages,) = (folder / "venv").glob("lib/python3*/site-packages")
        (packages / "shoal.pth").write_text("\n".join(path for path in sys.path if path and os.path.isdir(path)))
    return str(python)


@contextmanager
def native_cluster(site: SlurmSite, **given: object) -> Iterator[NativeCluster]:
    """A control plane in native mode in a folder of its own; all that is left of it is ended and deleted."""
    folder = Path(tempfile.mkdtemp(prefix="shoal-native-"))
    folder.chmod(0o755)
    cluster = NativeCluster(site, folder, tenants_python(folder), **given)  # type: ignore[arg-type]
    try:
        cluster.start()
        yield cluster
    finally:
        if cluster.process is not None and cluster.process.poll() is None:
            cluster.process.terminate()
            cluster.process.wait()
        for ref in cluster.refs():
            with suppress(subprocess.CalledProcessError):
                command(site, "scancel", ref)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while cluster.refs() and time.monotonic() < deadline:
            time.sleep(0.1)
        shutil.rmtree(folder, ignore_errors=True)
