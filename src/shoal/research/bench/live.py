"""Benches of a live cluster: a control plane and agents as processes of their own, asked over HTTP as people ask.

These are wall-clock seconds: what somebody waits for. Each bench has a cluster of its own, in a folder that is removed
afterwards, and leaves no process behind.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from shoal.agent.keeper import find_process
from shoal.core.errors import ShoalError
from shoal.wire.client import Client
from shoal.wire.messages import ClusterRow, Submission, SubmissionBatch, Submitted

_PATIENCE_SECONDS = 60.0

_TELL = "import os, time; open(os.environ['SHOAL_DIR'] + '/began', 'w').write(f'{time.monotonic()} {os.getpid()}')"
_STAY = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
_SLEEP = "; import time; time.sleep(600)"


@dataclass(slots=True)
class _Cluster:
    """A control plane on a home of its own, and the agents it was given; ``shape`` is NODESxGPUS."""

    home: Path
    shape: tuple[int, int]
    client: Client = field(init=False)
    plane: "subprocess.Popen[str]" = field(init=False)
    agents: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    def start_plane(self) -> None:
        """Start it and return when it answers."""
        what = ["serve", "--cluster", f"gpu:{self.shape[0]}x{self.shape[1]}", "--home", str(self.home), "--port", "0"]
        with (self.home / "plane.log").open("a") as log:
            command = [sys.executable, "-m", "shoal", *what, "--json"]
            self.plane = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.plane.stdout is not None
        url = json.loads(self.plane.stdout.readline())["server"]
        self.client = Client(url, (self.home / "admin.token").read_text().strip())

    def start_agents(self) -> None:
        """Start them and return when every GPU is up."""
        nodes, gpus = self.shape
        environ = {**os.environ, "SHOAL_TOKEN": (self.home / "agent.token").read_text().strip()}
        for node in range(nodes):
            who = ["--node", f"gpu-{node}", "--kind", "gpu", "--gpus", str(gpus), "--home", str(self.home)]
            command = [sys.executable, "-m", "shoal.agent", "--server", self.client.url, *who]
            with (self.home / "agents.log").open("a") as log:
                self.agents.append(subprocess.Popen(command, env=environ, stdout=log, stderr=log))
        self.until(lambda: self.look().up_gpus == nodes * gpus)

    def end(self) -> None:
        """End everything: the agents first, each with its jobs."""
        for agent in self.agents:
            agent.terminate()
        for agent in self.agents:
            agent.wait()
        self.plane.terminate()
        self.plane.communicate()

    def look(self) -> ClusterRow:
        """The cluster in one look."""
        return self.client.get("/v1/cluster", ClusterRow)

    def submit(self, code: str, *, gpus: int = 1, grace: float = 0.0) -> str:
        """One job that runs this Python code; its identifier."""
        return self.client.post("/v1/jobs", _job(code, gpus=gpus, grace=grace), Submitted).jobs[0]

    def began(self, job: str) -> tuple[float, int]:
        """When a job that tells so began, on the monotonic clock, and its process; waits for it."""
        path = self.home / "jobs" / job / "began"
        at, pid = self.until(lambda: path.exists() and path.read_text()).split()
        return float(at), int(pid)

    def until(self, condition: Callable[[], object]) -> str:
        """The first true value of a condition, as text."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not (value := condition()):
            if time.monotonic() > deadline:
                raise ShoalError(f"a live bench waited {_PATIENCE_SECONDS:.0f} s in vain; is this machine too busy?")
            time.sleep(0.002)
        return str(value)


def _job(code: str = "pass", *, gpus: int = 1, grace: float = 0.0) -> Submission:
    return Submission(command=[sys.executable, "-I", "-S", "-c", code], gpus=gpus, ranks="node", grace=grace)


@contextmanager
def _cluster(nodes: int = 1, gpus: int = 4, *, agents: bool = True) -> Iterator[_Cluster]:
    with TemporaryDirectory(prefix="shoal-bench-") as folder, ExitStack() as stack:
        made = _Cluster(Path(folder), (nodes, gpus))
        made.start_plane()
        stack.callback(made.end)
        if agents:
            made.start_agents()
        yield made


def submissions(many: int, at_once: int) -> dict[str, float]:
    """Seconds until so many submissions are durable, sent one group after the other on one connection."""
    with _cluster(agents=False) as cluster:
        begin = time.monotonic()
        for _ in range(many // at_once):
            if at_once == 1:
                cluster.client.post("/v1/jobs", _job(), Submitted)
            else:
                cluster.client.post("/v1/jobs/batch", SubmissionBatch([_job() for _ in range(at_once)]), Submitted)
        seconds = time.monotonic() - begin
        assert cluster.look().waiting == many
    return {"seconds": seconds, "per_second": many / seconds}


def start() -> dict[str, float]:
    """Seconds from sending a submission to the job's first line of code, on an idle cluster; the median of a few."""
    with _cluster() as cluster:
        waits = []
        for _ in range(11):
            sent = time.monotonic()
            waits.append(cluster.began(cluster.submit(_TELL))[0] - sent)
            cluster.until(lambda: cluster.look().used_gpus == 0)
    return {"seconds": median(waits), "worst": max(waits)}


def restart(live: int) -> dict[str, float]:
    """Seconds from starting a control plane that was killed with so many live jobs to its next acknowledgement."""
    with _cluster() as cluster:
        for _ in range(live // 1000):
            cluster.client.post(
                "/v1/jobs/batch", SubmissionBatch([_job("pass" + _SLEEP) for _ in range(1000)]), Submitted
            )
        cluster.until(lambda: cluster.look().used_gpus == 4)
        cluster.plane.kill()
        cluster.plane.communicate()
        begin = time.monotonic()
        cluster.start_plane()
        cluster.submit("pass")
        seconds = time.monotonic() - begin
        assert cluster.look().running + cluster.look().waiting == live + 1
    return {"seconds": seconds}


def idle(seconds: float = 20.0) -> dict[str, float]:
    """CPU seconds per second of an agent that has nothing to do; the peak memory is the agent's too."""
    with _cluster() as cluster:
        (agent,) = cluster.agents
        time.sleep(1.0)
        before = _cpu_seconds(agent.pid)
        time.sleep(seconds)
        used = _cpu_seconds(agent.pid) - before
        status = Path(f"/proc/{agent.pid}/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    return {"seconds": used / seconds, "peak_mb": peak / 1024}


def cancel(grace: float = 1.0) -> dict[str, float]:
    """Seconds beyond its grace until a job that does not heed its warning is gone, once it was cancelled.

    ``next_began`` is the same for the first line of code of the job that waited for its GPUs.
    """
    with _cluster() as cluster:
        gone, began = [], []
        for _ in range(5):
            stays = cluster.submit(_STAY + _TELL + _SLEEP, gpus=4, grace=grace)
            _, process = cluster.began(stays)
            waits = cluster.submit(_TELL, gpus=4)
            sent = time.monotonic()
            cluster.client.call("DELETE", f"/v1/jobs/{stays}", None, type(None))
            cluster.until(partial(_is_gone, process))
            gone.append(time.monotonic() - sent - grace)
            began.append(cluster.began(waits)[0] - sent - grace)
            cluster.until(lambda: cluster.look().used_gpus == 0)
    return {"seconds": max(gone), "next_began": max(began)}


def _is_gone(pid: int) -> bool:
    return find_process(pid) is None


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
