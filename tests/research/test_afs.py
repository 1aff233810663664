"""AFS's experiment on a small workload: its figures are computed, stored and read again."""

from pathlib import Path

import pytest

from shoal.core.errors import InputError
from shoal.research.repro.afs import (
    FIGURES,
    FIRST,
    AfsVariant,
    JctRatio,
    figure_table,
    measure,
    measure_all,
    ratios,
    trace,
    variants,
)
from shoal.research.repro.afs_verdicts import VERDICTS
from shoal.research.repro.context import ReproContext, ResultCache
from shoal.research.repro.table import REPRODUCES


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two traces of thirty jobs: one that keeps the cluster busy, one that does not."""
    made = tmp_path_factory.mktemp("traces")
    for number, gap in ((4, 300), (9, 20_000)):
        rows = "\n".join(f"{i},{gap * i},{3000 + 977 * (i % 7)},{(1, 8, 1, 4, 16)[i % 5]}" for i in range(30))
        (made / f"{number:02d}_made.csv").write_text(f"job_id,submit_s,duration_s,num_gpus\n{rows}\n")
    return made


def test_every_figure_has_a_row_for_each_ratio_and_stored_results_are_reused(folder: Path, tmp_path: Path) -> None:
    stored, announced = tmp_path / "results.jsonl", list[str]()
    wanted = variants(FIGURES.values())
    context = ReproContext(None, cache=ResultCache(stored), announce=announced.append)
    results = measure_all(context, folder, wanted, traces=(4, 9), seeds=(0,))
    assert len(stored.read_text().splitlines()) == len(announced) == 2 * len(wanted)
    for figure in FIGURES.values():
        made = figure_table(figure, results, (4, 9), (0,))
        assert [row[0].count(" / ") for row in made.cells()] == [1] * len(figure.ratios)
        assert made.notes()[0] == f"paper: {figure.paper}"
        assert bool(made.verdict) == (figure.number != "rank")
    reread = ReproContext(None, cache=ResultCache(stored), announce=announced.append)
    again = measure_all(reread, folder, wanted, traces=(4, 9), seeds=(0,))
    assert again == results
    assert len(announced) == 2 * len(wanted), "stored results are not computed again"


def test_a_ratio_is_the_base_over_ours_averaged_over_seeds(folder: Path) -> None:
    afs = JctRatio(AfsVariant("srtf"), AfsVariant("afs-l"))
    results = measure_all(ReproContext(None), folder, (afs.base, afs.ours), traces=(4, 9), seeds=(0, 1))
    busy, idle = ratios(results, afs, (4, 9), (0, 1))
    by_hand = [results[9, s, afs.base].mean / results[9, s, afs.ours].mean for s in (0, 1)]
    assert idle == pytest.approx((by_hand[0] * by_hand[1]) ** 0.5)
    assert idle > 1.5, "alone on the cluster an elastic job has more than it asked for"
    assert busy > 1.0


def test_only_the_first_jobs_are_taken_where_that_is_asked(folder: Path) -> None:
    assert len(trace(folder, 4, 0, jobs=5).jobs) == 5
    assert trace(folder, 4, 0, jobs=5).jobs == trace(folder, 4, 0).jobs[:5]


def test_themis_and_what_is_beside_it_run_the_first_jobs_of_a_trace(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.research.repro.afs.FIRST_JOBS", 5)
    first, few = (measure(folder, 9, 0, AfsVariant("afs-p", jobs), n) for jobs, n in ((FIRST, None), ("", 5)))
    assert (first.mean, first.tail) == (few.mean, few.tail)
    assert (
        measure(folder, 9, 0, AfsVariant("afs-p", FIRST), 3).mean == measure(folder, 9, 0, AfsVariant("afs-p"), 3).mean
    )


def test_only_long_traces_are_cut_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.research.repro.afs.LONG_TRACES", (9,))
    one = AfsVariant("fifo")
    cut = measure_all(ReproContext(None), folder, (one,), traces=(4, 9), seeds=(0,), most=6)
    assert [row.limit for row in cut.values()] == [None, 6]
    assert cut[9, 0, one].mean == measure(folder, 9, 0, one, 6).mean


def test_a_folder_without_the_trace_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="05_"):
        trace(folder, 5, 0)


def test_a_run_of_other_jobs_does_not_stand_for_this_one(folder: Path, tmp_path: Path) -> None:
    context = ReproContext(None, cache=ResultCache(tmp_path / "results.jsonl"))
    wanted = variants([FIGURES["13"]])
    five, six = (measure_all(context, folder, wanted, traces=(9,), seeds=(0,), jobs=n) for n in (5, 6))
    assert {row.policy for row in five.values()} == {"afs-l", "afs-p", "afs-s"}
    assert all(row.tail >= row.mean > 0 for row in five.values())
    assert five != six


LIKE_THE_PAPERS: dict[str, dict[str, list[float]]] = {
    "5": {
        "srtf / srsf": [1.1, 1.0],
        "srtf / afs-l": [1.2, 2.7],
        "srtf / rank": [3.0, 3.0],
        "tiresias / max-min": [1.5, 1.5],
        "tiresias / afs-p": [1.9, 3.1],
        "themis (first 500) / afs-p (first 500)": [1.1, 1.0],
    },
    "6": {
        "srtf (widest) / srtf": [0.79, 4.85],
        "srsf (widest) / srsf": [0.83, 5.84],
        "tiresias (widest) / tiresias": [1.1, 16.14],
    },
    "9": {
        "srtf / afs-l": [1.2, 1.1, 0.9],
        "tiresias / max-min": [2.0, 0.9, 0.9],
        "tiresias / optimus": [1.0, 0.9, 0.9],
        "tiresias / afs-p": [1.5, 1.4, 0.95],
    },
    "11": {"srtf / srtf-e": [1.1, 1.2], "srtf / srsf-e": [1.2, 1.3], "srtf / afs-l": [1.6, 1.9]},
    "13": {"afs-p / afs-l": [1.1, 1.9, 1.0], "afs-s / afs-l": [1.1, 2.0, 1.5]},
}


@pytest.mark.parametrize("figure", LIKE_THE_PAPERS)
def test_the_papers_own_figures_reproduce(figure: str) -> None:
    assert VERDICTS[figure](LIKE_THE_PAPERS[figure]) == REPRODUCES


@pytest.mark.parametrize(
    ("figure", "row", "values", "verdict"),
    [
        ("5", "tiresias / max-min", [1.5, 3.2], "max-min ahead somewhere"),
        ("5", "themis (first 500) / afs-p (first 500)", [1.1, 0.9], "themis ahead somewhere"),
        ("5", "srtf / afs-l", [0.9, 2.7], "1.2 to 2.7 times better than srtf (ours 0.90 to 2.70)"),
        ("6", "srtf (widest) / srtf", [0.4, 0.5], "up to 4.85 times longer (ours 0.50)"),
        ("9", "tiresias / afs-p", [0.5, 0.5, 2.0], "on most traces (1 of 3)"),
        ("11", "srtf / srtf-e", [2.0, 2.0], "afs-l is better than both (ours 1.74 and 2.00)"),
        ("13", "afs-p / afs-l", [1.1, 2.9, 1.0], "at most twice as long (ours 2.90)"),
    ],
)
def test_a_figure_that_is_not_as_the_paper_says_differs(
    figure: str, row: str, values: list[float], verdict: str
) -> None:
    found = VERDICTS[figure]({**LIKE_THE_PAPERS[figure], row: values})
    assert found.startswith("differs: does not hold: ")
    assert verdict in found
