"""Replay: every decision of a journal is made again, and the first difference or impossible record ends it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.refusals import refusal

from shoal.core.commands import Decided, Start
from shoal.core.errors import JournalError
from shoal.core.events import EventBatch, JobStarted, JobSubmitted
from shoal.core.interfaces import Policy
from shoal.core.topology import Placement, parse_cluster
from shoal.engine.moves import StopStartPlanner
from shoal.engine.replay import ReplayDifference, Replayed, Scheduler, fold, replay
from shoal.engine.state import State
from shoal.perf.catalog import catalog
from shoal.perf.model import ProfiledModel
from shoal.placement.packed import PackedPlacer
from shoal.policy.classic.fifo import Fifo
from shoal.policy.classic.las import Las
from shoal.store.codec import Header, Record
from shoal.testing.builders import SimulationLog, job, simulate

CLUSTER = parse_cluster("gpu:1x4")
ROWS = [job("a", 0, 4, 100), job("b", 10, 2, 20), job("c", 12, 2, 30)]


def fresh(policy: Policy | None = None) -> Scheduler:
    state = State(CLUSTER, ProfiledModel(CLUSTER, catalog()))
    return Scheduler(state, policy or Fifo(), PackedPlacer(), StopStartPlanner())


def replayed(records: list[Record], policy: Policy | None = None, **more: Any) -> Replayed:
    def read() -> Iterator[Record]:
        return iter(records)

    return replay(read, lambda _: fresh(policy), **more)


@pytest.fixture(scope="module")
def run() -> SimulationLog:
    return simulate(Fifo(), ROWS, CLUSTER)


@pytest.fixture
def records(run: SimulationLog) -> list[Record]:
    return list(run.journal.read())


def first_decision(records: list[Record]) -> int:
    return next(i for i, record in enumerate(records) if isinstance(record, Decided))


def test_a_whole_journal_is_counted(run: SimulationLog, records: list[Record]) -> None:
    end = run.state.now
    assert replayed(records) == Replayed(len(run.cycles), len(run.events), len(run.commands), end)
    assert replayed([]) == Replayed(0, 0, 0, 0.0)


def test_every_decision_is_shown_to_the_watcher(run: SimulationLog, records: list[Record]) -> None:
    times: list[float] = []
    replayed(records, watch=lambda snapshot, judgement: times.append(snapshot.now))
    assert times == [cycle.now for cycle in run.cycles]


def test_progress_is_reported_after_every_thousand_decisions() -> None:
    log = simulate(Las(quantum=1.0), [job("a", 0, 4, 600), job("b", 0, 4, 600)], CLUSTER)
    counts: list[int] = []
    total = replayed(list(log.journal.read()), Las(quantum=1.0), progress=counts.append).decisions
    assert total > 1000
    assert counts == [1000 * n for n in range(1, total // 1000 + 1)]


def test_the_state_alone_is_folded_without_a_policy(run: SimulationLog, records: list[Record]) -> None:
    state = fold(records, fresh().state)
    assert (state.now, state.cycle, state.live, state.carry) == (run.state.now, len(run.cycles), 0, None)


DIFFERENCES: dict[str, tuple[dict[str, Any], str]] = {
    "verdicts": ({"digest": 1}, r"^decision 0 at t = 0\.000 s, with 1 live jobs, differs in its verdicts$"),
    "review": ({"review_at": 77.0}, r"differs in its time of the next review$"),
    "no commands": ({"commands": ()}, r"differs in its commands: the journal has 0 commands, this replay 1$"),
    "another command": (
        {"commands": (Start(0, 1, Placement(((0, 3),))),)},
        r"commands: the journal has Start\(job=0, .*\(\(0, 3\),\).*, this replay Start\(job=0, .*\(\(0, 4\),\)",
    ),
}


@pytest.mark.parametrize(("change", "said"), DIFFERENCES.values(), ids=DIFFERENCES.keys())
def test_the_first_difference_is_named(records: list[Record], change: dict[str, Any], said: str) -> None:
    at = first_decision(records)
    decided = records[at]
    assert isinstance(decided, Decided)
    records[at] = replace(decided, **change)
    with pytest.raises(ReplayDifference, match=said) as caught:
        replayed(records)
    assert caught.value.at == 0.0


def test_a_journal_must_begin_with_its_header(records: list[Record]) -> None:
    with refusal("a journal must begin with its header", JournalError):
        replayed(records[1:])


def test_a_decision_needs_events_before_it(records: list[Record]) -> None:
    at = first_decision(records)
    with refusal("decision 1 has no events before it", JournalError):
        replayed([*records[: at + 1], records[at]])


def test_events_that_called_for_a_decision_must_be_followed_by_it(records: list[Record]) -> None:
    at = first_decision(records)
    with refusal("events up to t = 10.0 s follow on others that no decision was made on", JournalError):
        replayed(records[:at] + records[at + 1 :])


@pytest.mark.parametrize("whole", [False, True], ids=["fold", "replay"])
def test_time_cannot_run_back(records: list[Record], whole: bool) -> None:
    backwards: list[Record] = [Header({}), EventBatch(5.0, ()), EventBatch(5.0, ()), EventBatch(4.999, ())]
    with refusal("time runs back, to t = 4.999 s", JournalError):
        replayed(backwards) if whole else fold(backwards, fresh().state)


def test_events_and_commands_about_jobs_that_are_not_there_cannot_have_happened() -> None:
    unknown = EventBatch(1.0, (JobStarted(1.0, 99, 1, 1.0, 0.0),))
    with refusal("the events up to t = 1.0 s cannot have happened: LookupError('no job has number 99')", JournalError):
        fold([unknown], fresh().state)
    with refusal("decision 0 cannot have been carried out: LookupError('no job has number 99')", JournalError):
        fold([Decided(0, 1.0, (Start(99, 1, Placement(((0, 1),))),))], fresh().state)


def test_a_resumed_journal_is_decided_by_a_new_scheduler_at_once(records: list[Record]) -> None:
    at = first_decision(records)
    made: list[dict[str, Any]] = []

    def scheduler_of(settings: Any) -> Scheduler:
        made.append(dict(settings))
        return fresh()

    # After the second header a decision is due with the first batch, though nothing in it is urgent.
    resumed = [*records[: at + 1], Header({"again": True}), EventBatch(1.0, ()), Decided(*_decision_at(1.0))]
    done = replay(lambda: iter(resumed), scheduler_of)
    assert (done.decisions, done.now) == (2, 1.0)
    assert made == [{}, {"again": True}]


def _decision_at(now: float) -> tuple[int, float, tuple[()]]:
    """The decision of fifo about a alone, which runs: nothing changes."""
    state = fold([EventBatch(0.0, (JobSubmitted(0.0, ROWS[0].spec()),))], fresh().state)
    state.apply_commands([Start(0, 1, Placement(((0, 4),)))])
    state.apply_events(now, ())
    scheduler = fresh()
    judgement = scheduler.judge(state.freeze(), scheduler.policy, scheduler.placer, scheduler.move_planner)
    return judgement.record().digest, judgement.record().review_at, ()
