"""The figures of a job's training are those that its own node reports, and stay few."""

from dataclasses import replace
from math import inf
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
from shoal.wire.training_messages import TrainingPoint

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


def running(job: int = 0, **more: Any) -> RunReport:
    return RunReport(job=job, incarnation=1, **{"phase": "running", "session": SessionReport(loss=1.0), **more})


def of_runs(*runs: RunReport) -> AgentReport:
    return AgentReport(protocol=1, node="n0", boot="b", known=0, runs=list(runs))


def test_runs_that_do_not_train_and_jobs_that_are_not_live_are_passed_over_and_the_others_are_kept() -> None:
    found = figures()
    found.take(of_runs(running(session=None), running(phase="ready"), running(7), running()), 2.0)
    assert [point.loss for point in found.of(0)] == [1.0]
    assert found.of(7) == []


def test_a_point_has_all_that_the_run_reports_at_a_time_to_a_tenth_of_a_second() -> None:
    found = figures()
    found.take(report(saved=4.0, rate=3.0, batch_size=64, learning_rate=0.1, loss=0.5), 2.34)
    (point,) = found.of(0)
    assert point == TrainingPoint(
        at=1002.3, done=5.0, rate=3.0, batch_size=64, learning_rate=0.1, loss=0.5, saved=1002.3
    )


def test_a_rate_that_is_not_reported_is_that_of_the_account_and_an_impossible_progress_is_left_out() -> None:
    found = figures()
    found.take(of_runs(running(done=-1.0, saved=inf)), 2.0)
    (point,) = found.of(0)
    assert (point.done, point.saved, point.rate) == (None, None, None)
    found.accounts.live[0].rate = 2.5
    found.take(of_runs(running(done=6.0)), 4.0)
    assert [(point.done, point.rate) for point in found.of(0)] == [(None, None), (6.0, 2.5)]


def test_a_profile_that_is_not_credible_does_not_count() -> None:
    found = figures()
    profile = GoodputReport((("gpu", FIT),), noise=-1.0, noise_batch=32, seen_gpus=1, batch=BatchSetting(160))
    found.take(report(rate=10.0, batch_size=64, profile=profile), 2.0)
    (point,) = found.of(0)
    assert (point.batch_size, point.noise, point.throughput) == (64, None, None)


def test_a_job_without_a_declared_batch_size_has_no_throughput() -> None:
    found = figures()
    account = found.accounts.live[0]
    account.spec = replace(account.spec, batch_size=None)
    profile = GoodputReport((("gpu", FIT),), noise=96.0, noise_batch=32, seen_gpus=1, batch=BatchSetting(160))
    found.take(report(rate=10.0, profile=profile), 2.0)
    (point,) = found.of(0)
    assert (point.batch_size, point.noise, point.throughput) == (160, 96.0, None)


def test_points_are_two_seconds_apart_and_twice_as_far_each_time_that_they_are_thinned() -> None:
    found = figures()
    for tenths in range(0, 100, 5):
        found.take(report(loss=1.0), tenths / 10)
    assert [point.at - 1000.0 for point in found.of(0)] == [0.0, 2.0, 4.0, 6.0, 8.0]
    for at in range(10, 480, 2):
        found.take(report(loss=1.0), float(at))
    assert len(found.of(0)) == 240
    found.take(report(loss=1.0), 480.0)
    points = found.of(0)
    assert [point.at - 1000.0 for point in points] == [*(4.0 * n for n in range(120)), 480.0]
    found.take(report(loss=1.0), 483.0)
    found.take(report(loss=1.0), 484.0)
    assert [point.at - 1000.0 for point in found.of(0)[-2:]] == [480.0, 484.0]


def test_links_that_a_run_reports_stay_with_its_account() -> None:
    found = figures()
    found.take(report(links=["https://wandb.example/1"]), 2.0)
    found.take(report(), 4.0)
    assert found.accounts.live[0].links == ("https://wandb.example/1",)
    found.take(report(links=["https://wandb.example/2"]), 6.0)
    assert found.accounts.live[0].links == ("https://wandb.example/2",)


def test_a_job_whose_seats_are_gone_is_on_no_node() -> None:
    found = figures()
    found.accounts.live[0].placement = None
    found.take(report(loss=1.0), 2.0)
    assert found.of(0) == []
