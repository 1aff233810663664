"""Pollux's figures 1 to 3: verdicts both ways, and what the published measurements give."""

from dataclasses import replace
from pathlib import Path

import pytest

from shoal.perf.measured_profile import Cell
from shoal.research.repro.context import ReproContext
from shoal.research.repro.pollux_models import (
    EfficiencyCheck,
    check_efficiency,
    efficiency_verdict,
    throughput_error,
    throughput_verdict,
    trades_verdict,
)
from shoal.research.repro.registry import chosen
from shoal.research.repro.table import REPRODUCES

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
THERE = pytest.mark.skipif(not (DATA / "pollux").is_dir(), reason="the public files are not here")


def test_a_best_batch_that_shrinks_in_training_differs() -> None:
    speeds = {"512": [1.0, 2.0], "2048": [1.0, 3.0]}
    grows = {"speeds": speeds, "best": {"first": [128, 256], "second": [256, 512]}}
    shrinks = {"speeds": speeds, "best": {"first": [256, 512], "second": [128, 256]}}
    assert trades_verdict(grows) == REPRODUCES
    assert trades_verdict(shrinks) == "differs: the best batch is not larger in the second half"
    assert "scale further" in trades_verdict({**grows, "speeds": {"512": [1.0, 3.0], "2048": [1.0, 2.0]}})


def test_an_efficiency_far_from_the_measured_one_differs() -> None:
    near = EfficiencyCheck((1, 2), (1.0, 0.6), (1.0, 0.62), 0.6, 0.9, 0.01, 0.0)
    assert efficiency_verdict({"cifar10": near}) == REPRODUCES
    assert (
        efficiency_verdict({"cifar10": replace(near, predicted=(1.0, 0.1))})
        == "differs: cifar10's efficiency is 0.25 off"
    )
    assert "best metrics are ±3.0%" in efficiency_verdict({"cifar10": replace(near, spread=0.03)})
    assert efficiency_verdict({"deepspeech2": replace(near, spread=0.03)}) == REPRODUCES
    assert "not more efficient" in efficiency_verdict({"cifar10": replace(near, early=0.95)})
    assert efficiency_verdict({"bert": replace(near, early=0.95)}) == REPRODUCES


def test_a_task_above_ten_percent_is_named() -> None:
    assert throughput_verdict({"bert": 0.05, "ncf": 0.1}) == REPRODUCES
    assert throughput_verdict({"bert": 0.05, "ncf": 0.12}) == "differs: above 10 %: ncf 12.0%"
    assert throughput_verdict({}).startswith("cannot be told")


def test_steps_that_follow_the_model_are_predicted_where_they_were_not_measured() -> None:
    cells = [Cell(1, 1, local, 0.01 + 0.001 * local, 0.0) for local in (8, 16, 32, 64, 128)]
    assert throughput_error(cells[:3], cells[3:], 128) < 0.01
    slow = [replace(cell, step=2 * cell.step) for cell in cells[3:]]
    assert throughput_error(cells[:3], slow, 128) == pytest.approx(1.0, abs=0.05)


@THERE
def test_published_trainings_agree_with_the_efficiency_they_were_scheduled_by() -> None:
    found = check_efficiency(DATA, "bert")
    assert found.distance < 0.05
    assert found.progress < 0.01
    assert found.spread < 0.01


@THERE
def test_figure_1_has_charts_of_both_parts() -> None:
    (one,) = chosen(["pollux-1"])
    (made,) = one.tables(ReproContext(DATA))
    assert made.verdict == REPRODUCES
    assert [len(chart.ours) for chart in made.charts] == [2, 2]
