"""The simulated half of the fidelity table, on invented times; `shoal repro run fidelity` runs the live half."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.core.commands import Decided, Start, Stop
from shoal.core.events import Event, EventBatch, JobCompleted, JobStopped, JobSubmitted, NodeReturned
from shoal.core.job import JobSpec
from shoal.core.topology import Placement, parse_cluster
from shoal.live.home import JOURNAL
from shoal.report.history import History
from shoal.research.repro.fidelity import declared_throughputs, simulate
from shoal.research.repro.fidelity_live import QueueTimings, read_timings
from shoal.research.repro.fidelity_queue import CASES, CLUSTER, MODELS, QUEUE, FidelityCase
from shoal.scenario.scenario import Scenario
from shoal.store.journal import SqliteJournal

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


def test_a_queue_whose_first_starts_were_all_stopped_before_a_step_has_timings(tmp_path: Path) -> None:
    placement = Placement(((0, 1),))
    journal = SqliteJournal.begin(tmp_path / JOURNAL, {"epoch": 1000.0})
    steps: tuple[tuple[Event, ...], ...] = (
        (NodeReturned(0.5, 0), JobSubmitted(1.0, JobSpec("ada-x", 1.0, 1, 9.0, 1, 1, model="broad"))),
        (JobStopped(4.0, 0, 1, 0.0),),
        (JobCompleted(30.0, 0, 2, 9.0),),
    )
    commands = ((Start(0, 1, placement), Stop(0, 1)), (Start(0, 2, placement),), ())
    for now, events, given in zip((1.0, 4.0, 30.0), steps, commands, strict=True):
        journal.record_events(EventBatch(now, events))
        journal.record_decision(Decided(0, 99.0, given))
    journal.commit()
    journal.close()
    folder = tmp_path / "jobs/ada-x"
    folder.mkdir(parents=True)
    trained = {"incarnation": 2, "began": 1013.0, "ended": 1029.0, "passes": [[1, 64, 10, 5.0]]}
    (folder / "passes-2.json").write_text(json.dumps(trained))
    timings = read_timings(tmp_path)
    assert (timings.first, timings.again, timings.end) == (12.0, 12.0, 1.0), "from the stop at 1.0 to the first step"
    assert timings.passes == {("broad", 1, 64): 0.5}
