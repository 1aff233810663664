"""The CPU time of a whole job: from a submission in a batch to its end, in all of Shoal's processes together.

The cluster is one ``shoal up`` with virtual nodes; jobs are ``/bin/true`` on one GPU each. CPU time is user and system
time of the process tree, ended children included; the ranks themselves are counted, the submitting client is not.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from shoal.agent.processes import all_processes, descendants
from shoal.core.errors import ShoalError
from shoal.wire.client import Client
from shoal.wire.messages import AcctRow, ClusterRow, Submission, SubmissionBatch, Submitted
from shoal.wire.token_source import ask_token

_BATCH = 1000
_SECONDS_PER_JOB = 0.5
"""The longest that a job may take on average before the bench gives up."""


def job_life(jobs: int = 1000, nodes: int = 4, gpus: int = 8, policy: str = "fifo") -> dict[str, float]:
    """Return CPU seconds per job, in all and by process; ``ShoalError`` if a job did not complete."""
    with _up(nodes, gpus, policy) as (root, client):
        _finish(client, gpus * nodes)  # imports and first allocations are not counted
        before, began = _cpu_by_process(root), time.monotonic()
        _finish(client, jobs)
        after, seconds = _cpu_by_process(root), time.monotonic() - began
        rows = client.get("/v1/acct", list[AcctRow])
    lost = sum(row.state != "completed" for row in rows) + jobs + gpus * nodes - len(rows)
    if lost:
        raise ShoalError(f"{lost} of {jobs} jobs did not complete")
    used = {name: (after[name] - before.get(name, 0.0)) / jobs for name in after}
    return {"seconds": sum(used.values()), **used, "jobs_per_second": jobs / seconds}


def _finish(client: Client, jobs: int) -> None:
    """Submit this many jobs in batches and return when none is left."""
    ended = client.get("/v1/cluster", ClusterRow).ended + jobs
    for first in range(0, jobs, _BATCH):
        job = Submission(command=["/bin/true"], name="true")
        client.post("/v1/jobs/batch", SubmissionBatch([job] * min(_BATCH, jobs - first)), Submitted)
    deadline = time.monotonic() + 30.0 + _SECONDS_PER_JOB * jobs
    while client.get("/v1/cluster", ClusterRow).ended < ended:
        if time.monotonic() > deadline:
            raise ShoalError(f"{jobs} jobs were not done after {30.0 + _SECONDS_PER_JOB * jobs:.0f} s")
        time.sleep(0.5)


@contextmanager
def _up(nodes: int, gpus: int, policy: str) -> Iterator[tuple[int, Client]]:
    with TemporaryDirectory(prefix="shoal-bench-") as folder:
        options = ["--nodes", f"{nodes}x{gpus}", "--policy", policy, "--home", folder, "--port", "0", "--json"]
        with (Path(folder) / "up.log").open("w") as log:
            command = [sys.executable, "-m", "shoal", "up", *options]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["server"]
            client = Client(url, ask_token(json.loads((Path(folder) / "client.json").read_text())["socket"]))
            while client.get("/v1/cluster", ClusterRow).up_gpus < nodes * gpus:
                time.sleep(0.05)
            yield process.pid, client
        finally:
            process.terminate()
            process.communicate()


def _cpu_by_process(root: int) -> dict[str, float]:
    """Return CPU seconds of the control plane (with its own process) and of the agents, with ended children."""
    below = descendants([root], all_processes())
    agents = {process.pid for process in below if process.parent == root and b"shoal.agent" in _command(process.pid)}
    keepers = {process.pid for process in below if process.parent in agents}
    found = {"control_plane": 0.0, "agents": 0.0, "keepers_and_ranks": 0.0}
    for pid in [root, *(process.pid for process in below)]:
        own, ended = _cpu(pid)
        found["agents" if pid in agents else "keepers_and_ranks" if pid in keepers else "control_plane"] += own
        found["keepers_and_ranks" if pid in agents or pid in keepers else "control_plane"] += ended
    return found


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def _cpu(pid: int) -> tuple[float, float]:
    """Return the CPU seconds of a process and of its ended children; zero if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, 0.0
    ticks = [int(field) / os.sysconf("SC_CLK_TCK") for field in fields[11:15]]
    return ticks[0] + ticks[1], ticks[2] + ticks[3]
