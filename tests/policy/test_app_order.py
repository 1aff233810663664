"""Whole apps in an order, by hand."""

from dataclasses import replace
from pathlib import Path

import pytest

from shoal.core.topology import parse_cluster
from shoal.policy.themis.app_order import AppOrder
from shoal.report.history import read_history
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.store.journal import JournalFile
from shoal.testing.builders import job, simulate, snapshot
from shoal.workload.schema import Job, Workload


def test_the_least_served_app_gets_all_it_can_use_and_the_next_what_is_left() -> None:
    rows = [
        job("a0", 0, 2, min_gpus=1, max_gpus=3, app="a"),
        job("a1", 0, 2, min_gpus=1, max_gpus=3, app="a"),
        job("b0", 0, 2, min_gpus=1, max_gpus=4, app="b"),
    ]
    cycle = simulate(AppOrder(), rows, "gpu:1x8", until=1.0).cycles[0]
    assert cycle.granted() == {"a0": 3, "a1": 3, "b0": 2}


def test_the_service_of_jobs_that_are_gone_counts_for_their_app() -> None:
    # On one GPU a0 runs 0–60, a whole lease and all its work; then a1 of the same app must let b0 go first, though
    # neither has had anything itself.
    rows = [job("a0", 0, 1, 60, app="a"), job("a1", 0, 1, 60, app="a"), job("b0", 0, 1, 60, app="b")]
    done = simulate(AppOrder(lease=60.0), rows, "gpu:1x1").completed
    assert done == {"a0": 60.0, "b0": 120.0, "a1": 180.0}


def test_equal_apps_take_turns_by_leases_that_end_together() -> None:
    rows = [job("a", 0, 1, 100, app="a"), job("b", 30, 1, 100, app="b")]
    told = simulate(AppOrder(lease=60.0), rows, "gpu:1x1")
    # a until 60, b until 120; both have had 60 then, and a goes first.
    assert told.completed == {"a": 160.0, "b": 200.0}
    assert told.cycles[1].sentence("a") == "keeps its GPUs: its lease runs until t = 60 s"


@pytest.mark.parametrize(("by", "first"), [("time", "wide"), ("work", "narrow")])
def test_time_and_work_left_are_those_of_the_whole_app(by: str, first: str) -> None:
    wide = [job(f"wide{n}", 0, 2, 100, app="wide") for n in range(2)]
    narrow = [job("narrow0", 0, 1, 150, app="narrow"), job("narrow1", 0, 1, 20, app="narrow")]
    cycle = simulate(AppOrder(by), [*wide, *narrow], "gpu:1x4", until=1.0).cycles[0]
    # wide: 100 s and 400 GPU-seconds; narrow: 150 s and 170.
    last = {"time": "narrow0", "work": "wide1"}[by]
    assert last not in cycle.granted()
    assert all(name in cycle.granted() for name in ("wide0", "wide1", "narrow0", "narrow1") if name.startswith(first))


@pytest.mark.parametrize(("by", "later", "first"), [("time", 300.0, "b"), ("work", 300.0, "b"), ("time", 10.0, "a")])
def test_phases_an_app_declares_for_later_count_as_left(by: str, later: float, first: str) -> None:
    moment = snapshot([job("a", 0, 1, 50, app="a"), job("b", 0, 1, 80, app="b")], "gpu:1x1")
    specs = dict(moment.register.specs)
    specs[0] = replace(specs[0], ahead=((2, 1, later),))
    told = replace(moment, register=replace(moment.register, specs=specs))
    verdicts = AppOrder(by).decide(told).verdicts
    assert verdicts[first].reason.sentence().startswith("runs")


def test_an_app_that_halves_is_one_app_to_its_end(tmp_path: Path) -> None:
    plain = {"submitted": 0.0, "gpus": 1, "max_gpus": 4, "work": 700.0, "search": "halving", "pace": 9.0}
    rows = tuple(
        Job(id=f"{app}{n}", app=app, loss=n / 10, **plain)  # type: ignore[arg-type]
        for app in "ab"
        for n in range(4)
    )
    path = tmp_path / "journal"
    scenario = Scenario(parse_cluster("gpu:1x4"), "apps:lease=100", restart_cost="0")
    run(scenario, Workload("w", rows), journal_path=path)
    history = read_history(JournalFile(path).raw())
    ends = {
        name: max(e for n, e in zip(history.ids, history.ended, strict=True) if n.startswith(name)) for name in "ab"
    }
    # 300 s of work each on all four GPUs, in turns of 100 s, b after a.
    assert ends == pytest.approx({"a": 500.0, "b": 600.0})


def test_an_unknown_order_and_a_lease_below_a_second_are_refused() -> None:
    with pytest.raises(ValueError, match="by must be service, time, work"):
        AppOrder(by="size")
    with pytest.raises(ValueError, match="at least 1"):
        AppOrder(lease=0.5)
