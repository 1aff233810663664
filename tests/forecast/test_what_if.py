"""What-if: run on from the middle of a journal. Knowing everything, the rest comes out as it did; else, near it."""

import json
import tracemalloc
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.commands import Decided
from shoal.core.errors import InputError, JournalError
from shoal.core.events import EventBatch, JobCompleted, JobSetAside, JobSubmitted
from shoal.core.job import JobSpec
from shoal.engine.loop import Loop
from shoal.engine.moves import StopStartPlanner
from shoal.forecast.branches import Branch
from shoal.forecast.fork import Fork
from shoal.forecast.present import read_present
from shoal.forecast.what_if import AS_IT_IS, forecast, what_if
from shoal.scenario.backend import make_backend
from shoal.scenario.scenario import PLACERS, Scenario
from shoal.scenario.specs import read_cluster
from shoal.sim.truth import RestartCost
from shoal.store.codec import Header, Record
from shoal.store.journal import JournalFile, MemoryJournal, SqliteJournal
from shoal.testing.builders import job
from shoal.wire.messages import Submission, WhatIf
from shoal.workload.generators.registry import generate
from shoal.workload.schema import Job

MIXED = read_cluster("v100:2x4,p100:1x4,k80:1x4")
TIME = 1000.0
"""CPU seconds: more than any of these needs, so that answers do not depend on the machine."""


@dataclass(frozen=True)
class Tale:
    """A whole simulation: its records, where each cycle ended, and everyone who came."""

    scenario: Scenario
    records: tuple[Record, ...]
    ends: tuple[int, ...]
    specs: tuple[JobSpec, ...]

    def started(self) -> dict[str, float]:
        firsts: dict[str, float] = {}
        now = 0.0
        for record in self.records:
            if isinstance(record, EventBatch):
                now = record.now
            elif isinstance(record, Decided):
                for command in record.commands:
                    firsts.setdefault(self.specs[command.job].id, now)
        return firsts


def ring(scenario: Scenario, jobs: tuple[Job, ...], journal: MemoryJournal | SqliteJournal) -> Loop:
    known = scenario.speeds()
    world, placer = make_backend(scenario, jobs, known), PLACERS[scenario.placement]()
    return Loop(world, scenario.make_state(known), scenario.make_policy(), placer, StopStartPlanner(), journal)


def tell(scenario: Scenario, *jobs: Job) -> Tale:
    rows = tuple(sorted(jobs, key=lambda row: row.submitted))
    journal = MemoryJournal.begin(scenario.settings("a tale"))
    loop = ring(scenario, rows, journal)
    ends = []
    while loop.cycle():
        ends.append(len(journal.records))
    specs = tuple(scenario.declared(row, 1.0) for row in rows)
    return Tale(scenario, tuple(journal.read()), tuple(ends), specs)


def decisions(records: tuple[Record, ...]) -> list[Decided]:
    return [record for record in records if isinstance(record, Decided)]


def completions(records: tuple[Record, ...]) -> dict[int, float]:
    events = [event for record in records if isinstance(record, EventBatch) for event in record.events]
    return {event.job: event.at for event in events if isinstance(event, JobCompleted)}


def run_on(tale: Tale, end: int) -> tuple[Record, ...]:
    """The rest of the tale, as a fork that knows everything tells it."""
    present = read_present(tale.records[:end], 0.0)
    fork = present.fork(tale.specs[len(present.scheduler.state.register.specs) :])
    journal = MemoryJournal()
    Branch(AS_IT_IS, present.scenario, present.scheduler, fork, present.review_at).loop(
        journal, seed=0, spread=0.0
    ).run()
    return tuple(journal.read())


def runs(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["label"]: row for row in answer["runs"]}


