"""Elastic jobs on the embedded cluster: AFS gives one alone all GPUs, and takes some back when another comes."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.core.topology import parse_cluster
from shoal.live.home import JOURNAL, Settings
from shoal.provider.local import LocalNodes
from shoal.scenario.replay import replay_file
from shoal.scenario.scenario import Scenario
from shoal.serve.service import Address, run_service
from shoal.wire.messages import Submission

STAYS = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); time.sleep(600)"


def elastic(name: str) -> Submission:
    command = [sys.executable, "-I", "-S", "-c", STAYS]
    return Submission(command=command, name=name, gpus=1, min_gpus=1, max_gpus=4, grace=5.0, preemptible="yes")


def soon(happens: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 40
    while not happens():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.05)


@pytest.mark.parametrize("policy", ["afs-p"])
def test_elastic_jobs_are_resized_when_others_come_and_go(tmp_path: Path, policy: str) -> None:
    settings = Settings(tmp_path / "home", Scenario(parse_cluster("gpu:2x2"), policy))
    with run_service(settings, Address()) as made:
        plane, local = (
            made.control_plane,
            LocalNodes.of(
                made.listening.url,
                made.agent_token,
                settings.scenario.cluster.nodes,
                settings.home,
                roots=settings.roots,
            ),
        )
        local.ensure_running()

        def holds(job: str) -> tuple[str, int]:
            row = plane.job(job, None).job
            return row.state, row.gpus_held

        try:
            soon(lambda: plane.cluster().up_gpus == 4)
            (first,) = plane.submit([elastic("first")], "ann").result(20)
            soon(lambda: holds(first) == ("running", 4))
            (second,) = plane.submit([elastic("second")], "bob").result(20)
            soon(lambda: holds(first)[0] == holds(second)[0] == "running")
            assert holds(first)[1] + holds(second)[1] == 4
            assert min(holds(first)[1], holds(second)[1]) >= 1
            plane.cancel(second, None).result(20)
            soon(lambda: holds(first) == ("running", 4))
            assert plane.job(first, None).crashes == 0
            assert plane.job(first, None).incarnation >= 3
        finally:
            local.stop(lambda: bool(time.sleep(0.05)))  # type: ignore[func-returns-value]
    derived, _, _ = replay_file(tmp_path / "home" / JOURNAL)
    assert derived.decisions > 0
