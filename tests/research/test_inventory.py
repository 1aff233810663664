"""The inventory of the papers' figures: states of rows, verdicts from recorded runs, and what it finds missing."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from shoal.core.errors import InputError
from shoal.research.repro import inventory as module
from shoal.research.repro.context import ReproContext
from shoal.research.repro.inventory import InventoryRow, brief_verdict, faults, inventory, tally, verdict
from shoal.research.repro.recorded import RecordedRun, record, recorded_runs
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.runner import ReproOutcome
from shoal.research.repro.table import REPRODUCES, Table, cannot_be_told, differs, table

PAPER = "A (B '20)"


def _none(context: ReproContext) -> Sequence[Table]:
    return []


def _known(*names: str) -> dict[str, Reproduction]:
    return {name: Reproduction(name, PAPER, "x", _none) for name in names}


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> None:
    paper = (
        ("figure 1", "a sketch", "", "", "not an experiment: a sketch"),
        ("figure 2", "times", "a-2*", "", ""),
        ("figure 3", "more times", "a-3", "simulated", ""),
        ("figure 4", "speeds", "", "", "needs GPUs"),
    )
    monkeypatch.setattr(module, "PAPERS", {PAPER: paper})


@pytest.mark.usefixtures("rows")
def test_a_row_is_made_made_smaller_not_made_or_no_experiment() -> None:
    found = [(row.state, row.reason) for row in inventory(_known("a-2", "a-2b", "a-3"))]
    assert found == [
        ("not an experiment", "a sketch"),
        ("made", ""),
        ("made smaller", "simulated"),
        ("not made", "needs GPUs"),
    ]


@pytest.mark.usefixtures("rows")
def test_missing_reproductions_missing_reasons_and_missing_rows_are_found() -> None:
    assert not faults(_known("a-2", "a-2b", "a-3"))
    assert faults(_known("a-2", "a-3", "a-5")) == ["a-5 has no row"]
    assert len(faults(_known("a-1"))) == 3


def test_a_papers_count_says_how_many_reproduce() -> None:
    made = [InventoryRow(PAPER, str(number), "x", (f"a-{number}",)) for number in range(5)]
    whole = [
        *made,
        InventoryRow(PAPER, "5", "x", why="needs GPUs"),
        InventoryRow(PAPER, "6", "x", why="not an experiment"),
    ]
    runs = {
        "a-0": RecordedRun((REPRODUCES,), 1.0),
        "a-1": RecordedRun((REPRODUCES, differs("by half")), 1.0),
        "a-2": RecordedRun((cannot_be_told("no numbers"),), 1.0),
        "a-4": RecordedRun((cannot_be_told("no numbers"), differs("by half")), 1.0),
    }
    text = "5 of 6 experiments made: 1 reproduce, 2 differ, 1 cannot be told, 1 without a verdict yet"
    assert tally(whole, runs) == text
    assert verdict(made[1], runs) == "reproduces; differs: by half"
    assert verdict(made[3], runs) == "no verdict recorded"


def test_a_brief_verdict_names_the_first_claim_that_differs_and_counts_the_others() -> None:
    runs = {
        "a-0": RecordedRun((differs("does not hold: twice as fast; never late (2 were); cheaper"),), 1.0),
        "a-1": RecordedRun((REPRODUCES,), 1.0),
        "a-2": RecordedRun((), 1.0),
        "a-6": RecordedRun((differs("by half"), differs("by a third")), 1.0),
        "a-5": RecordedRun((differs("JCT 2 (paper 3); 2 of 4 agree"), cannot_be_told("no figures; no data")), 1.0),
    }
    row = InventoryRow(PAPER, "1", "x", ("a-0", "a-1"))
    assert brief_verdict(row, runs) == "differs: does not hold: twice as fast (and 2 more); reproduces"
    assert brief_verdict(InventoryRow(PAPER, "2", "x", ("a-2",)), runs) == "no claim to check"
    assert brief_verdict(InventoryRow(PAPER, "3", "x", ("a-3",)), runs) == "no verdict recorded"
    both = "differs: JCT 2 (paper 3); 2 of 4 agree; cannot be told: no figures; no data"
    assert brief_verdict(InventoryRow(PAPER, "5", "x", ("a-5",)), runs) == both
    many = InventoryRow(PAPER, "6", "x", ("a-6", "a-5"))
    assert brief_verdict(many, runs) == f"differs: by half; so in 2 more tables; {both.partition('agree; ')[2]}"
    half = InventoryRow(PAPER, "7", "x", ("a-1", "a-9"))
    assert verdict(half, runs) == brief_verdict(half, runs) == "reproduces; no verdict recorded of a-9"
    assert brief_verdict(InventoryRow(PAPER, "4", "x", why="needs GPUs"), runs) == "–"


def test_recorded_verdicts_are_kept_beside_those_of_other_runs(tmp_path: Path) -> None:
    file, one = tmp_path / "recorded.json", table("t", ["a"], [], verdict=REPRODUCES)
    record([ReproOutcome("a-1", (one,), 2.0), ReproOutcome("a-2", (one,), 3.0)], file, ["a-1", "a-2"])
    failed = ReproOutcome("a-1", failure="no data")
    record([failed, ReproOutcome("a-3", (one, one), 4.0)], file, ["a-1", "a-3"])
    assert recorded_runs(file) == {"a-1": RecordedRun((REPRODUCES,), 2.0), "a-3": RecordedRun((REPRODUCES,), 4.0)}
    file.write_text("[]")
    with pytest.raises(InputError, match="verdicts and CPU seconds"):
        recorded_runs(file)
