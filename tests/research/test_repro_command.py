"""``shoal repro``: the list, tables as text and as JSON, and refused arguments."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from shoal.core.errors import InputError
from shoal.research.repro import registry
from shoal.research.repro.context import ReproContext, ResultCache
from shoal.research.repro.registry import Reproduction, chosen, reproductions
from shoal.research.repro.runner import RunSettings, run_reproductions
from shoal.research.repro.table import Column, Table, differs, table

Cli = Callable[..., tuple[int, str, str]]


def _tables(context: ReproContext) -> Sequence[Table]:
    context.announce("one run")
    count = context.cache.get({"n": 1}, lambda: 1.5)
    columns = [Column("policy"), Column("share", ".0%")]
    rows = [["fifo", count], ["srtf", None]]
    return [table("a table", columns, rows, "2 for all", "quick" if context.quick else "", verdict=differs("by half"))]


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
    assert all(row["cpu_seconds"] is None or row["cpu_seconds"] >= 0.0 for row in rows)
    listed = shoal("repro", "list")[1]
    assert "last verdict" in listed
    assert "(paper " not in listed, "a verdict's details would make the table hundreds of columns wide"


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
    ],
)
def test_what_cannot_be_reproduced_is_refused(shoal: Cli, arguments: list[str], message: str) -> None:
    code, _, err = shoal("repro", "run", *arguments)
    assert code == 2
    assert message in err


@pytest.mark.usefixtures("one")
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_one_that_lacks_its_data_is_reported_and_does_not_stop_the_others(shoal: Cli, jobs: str) -> None:
    code, out, err = shoal("repro", "run", "a-2", "a-1", "--data", "/nowhere", "--jobs", jobs)
    assert code == 1
    assert "A paper, a table" in out
    assert "[2/2]" in err
    assert "Nothing left to do" in err
    assert "a-2 failed: data: '/nowhere': has no traces/x" in err


@pytest.mark.usefixtures("one")
def test_one_document_has_the_tables_and_the_reasons_of_failures(shoal: Cli) -> None:
    code, out, _ = shoal("repro", "run", "a-*", "--data", "/nowhere", "--json")
    tables, failure = json.loads(out)
    assert code == 1
    assert tables["verdict"] == "differs: by half"
    assert failure["name"] == "a-2"
    assert "traces/x" in failure["failure"]


@pytest.mark.usefixtures("one")
def test_the_verdict_is_a_line_of_its_own(shoal: Cli) -> None:
    _, out, _ = shoal("repro", "run", "a-1")
    assert "\na-1: differs: by half\n" in out


@pytest.mark.usefixtures("one")
def test_names_can_be_left_out(shoal: Cli) -> None:
    _, out, _ = shoal("repro", "run", "a-*", "--without", "a-2", "--json")
    assert [row["name"] for row in json.loads(out)] == ["a-1"]


@pytest.mark.usefixtures("one")
def test_verdicts_are_recorded_in_a_file(shoal: Cli, tmp_path: Path) -> None:
    shoal("repro", "run", "a-*", "--data", "/nowhere", "--record", "verdicts.json")
    (name, row) = json.loads((tmp_path / "verdicts.json").read_text()).popitem()
    assert (name, row["verdicts"]) == ("a-1", ["differs: by half"])


def _fails(context: ReproContext) -> Sequence[Table]:
    raise ZeroDivisionError("no jobs")


def _ends(context: ReproContext) -> Sequence[Table]:
    os._exit(7)


@pytest.mark.parametrize(("run", "reason"), [(_fails, "ZeroDivisionError: no jobs"), (_ends, "exit code 7")])
def test_a_reproduction_that_fails_gives_its_reason_and_the_others_their_tables(
    run: Callable[[ReproContext], Sequence[Table]], reason: str
) -> None:
    wanted = [Reproduction("a", "A paper", "x", run), Reproduction("b", "A paper", "y", _tables)]
    outcomes = {one.name: one for one in run_reproductions(wanted, RunSettings(jobs=2), lambda _: None)}
    assert reason in outcomes["a"].failure
    assert [table.title for table in outcomes["b"].tables] == ["a table"]


def test_processes_share_the_stored_results(tmp_path: Path) -> None:
    wanted = [Reproduction(name, "A paper", "x", _tables) for name in ("a", "b", "c")]
    for _ in range(2):
        outcomes = list(run_reproductions(wanted, RunSettings(out=tmp_path / "r", jobs=2), lambda _: None))
        assert sorted(one.name for one in outcomes) == ["a", "b", "c"]
    assert list(ResultCache(tmp_path / "r").items()) == [({"n": 1}, 1.5)]


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