# ── knowing everything ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("policy", ["fifo", "fifo:backfill=true", "las", "srtf", "gandiva", "tiresias"])
def test_a_fork_that_knows_everything_goes_on_exactly_as_it_did(policy: str) -> None:
    tale = tell(Scenario(MIXED, policy, knowledge="oracle"), *generate("demo", jobs=25).jobs)
    for end in tale.ends[:: len(tale.ends) // 6]:
        rest = run_on(tale, end)
        assert decisions(rest) == decisions(tale.records[end:])
        assert completions(rest) == pytest.approx(completions(tale.records[end:]), rel=1e-12)


def test_what_gavel_remembers_is_forked_with_a_state_and_forgotten_with_a_journal() -> None:
    """Forgotten is what was received of the shares so far: whose turn is next may change, not that all complete."""
    scenario = Scenario(MIXED, "gavel.max-min", knowledge="oracle")
    rows = generate("demo", jobs=25).jobs
    tale = tell(scenario, *rows)
    middle = len(tale.ends) // 2
    loop = ring(scenario, rows, MemoryJournal())
    for _ in range(middle + 1):
        loop.cycle()
    arrivals = tale.specs[len(loop.state.register.specs) :]
    fork = Fork.of(loop.state, scenario.speeds(), RestartCost.parse(scenario.restart_cost), arrivals)
    journal = MemoryJournal()
    Branch(AS_IT_IS, scenario, scenario.make_scheduler(), fork, loop.review_at).loop(journal, seed=0, spread=0.0).run()
    rest, after = tuple(journal.read()), tale.records[tale.ends[middle] :]
    assert decisions(rest) == decisions(after)
    assert completions(rest) == pytest.approx(completions(after), rel=1e-12)
    forgetful = run_on(tale, tale.ends[middle])
    assert decisions(forgetful) != decisions(after)
    assert completions(forgetful).keys() == completions(after).keys()


def test_forking_changes_nothing_in_the_state_that_is_forked() -> None:
    scenario = Scenario(MIXED, "las", knowledge="oracle")
    rows = generate("demo", jobs=20).jobs
    loop = ring(scenario, rows, journal := MemoryJournal())
    forks = 0
    while loop.cycle():
        if len(journal.records) % 100 == 0:
            forks += 1
            fork = Fork.of(loop.state, scenario.speeds(), RestartCost())
            Branch(AS_IT_IS, scenario, scenario.make_scheduler(), fork, loop.review_at).loop(
                MemoryJournal(), seed=1
            ).run()
    assert forks > 3
    assert tuple(journal.read()) == tell(scenario, *rows).records[1:]


# ── the journal ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_journal_is_read_while_it_is_written_and_stays_as_it_is(tmp_path: Path) -> None:
    rows = tuple(job(f"j{i}", i, 1 + i % 4, 100 + i) for i in range(20))
    scenario = Scenario(read_cluster("gpu:1x4"), "fifo")
    journal = SqliteJournal.begin(path := tmp_path / "journal.sqlite", scenario.settings("live"))
    loop = ring(scenario, rows, journal)
    for _ in range(25):
        loop.cycle()
    journal.commit()
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir() if not file.name.endswith("-shm")}
    waiting = forecast(path, loop.state.now, most_seconds=TIME)
    question = WhatIf(policies=["las"], add="gpu:1x4", job=Submission(command=["train"], gpus=2, work=50.0))
    answer = what_if(path, loop.state.now, question, most_seconds=TIME)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir() if not file.name.endswith("-shm")} == before
    assert waiting.keys() == {name for name, view in loop.state.freeze().jobs.items() if not view.held}
    assert answer["cut"] is None
    loop.run()
    journal.close()
    assert completions(tuple(JournalFile(path).read())).keys() == set(range(20))


def test_the_last_header_counts_with_the_nodes_it_adds() -> None:
    tale = tell(Scenario(read_cluster("gpu:1x2"), "fifo"), *(job(f"j{i}", 0, 2, 100) for i in range(3)))
    restarted = replace(tale.scenario, cluster=read_cluster("gpu:2x2"), policy="srtf")
    records = [*tale.records[: tale.ends[0]], Header(restarted.settings("a tale"))]
    present = read_present(records, 0.0)
    assert (present.scenario.policy, present.scheduler.state.topology.total_gpus) == ("srtf", 4)
    (first, last) = forecast(records, 0.0, seeds=3, most_seconds=TIME).values()
    assert first.high == 0.0
    assert last.low > 0.0


def test_a_journal_may_end_before_its_decision_and_long_before_now() -> None:
    rows = [job("a", 0, 1, 100), job("b", 1, 1, 100), job("c", 500, 1, 100)]
    tale = tell(Scenario(read_cluster("gpu:1x1"), "fifo"), *rows)
    assert forecast(tale.records[: tale.ends[0] - 1], 0.0, most_seconds=TIME)["a"].high == 0.0
    early, late = (forecast(tale.records[: tale.ends[1]], now, most_seconds=TIME)["b"] for now in (1.0, 40.0))
    assert 0.0 < late.median < early.median


