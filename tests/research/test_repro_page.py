"""The page of reproductions: tables, verdicts and charts in one file that loads nothing."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from shoal.research.repro import inventory, registry
from shoal.research.repro.context import ReproContext
from shoal.research.repro.page import figures_page
from shoal.research.repro.recorded import RecordedRun
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.runner import ReproOutcome
from shoal.research.repro.table import REPRODUCES, Chart, Line, Table, differs, table

PAPER = "A (B '20)"
ROWS = (
    ("figure 1", "JCT by load", "a-1", "", ""),
    ("figure 2", "shares", "a-2", "", ""),
    ("figure 3", "x", "a-3", "", ""),
)


def _tables(context: ReproContext) -> Sequence[Table]:
    curve = Line("Gavel", ((1.0, 2.0), (2.0, float("nan")), (3.0, 4.0)), (0.5, 0.5, 0.5))
    charts = (
        Chart("JCT <by> load", "jobs an hour", "h", (Line("Gavel", ((1.0, 2.5),)),), (curve,)),
        Chart("bars", "policy", "h", (), (Line("Gavel", ((1.0, 5.0), (2.0, 6.0))),), "bars", ("fifo", "srtf")),
    )
    return [table("a <table>", ["policy", "h"], [["fifo", 1.5]], "2 h", verdict=REPRODUCES, charts=charts)]


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> dict[str, Reproduction]:
    known = {name: Reproduction(name, PAPER, f"what {name} shows", _tables) for name in ("a-1", "a-2", "a-3")}
    monkeypatch.setattr(inventory, "PAPERS", {PAPER: ROWS})
    monkeypatch.setattr(registry, "reproductions", lambda: known)
    return known


@pytest.fixture
def page(known: dict[str, Reproduction]) -> str:
    outcomes = [
        ReproOutcome("a-1", tuple(_tables(ReproContext(None)))),
        ReproOutcome("a-2", failure="has no traces"),
    ]
    return figures_page(outcomes, known, {"a-3": RecordedRun((differs("by half"),), 1.0)})


def _data(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_tables_verdicts_and_failures_are_in_the_page_and_names_are_escaped(page: str) -> None:
    assert '<span class="verdict same">reproduces</span>' in page
    assert "a &lt;table&gt;" in page
    assert "a-2 failed: has no traces" in page
    assert "paper: 2 h" in page
    assert "3 of 3 experiments made: 1 reproduce, 1 differ, 1 without a verdict yet" in page


def test_the_papers_lines_and_ours_are_drawn_without_missing_values(page: str) -> None:
    lines, bars = _data(page)
    assert lines["theirs"] == [{"name": "Gavel", "points": [[1.0, 2.5]], "spread": []}]
    assert lines["ours"] == [{"name": "Gavel", "points": [[1.0, 2.0], [3.0, 4.0]], "spread": [0.5, 0.5]}]
    assert [place for place, _ in bars["ours"][0]["points"]] == [0.0, 1.0]


def test_the_page_loads_nothing(page: str) -> None:
    assert not re.findall(r"""(?:src|href)=["']?(?!#)[^"'> ]+""", page)
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", page)


@pytest.mark.usefixtures("known")
def test_the_command_writes_the_page(shoal: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    code, _, _ = shoal("repro", "run", "a-1", "--quick", "--html", "repro.html")
    assert code == 0
    assert "Quick run" in (tmp_path / "repro.html").read_text()
