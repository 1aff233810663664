"""The simulated half of the fidelity table, on invented times; `shoal repro run fidelity` runs the live half."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.core.topology import parse_cluster
from shoal.report.history import History
from shoal.research.repro.fidelity import declared_throughputs, simulate
from shoal.research.repro.fidelity_live import QueueTimings
from shoal.research.repro.fidelity_queue import CASES, CLUSTER, MODELS, QUEUE, FidelityCase
from shoal.scenario.scenario import Scenario

_EXACT = QueueTimings(
    up=0.5,
    submitted={f"{task.name}-x": 1.0 + task.at for task in QUEUE},
    first=8.0,
    again=8.0,
    end=0.5,
    passes={
        (model, gpus, local): fixed + per_sample * local
        for model, (fixed, per_sample) in MODELS.items()
        for gpus, local in ((1, 64), (1, 128), (2, 32), (2, 64))
    },
    noise=dict.fromkeys(MODELS, 500.0),
)


def _simulated(case: FidelityCase, timings: QueueTimings, folder: Path) -> History:
    speeds = folder / "speeds.json"
    speeds.write_text(json.dumps(declared_throughputs()))
    return simulate(case, Scenario(parse_cluster(CLUSTER), case.spec(), throughputs=str(speeds)), timings)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.policy)
def test_the_queue_ends_under_every_policy_with_jobs_moved(case: FidelityCase, tmp_path: Path) -> None:
    history = _simulated(case, _EXACT, tmp_path)
    assert history.completed.all()
    assert len(history.holds.job) > len(QUEUE)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.policy)
def test_an_undisturbed_job_takes_its_start_its_passes_and_its_end(case: FidelityCase, tmp_path: Path) -> None:
    first = QUEUE[0]
    alone = replace(_EXACT, submitted={f"{first.name}-x": 15.0})
    history = _simulated(replace(case, elastic=False, scripted=False, tuned=False), alone, tmp_path)
    steps, (fixed, per_sample) = first.work / 64, MODELS[first.model]
    ran = float(history.holds.until[0] - history.holds.since[0]) / case.time_scale
    assert ran == pytest.approx(8.0 + steps * (fixed + per_sample * 64) + 0.5)