def test_what_is_no_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="header"):
        forecast([], 0.0)
    with pytest.raises(InputError, match="no such file"):
        forecast(tmp_path / "nowhere.sqlite", 0.0)


# ── forecasts ─────────────────────────────────────────────────────────────────────────────────────────────────────


def hit(seed: int) -> list[bool]:
    """For each job that waits ten minutes into a history: whether it started when it was said to.

    Owners are off by as much as forecasts assume. The whole line is early or late together.
    """
    chance = np.random.default_rng(seed)
    rows = []
    for i in range(40):
        declared = float(chance.uniform(500, 5000))
        really = declared * float(np.exp(0.3 * chance.standard_normal()))
        rows.append(job(f"j{i:02}", 10.0 * i, int(chance.integers(1, 5)), really, declared_work=declared))
    tale = tell(Scenario(read_cluster("gpu:4x4"), "fifo"), *rows)
    end = next(
        end for end in tale.ends if isinstance(heard := tale.records[end - 2], EventBatch) and heard.now >= 600.0
    )
    now = read_present(tale.records[:end], 0.0).scheduler.state.now
    told, truth = forecast(tale.records[:end], now, seeds=9, most_seconds=TIME), tale.started()
    assert all(said.low <= said.median <= said.high for said in told.values())
    return [said.low <= truth[name] - now <= said.high for name, said in told.items()]


def test_most_jobs_start_within_their_forecast() -> None:
    hits = [inside for seed in range(12) for inside in hit(seed)]
    assert len(hits) > 300
    assert 0.65 < np.mean(hits) < 0.95  # in four of five cases, by what the tenth and ninetieth percentile mean


def test_a_job_that_cannot_run_has_no_forecast_and_running_ones_need_none() -> None:
    tale = tell(
        Scenario(read_cluster("gpu:1x4"), "fifo"), job("now", 0, 4, 50), job("wide", 0, 9, 50), job("next", 0, 1, 5)
    )
    assert forecast(tale.records[: tale.ends[0]], 0.0, most_seconds=TIME).keys() == {"next"}


def test_a_job_that_is_set_aside_stays_so_and_the_others_have_forecasts() -> None:
    scenario = Scenario(read_cluster("gpu:1x1"), "fifo")
    events = [JobSubmitted(0.0, job(name, 0, 1, 50_000).spec()) for name in ("a", "bad", "c")]
    aside = JobSetAside(0.0, 1, "raised", 10.0)
    records = (Header(scenario.settings("live")), EventBatch(0.0, (*events, aside)))
    found = forecast(records, 0.0)
    assert sorted(found) == ["a", "c"]


def test_a_job_held_back_after_a_crash_starts_when_it_comes_free(tmp_path: Path) -> None:
    faults = tmp_path / "faults.yaml"
    faults.write_text("script: [{at: 30, crash: a}]")
    scenario = Scenario(read_cluster("gpu:1x4"), "fifo", faults=str(faults))
    tale = tell(scenario, job("a", 0, 1, 100), job("b", 0, 1, 500))
    crashed = tale.ends[1]
    assert forecast(tale.records[:crashed], 34.0, most_seconds=TIME)["a"].median == pytest.approx(6.0)
    assert forecast(tale.records[:crashed], 99.0, most_seconds=TIME)["a"].high == 0.0


def test_undeclared_work_is_drawn_and_its_basis_named() -> None:
    shy = [job(f"j{i}", 0, 1, 100 + i, declares_work=False) for i in range(8)]
    tale = tell(Scenario(read_cluster("gpu:1x1"), "fifo"), *shy, job("open", 0, 1, 100))
    asked = WhatIf(seeds=2)
    early, late = (what_if(tale.records[: tale.ends[k]], 0.0, asked, most_seconds=TIME) for k in (0, 6))
    assert early["basis"] == {"as long again as it has run": 8, "declared work": 1}
    assert late["basis"] == {"lengths of earlier runs": 2, "declared work": 1}


# ── questions ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def queue() -> tuple[Record, ...]:
    """Twelve jobs on four GPUs under fifo, none of them done yet."""
    rows = [job(f"j{i:02}", 0, 1 + i % 4, 100 + 50 * i, tenant=f"t{i % 2}") for i in range(12)]
    tale = tell(Scenario(read_cluster("gpu:1x4"), "fifo"), *rows)
    return tale.records[: tale.ends[0]]


