"""A job resized in place on the embedded cluster: its workers come and go, and who stays is not even warned."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.agent.processes import all_processes, environment
from shoal.core.topology import parse_cluster
from shoal.live.control_plane import ControlPlane
from shoal.live.home import JOURNAL, Settings
from shoal.provider.local import LocalNodes
from shoal.scenario.replay import replay_file
from shoal.scenario.scenario import Scenario
from shoal.serve.service import Address, run_service
from shoal.wire.messages import Submission

pytest.importorskip("torch")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_elastic.py"
STAYS = "import time; time.sleep(600)"
EPOCHS = 30


def elastic() -> Submission:
    env = {"EPOCHS": str(EPOCHS), "SECONDS_PER_SAMPLE": "0.004", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLE)]
    return Submission(
        command=command, name="elastic", gpus=1, min_gpus=1, max_gpus=3, env=env, grace=30.0, resizes="in_place"
    )


def other() -> Submission:
    return Submission(command=[sys.executable, "-I", "-S", "-c", STAYS], name="other", gpus=2, grace=0.0)


def soon(happens: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not happens():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.05)


@contextmanager
def cluster(home: Path) -> Iterator[ControlPlane]:
    settings = Settings(home, Scenario(parse_cluster("gpu:2x2"), "afs-p"))
    with run_service(settings, Address()) as made:
        local = LocalNodes.of(
            made.listening.url, made.agent_token, settings.scenario.cluster.nodes, settings.home, roots=settings.roots
        )
        local.ensure_running()
        try:
            soon(lambda: made.control_plane.cluster().up_gpus == 4)
            yield made.control_plane
        finally:
            local.stop(lambda: bool(time.sleep(0.05)))  # type: ignore[func-returns-value]


def workers(job: str) -> dict[int, int]:
    """The living workers of a job by number, and their processes."""
    found = [(process.pid, environment(process.pid)) for process in all_processes() if process.state != "Z"]
    mine = [(pid, environ) for pid, environ in found if environ.get("SHOAL_JOB") == job]
    return {int(environ["SHOAL_WORKER"]): pid for pid, environ in mine if "SHOAL_WORKER" in environ}


def log_of(home: Path, job: str) -> str:
    return "".join(path.read_text() for path in sorted(home.glob(f"nodes/*/logs/{job}/*.log")))


def test_workers_come_go_and_die_while_the_others_train_and_a_stopped_job_resumes(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with cluster(home) as plane:

        def trains(job: str, gpus: int) -> bool:
            row = plane.job(job, None).job
            return (row.state, row.gpus_held, len(workers(job))) == ("running", gpus, gpus)

        (job,) = plane.submit([elastic()], "ann").result(20)
        soon(lambda: trains(job, 3) and "loss" in log_of(home, job))
        founders = workers(job)
        (second,) = plane.submit([other()], "bob").result(20)
        soon(lambda: trains(job, 2) and plane.job(second, None).job.state == "running")
        assert workers(job).items() <= founders.items()
        plane.cancel(second, None).result(20)
        soon(lambda: trains(job, 3) and "2 workers became 3" in log_of(home, job))
        assert len(workers(job).items() & founders.items()) == 2
        seen = log_of(home, job).count("2 worker(s)")
        os.kill(workers(job)[3], signal.SIGKILL)
        soon(lambda: log_of(home, job).count("2 worker(s)") > seen)
        detail = plane.job(job, None)
        assert (detail.incarnation, detail.crashes) == (3, 0)
    soon(lambda: not workers(job))
    with cluster(home) as plane:
        soon(lambda: plane.job(job, None).job.state == "completed")
        assert plane.job(job, None).crashes == 0
    log = log_of(home, job)
    assert f"trained: every sample used {EPOCHS} times in {EPOCHS} epochs" in log
    assert log.count("step 7: loss") == 1  # it went on from its checkpoint
    derived, _, _ = replay_file(home / JOURNAL)
    assert derived.decisions > 0
