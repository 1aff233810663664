"""Benchmarks of a live cluster: a control plane and agents in processes of their own, called over HTTP.

Seconds are wall-clock time. Each benchmark has its own cluster, in a folder that is removed afterwards, and leaves no
process behind.
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

from shoal.agent.processes import find_process
from shoal.core.errors import ShoalError
from shoal.wire.client import Client
from shoal.wire.messages import ClusterRow, Submission, SubmissionBatch, Submitted

_TIMEOUT_SECONDS = 60.0

_BEGAN = "import os, time; open(os.environ['SHOAL_DIR'] + '/began', 'w').write(f'{time.monotonic()} {os.getpid()}')"
_IGNORE_TERM = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
_SLEEP = "; import time; time.sleep(600)"


@dataclass(slots=True)
class BenchCluster:
    """A control plane with its own home folder, and its agents; ``shape`` is (nodes, GPUs per node)."""

    home: Path
    shape: tuple[int, int]
    options: tuple[str, ...] = ()
    """More options of `serve`."""
    timeout: float = 30.0
    """Seconds to wait for an answer."""
    more: dict[str, float] = field(default_factory=dict)
    """Figures measured on the way."""
    client: Client = field(init=False)
    control_plane: "subprocess.Popen[str]" = field(init=False)
    agents: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    def start_control_plane(self, port: int = 0) -> None:
        """Start the control plane and return when it answers."""
        arguments = [
            "serve",
            "--cluster",
            f"gpu:{self.shape[0]}x{self.shape[1]}",
            "--home",
            str(self.home),
            "--port",
            str(port),
            *self.options,
        ]
        with (self.home / "control_plane.log").open("a") as log:
            command = [sys.executable, "-m", "shoal", *arguments, "--json"]
            self.control_plane = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.control_plane.stdout is not None
        url = json.loads(self.control_plane.stdout.readline())["server"]
        self.client = Client(url, (self.home / "admin.token").read_text().strip(), timeout=self.timeout)

    def start_agents(self) -> None:
        """Start the agents and return when every GPU is up."""
        nodes, gpus = self.shape
        for node in range(nodes):
            arguments = ["--node", f"gpu-{node}", "--kind", "gpu", "--gpus", str(gpus), "--home", str(self.home)]
            arguments += ["--token-file", str(self.home / "agents" / f"gpu-{node}.token")]
            command = [sys.executable, "-m", "shoal.agent", "--server", self.client.url, *arguments]
            with (self.home / "agents.log").open("a") as log:
                self.agents.append(subprocess.Popen(command, stdout=log, stderr=log))
        self.wait_for(lambda: self.status().up_gpus == nodes * gpus)

    def end(self) -> None:
        """End all processes: first the agents, each with its jobs."""
        for agent in self.agents:
            agent.terminate()
        for agent in self.agents:
            agent.wait()
        self.control_plane.terminate()
        self.control_plane.communicate()

    def status(self) -> ClusterRow:
        """Return the cluster's present figures."""
        return self.client.get("/v1/cluster", ClusterRow)

    def submit(self, code: str, *, gpus: int = 1, grace: float = 0.0) -> str:
        """Submit one job that runs this Python code; returns its identifier."""
        return self.client.post("/v1/jobs", _job(code, gpus=gpus, grace=grace), Submitted).jobs[0]

    def began(self, job: str) -> tuple[float, int]:
        """Wait until a job that runs ``_BEGAN`` begins.

        Returns its start on the monotonic clock and its process id.
        """
        path = self.home / "jobs" / job / "began"
        at, pid = self.wait_for(lambda: path.exists() and path.read_text()).split()
        return float(at), int(pid)

    def wait_for(self, condition: Callable[[], object]) -> str:
        """Wait for the first true value of a condition and return it as text."""
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not (value := condition()):
            if time.monotonic() > deadline:
                raise ShoalError(f"a live bench waited {_TIMEOUT_SECONDS:.0f} s in vain; is this machine too busy?")
            time.sleep(0.002)
        return str(value)