def test_every_change_is_a_run_beside_as_it_is_paired_by_seed(queue: tuple[Record, ...]) -> None:
    question = WhatIf(policies=["srtf", "fifo"], add="fast:1x4", job=Submission(command=["train"], work=70.0), seeds=3)
    answer = json.loads(json.dumps(what_if(queue, 0.0, question, most_seconds=TIME)))
    found = runs(answer)
    assert list(found) == [AS_IT_IS, "policy srtf", "policy fifo", "fast:1x4 added", "job submitted"]
    assert {row["jobs"] for row in answer["runs"]} == {12}
    assert found["fast:1x4 added"]["cluster"] == "gpu:1x4,fast:1x4"
    assert found["policy srtf"]["difference"]["avg_jct"]["mean"] < 0
    assert found["fast:1x4 added"]["difference"]["avg_jct"]["high"] < 0
    # The same policy in the same worlds, and a job at the end of the line, change nothing for those ahead.
    for same in ("policy fifo", "job submitted"):
        assert found[same]["difference"]["makespan"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert "difference" not in found[AS_IT_IS]
    assert answer["cut"] is None
    rows = [row for row in answer["jobs"] if row["label"] == "job submitted"]
    assert [row["id"] for row in rows] == [*(f"j{i:02}" for i in range(12)), "job"]
    assert rows[-1]["start"]["low"] >= rows[-2]["start"]["low"]
    assert {row["tenant"] for row in rows} == {"t0", "t1", "default"}


def test_a_tenant_sees_its_own_jobs_and_the_cluster_as_a_whole(queue: tuple[Record, ...]) -> None:
    everyone, own = (what_if(queue, 0.0, WhatIf(seeds=1), tenant=who, most_seconds=TIME) for who in (None, "t1"))
    assert own["runs"] == everyone["runs"]
    assert own["jobs"] == [row for row in everyone["jobs"] if row["tenant"] == "t1"]
    assert len(own["jobs"]) == 6


def test_a_cluster_without_jobs_has_nothing_to_say() -> None:
    tale = tell(Scenario(read_cluster("gpu:1x2"), "fifo"), job("a", 0, 2, 50))
    answer = what_if(tale.records, 99.0, WhatIf(policies=["las"], add="gpu:1x2"), most_seconds=TIME)
    assert (answer["jobs"], answer["cut"], forecast(tale.records, 99.0)) == ([], None, {})
    assert [(row["jobs"], row["avg_jct"]) for row in answer["runs"]] == [(0, None)] * 3


def test_figures_follow_from_starts_and_ends(queue: tuple[Record, ...]) -> None:
    answer = what_if(queue, 0.0, WhatIf(seeds=1), most_seconds=TIME)
    (row,) = answer["runs"]
    ends = [told["end"]["median"] for told in answer["jobs"]]
    waits = [told["start"]["median"] for told in answer["jobs"]]
    assert row["avg_jct"] == {"mean": pytest.approx(np.mean(ends)), "low": None, "high": None}
    assert row["makespan"]["mean"] == pytest.approx(max(ends))
    assert row["avg_wait"]["mean"] == pytest.approx(np.mean(waits))
    assert row["unfinished"] == 0


def test_jobs_that_never_end_are_counted_and_left_out_of_the_averages() -> None:
    tale = tell(Scenario(read_cluster("gpu:1x2"), "fifo"), job("a", 0, 2, 50), job("wide", 0, 4, 50))
    answer = what_if(tale.records[: tale.ends[0]], 0.0, WhatIf(add="gpu:1x2"), most_seconds=TIME)
    found = runs(answer)
    assert [(row["jobs"], row["unfinished"]) for row in answer["runs"]] == [(1, 1), (1, 0)]
    assert found["gpu:1x2 added"]["difference"]["makespan"]["mean"] == 0.0


def test_a_job_ends_at_its_time_limit_where_that_comes_first() -> None:
    rows = job("limited", 0, 1, 5000, time=100.0), job("next", 10, 1, 50)
    tale = tell(Scenario(read_cluster("gpu:1x1"), "fifo", knowledge="oracle", restart_cost="0"), *rows)
    answer = what_if(tale.records[: tale.ends[1]], 40.0, WhatIf(seeds=2), most_seconds=TIME)
    limited, later = answer["jobs"]
    assert (limited["end"]["low"], limited["end"]["high"]) == pytest.approx((60.0, 60.0))
    assert later["start"]["median"] == pytest.approx(60.0)
    (row,) = answer["runs"]
    assert (row["jobs"], row["unfinished"], row["hour"]["ends"]) == (2, 0, 2.0)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(min_value=1.0, max_value=1e4), min_size=1, max_size=12),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(0, 3),
)
def test_more_gpus_never_delay_a_job_of_one_gpu_under_fifo(
    seconds: list[float], gpus: int, more: int, cycle: int
) -> None:
    rows = [job(f"j{i}", 0, 1, work) for i, work in enumerate(seconds)]
    tale = tell(Scenario(read_cluster(f"gpu:1x{gpus}"), "fifo"), *rows)
    records = tale.records[: tale.ends[min(cycle, len(tale.ends) - 1)]]
    answer = what_if(records, 0.0, WhatIf(add=f"gpu:{more}x1", seeds=2), most_seconds=TIME)
    told = {(row["label"], row["id"]): row for row in answer["jobs"]}
    for label, name in told:
        for what in ("start", "end"):
            for part in ("low", "median", "high"):
                before, after = told[AS_IT_IS, name][what][part], told[label, name][what][part]
                assert after <= before * (1 + 1e-9) + 1e-9


