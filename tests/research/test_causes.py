"""Causes of differences from the papers: beside the tables and verdicts that they explain, in full runs."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from shoal.research.repro import causes, inventory
from shoal.research.repro.cause_rows import CAUSES
from shoal.research.repro.causes import explained
from shoal.research.repro.context import ReproContext
from shoal.research.repro.inventory import InventoryRow, brief_causes
from shoal.research.repro.recorded import RecordedRun
from shoal.research.repro.registry import Reproduction, reproductions
from shoal.research.repro.runner import run_one
from shoal.research.repro.table import REPRODUCES, Table, cannot_be_told, differs, table

BRIEF = 70
"""Most characters of a cause in the table of a paper's figures."""


def _tables(context: ReproContext) -> Sequence[Table]:
    made = table("JCT", ["h"], [[1.5]], "2 h", verdict=differs("1.5 h"))
    return [made, replace(made, title="cost"), replace(made, verdict=REPRODUCES)]


ONE = Reproduction("a-1", "A (B '20)", "x", _tables)


@pytest.fixture
def two_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (("", "fewer jobs", "a tenth of the jobs."), ("cost", "prices", "other prices."))
    for module in (causes, inventory):
        monkeypatch.setattr(module, "CAUSES", {"a-1": rows})


@pytest.mark.usefixtures("two_causes")
def test_a_table_that_differs_has_the_causes_of_its_title_and_others_have_none() -> None:
    found = explained("a-1", _tables(ReproContext(None)))
    assert [one.why for one in found] == ["a tenth of the jobs.", "a tenth of the jobs. other prices.", ""]
    assert found[0].notes()[-2:] == ["verdict: differs: 1.5 h", "why: a tenth of the jobs."]
    assert found[0].document()["why"] == "a tenth of the jobs."
    assert not explained("a-2", _tables(ReproContext(None)))[0].why


@pytest.mark.usefixtures("two_causes")
def test_a_quick_run_which_may_differ_for_other_reasons_names_no_cause() -> None:
    whole, quick = (run_one(ONE, ReproContext(None, quick=quick)) for quick in (False, True))
    assert whole.tables[0].why
    assert not quick.tables[0].why


@pytest.mark.usefixtures("two_causes")
def test_the_table_of_figures_has_the_causes_of_recorded_differences_each_once() -> None:
    row = InventoryRow("A (B '20)", "figure 1", "x", ("a-1", "a-1", "a-2"))
    assert brief_causes(row, {"a-1": RecordedRun((differs("1.5 h"), REPRODUCES), 1.0)}) == "fewer jobs; prices"
    assert not brief_causes(row, {"a-1": RecordedRun((REPRODUCES, cannot_be_told("x")), 1.0)})
    assert not brief_causes(row, {})


def test_causes_are_of_reproductions_and_brief_in_the_table_of_figures() -> None:
    assert set(CAUSES) <= set(reproductions())
    for name, rows in CAUSES.items():
        assert all(len(brief) <= BRIEF and "|" not in text for _, brief, text in rows), name
        assert any(brief for _, brief, _ in rows), name
