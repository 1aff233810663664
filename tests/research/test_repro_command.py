"""``shoal repro``: the list, tables as text and as JSON, and refused arguments."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from shoal.core.errors import InputError
from shoal.research.repro import registry
from shoal.research.repro.context import ReproContext, ResultCache
from shoal.research.repro.registry import Reproduction, chosen, reproductions
from shoal.research.repro.table import Column, Table, table

Cli = Callable[..., tuple[int, str, str]]


def _tables(context: ReproContext) -> Sequence[Table]:
    context.announce("one run")
    count = context.cache.get({"n": 1}, lambda: 1.5)
    columns = [Column("policy"), Column("share", ".0%")]
    return [table("a table", columns, [["fifo", count], ["srtf", None]], "2 for all", "quick" if context.quick else "")]


@pytest.fixture
def one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two reproductions, one of which reads data."""
    known = {n: Reproduction(n, "A paper", "shares", _tables, needs) for n, needs in (("a-1", ""), ("a-2", "traces/x"))}
    monkeypatch.setattr(registry, "reproductions", lambda: known)


def test_everything_listed_has_a_name_of_its_own_and_says_what_it_shows(shoal: Cli) -> None:
    rows = json.loads(shoal("repro", "list", "--json")[1])
    assert [row["name"] for row in rows] == list(reproductions())
    assert len({row["what"] for row in rows}) == len(rows)
    assert {row["name"].split("-")[0] for row in rows} >= {"afs", "themis"}


@pytest.mark.usefixtures("one")
def test_a_table_is_shown_with_the_papers_statement(shoal: Cli) -> None:
    _, out, _ = shoal("repro", "run", "a-1", "--quick")
    assert "A paper, a table" in out
    assert "150%" in out
    assert "–" in out
    assert "paper: 2 for all" in out
    assert "here: quick" in out


@pytest.mark.usefixtures("one")
def test_machines_get_numbers_as_they_are(shoal: Cli, tmp_path: Path) -> None:
    (tmp_path / "traces" / "x").mkdir(parents=True)
    _, answer, err = shoal("repro", "run", "a-*", "--data", str(tmp_path), "--json")
    first, second = json.loads(answer)
    assert "one run" in err
    assert (first["name"], second["name"]) == ("a-1", "a-2")
    assert first["rows"] == [{"policy": "fifo", "share": 1.5}, {"policy": "srtf", "share": None}]


@pytest.mark.usefixtures("one")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["b-1"], "'b-1'"),
        (["b-*"], "'b-*'"),
        (["a-2", "--data", "/nowhere"], "traces/x"),
    ],
)
def test_what_cannot_be_reproduced_is_refused(shoal: Cli, arguments: list[str], message: str) -> None:
    code, _, err = shoal("repro", "run", *arguments)
    assert code == 2
    assert message in err


def test_names_ending_in_a_star_stand_for_all_that_begin_so() -> None:
    assert [r.name for r in chosen(["themis-*", "themis-17"])] == [
        n for n in reproductions() if n.startswith("themis-")
    ]


def test_results_are_stored_in_a_file_and_other_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "results"
    assert ResultCache(file).get({"a": 1, "b": 2}, lambda: 3.0) == 3.0
    assert ResultCache(file).get({"b": 2, "a": 1}, lambda: 4.0) == 3.0
    file.write_text("hello\n")
    with pytest.raises(InputError, match="line 1"):
        ResultCache(file)
