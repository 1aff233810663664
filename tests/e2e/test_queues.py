"""Queues of real jobs on the embedded cluster: they are stopped, resumed and resized, end, and the report says why."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shoal.cli import main
from shoal.core.topology import parse_cluster
from shoal.live.home import JOURNAL
from shoal.research.repro.fidelity_live import run_queue
from shoal.scenario.replay import read_stories
from shoal.scenario.scenario import Scenario
from shoal.wire.messages import Submission

RIGID, ELASTIC = "gavel.max-min:round=2", "afs-p:unit=2"
NAMES = ("ada", "bob", "cyd")
_STEPS, _STEP_SECONDS = 80, 0.05


def _submission(name: str, policy: str) -> Submission:
    return Submission(
        command=[sys.executable, "-m", "shoal.demo.train", str(_STEPS), str(_STEP_SECONDS)],
        name=name,
        max_gpus=2 if policy == ELASTIC else None,
        work=_STEPS * _STEP_SECONDS,
        preemptible="yes",
        env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
    )


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The home of a cluster of two GPUs that ran the queue, by policy; they run at the same time, and mostly sleep."""
    found = {policy: tmp_path_factory.mktemp(policy.partition(":")[0]) for policy in (RIGID, ELASTIC)}

    def run(policy: str) -> None:
        queue = [(0.5 * i, _submission(name, policy)) for i, name in enumerate(NAMES)]
        run_queue(found[policy], Scenario(parse_cluster("gpu:1x2"), policy), queue, lambda _: None)

    with ThreadPoolExecutor(len(found)) as threads:
        list(threads.map(run, found))
    return found


@pytest.mark.parametrize("policy", [RIGID, ELASTIC])
def test_jobs_are_moved_and_end_and_the_report_says_what_happened_to_each(
    policy: str, homes: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    told, otherwise = read_stories(homes[policy] / JOURNAL)
    assert not otherwise
    assert [(story.id.partition("-")[0], story.outcome) for story in told] == [(name, "completed") for name in NAMES]
    assert any(story.resizes if policy == ELASTIC else story.stops for story in told)
    waited = [story for story in told if story.waits]
    assert waited

    with pytest.raises(SystemExit) as left:
        main(["report", str(homes[policy])])
    said = capsys.readouterr().out
    assert left.value.code == 0
    for story in told:
        assert f"{story.id}: completed after" in said
    for story in waited:
        assert story.waits[0].sentence in said


def test_the_home_of_a_live_cluster_is_not_compared_with_runs(
    tmp_path: Path, homes: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["report", str(homes[RIGID]), "--html", str(tmp_path / "page.html")])
    assert left.value.code == 2
    assert "job by job" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()
