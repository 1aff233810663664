"""`shoal serve --on ray` on a real Ray: a queue of torch jobs under the default policy, with a resize, a preemption and
a node that is lost and returns. Seconds are printed, not asserted."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.e2e.site import _free_port, until
from tests.provider.ray_cluster import PYTHON, RayCluster
from tests.provider.ray_engine import provider_on

from shoal.agent.processes import all_processes
from shoal.core.commands import Decided, Resize, Stop, Suspend
from shoal.core.events import EventBatch, NodeLost
from shoal.live.home import JOURNAL
from shoal.scenario.replay import replay_file
from shoal.store.journal import JournalFile
from shoal.wire.client import Client
from shoal.wire.messages import JobRow, NodeRow, Submission, Submitted

pytestmark = pytest.mark.engines

JOB = Path(__file__).with_name("torch_job.py")
SHORT, LONG = 8, 40
_STEP_SECONDS = 0.2


class RayServe:
    """A ``shoal serve --on ray`` process, and a client of it."""

    def __init__(self, ray: RayCluster, home: Path) -> None:
        self.ray, self.home, self.port = ray, home, _free_port()
        home.mkdir()
        words = ["serve", "--on", f"ray:address={ray.address},ray_python={PYTHON}", "--home", str(home)]
        words += ["--port", str(self.port), "--lease", "6", "--retry", "0.5"]
        self._out = (home / "serve.log").open("wb")
        self._process = subprocess.Popen([sys.executable, "-m", "shoal", *words], stdout=self._out, stderr=self._out)
        until(lambda: (home / "admin.token").exists(), "the control plane writes its tokens")
        url = f"http://127.0.0.1:{self.port}"
        self.client = Client(url, (home / "admin.token").read_text().strip(), timeout=10.0)

    def shoal(self, *words: str) -> str:
        """Return what a command of Shoal prints."""
        called, environ = [sys.executable, "-m", "shoal", *words], {**os.environ, "SHOAL_HOME": str(self.home)}
        done = subprocess.run(
            called,
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def submit(self, name: str, gpus: int, steps: int, tenant: str = "lab") -> str:
        command = [sys.executable, str(JOB), str(steps), str(_STEP_SECONDS)]
        environ = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        asked = Submission(
            command=command,
            name=name,
            gpus=gpus,
            tenant=tenant,
            work=steps * _STEP_SECONDS,
            env=environ,
            grace=5.0,
            preemptible="yes",
        )
        (made,) = self.client.post("/v1/jobs", asked, Submitted).jobs
        return made

    def rows(self) -> dict[str, JobRow]:
        return {row.name: row for row in self.client.get("/v1/jobs?all=true", list[JobRow])}

    def up(self) -> set[str]:
        return {row.name for row in self.client.get("/v1/nodes", list[NodeRow]) if row.up}

    def kill_agent(self, node: str) -> None:
        """Kill the agent of a node, which can then neither save nor say anything."""
        for process in all_processes():
            with suppress(OSError):
                words = Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")
                is_agent = words[1:4] == ["-P", "-m", "shoal.agent"] and str(self.home) in words
                if is_agent and words[words.index("--node") + 1] == node:
                    os.kill(process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the control plane, and then its allocations."""
        self.client.close()
        self._process.terminate()
        self._process.wait(60)
        self._out.close()
        provider = provider_on(self.ray, self.home)
        try:
            for one in provider.seen():
                if one.state.open:
                    provider.close(one.ref, 0.0)
            until(lambda: not any(one.state.open for one in provider.seen()), "all allocations end")
        finally:
            provider.connection.close()


@pytest.fixture
def serve(ray: RayCluster, tmp_path: Path) -> Iterator[RayServe]:
    made = RayServe(ray, tmp_path / "home")
    yield made
    made.close()


def test_six_torch_jobs_complete_with_a_resize_a_preemption_and_a_node_loss(serve: RayServe) -> None:
    began = time.monotonic()
    until(lambda: serve.up() == {"n1", "n2"}, "both nodes have agents")
    print(f"agents up after {time.monotonic() - began:.1f} s", file=sys.stderr)
    serve.shoal("quota", "set", "prod", "--guaranteed", "2")
    wide = serve.submit("wide", 2, 2 * LONG)
    until(lambda: serve.rows()["wide"].state == "running", "the first job runs")
    serve.shoal("resize", wide, "1")
    serve.submit("pair", 2, LONG)
    for name in ("one", "two"):
        serve.submit(name, 1, SHORT)
    until(lambda: serve.rows()["pair"].state == "running" and serve.rows()["wide"].gpus_held == 1, "it was resized")
    serve.submit("prod", 2, SHORT, tenant="prod")
    until(lambda: serve.rows()["prod"].state in ("running", "completed"), "a guaranteed job runs")
    until(lambda: any("n2" in row.nodes for row in serve.rows().values() if row.state == "running"), "n2 is used")

    # The node is lost without a warning, and returns under another identifier.
    lost = time.monotonic()
    serve.kill_agent("n2")
    serve.ray.kill_node("n2")
    until(lambda: "n2" not in serve.up(), "the node is lost")
    serve.submit("last", 1, SHORT)
    print(f"node lost after {time.monotonic() - lost:.1f} s", file=sys.stderr)
    # Ray misses the node's heartbeats later than Shoal misses its agent.
    until(lambda: "ray: down" in serve.shoal("nodes", "--json"), "Ray's own state of the node is shown")
    serve.ray.start_node("n2")
    serve.ray.wait_for_node("n2")
    until(lambda: serve.up() == {"n1", "n2"}, "the node is back")
    until(lambda: {row.state for row in serve.rows().values()} == {"completed"}, "all jobs complete")
    print(f"six jobs completed after {time.monotonic() - began:.1f} s", file=sys.stderr)

    assert len(serve.rows()) == 6
    assert not [*serve.home.glob("jobs/*/overlap")]
    records = [*JournalFile(serve.home / JOURNAL).read()]
    commands = [command for record in records if isinstance(record, Decided) for command in record.commands]
    events = [event for record in records if isinstance(record, EventBatch) for event in record.events]
    assert any(isinstance(command, Resize) for command in commands)
    assert any(isinstance(command, Stop | Suspend) for command in commands)
    assert any(isinstance(event, NodeLost) for event in events)
    replay_file(serve.home)
