"""Benchmark of a control plane with thousands of nodes, whose agents are simulated over loopback.

The control plane is a process of its own. Its CPU seconds are measured; waits are wall-clock seconds and depend on
other load on the machine.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import numpy as np

from shoal.core.errors import ShoalError
from shoal.research.bench.live import BenchCluster, cpu_seconds
from shoal.research.bench.simulated_agents import Fleet
from shoal.wire.client import Client
from shoal.wire.messages import NodeRow, Submission, SubmissionBatch, Submitted

_GPUS, _GANG = 8, 4
"""GPUs of a node and of a job: two jobs on each node."""

_BATCH = 500
_SUBMITTERS = 16
_FILL_SECONDS = 600.0
_IDLE_SECONDS, _BUSY_SECONDS = 10.0, 20.0
_COMMITS = "shoal_journal_commit_duration_seconds_"


def live_scale(nodes: int, live: int, per_second: float, policy: str = "fifo") -> dict[str, float]:
    """Measure a control plane with ``live`` jobs and ``per_second`` completions, starts and submissions a second.

    ``seconds`` is its share of a core under this load. Half of the jobs wait, or more.
    """
    with _running(nodes, policy) as (cluster, fleet):
        pid = cluster.control_plane.pid
        figures = _filled(cluster, fleet, live)
        idle, beats = _spent(pid), fleet.heartbeats
        time.sleep(_IDLE_SECONDS)
        figures["idle_share"] = idle() / _IDLE_SECONDS
        figures["idle_ms_per_heartbeat"] = 1000 * idle() / max(1, fleet.heartbeats - beats)
        figures |= _loaded(cluster, fleet, per_second)
        for name, path, kind in (("cluster", "/v1/cluster", dict), ("nodes", "/v1/nodes", list[NodeRow])):
            spent = _spent(pid)
            for _ in range(3):
                cluster.client.get(path, kind)
            figures[f"cpu_s_per_get_{name}"] = spent() / 3
        figures |= commits(cluster.client.lines("/v1/metrics"))
        figures["peak_mb"] = _peak_mb(pid)
        figures |= _restarted(cluster)
    return figures


@contextmanager
def _running(nodes: int, policy: str) -> Iterator[tuple[BenchCluster, Fleet]]:
    with TemporaryDirectory(prefix="shoal-bench-") as folder:
        home = Path(folder)
        cluster = BenchCluster(home, (nodes, _GPUS), ("--policy", policy), timeout=_FILL_SECONDS)
        begin = time.monotonic()
        cluster.start_control_plane()
        cluster.more["first_start_s"] = time.monotonic() - begin
        tokens = {f"gpu-{n}": (home / "agents" / f"gpu-{n}.token").read_text().strip() for n in range(nodes)}
        fleet = Fleet(_server(cluster), tokens, kind="gpu", gpus=_GPUS)
        try:
            fleet.start()
            begin = time.monotonic()
            _wait(lambda: fleet.registered >= nodes, _FILL_SECONDS)
            cluster.more["connect_s"] = time.monotonic() - begin
            yield cluster, fleet
        finally:
            fleet.close()
            cluster.end()


def _server(cluster: BenchCluster) -> tuple[str, int]:
    parts = urlsplit(cluster.client.url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def _filled(cluster: BenchCluster, fleet: Fleet, live: int) -> dict[str, float]:
    """Submit ``live`` jobs and wait until every GPU is in use."""
    begin, spent = time.monotonic(), _spent(cluster.control_plane.pid)
    for done in range(0, live, _BATCH):
        jobs = [_job() for _ in range(min(_BATCH, live - done))]
        cluster.client.post("/v1/jobs/batch", SubmissionBatch(jobs), Submitted)
    submitted, cpu = time.monotonic() - begin, spent()
    runs = min(live, cluster.shape[0] * _GPUS // _GANG)
    _wait(lambda: fleet.running >= runs, _FILL_SECONDS)
    return {
        **cluster.more,
        "submissions_per_s": live / submitted,
        "cpu_ms_per_submission": 1000 * cpu / live,
        "fill_s": time.monotonic() - begin,
        "fill_cpu_s": spent(),
    }


def _loaded(cluster: BenchCluster, fleet: Fleet, per_second: float) -> dict[str, float]:
    """Let runs end and submit as many jobs, one at a time, for ``_BUSY_SECONDS``."""
    pid = cluster.control_plane.pid
    fleet.waits.clear()
    fleet.end_runs(per_second, _BUSY_SECONDS)
    spent, beats, ended = _spent(pid), fleet.heartbeats + fleet.pushes, fleet.ended
    begin, took = time.monotonic(), list[float]()
    submitters = [
        threading.Thread(target=_submit, args=(cluster.client, per_second / _SUBMITTERS, took))
        for _ in range(_SUBMITTERS)
    ]
    for submitter in submitters:
        submitter.start()
    for submitter in submitters:
        submitter.join()
    seconds, cpu = time.monotonic() - begin, spent()
    requests, ended = fleet.heartbeats + fleet.pushes - beats, fleet.ended - ended
    time.sleep(2.0)
    waits = np.array(fleet.waits or [np.inf])
    return {
        "seconds": cpu / seconds,
        "ends_per_s": ended / seconds,
        "submitted_per_s": len(took) / seconds,
        "agent_requests_per_s": requests / seconds,
        "cpu_ms_per_end": 1000 * cpu / max(1, ended),
        "start_p50_s": float(np.quantile(waits, 0.5)),
        "start_p99_s": float(np.quantile(waits, 0.99)),
        "starts": float(len(waits)),
        "submission_p50_s": float(np.quantile(took, 0.5)),
        "submission_p99_s": float(np.quantile(took, 0.99)),
    }


def _submit(client: Client, per_second: float, took: list[float]) -> None:
    """Submit jobs one at a time, at this rate or as fast as each is acknowledged."""
    begin, sent = time.monotonic(), 0
    while (elapsed := time.monotonic() - begin) < _BUSY_SECONDS:
        if sent >= elapsed * per_second:
            time.sleep(0.005)
            continue
        asked = time.monotonic()
        client.post("/v1/jobs", _job(), Submitted)
        took.append(time.monotonic() - asked)
        sent += 1


def _restarted(cluster: BenchCluster) -> dict[str, float]:
    """Kill the control plane and start it again."""
    cluster.control_plane.kill()
    cluster.control_plane.communicate()
    begin = time.monotonic()
    cluster.start_control_plane(_server(cluster)[1])
    answered, again = time.monotonic() - begin, _spent(cluster.control_plane.pid, from_start=True)
    listening = again()
    cluster.client.post("/v1/jobs", _job(), Submitted)
    return {
        "restart_s": time.monotonic() - begin,
        "restart_answers_s": answered,
        "restart_cpu_s_to_answers": listening,
        "restart_cpu_s": again(),
    }


def commits(metrics: Iterable[str]) -> dict[str, float]:
    """Return how many commits of the journal took longer than half a second, and how many there were."""
    found: dict[str, float] = {}
    for line in metrics:
        name, _, value = line.rpartition(" ")
        if name.startswith(_COMMITS):
            found[name.removeprefix(_COMMITS)] = float(value)
    return {"slow_commits": found["count"] - found['bucket{le="0.5"}'], "commits": found["count"]}


def _job() -> Submission:
    return Submission(command=["/bin/true"], gpus=_GANG, ranks="node")


def _spent(pid: int, *, from_start: bool = False) -> Callable[[], float]:
    """Return a function that returns the CPU seconds a process has used since this call, or since its own start."""
    before = 0.0 if from_start else cpu_seconds(pid)
    return lambda: cpu_seconds(pid) - before


def _peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / 1024


def _wait(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise ShoalError(f"live-scale waited {seconds:.0f} s in vain; is this machine too busy?")
        time.sleep(0.05)
