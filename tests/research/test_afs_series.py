"""AFS's figures 2, 10 and 14 and table 3: indices by hand, small traces, and verdicts both ways."""

from pathlib import Path

import numpy as np
import pytest

from shoal.core.topology import parse_cluster
from shoal.policy.registry import parse_policy
from shoal.research.repro.afs_jobs import (
    PAPER_JOBS,
    LengthGains,
    coverage_table,
    gains_by_length,
    length_gains,
    length_table,
    measure_times,
    sojourn_table,
)
from shoal.research.repro.afs_series import (
    MODERATE,
    PAPER_HOURS,
    IndexRecorder,
    SeriesResult,
    measure_series,
    order_verdict,
    series_table,
)
from shoal.research.repro.context import ReproContext
from shoal.research.repro.table import REPRODUCES
from shoal.testing.builders import job, snapshot


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two traces of thirty jobs in the folder that the reproductions read."""
    made = tmp_path_factory.mktemp("data")
    folder = made / "traces" / "philly_by_vc"
    folder.mkdir(parents=True)
    for number, gap in ((3, 300), (9, 20_000)):
        rows = "\n".join(f"{i},{gap * i},{3000 + 977 * (i % 7)},{(1, 8, 1, 4, 16)[i % 5]}" for i in range(30))
        (folder / f"{number:02d}_made.csv").write_text(f"job_id,submit_s,duration_s,num_gpus\n{rows}\n")
    return made


def test_the_indices_are_those_of_the_definitions() -> None:
    """Four GPUs: one job runs on two; one of 100 s waits 50 s, one of 200 s waits 20 s."""
    jobs = [
        job("runs", gpus=2, work=1000.0, model="afs-resnet-50", batch_size=128),
        job("a", submitted=50.0, gpus=4, work=100.0, model="afs-vgg16", batch_size=256),
        job("b", submitted=80.0, gpus=4, work=200.0, model="afs-vgg16", batch_size=256),
    ]
    cluster = parse_cluster("gtx1080:1x4")
    recorder = IndexRecorder(parse_policy("fifo"), cluster.total_gpus)
    recorder.decide(snapshot(jobs, cluster, held={"runs": 2}, now=100.0))
    ((waiting, efficiency, blocking),) = recorder.indices
    assert waiting == 2.0
    assert 0.48 < efficiency < 0.5, "a speed-up of nearly 2, over 4 GPUs"
    assert blocking == pytest.approx((50.0 / 100.0 + 20.0 / 200.0) / 2)


def test_a_series_covers_the_run_and_averages_it(data: Path) -> None:
    busy = measure_series(data / "traces/philly_by_vc", 3, 0, "srtf")
    assert busy.mean > 3000.0
    assert len(busy.hours) == len(busy.series)
    assert busy.averages == pytest.approx(np.mean(busy.series, axis=0).tolist())
    assert 0.0 < busy.averages[1] <= 1.0
    assert busy.averages[0] > measure_series(data / "traces/philly_by_vc", 9, 0, "srtf").averages[0]


def test_only_the_order_of_times_that_the_paper_sets_apart_is_judged() -> None:
    theirs = {"a": 10.0, "b": 10.2, "c": 20.0}
    assert order_verdict(theirs, {"a": 3.0, "b": 2.0, "c": 4.0}) == REPRODUCES
    assert order_verdict(theirs, {"a": 5.0, "b": 2.0, "c": 4.0}).startswith(
        "differs: does not hold: a is shorter than c"
    )


def test_figure_2_shows_hours_and_differences() -> None:
    def result(hours: float) -> SeriesResult:
        return SeriesResult(hours * 3600.0, (1.0, 0.5, 0.1), (0.0, 1.0), ((1.0, 0.5, 0.1), (1.0, 0.5, 0.1)))

    same = series_table(MODERATE, {policy: (result(h),) * 2 for policy, h in PAPER_HOURS[MODERATE].items()})
    assert same.verdict == REPRODUCES
    assert {row[4] for row in same.cells()} <= {"+0%", "-0%"}
    assert [chart.y for chart in same.charts] == ["QL", "CE", "BI"]


def test_gains_are_averaged_in_order_of_the_completion_times_they_are_over() -> None:
    gains = gains_by_length(np.array([80.0, 20.0, 40.0, 160.0]), np.array([20.0, 20.0, 20.0, 20.0]))
    assert gains.tolist() == pytest.approx([1.0, 2.0, 4.0, 8.0])


def gained(policy: str, number: int, longest: float, others: float = 2.0) -> LengthGains:
    return LengthGains(number, policy, (*(others,) * 90, *(longest,) * 10))


def test_an_uneven_max_min_that_favours_long_jobs_is_the_papers_figure_10() -> None:
    paper = [gained("max-min", n, 6.0) for n in (9, 3)] + [gained("afs-p", n, 2.0) for n in (9, 3)]
    assert length_table(paper).verdict == REPRODUCES
    even = [gained("max-min", n, 2.0) for n in (9, 3)] + [gained("afs-p", n, 6.0) for n in (9, 3)]
    assert "AFS-P is more even" in length_table(even).verdict
    assert "favours the longest tenth" in length_table(even).verdict


def test_times_of_all_jobs_are_stored_by_trace_policy_and_seed(data: Path) -> None:
    times = measure_times(data / "traces/philly_by_vc", 9, 0, "afs-p")
    assert len(times["jct"]) == 30
    announced: list[str] = []
    context = ReproContext(data, quick=True, announce=announced.append)
    assert length_gains(context) == length_gains(context)
    assert len(announced) == 2 * 4 * 2


def test_the_coverage_of_the_traces_is_counted() -> None:
    assert coverage_table(PAPER_JOBS).verdict == REPRODUCES
    part = coverage_table({number: jobs // 2 for number, jobs in PAPER_JOBS.items()})
    assert part.verdict == "differs: 50.0% of the jobs, 50% to 50% by trace"


def test_run_times_are_judged_by_their_means_and_tails() -> None:
    heavy = np.array([60.0] * 9 + [2.8 * 86400 * 10 - 540.0])
    assert sojourn_table({1: heavy}).verdict == REPRODUCES
    assert "heavy-tailed" in sojourn_table({1: np.full(10, 2.8 * 86400.0)}).verdict
