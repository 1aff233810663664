"""The figures of a job's training are those that its own node reports, and stay few."""

from typing import Any

import pytest

from shoal.core.commands import Start
from shoal.core.events import JobSubmitted
from shoal.core.goodput import GoodputReport, StepFit
from shoal.core.job import BatchSetting, JobSpec
from shoal.core.topology import Node, Placement
from shoal.live.accounts import Accounts
from shoal.live.training_figures import TrainingFigures
from shoal.wire.messages import AgentReport, RunReport, SessionReport

FIT = StepFit((0.1, 0.01), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0), 1.0, 64)


def figures() -> TrainingFigures:
    accounts = Accounts((Node("n0", "gpu", 2), Node("n1", "gpu", 2)))
    spec = JobSpec("a", 0.0, 1, 100.0, 1, 1, tenant="ann", batch_size=32)
    accounts.apply_events([JobSubmitted(0.0, spec)])
    accounts.apply_commands(1.0, [Start(0, 1, Placement(((0, 1),)))])
    return TrainingFigures(accounts, epoch=1000.0)


def report(node: str = "n0", incarnation: int = 1, saved: float | None = None, **session: Any) -> AgentReport:
    run = RunReport(
        job=0, incarnation=incarnation, phase="running", done=5.0, saved=saved, session=SessionReport(**session)
    )
    return AgentReport(protocol=1, node=node, boot="b", known=0, runs=[run])


def test_only_the_present_run_on_its_own_node_is_believed() -> None:
    found = figures()
    found.take(report("n1", loss=9.0), 2.0)
    found.take(report(incarnation=2, loss=9.0), 2.0)
    found.take(report(loss=0.5, rate=3.0, batch_size=64, learning_rate=0.1), 2.0)
    (point,) = found.of(0)
    assert (point.at, point.loss, point.rate, point.batch_size, point.learning_rate) == (1002.0, 0.5, 3.0, 64, 0.1)
    assert (point.throughput, point.noise) == (None, None)
    assert found.of(7) == []


def test_the_throughput_of_an_adaptive_job_is_its_goodput_over_its_efficiency() -> None:
    found = figures()
    profile = GoodputReport((("gpu", FIT),), noise=96.0, noise_batch=32, seen_gpus=1, batch=BatchSetting(160))
    found.take(report(rate=10.0, profile=profile), 2.0)
    (point,) = found.of(0)
    assert (point.batch_size, point.noise, point.rate) == (160, 96.0, 10.0)
    assert point.throughput == pytest.approx(10.0 * (96 + 160) / (96 + 32))


def test_the_figures_of_jobs_that_are_no_longer_in_memory_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.live.training_figures._SLACK", 1)
    found = figures()
    found.take(report(loss=1.0), 2.0)
    found.accounts.apply_events([JobSubmitted(3.0, JobSpec("b", 3.0, 1, 100.0, 1, 1))])
    found.accounts.apply_commands(3.0, [Start(1, 1, Placement(((0, 1),)))])
    del found.accounts.accounts[0], found.accounts.live[0]
    found.take(AgentReport(protocol=1, node="n0", boot="b", known=0, runs=[
        RunReport(job=1, incarnation=1, phase="running", done=5.0, session=SessionReport(loss=2.0))
    ]), 4.0)  # fmt: skip
    assert [[point.loss for point in found.of(job)] for job in (0, 1)] == [[1.0], [2.0]], "one more may stay"
    del found.accounts.accounts[1]
    found.take(AgentReport(protocol=1, node="n0", boot="b", known=0, runs=[]), 5.0)
    assert (found.of(0), found.of(1)) == ([], [])


def test_a_checkpoint_is_as_old_as_its_first_report() -> None:
    found = figures()
    for at, saved in ((2.0, 0.0), (10.0, 4.0), (30.0, 4.0), (40.0, 8.0)):
        found.take(report(saved=saved, loss=1.0), at)
    assert [point.saved for point in found.of(0)] == [None, 1010.0, 1010.0, 1040.0]


def test_points_of_a_long_run_are_thinned_and_span_all_of_it() -> None:
    found = figures()
    for at in range(100_000):
        found.take(report(loss=1.0), 2.0 + at)
    points = found.of(0)
    assert 100 <= len(points) <= 241
    assert points[0].at == 1002.0
    assert points[-1].at > 99_000