def _job(code: str = "pass", *, gpus: int = 1, grace: float = 0.0) -> Submission:
    return Submission(command=[sys.executable, "-I", "-S", "-c", code], gpus=gpus, ranks="node", grace=grace)


@contextmanager
def _cluster(nodes: int = 1, gpus: int = 4, *, agents: bool = True) -> Iterator[BenchCluster]:
    with TemporaryDirectory(prefix="shoal-bench-") as folder, ExitStack() as stack:
        made = BenchCluster(Path(folder), (nodes, gpus))
        made.start_control_plane()
        stack.callback(made.end)
        if agents:
            made.start_agents()
        yield made


def submissions(count: int, at_once: int) -> dict[str, float]:
    """Time until ``count`` submissions are durable, sent in groups of ``at_once`` on one connection."""
    with _cluster(agents=False) as cluster:
        begin = time.monotonic()
        for _ in range(count // at_once):
            if at_once == 1:
                cluster.client.post("/v1/jobs", _job(), Submitted)
            else:
                cluster.client.post("/v1/jobs/batch", SubmissionBatch([_job() for _ in range(at_once)]), Submitted)
        seconds = time.monotonic() - begin
        assert cluster.status().waiting == count
    return {"seconds": seconds, "per_second": count / seconds}


def start() -> dict[str, float]:
    """Seconds from sending a submission to the job's first line of code, on an idle cluster; median of 11."""
    with _cluster() as cluster:
        waits = []
        for _ in range(11):
            sent = time.monotonic()
            waits.append(cluster.began(cluster.submit(_BEGAN))[0] - sent)
            cluster.wait_for(lambda: cluster.status().used_gpus == 0)
    return {"seconds": median(waits), "worst": max(waits)}


def restart(live: int) -> dict[str, float]:
    """Seconds from restarting a control plane killed with ``live`` live jobs to its next acknowledgement."""
    with _cluster() as cluster:
        for _ in range(live // 1000):
            cluster.client.post(
                "/v1/jobs/batch", SubmissionBatch([_job("pass" + _SLEEP) for _ in range(1000)]), Submitted
            )
        cluster.wait_for(lambda: cluster.status().used_gpus == 4)
        cluster.control_plane.kill()
        cluster.control_plane.communicate()
        begin = time.monotonic()
        cluster.start_control_plane()
        cluster.submit("pass")
        seconds = time.monotonic() - begin
        assert cluster.status().running + cluster.status().waiting == live + 1
    return {"seconds": seconds}


def idle(seconds: float = 20.0) -> dict[str, float]:
    """CPU seconds per second of an idle agent; ``peak_mb`` is the agent's peak memory."""
    with _cluster() as cluster:
        (agent,) = cluster.agents
        time.sleep(1.0)
        before = cpu_seconds(agent.pid)
        time.sleep(seconds)
        used = cpu_seconds(agent.pid) - before
        status = Path(f"/proc/{agent.pid}/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    return {"seconds": used / seconds, "peak_mb": peak / 1024}


def cancel(grace: float = 1.0) -> dict[str, float]:
    """Seconds from the end of its grace period until a cancelled job that ignores signals has ended; worst of five.

    ``next_began`` is measured from the same moment to the first line of code of the job that waited for its GPUs.
    """
    with _cluster() as cluster:
        gone, began = [], []
        for _ in range(5):
            ignoring = cluster.submit(_IGNORE_TERM + _BEGAN + _SLEEP, gpus=4, grace=grace)
            _, process = cluster.began(ignoring)
            waiting = cluster.submit(_BEGAN, gpus=4)
            sent = time.monotonic()
            cluster.client.call("DELETE", f"/v1/jobs/{ignoring}", None, type(None))
            cluster.wait_for(partial(_has_ended, process))
            gone.append(time.monotonic() - sent - grace)
            began.append(cluster.began(waiting)[0] - sent - grace)
            cluster.wait_for(lambda: cluster.status().used_gpus == 0)
    return {"seconds": max(gone), "next_began": max(began)}


def _has_ended(pid: int) -> bool:
    return find_process(pid) is None


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
