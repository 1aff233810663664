"""AFS's experiment on a small piece: its figures come out, are kept, and are found again."""

import json
from pathlib import Path

import pytest

from shoal.core.errors import InputError
from shoal.repro.afs import FIGURES, Ratio, Variant, main, measured, ratios, trace, variants


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two traces of thirty jobs: one that keeps the cluster busy, one that does not."""
    made = tmp_path_factory.mktemp("traces")
    for number, gap in ((4, 300), (9, 20_000)):
        rows = "\n".join(f"{i},{gap * i},{3000 + 977 * (i % 7)},{(1, 8, 1, 4, 16)[i % 5]}" for i in range(30))
        (made / f"{number:02d}_made.csv").write_text(f"job_id,submit_s,duration_s,num_gpus\n{rows}\n")
    return made


def test_every_figure_is_printed_with_a_row_for_each_ratio_and_the_papers_word(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept.jsonl"
    arguments = [str(folder), "--traces", "4,9", "--seeds", "1", "--out", str(kept)]
    main(arguments)
    first = capsys.readouterr()
    for figure in FIGURES.values():
        section = first.out.split(f"Figure {figure.number}: ")[1].split("Figure ")[0]
        assert section.count(" / ") == len(figure.ratios)
        assert f"paper: {figure.paper}" in section
    assert len(kept.read_text().splitlines()) == 2 * len(variants(FIGURES.values()))
    main(arguments)
    again = capsys.readouterr()
    assert again.out == first.out
    assert not again.err, "what is kept is not run again"


def test_a_ratio_is_the_base_over_ours_averaged_over_seeds(folder: Path) -> None:
    afs = Ratio(Variant("srtf"), Variant("afs-l"))
    results = measured(folder, (afs.base, afs.ours), traces=(4, 9), seeds=(0, 1))
    busy, idle = ratios(results, afs, (4, 9), (0, 1))
    by_hand = [results[9, s, afs.base].mean / results[9, s, afs.ours].mean for s in (0, 1)]
    assert idle == pytest.approx((by_hand[0] * by_hand[1]) ** 0.5)
    assert idle > 1.5, "alone on the cluster an elastic job has more than it asked for"
    assert busy > 1.0


def test_only_the_first_jobs_are_taken_where_that_is_asked(folder: Path) -> None:
    assert len(trace(folder, 4, 0, jobs=5).jobs) == 5
    assert trace(folder, 4, 0, jobs=5).jobs == trace(folder, 4, 0).jobs[:5]


def test_a_folder_without_the_trace_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="05_"):
        trace(folder, 5, 0)


@pytest.mark.parametrize(("option", "value"), [("--only", "7"), ("--traces", "x"), ("--seeds", "0"), ("--jobs", "0")])
def test_what_cannot_be_run_is_refused_before_anything_is(
    folder: Path, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        main([str(folder), option, value])
    assert refused.value.code == 2
    assert value in capsys.readouterr().err


def test_a_result_is_one_line_of_json(folder: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    main([str(folder), "--traces", "9", "--seeds", "1", "--jobs", "5", "--only", "13", "--out", str(kept)])
    rows = [json.loads(line) for line in kept.read_text().splitlines()]
    assert {row["policy"] for row in rows} == {"afs-l", "afs-p", "afs-s"}
    assert all(row["tail"] >= row["mean"] > 0 for row in rows)
    main([str(folder), "--traces", "9", "--seeds", "1", "--jobs", "6", "--only", "13", "--out", str(kept)])
    assert len(kept.read_text().splitlines()) == 2 * len(rows), "a run of other jobs does not stand for this one"
