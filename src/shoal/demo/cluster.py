"""The demo: the same jobs on virtual nodes of this machine under one policy, and in the simulator for comparison."""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shoal.core.topology import parse_cluster
from shoal.live.home import JOURNAL, Settings
from shoal.provider.local import LocalNodes
from shoal.report.files import StoredRun
from shoal.report.history import read_history
from shoal.report.metrics import job_table, summarize
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.serve.service import Address, run_service
from shoal.store.journal import JournalFile
from shoal.wire.client import Client
from shoal.wire.messages import AcctRow, JobRow, Submission, SubmissionBatch, Submitted
from shoal.workload.schema import Job, Workload

CLUSTER = "gpu:2x2"
SECONDS_PER_STEP = 0.05

JOBS: Sequence[tuple[str, int, float]] = (
    ("resnet", 4, 5.0),
    ("bert", 2, 5.0),
    ("probe", 1, 1.0),
    ("probe", 1, 1.0),
    ("lstm", 2, 2.0),
    ("sweep", 4, 2.0),
    ("probe", 1, 1.0),
    ("vit", 2, 3.0),
)
"""Names, GPUs and seconds of training: wide and long jobs first, so that the policy's order matters."""

_LONGEST_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The ended jobs under a policy, and the simulator's mean completion time and makespan in seconds.

    ``run`` has the journal of the cluster, for a page with charts.
    """

    policy: str
    run: StoredRun
    rows: Sequence[AcctRow]
    simulated_jct: float
    simulated_makespan: float

    @property
    def jct(self) -> float:
        """Mean seconds from submission to end."""
        return sum(row.ended - row.submitted for row in self.rows) / len(self.rows)

    @property
    def waited(self) -> float:
        """Mean seconds from submission to first start."""
        return sum(row.waited for row in self.rows) / len(self.rows)

    @property
    def makespan(self) -> float:
        """Seconds from the first submission to the last end."""
        return max(row.ended for row in self.rows) - min(row.submitted for row in self.rows)

    @property
    def restarts(self) -> int:
        """Restarts of all jobs."""
        return sum(row.restarts for row in self.rows)

    @property
    def completed(self) -> int:
        """Number of jobs that completed."""
        return sum(row.state == "completed" for row in self.rows)


def run_demo(policy: str, out: Path, show: Callable[[str, float, Sequence[JobRow]], None]) -> DemoResult:
    """Run the jobs under a policy on a new cluster; ``show`` gets the policy, the seconds and the queue.

    The cluster's journal is copied to a folder in ``out``.
    """
    with tempfile.TemporaryDirectory(prefix="shoal-demo-") as folder:
        settings = Settings(Path(folder), Scenario(parse_cluster(CLUSTER), policy), roots=(folder,))
        with running_cluster(settings, embedded=True) as (local, client):
            client.post("/v1/jobs/batch", SubmissionBatch([_submission(*job) for job in JOBS]), Submitted)
            rows = _watch(policy, client, local, show)
        run = _keep_journal(Path(folder) / JOURNAL, out / policy)
    jct, makespan = _simulated(policy)
    return DemoResult(policy, run, rows, jct, makespan)


@contextmanager
def running_cluster(settings: Settings, *, embedded: bool = False) -> Iterator[tuple[LocalNodes, Client]]:
    """Run a control plane and an agent for each node; yields the agents and an admin's client when all GPUs are up."""
    with run_service(settings, Address(), embedded=embedded) as made:
        cluster, url = settings.scenario.cluster, made.listening.url
        local = LocalNodes.of(url, made.agent_token, cluster.nodes, settings.home, roots=settings.roots)
        client = Client(url, made.admin_token)
        try:
            while made.control_plane.cluster().up_gpus < cluster.total_gpus:
                local.ensure_running()
                time.sleep(0.05)
            yield local, client
        finally:
            client.close()
            local.stop(_never_impatient)


def _keep_journal(journal: Path, folder: Path) -> StoredRun:
    folder.mkdir(parents=True, exist_ok=True)
    kept = Path(shutil.copy(journal, folder))
    history = read_history(JournalFile(kept).raw())
    table = job_table(history)
    return StoredRun(folder, summarize(history, table), table, kept)


def _never_impatient() -> bool:
    time.sleep(0.05)
    return False


def _submission(name: str, gpus: int, seconds: float) -> Submission:
    steps = round(seconds / SECONDS_PER_STEP)
    command = [sys.executable, "-m", "shoal.demo.train", str(steps), str(SECONDS_PER_STEP)]
    # One thread per rank: on a laptop the ranks of all jobs share a few processors.
    env = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    return Submission(command=command, name=name, gpus=gpus, work=seconds, env=env, grace=5.0, preemptible="yes")


def _watch(
    policy: str, client: Client, local: LocalNodes, show: Callable[[str, float, Sequence[JobRow]], None]
) -> list[AcctRow]:
    begin = time.monotonic()
    while True:
        local.ensure_running()
        rows = client.get("/v1/jobs?all=true&limit=1000", list[JobRow])
        now = time.monotonic() - begin
        show(policy, now, rows)
        if all(row.ended is not None for row in rows) or now > _LONGEST_SECONDS:
            return client.get("/v1/acct", list[AcctRow])
        time.sleep(0.25)


def _simulated(policy: str) -> tuple[float, float]:
    """Mean completion time and makespan in the simulator, seconds."""
    jobs = tuple(
        Job(id=f"{name}-{i}", submitted=0.0, gpus=gpus, work=seconds, restart_seconds=0.5)
        for i, (name, gpus, seconds) in enumerate(JOBS)
    )
    summary = run(Scenario(parse_cluster(CLUSTER), policy), Workload("demo", jobs)).summary
    return float(summary["avg_jct"]), float(summary["makespan"])
