"""A whole cluster on Slurm: `shoal serve`, agents in Slurm jobs, and jobs whose lock files show whether they run twice.

On a real Slurm only: `test_slurm_conformance` has the story for the fake too. Seconds are printed, not asserted.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.site import Line, _free_port, until
from tests.e2e.trial import JOB
from tests.provider.slurm_sites import SlurmSite, command, real_site

from shoal.core.errors import ShoalError
from shoal.provider.protocol import AgentCall, Allocation, EngineAway, Seen
from shoal.provider.reconcile import NO_MEMORY, Open, reconcile
from shoal.provider.slurm.commands import SlurmOptions
from shoal.provider.slurm.provider import SlurmProvider
from shoal.wire.client import Client
from shoal.wire.messages import JobRow, NodeRow, Submission, Submitted

NODES = ("v100-0", "v100-1", "v100-2")


pytestmark = pytest.mark.engines


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmSite]:
    with tempfile.TemporaryDirectory() as name, real_site(Path(name) / "slurm", NODES) as made:
        for variable in ("PATH", "SLURM_CONF", "LD_LIBRARY_PATH"):
            monkeypatch.setenv(variable, made.environment[variable])
        yield made


class Cluster:
    """A control plane, and a provider that is tended once whenever something is waited for."""

    def __init__(self, site: SlurmSite, folder: Path, nodes: tuple[str, str] = ("--cluster", "v100:3x2")) -> None:
        self.site, self.home, self.port, self.nodes = site, folder / "home", _free_port(), nodes
        self.plane: subprocess.Popen[bytes] | None = None
        self.start_plane()
        until(lambda: (self.home / "admin.token").exists(), "the control plane writes its tokens")
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = Client(self.url, (self.home / "admin.token").read_text().strip(), timeout=10.0)
        self.provider = SlurmProvider.connect(SlurmOptions(), self.home / "slurm")
        self.wanted: tuple[str, ...] = ()
        self.memory = NO_MEMORY
        self.opened = 0

    def start_plane(self) -> None:
        words = ["serve", *self.nodes, "--home", str(self.home), "--port", str(self.port)]
        words += ["--lease", "60", "--retry", "0.5", "--policy", "fifo"]
        with (self.home.parent / "plane.log").open("ab") as out:
            self.plane = subprocess.Popen([sys.executable, "-m", "shoal", *words], stdout=out, stderr=out)

    def kill_plane(self) -> None:
        assert self.plane is not None
        self.plane.kill()
        self.plane.wait()

    def allocation(self, node: str) -> Allocation:
        words = ("--server", self.url, "--node", node, "--kind", "v100", "--gpus", "2", "--home", str(self.home))
        token = self.home / "agents" / f"{node}.token"
        return Allocation(node, node, "v100", 2, AgentCall(words, lambda: token.read_text().strip()), grace=10.0)

    def tend(self) -> list[Seen]:
        """Reconcile once; what the engine reports."""
        try:
            self.provider.survey()
            seen = list(self.provider.seen())
        except EngineAway:
            return []
        now, wanted = time.monotonic(), [self.allocation(node) for node in self.wanted]
        acts, self.memory = reconcile(wanted, seen, dict.fromkeys(NODES, now), now, self.memory)
        for act in acts:
            if isinstance(act, Open):
                self.opened += 1
                self.provider.open(act.allocation)
            else:
                self.provider.close(act.ref, act.grace)
        return seen

    def want(self, *nodes: str) -> None:
        """Want allocations on these nodes, and wait until they and no others have agents."""
        self.wanted = nodes
        until(lambda: [self.tend(), self.up() == set(nodes)][1], f"agents on {nodes}")

    def up(self) -> set[str]:
        return {row.name for row in self.client.get("/v1/nodes", list[NodeRow]) if row.up}

    def submit(self, name: str, gpus: int, seconds: float) -> str:
        job = [sys.executable, "-I", "-S", str(JOB), str(seconds), "0.1"]
        asked = Submission(command=job, name=name, gpus=gpus, work=seconds + 1.0, grace=5.0, preemptible="yes")
        (made,) = self.client.post("/v1/jobs", asked, Submitted).jobs
        return made

    def row(self, job: str) -> JobRow:
        (row,) = (row for row in self.client.get("/v1/jobs?all=true", list[JobRow]) if row.id == job)
        return row

    def story(self, job: str) -> list[Line]:
        path = self.home / "jobs" / job / "story"
        return [Line(*json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []

    def began(self, job: str, ranks: int, after: float) -> float:
        """Wait until all ranks of an incarnation have begun; the seconds since ``after``."""

        def found() -> float | None:
            lines = [line for line in self.story(job) if line.what == "began" and line.at > after]
            return max(line.at for line in lines) if len(lines) >= ranks else None

        return float(until(found, f"{ranks} ranks of {job} begin")) - after

    def ref(self, node: str) -> str | None:
        """Return the number of a node's open allocation."""
        return next((one.ref for one in self.provider.seen() if one.name == node and one.state.open), None)

    def close(self) -> None:
        """End the control plane, which would open others, and then all allocations."""
        self.client.close()
        if self.plane is not None:
            self.plane.terminate()
            self.plane.wait(60)
        for one in self.provider.seen():
            if one.state.open:
                self.provider.close(one.ref, 0.0)
        until(lambda: not any(one.state.open for one in self.provider.seen()), "all allocations end")