def test_the_same_question_has_the_same_answer(queue: tuple[Record, ...]) -> None:
    question = WhatIf(policies=["las"], seeds=2)
    assert what_if(queue, 0.0, question, most_seconds=TIME) == what_if(queue, 0.0, question, most_seconds=TIME)


def test_when_time_is_up_the_answer_says_so(queue: tuple[Record, ...]) -> None:
    answer = what_if(queue, 0.0, WhatIf(policies=["las"], seeds=4), most_seconds=0.0)
    assert answer["cut"] == "time was up after 0 of 4 seeds"
    assert [(row["cut"], row["avg_jct"]) for row in answer["runs"]] == [(True, None)] * 2
    assert answer["runs"][1]["difference"] is None
    assert forecast(queue, 0.0, most_seconds=0.0) == {}


BAD = {
    "an unknown policy": (WhatIf(policies=["fifi"]), "policy"),
    "an unknown option": (WhatIf(policies=["fifo:quick=true"]), "fifo"),
    "nodes that are none": (WhatIf(add="h100"), "add"),
    "nodes without GPUs": (WhatIf(add="h100:1x0"), "add"),
    "a file of this machine": (WhatIf(add="cluster.yaml"), "add"),
    "too many nodes": (WhatIf(add="h100:99999x8"), "add"),
    "too many nodes in all": (WhatIf(add="h100:9999x8,a100:2x8"), "add"),
    "a number of four thousand digits": (WhatIf(add=f"h100:{'9' * 4000}x8"), "add"),
    "a gang the cluster cannot hold": (WhatIf(job=Submission(command=["x"], gpus=9)), "gpus"),
    "a gang outside its bounds": (WhatIf(job=Submission(command=["x"], gpus=4, max_gpus=2)), "gpus"),
    "an unknown model": (WhatIf(job=Submission(command=["x"], model="resnet5")), "model"),
}


@pytest.mark.parametrize(("question", "field"), BAD.values(), ids=BAD.keys())
def test_a_question_that_makes_no_sense_is_refused(queue: tuple[Record, ...], question: WhatIf, field: str) -> None:
    with pytest.raises(InputError) as refused:
        what_if(queue, 0.0, question)
    assert field in refused.value.field


@pytest.mark.parametrize("spec", ["{}/own.py:Own", "fifo:{}/own.py:Own", "{}/own.py:Own:key=1"])
def test_a_question_never_loads_a_file(queue: tuple[Record, ...], tmp_path: Path, spec: str) -> None:
    folder = tmp_path / "fifo:" if spec.startswith("fifo") else tmp_path
    folder.mkdir(exist_ok=True)
    (folder / "own.py").write_text(f"open({str(tmp_path / 'loaded')!r}, 'w')\n")
    with pytest.raises(InputError, match="names a file, which is never loaded on a request"):
        what_if(queue, 0.0, WhatIf(policies=["fifo", spec.format(folder)]))
    assert not (tmp_path / "loaded").exists()


def test_nodes_to_add_are_counted_before_any_is_made(queue: tuple[Record, ...]) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=r"can have at most 10,000 nodes"):
            what_if(queue, 0.0, WhatIf(add=",".join(["h100:9999x8"] * 300)))
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()
