"""`shoal serve --on slurm` on a real Slurm: a queue of torch jobs under the default policy, with a resize, a preemption
and a node that is lost and returns. Seconds are printed, not asserted."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.provider.native_cluster import NativeCluster, native_cluster
from tests.provider.slurm_sites import RealSite, real_site

from shoal.agent.processes import all_processes
from shoal.core.commands import Decided, Resize, Stop, Suspend
from shoal.core.events import EventBatch, NodeLost
from shoal.live.home import JOURNAL
from shoal.scenario.replay import replay_file
from shoal.store.journal import JournalFile
from shoal.wire.messages import JobRow

pytestmark = pytest.mark.engines

JOB = Path(__file__).with_name("torch_job.py")
SHORT, LONG = 8, 60
_STEP_SECONDS = 0.2


@pytest.fixture
def slurm() -> Iterator[RealSite]:
    with tempfile.TemporaryDirectory() as name, real_site(Path(name) / "slurm", ("n1", "n2")) as made:
        yield made


class Queue:
    """The jobs of one cluster by name."""

    def __init__(self, cluster: NativeCluster) -> None:
        self.cluster = cluster

    def submit(self, name: str, gpus: int, steps: int, tenant: str = "lab") -> str:
        words = (self.cluster.python, str(JOB), str(steps), str(_STEP_SECONDS))
        environ = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        work = steps * _STEP_SECONDS
        return self.cluster.submit(tenant, *words, gpus=gpus, name=name, work=work, env=environ, grace=5.0)

    def rows(self) -> dict[str, JobRow]:
        return {row.name: row for row in self.cluster.get("/v1/jobs?all=true", list[JobRow])}

    def shoal(self, *words: str) -> None:
        environ = {**os.environ, "SHOAL_HOME": str(self.cluster.home)}
        subprocess.run([sys.executable, "-m", "shoal", *words], env=environ, timeout=60, check=True)

    def up(self) -> set[str]:
        return {row.name for row in self.cluster.nodes() if row.up}

    def kill_agent(self, node: str) -> None:
        """Kill the agent of a node, which can then neither save nor say anything."""
        for process in all_processes():
            with suppress(OSError, ValueError):
                words = Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")
                ours = "shoal.agent" in words and str(self.cluster.home) in words
                if ours and words[words.index("--node") + 1] == node:
                    os.kill(process.pid, signal.SIGKILL)


def test_six_torch_jobs_complete_with_a_resize_a_preemption_and_a_node_loss(slurm: RealSite) -> None:
    with native_cluster(slurm, on="slurm:partition=gpu", policy="shoal") as cluster:
        queue, began, until = Queue(cluster), time.monotonic(), cluster.until
        queue.shoal("quota", "set", "prod", "--guaranteed", "2")
        wide = queue.submit("wide", 2, 2 * LONG)
        until(lambda: queue.rows()["wide"].state == "running", "the first job runs")
        queue.shoal("resize", wide, "1")
        queue.submit("pair", 2, LONG)
        for name in ("one", "two"):
            queue.submit(name, 1, SHORT)
        until(lambda: queue.rows()["pair"].state == "running" and queue.rows()["wide"].gpus_held == 1, "a resize")
        queue.submit("prod", 2, SHORT, tenant="prod")
        until(lambda: queue.rows()["prod"].state in ("running", "completed"), "a guaranteed job runs")
        until(lambda: any("n2" in row.nodes for row in queue.rows().values() if row.state == "running"), "n2 is used")

        # The node is lost without a warning, and returns.
        lost = time.monotonic()
        slurm.cluster.kill("n2")
        queue.kill_agent("n2")
        until(lambda: "n2" not in queue.up(), "the node is lost")
        print(f"node lost after {time.monotonic() - lost:.1f} s", file=sys.stderr)
        queue.submit("last", 1, SHORT)
        slurm.cluster.start_node("n2")
        until(lambda: queue.up() == {"n1", "n2"}, "the node is back")
        until(lambda: {row.state for row in queue.rows().values()} == {"completed"}, "all jobs complete")
        print(f"six jobs completed after {time.monotonic() - began:.1f} s", file=sys.stderr)

        assert len(queue.rows()) == 6
        assert not [*cluster.home.glob("jobs/*/overlap")]
        records = [*JournalFile(cluster.home / JOURNAL).read()]
        commands = [command for record in records if isinstance(record, Decided) for command in record.commands]
        events = [event for record in records if isinstance(record, EventBatch) for event in record.events]
        assert any(isinstance(command, Resize) for command in commands)
        assert any(isinstance(command, Stop | Suspend) for command in commands)
        assert any(isinstance(event, NodeLost) for event in events)
        replay_file(cluster.home)
