"""Themis's workload figures, table 1 and table 3."""

from shoal.research.repro.table import REPRODUCES
from shoal.research.repro.themis_examples import (
    PAPER_BIDS,
    PAPER_SPEEDS,
    PAPER_WORKLOAD,
    WorkloadFigures,
    bid_table,
    catalogue_speeds,
    distance_table,
    example_bids,
    measure_workload,
    workload_table,
)


def test_the_example_bids_are_the_papers() -> None:
    made = bid_table(example_bids())
    assert made.verdict == REPRODUCES
    assert bid_table({**PAPER_BIDS, 4: 1.2}).verdict == "differs: does not hold: ρ with 4 GPUs is 1 (ours 1.200)"


def test_the_catalogue_has_the_papers_slowdowns() -> None:
    assert distance_table(catalogue_speeds()).verdict == REPRODUCES
    assert "VGG16" in distance_table({**PAPER_SPEEDS, "VGG16": (100.0, 100.0)}).verdict


def test_a_workload_is_compared_figure_by_figure() -> None:
    same = WorkloadFigures(*PAPER_WORKLOAD.values())
    assert workload_table([same, same]).verdict == REPRODUCES
    other = WorkloadFigures(0.1, 16.0, 100.0, 11.5, 3.75, 50.0)
    assert workload_table([other]).verdict == "differs: does not hold: jobs of an app, median: 75 (ours 16)"


def test_a_small_workload_is_measured() -> None:
    found = measure_workload(0, trials=60)
    assert 0.0 <= found.single < 1.0
    assert found.jobs <= found.most <= 32
    assert min(found.app_days, found.task_hours, found.demand) > 0.0
