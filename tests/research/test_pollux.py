"""Pollux's experiments on a small workload: a row for every policy, the public figures, and stored results.

The public files lie beside the project and are never part of it; where they are absent these tests are skipped.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from shoal.core.decision import Decision
from shoal.core.goodput import GoodputReport
from shoal.core.job import BatchSetting
from shoal.core.snapshot import Snapshot
from shoal.policy.pollux.policy import Pollux
from shoal.research.repro.context import ReproContext, ResultCache
from shoal.research.repro.pollux import (
    EXPERIMENTS,
    MisestimatedWork,
    PolluxVariant,
    WithoutModelReport,
    experiment_tables,
    workload,
)
from shoal.testing import builders

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
JOBS = 8

pytestmark = pytest.mark.skipif(not (DATA / "pollux").is_dir(), reason="the public files are not here")


def test_a_table_has_a_row_for_each_policy_and_one_of_the_public_figures(tmp_path: Path) -> None:
    announced: list[str] = []
    few = (
        PolluxVariant("pollux"),
        *(PolluxVariant("rank", work) for work in ("", "hidden", "misjudged", "left misjudged")),
    )
    context = ReproContext(DATA, cache=ResultCache(tmp_path / "results.jsonl"), announce=announced.append)
    experiment = replace(EXPERIMENTS[0], variants=few)
    (made,) = experiment_tables(context, experiment, (1,), JOBS)
    assert [row[0] for row in made.cells()] == [*map(str, few), "pollux, public"]
    assert made.cells()[-1][1] == "2,089"
    assert [column.name for column in made.columns][-2:] == ["ρ p99", "ρ ≥ 2"]
    assert made.cells()[-1][-2:] == ["1.80", "0.0%"]
    assert len(announced) == len(few)
    assert experiment_tables(context, experiment, (1,), JOBS) == [made]
    assert len(announced) == len(few), "stored results are not computed again"


@pytest.mark.skipif(not (DATA / "sia").is_dir(), reason="the public files are not here")
def test_unequal_gpus_are_those_of_sia() -> None:
    kinds = next(one for one in EXPERIMENTS if one.name == "pollux-kinds")
    small = replace(
        kinds, folders=kinds.folders[:1], variants=(PolluxVariant("pollux"), PolluxVariant("pollux:types=off"))
    )
    (made,) = experiment_tables(ReproContext(DATA), small, (6,), JOBS)
    aware, unaware = (float(row[1].replace(",", "")) for row in made.cells())
    assert aware < unaware


def test_a_policy_can_be_made_to_forget_one_model() -> None:
    asked: list[set[str]] = []

    class Asked:
        def decide(self, snapshot: Snapshot) -> Decision:
            asked.append(set(snapshot.model_reports))
            return Pollux().decide(snapshot)

    report = GoodputReport((), 1.0, 1, 1, BatchSetting(1))
    moment = replace(builders.snapshot([]), model_reports={"bert": report, "ncf": report})
    WithoutModelReport(Asked(), "bert").decide(moment)
    assert asked == [{"ncf"}]


def test_a_policy_can_be_misled_about_what_jobs_have_left_at_any_moment() -> None:
    shown: list[Snapshot] = []

    class Shown:
        def decide(self, snapshot: Snapshot) -> Decision:
            shown.append(snapshot)
            return Pollux().decide(snapshot)

    jobs = [builders.job(f"j{n}", 0, 1, 3600) for n in range(JOBS)]
    for now in (600.0, 3000.0):
        moment = builders.snapshot(jobs, "v100:2x4", held={j.id: 1 for j in jobs}, now=now)
        MisestimatedWork(Shown(), 2.0, 0).decide(moment)
        off = shown[-1].columns.remaining / moment.columns.remaining
        assert set(off.round(9).tolist()) == {2.0, 0.5}
        assert shown[-1].columns.done.tolist() == moment.columns.done.tolist()
    factors = [(s.columns.remaining / (3600 - s.now)).round(6).tolist() for s in shown]
    assert factors[0] == factors[1], "a job's error lasts"


def test_what_jobs_say_of_their_work_can_be_hidden_or_wrong() -> None:
    folder = DATA / "pollux" / "workloads"
    plain, hidden, wrong = (workload(folder, 1, "pollux", work, JOBS) for work in ("", "hidden", "misjudged"))
    assert [j.spec().work for j in hidden.jobs] == [None] * JOBS
    off = [w.spec().work / j.work for j, w in zip(plain.jobs, wrong.jobs, strict=True)]  # type: ignore[operator]
    assert {round(factor, 3) for factor in off} == {2.718, 0.368}
