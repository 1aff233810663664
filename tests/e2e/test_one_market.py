"""Eight jobs of all kinds share the embedded cluster under the default policy, and each is explained while it is live.

Two rigid, two elastic and two adaptive PyTorch jobs train on CPUs; two plain scripts know nothing of Shoal.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.core.topology import parse_cluster
from shoal.live.control_plane import ControlPlane
from shoal.live.home import JOURNAL, Settings
from shoal.provider.local import LocalNodes
from shoal.scenario.replay import replay_file
from shoal.scenario.scenario import Scenario
from shoal.serve.service import Address, run_service
from shoal.wire.messages import Submission

pytest.importorskip("torch")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PATIENCE = 600.0
ENDS = {
    "rigid": "epoch 1: loss",
    "elastic": "trained: every sample used 6 times in 6 epochs",
    "adaptive": "epoch 3: ",
    "plain": "done as ever",
}
"""By kind of job what it says when it has done all its work."""

EXPLAINED = ("its bid for a GPU is", "that no waiting job could use")
"""What one of the reasons of each job has: those of the market."""


def training(name: str, script: str, epochs: int, **gang: object) -> Submission:
    env = {"EPOCHS": str(epochs), "SECONDS_PER_SAMPLE": "0.002", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLES / script)]
    return Submission(command=command, name=name, env=env, grace=30.0, **gang)  # type: ignore[arg-type]


def jobs() -> list[Submission]:
    """The eight jobs; they ask for at least 12 GPUs together, of 8."""
    limits = {"batch_size": 64, "max_batch_size": 1024, "max_local_batch": 256}
    script = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(2); print('done as ever')"]
    return [
        *(training(f"rigid-{n}", "train_ddp.py", 2, gpus=2) for n in "ab"),
        *(training(f"elastic-{n}", "train_elastic.py", 6, gpus=1, max_gpus=3, resizes="in_place") for n in "ab"),
        *(training(f"adaptive-{n}", "train_adaptive.py", 4, gpus=2, **limits) for n in "ab"),
        *(Submission(command=script, name=f"plain-{n}", gpus=1, grace=0.0) for n in "ab"),
    ]


@contextmanager
def cluster(home: Path) -> Iterator[ControlPlane]:
    settings = Settings(home, Scenario(parse_cluster("gpu:2x4"), "shoal"))
    with run_service(settings, Address()) as made:
        nodes = settings.scenario.cluster.nodes
        local = LocalNodes.of(made.listening.url, made.agent_token, nodes, home, roots=settings.roots)
        local.ensure_running()
        try:
            deadline = time.monotonic() + 60.0
            while made.control_plane.cluster().up_gpus < 8:
                assert time.monotonic() < deadline, "the nodes are not up"
                time.sleep(0.05)
            yield made.control_plane
        finally:
            local.stop(lambda: bool(time.sleep(0.05)))  # type: ignore[func-returns-value]


def test_rigid_elastic_adaptive_and_plain_jobs_share_the_cluster_and_each_is_explained(tmp_path: Path) -> None:
    home, wanted = tmp_path / "home", jobs()
    with cluster(home) as plane:
        ids = dict(zip(plane.submit(wanted, "ann").result(20), (job.name for job in wanted), strict=True))
        reasons: dict[str, set[str]] = {job: set() for job in ids}
        most_at_once, deadline = 0, time.monotonic() + PATIENCE
        while True:
            details = [plane.job(job, None) for job in ids]
            for detail in details:
                reasons[detail.job.id].add(detail.job.reason)
            running = [detail for detail in details if detail.job.state == "running"]
            assert sum(detail.job.gpus_held for detail in running) <= 8
            most_at_once = max(most_at_once, len(running))
            states = {ids[detail.job.id]: detail.job.state for detail in details}
            if not set(states.values()) & {"pending", "starting", "running", "stopping", "held"}:
                break
            assert time.monotonic() < deadline, states
            time.sleep(0.1)
        assert set(states.values()) == {"completed"}
        assert [detail.crashes for detail in details] == [0] * 8
    assert most_at_once >= 4
    for job, name in ids.items():
        log = "".join(path.read_text() for path in sorted(home.glob(f"nodes/*/logs/{job}/*.log")))
        assert ENDS[name.partition("-")[0]] in log, (name, log)
        assert any(words in reason for words in EXPLAINED for reason in reasons[job]), (name, reasons[job])
    waited = [name for job, name in ids.items() if any(reason.startswith("waits for") for reason in reasons[job])]
    assert waited, "twelve GPUs were asked for, of eight"
    assert replay_file(home / JOURNAL)[0].decisions > 0
