"""The grounds: draws, cells and their limit, kept results, and what the tables compute from them."""

import json
from collections.abc import Callable
from math import exp, log, sqrt
from pathlib import Path
from typing import Any

import pytest

from shoal.core.errors import InputError
from shoal.research.grounds import runner
from shoal.research.grounds.cells import cells, simulate
from shoal.research.grounds.ground import GROUNDS, Ground
from shoal.research.grounds.published import published_table, targets
from shoal.research.grounds.runner import run_cells, selected, wanted_cells
from shoal.research.grounds.sources import declared, generated, philly, undeclared, wrong_lengths
from shoal.research.grounds.tables import compared, ground_table, number_table, policy_table, stopped_table
from shoal.research.repro import grounds as reproduction
from shoal.research.repro.context import ResultCache
from shoal.workload.schema import Job, Workload

Cli = Callable[..., tuple[int, str, str]]
DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the public files are not here")


def tiny(data: Path | None, draw: int) -> Workload:
    jobs = (Job(id=str(i), submitted=float(i), gpus=1, work=10.0 * draw + i) for i in range(4))
    return Workload("tiny", tuple(jobs))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two grounds of four jobs on two GPUs: one with exact lengths, one with wrong ones."""
    monkeypatch.setitem(GROUNDS, "tiny", Ground("tiny", "four jobs", "gpu:1x2", tiny))
    wrong = Ground("tiny-wrong", "wrong", "gpu:1x2", wrong_lengths(tiny, 1.3), lengths="wrong", base="tiny")
    monkeypatch.setitem(GROUNDS, "tiny-wrong", wrong)


def cell(jct: float, **other: Any) -> dict[str, Any]:
    rest = {"p99": jct, "makespan": jct, "rho": 1.0, "rho_mean": 1.0, "unfair": 0.0, "restarts": 1.0, "cpu": 1.0}
    return {"jct": jct, **rest, **other}


@pytest.mark.parametrize("name", GROUNDS)
def test_settings_are_chosen_on_other_draws_than_those_reported(name: str) -> None:
    ground = GROUNDS[name]
    assert ground.dev
    assert ground.held
    assert not set(ground.dev) & set(ground.held)


@pytest.mark.parametrize("name", [n for n, g in GROUNDS.items() if not g.needs and not g.published])
def test_draws_of_a_ground_differ_and_each_is_the_same_every_time(name: str) -> None:
    source = GROUNDS[name].source
    assert source(None, 1).jobs == source(None, 1).jobs
    assert source(None, 1).jobs != source(None, 6).jobs


@needs_data
@pytest.mark.parametrize("name", [n for n, g in GROUNDS.items() if g.needs and not g.published])
def test_draws_of_public_traces_differ(name: str) -> None:
    ground = GROUNDS[name]
    assert ground.source(DATA, ground.dev[0]).jobs != ground.source(DATA, ground.held[0]).jobs


@needs_data
def test_a_slice_of_philly_has_the_load_it_says() -> None:
    jobs = philly(2, 200, 64, 0.8)(DATA, 3).jobs
    assert sum(job.gpus * job.work for job in jobs) / (64 * jobs[-1].submitted) == pytest.approx(0.8)


def test_without_public_data_only_generated_grounds_are_selected() -> None:
    assert "demo" in selected(())
    assert "sw-120" not in selected(())
    assert selected(["gavel-*"]) == ["gavel-gangs", "gavel-single", "gavel-static", "gavel-deadlines"]
    with pytest.raises(InputError, match="demmo"):
        selected(["demmo"])


def test_owners_declare_exact_wrong_or_no_lengths() -> None:
    source = generated("demo", 40)
    works = [job.work for job in source(None, 1).jobs]
    assert [job.spec().work for job in declared(source)(None, 1).jobs] == works
    assert {job.spec().work for job in undeclared(source)(None, 1).jobs} == {None}
    wrong = [job.spec().work or 0.0 for job in wrong_lengths(source, 1.3)(None, 1).jobs]
    assert {round(max(a / b, b / a), 6) for a, b in zip(wrong, works, strict=True)} == {1.3}


@pytest.mark.usefixtures("small")
def test_a_cell_holds_the_metrics_of_its_run() -> None:
    summary, found = simulate(GROUNDS["tiny"], "srsf", 2), cells("tiny", "srsf", 2)
    assert summary["knowledge"] == "profiled"
    assert (found["jct"], found["makespan"]) == (summary["avg_jct"], summary["makespan"])
    assert found["rho"] == summary["rho"]["isolated"]["max"]
    assert found["jobs"] == 4


def test_every_policy_has_the_knowledge_of_the_ground(monkeypatch: pytest.MonkeyPatch) -> None:
    ground = Ground("tiny", "four jobs", "gpu:1x2", tiny, "online")
    assert [simulate(ground, policy, 1)["knowledge"] for policy in ("srsf", "pollux")] == ["online", "online"]


def test_a_cell_that_reaches_its_cpu_limit_is_reported_as_stopped() -> None:
    found = cells("demo", "shockwave", 1, limit=0.1)
    assert found == {"stopped": "stopped after 0.1 CPU s", "cpu": 0.1}


@pytest.mark.usefixtures("small")
def test_a_policy_that_cannot_run_is_reported_with_the_reason() -> None:
    assert "srsf" in str(cells("tiny", "srsff", 1)["stopped"])
    assert "jct" not in cells("tiny", "srsff", 1)


@pytest.mark.usefixtures("small")
def test_an_error_in_one_policy_is_reported_and_its_cell_runs_again(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("class Broken:\n    def decide(self, snapshot):\n        raise ValueError('no idea')\n")
    wanted, kept, lines = wanted_cells(["tiny"], [f"{file}:Broken", "fifo"], "dev", 1), ResultCache(), list[str]()
    for _ in range(2):
        found = run_cells(wanted, kept, data=None, announce=lines.append)
    assert found[wanted[0]]["stopped"].startswith("failed: ")
    assert "ValueError: no idea" in found[wanted[0]]["stopped"]
    assert "stopped" not in found[wanted[1]]
    assert [line.split(",")[0] for line in lines] == ["[1/2] tiny", "[2/2] tiny", "[1/1] tiny"]


@pytest.mark.usefixtures("small")
def test_a_kept_cell_is_not_run_again_unless_it_was_stopped_at_a_lower_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Any] = []

    def counted(*key: Any, limit: float, **_: Any) -> dict[str, Any]:
        ran.append(key)
        return cell(5.0) if limit > 60.0 or key[1] == "srsf" else {"stopped": "stopped", "cpu": limit}

    monkeypatch.setattr(runner, "cells", counted)
    wanted, file = wanted_cells(["tiny"], ["srsf", "fifo"], "dev", 1), tmp_path / "kept.jsonl"
    run_cells(wanted, ResultCache(file), data=None)
    run_cells(wanted, ResultCache(file), data=None)
    assert ran == wanted
    found = run_cells(wanted, ResultCache(file), data=None, limit=100.0)
    assert ran == [*wanted, ("tiny", "fifo", 1)]
    assert found["tiny", "fifo", 1]["jct"] == 5.0


def test_processes_give_the_same_results_as_one() -> None:
    wanted, lines = wanted_cells(["gavel-static"], ["srsf", "fifo"], "dev", 1), list[str]()
    alone = run_cells(wanted, ResultCache(), data=None)
    found = run_cells(wanted, ResultCache(), data=None, jobs=2, announce=lines.append)
    assert [row["jct"] for row in found.values()] == [row["jct"] for row in alone.values()]
    assert [line[:5] for line in lines] == ["[1/2]", "[2/2]"]


@pytest.mark.usefixtures("small")
def test_the_table_compares_with_the_policy_that_is_best_over_all_draws() -> None:
    results = {
        **{("tiny", "shoal", d): cell(jct, makespan=30.0) for d, jct in ((1, 8.0), (2, 9.0))},
        **{("tiny", "a", d): cell(jct, makespan=20.0) for d, jct in ((1, 10.0), (2, 10.0))},
        **{("tiny", "b", d): cell(jct) for d, jct in ((1, 1.0), (2, 1000.0))},
        ("tiny", "c", 1): cell(1.0),
        ("tiny", "c", 2): {"stopped": "stopped after 60 CPU s"},
        ("tiny", "only the first draw", 1): cell(1.0),
    }
    found = compared(results, "shoal")
    row = ground_table(found, "shoal", "dev").document()["rows"][0]
    half = 12.71 * (log(0.9) - log(0.8)) / sqrt(2) / sqrt(2)
    assert (row["best other"], row["draws"]) == ("a", 2)
    assert row["JCT ÷"] == pytest.approx(sqrt(0.72))
    assert row["95 %"] == f"{sqrt(0.72) * exp(-half):.2f}–{sqrt(0.72) * exp(half):.2f}"
    assert row["makespan ÷ shortest"] == pytest.approx(1.5)
    assert stopped_table(results).document()["rows"] == [
        {"policy": "c", "reason": "stopped after 60 CPU s", "grounds": "tiny"}
    ]
    runs = {row["policy"]: (row["runs"], row["stopped"]) for row in policy_table(results, "dev").document()["rows"]}
    assert runs["c"] == (1, 1)


@pytest.mark.usefixtures("small")
def test_the_numbers_name_the_ground_that_decides_them() -> None:
    results = {
        ("tiny", "shoal", 1): cell(9.0, rho=1.2, restarts=2.0),
        ("tiny", "shockwave", 1): cell(10.0, rho=1.5),
        ("tiny-wrong", "shoal", 1): cell(18.0, rho=3.0, restarts=2.0),
        ("tiny-wrong", "shockwave", 1): cell(10.0, rho=1.5),
    }
    rows = number_table(compared(results, "shoal"), "shoal").document()["rows"]
    reached = {row["number"]: (row["reached"], row["decided by"], row["met"]) for row in rows}
    worst = "JCT over the best other, lengths declared, worst ground"
    assert reached[worst] == (pytest.approx(1.8), "tiny-wrong", "no")
    assert reached["worst ρ where lengths are exact"] == (1.2, "tiny", "yes")
    assert reached["worst ρ over the fair policies' best"] == (2.0, "tiny-wrong", "no")
    assert reached["JCT with wrong lengths or speeds over JCT without error"] == (2.0, "tiny-wrong", "no")
    assert reached["restarts a job, mean over grounds (at most: shockwave's)"] == (2.0, "2 grounds", "no")


def test_published_targets_are_means_or_ratios_to_a_base() -> None:
    chosen = targets([1])
    results = {key: cell(3600.0, app_rho=2.0) for target in chosen for key in target.keys("shoal")}
    results["gavel-public-static", "shoal:makespan=1", 0] = {"stopped": "policy shoal, option 'makespan': unknown"}
    rows = {row["ground"]: row for row in published_table(results, "shoal", chosen).document()["rows"]}
    assert (rows["the same at double load"]["reached"], rows["the same at double load"]["met"]) == (3600.0, "yes")
    gavel = rows["Gavel's continuous trace, average JCT, h"]
    assert (gavel["reached"], gavel["no policy below"]) == (1.0, 1.0)
    assert rows["Themis's apps, worst ρ of an app over themis's"]["no policy below"] is None
    assert rows["Themis's apps, worst ρ of an app over themis's"]["reached"] == pytest.approx(1.0)
    afs = next(target for target in chosen if target.what == "AFS's 11 traces, average JCT over rank's")
    for (ground, draw), former in zip(afs.cells, afs.former, strict=True):
        results[ground, "shoal", draw] = cell(2.0 * former)
    assert afs.figure(results, "shoal") == pytest.approx(2.0)
    assert "unknown" in rows["Gavel's static trace, makespan, h, with makespan=1"]["reached"]


@pytest.mark.usefixtures("small")
def test_the_command_writes_its_tables_into_a_page(shoal: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduction, "QUICK_GROUNDS", ("tiny",))
    monkeypatch.setattr(reproduction, "QUICK_POLICIES", ("srsf", "las"))
    monkeypatch.setattr(reproduction, "JUDGED", "las")
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- repro: grounds -->\nold\n<!-- end -->\nafter\n")
    options = ("--quick", "--out", "kept.jsonl", "--page", str(page), "--json")
    code, out, err = shoal("repro", "run", "grounds", *options)
    assert code == 0
    assert "[2/3] tiny, draw 1, las" in err
    assert json.loads(out)[0]["rows"][0]["best other"] == "srsf"
    text = page.read_text()
    assert text.startswith("before\n<!-- repro: grounds -->\n**las over the best other")
    assert "| tiny | 1 | srsf |" in text
    assert text.endswith("<!-- end -->\nafter\n")
    assert "[" not in shoal("repro", "run", "grounds", *options)[2]
    page.write_text("nothing\n")
    code, _, err = shoal("repro", "run", "grounds", *options)
    assert (code, page.read_text()) == (2, "nothing\n")
    assert "<!-- repro: grounds -->" in err
