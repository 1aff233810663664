"""Sia's and Blox's comparisons: paired differences, stretched arrivals and verdicts that follow from the figures."""

from pathlib import Path

import pytest

from shoal.research.repro.blox import stretched
from shoal.research.repro.context import ReproContext
from shoal.research.repro.registry import reproductions
from shoal.research.repro.sia import difference
from shoal.workload.files import read_workload

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.exists(), reason="the public traces are not here")


def test_differences_are_paired_by_workload() -> None:
    mean, half = difference([90.0, 180.0, 270.0], [100.0, 200.0, 300.0])
    assert mean == pytest.approx(-0.1)
    assert half == pytest.approx(0.0, abs=1e-12)
    assert difference([50.0], [100.0]) == (-0.5, None)
    assert difference([90.0, 110.0], [100.0, 100.0])[1] == pytest.approx(12.706 * 0.1, rel=1e-3)


def test_stretched_arrivals_keep_the_jobs() -> None:
    workload = read_workload(Path(__file__).resolve().parents[2] / "docs" / "examples" / "jobs.csv")
    half = stretched(workload, 0.5)
    assert [job.submitted for job in half.jobs] == [job.submitted / 2 for job in workload.jobs]
    assert [job.id for job in half.jobs] == [job.id for job in workload.jobs]


@needs_data
def test_without_published_values_there_is_no_verdict_and_jobs_wait_longer_at_higher_load() -> None:
    (made,) = reproductions()["blox-loads"].tables(ReproContext(DATA, quick=True))
    assert made.verdict.startswith("cannot be told")
    for row in made.rows:
        waits = [float(cell or 0.0) for cell in row[-4:]]
        assert waits == sorted(waits)