def test_serve_on_slurm_keeps_one_agent_on_each_node_and_jobs_leave_a_node_that_a_stranger_closes(
    site: SlurmSite, tmp_path: Path
) -> None:
    cluster = Cluster(site, tmp_path, ("--on", "slurm:partition=gpu"))
    try:
        until(lambda: cluster.up() == set(NODES), "all nodes have agents")
        asked = time.monotonic()
        job = cluster.submit("one", 1, 12.0)
        started = cluster.began(job, 1, asked)
        (node,) = cluster.row(job).nodes

        # A stranger cancels the allocation: the job moves, and the node gets another agent.
        cancelled, first = time.monotonic(), cluster.ref(node)
        command(site, "scancel", str(first))
        moved = cluster.began(job, 1, cancelled)
        assert cluster.row(job).nodes != [node]
        until(lambda: node in cluster.up() and cluster.ref(node) not in (None, first), "the node has another agent")

        # The next control plane takes over the allocations, and the job runs on.
        before = {name: cluster.ref(name) for name in NODES}
        cluster.kill_plane()
        cluster.start_plane()
        until(lambda: _answers(cluster) and cluster.up() == set(NODES), "the agents connect again")
        until(lambda: cluster.row(job).state == "completed", "the job completes")
        assert {name: cluster.ref(name) for name in NODES} == before
        assert [line.what for line in cluster.story(job)].count("began") == 2
        assert "twice" not in [line.what for line in cluster.story(job)]
        print(f"one rank started in {started:.2f} s, ran elsewhere in {moved:.2f} s", file=sys.stderr)
    finally:
        cluster.close()


@pytest.fixture
def cluster(site: SlurmSite, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(site, tmp_path)
    yield made
    made.close()


def test_agents_in_slurm_jobs_run_gangs_and_no_incarnations_overlap(cluster: Cluster) -> None:
    figures = {}
    began = time.monotonic()
    cluster.want("v100-0", "v100-1")
    figures["two agents up"] = time.monotonic() - began

    # A gang over two nodes; one of them is closed in good order: the job is saved and waits.
    asked = time.monotonic()
    gang = cluster.submit("gang", 4, 6.0)
    figures["gang started"] = cluster.began(gang, 4, asked)
    cluster.want("v100-0")
    until(lambda: cluster.row(gang).state == "pending", "the gang waits")
    assert [line.what for line in cluster.story(gang)].count("saved") == 4

    # Another node takes its place, and the gang goes on from where it was.
    opened = time.monotonic()
    cluster.want("v100-0", "v100-2")
    figures["gang resumed after opening"] = cluster.began(gang, 4, opened)

    # The controller is away: the job goes on, and nothing is closed.
    with cluster.site.away():
        assert cluster.tend() == []
        until(lambda: cluster.row(gang).state == "completed", "the gang completes")

    # A stranger cancels an allocation: its job is saved and runs elsewhere, not on the leaving node.
    until(lambda: cluster.tend(), "the controller answers")
    job = cluster.submit("small", 2, 5.0)
    cluster.began(job, 2, 0.0)
    (node,) = cluster.row(job).nodes
    cancelled = time.monotonic()
    command(cluster.site, "scancel", str(cluster.ref(node)))
    figures["running elsewhere"] = cluster.began(job, 2, cancelled)
    assert cluster.row(job).nodes != [node]

    # The control plane is killed between opening an allocation and knowing of it: there is no second one.
    before = cluster.opened
    cluster.wanted = NODES
    cluster.tend()
    cluster.kill_plane()
    cluster.memory = NO_MEMORY
    cluster.start_plane()
    until(lambda: _answers(cluster), "the control plane answers")
    cluster.want(*NODES)
    assert cluster.opened - before <= 2  # the third node, and the one that the stranger closed
    assert len([one for one in cluster.provider.seen() if one.state.open]) == len(NODES)
    until(lambda: cluster.row(job).state == "completed", "the job completes")
    for name in (gang, job):
        assert "twice" not in [line.what for line in cluster.story(name)]
    print({name: round(seconds, 2) for name, seconds in figures.items()}, file=sys.stderr)


def test_a_job_goes_on_while_slurm_calls_its_node_lost_and_an_agent_is_back_when_the_node_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory() as name, real_site(Path(name) / "slurm", NODES[:1]) as site:
        for variable in ("PATH", "SLURM_CONF", "LD_LIBRARY_PATH"):
            monkeypatch.setenv(variable, site.environment[variable])
        cluster = Cluster(site, tmp_path)
        try:
            cluster.want(NODES[0])
            job = cluster.submit("long", 2, 60.0)
            cluster.began(job, 2, 0.0)
            (first,) = (one.ref for one in cluster.provider.seen() if one.state.open)
            site.cluster.kill(NODES[0])
            until(lambda: any(one.state == "lost" for one in cluster.provider.seen()), "Slurm gives the node up")
            (row,) = cluster.provider.survey()
            assert row.state == "down"
            lost_at = time.monotonic()
            assert cluster.row(job).state == "running"
            until(lambda: cluster.story(job)[-1].at > lost_at + 0.5, "the job works on a node that Slurm calls lost")
            cluster.tend()  # another allocation is opened, which waits for the node
            site.cluster.start_node(NODES[0])
            until(lambda: cluster.tend() and cluster.ref(NODES[0]) not in (None, first), "another allocation")
            until(lambda: [cluster.tend(), cluster.row(job).state == "completed"][1], "the job completes")
            assert "twice" not in [line.what for line in cluster.story(job)]
        finally:
            cluster.close()


def _answers(cluster: Cluster) -> bool:
    try:
        return bool(cluster.client.get("/v1/nodes", list[NodeRow]))
    except ShoalError:
        return False
