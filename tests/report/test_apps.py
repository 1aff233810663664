"""Figures of apps: worked out by hand on small journals, and of whole simulated searches."""

import json

import numpy as np
import pytest

from shoal.core.topology import parse_cluster
from shoal.report.apps import app_table
from shoal.report.history import read_history
from shoal.report.metrics import job_table, summarize
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.store.journal import MemoryJournal
from shoal.workload.generators.registry import generate
from shoal.workload.generators.themis import CLUSTER
from shoal.workload.schema import Job, Workload


def test_an_app_is_measured_from_its_first_job_to_the_end_of_its_last(three_jobs: MemoryJournal) -> None:
    history = read_history(three_jobs.raw())
    table = job_table(history)
    apps = app_table(history, table.exclusive)
    assert apps.app == ["a", "search"]
    assert apps.seconds.tolist() == [10.0, 22.0]
    # Both are live for 10 s, then one of them. B and C need 40 + 10 GPU-seconds and want 6 GPUs at once, of 4.
    assert apps.contention.tolist() == pytest.approx([2.0, (2 * 10 + 12) / 22])
    assert apps.ideal.tolist() == pytest.approx([10.0, 50.0 / 4])
    assert apps.rho.tolist() == pytest.approx([10 / 20, 22 / (12.5 * 32 / 22)])


def test_the_summary_says_how_apps_fared(three_jobs: MemoryJournal) -> None:
    history = read_history(three_jobs.raw())
    apps = summarize(history, job_table(history))["apps"]
    assert (apps["count"], apps["completed"], apps["avg_seconds"]) == (2, 2, 16.0)
    assert apps["rho"]["max"] == pytest.approx(22 / (12.5 * 32 / 22))
    assert apps["rho"]["unfair_1.1"] == 0.5


def test_a_run_without_apps_says_nothing_of_them() -> None:
    outcome = run(
        Scenario(parse_cluster("gpu:1x4"), "fifo"), Workload("w", (Job(id="j", submitted=0, gpus=1, work=5),))
    )
    assert outcome.summary["apps"] is None


def trial(n: int, loss: float, search: str, most: int = 4) -> Job:
    plain = {"submitted": 0.0, "gpus": 1, "work": 70.0, "app": "a", "pace": 9.0}
    return Job(id=f"t{n}", max_gpus=most, search=search, loss=loss, **plain)  # type: ignore[arg-type]


@pytest.mark.parametrize("gpus", [4, 2])
def test_alone_a_halving_app_takes_its_ideal_time_whatever_the_cluster(gpus: int) -> None:
    rows = tuple(trial(n, n / 10, "halving", most=gpus) for n in range(4))
    outcome = run(Scenario(parse_cluster(f"gpu:1x{gpus}"), "fifo", restart_cost="0"), Workload("w", rows))
    # Three phases of 40 GPU-seconds, and as many GPUs at work as there are.
    assert outcome.summary["apps"]["avg_seconds"] == pytest.approx(120.0 / gpus)
    assert outcome.summary["apps"]["rho"]["max"] == pytest.approx(1.0)


def test_of_a_killed_job_only_what_it_did_counts() -> None:
    rows = (trial(0, 0.0, "curve"), trial(1, 0.5, "curve"))
    outcome = run(Scenario(parse_cluster("gpu:1x2"), "fifo"), Workload("w", rows))
    # 70 s on one GPU and, given up after three looks, 21 s on the other; ideally both GPUs work all the time.
    assert outcome.summary["apps"]["rho"]["max"] == pytest.approx(70.0 / (91.0 / 2))


def test_every_app_of_themis_workload_completes_and_its_figures_can_be_written() -> None:
    workload = generate("themis", jobs=100, seed=3)
    outcome = run(Scenario(parse_cluster(CLUSTER), "las"), workload)
    apps = outcome.summary["apps"]
    assert apps["count"] == apps["completed"] == len({job.app for job in workload.jobs})
    assert np.isfinite(apps["rho"]["max"])
    assert json.loads(json.dumps(apps)) == apps
