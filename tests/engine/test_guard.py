"""The guard of a live cluster: one job that a policy cannot decide on is set aside, and all others are scheduled."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import TypeVar

import pytest

from shoal.core.commands import Decided, Start, Stop
from shoal.core.decision import Decision, Grant, Refusal
from shoal.core.events import Event, EventBatch, JobCancelled, JobSetAside, JobSubmitted, PolicyOverran
from shoal.core.interfaces import Policy
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Topology, parse_cluster
from shoal.engine.guard import FIRST_RETRY, LAST_RETRY, SUSPECT_RETRY, Guard, TooSlow
from shoal.engine.loop import Judgement, Loop, judge_or_keep
from shoal.engine.moves import StopStartPlanner
from shoal.engine.replay import Scheduler, replay
from shoal.engine.state import State
from shoal.perf.catalog import catalog
from shoal.perf.model import ProfiledModel
from shoal.placement.packed import PackedPlacer
from shoal.policy.classic.fifo import Fifo
from shoal.store.journal import MemoryJournal
from shoal.testing.builders import job, snapshot

T = TypeVar("T")
CLUSTER = parse_cluster("gpu:2x4")


class Untimed:
    """A time limit that is never reached; counts calls."""

    def __init__(self) -> None:
        self.calls = 0

    def run(self, call: Callable[[], T], seconds: float) -> tuple[T, float]:
        self.calls += 1
        return call(), 0.0


@dataclass(frozen=True)
class Picky:
    """Fifo that raises ``error`` if a job's name begins with ``bad``; with ``always`` also without one."""

    error: type[BaseException] = OverflowError
    always: bool = False
    bad: str = "bad"

    def decide(self, snapshot: Snapshot) -> Decision:
        if self.always or any(name.startswith(self.bad) for name in snapshot.ids):
            raise self.error("too large")
        return Fifo().decide(snapshot)


class Batches:
    """A backend that reports these events, one batch each, and takes every command."""

    def __init__(self, batches: list[tuple[float, tuple[Event, ...]]]) -> None:
        self.batches = batches

    def wait(self, until: float) -> EventBatch:
        if not self.batches:
            return EventBatch(0.0, (), over=True)
        return EventBatch(*self.batches.pop(0))

    def send(self, commands: object) -> None: ...


def new_state(cluster: Topology = CLUSTER) -> State:
    return State(cluster, ProfiledModel(cluster, catalog()))


def submitted(at: float, *names: str) -> tuple[float, tuple[Event, ...]]:
    return at, tuple(JobSubmitted(at, job(name, at, 1, 100).spec()) for name in names)


def run(
    policy: Policy, *batches: tuple[float, tuple[Event, ...]], limit: Untimed | None = None
) -> tuple[Loop, MemoryJournal]:
    journal = MemoryJournal.begin({"policy": "picky"})
    guard = Guard(limit or Untimed())
    loop = Loop(
        Batches([*batches]), new_state(), policy, PackedPlacer(), StopStartPlanner(), journal, judge=guard.judge
    )
    loop.run()
    scheduler = Scheduler(new_state(), policy, PackedPlacer(), StopStartPlanner(), judge_or_keep)
    replay(journal.read, lambda _: replace(scheduler, state=new_state()))  # raises if any decision differs
    return loop, journal


def events(journal: MemoryJournal, kind: type[T]) -> list[T]:
    return [e for r in journal.read() if isinstance(r, EventBatch) for e in r.events if isinstance(e, kind)]


def running(loop: Loop) -> set[str]:
    return {view.id for view in loop.state.freeze().jobs.values() if view.held}


@pytest.mark.parametrize("error", [OverflowError, TooSlow])
def test_one_job_that_a_policy_fails_on_is_set_aside_and_all_others_start(error: type[BaseException]) -> None:
    loop, journal = run(Picky(error), submitted(0.0, "a", "b"), submitted(5.0, "c", "bad", "d"))
    assert running(loop) == {"a", "b", "c", "d"}
    (aside,) = events(journal, JobSetAside)
    assert (aside.at, aside.job, aside.retry_at) == (5.0, 3, 5.0 + FIRST_RETRY)
    assert ("CPU seconds" if error is TooSlow else "OverflowError: too large") in aside.reason
    snapshot = loop.state.freeze()
    verdicts = judge_or_keep(snapshot, Picky(), PackedPlacer(), StopStartPlanner()).verdicts
    assert (
        verdicts["bad"]
        .reason.sentence()
        .startswith(f"waits: set aside, since the policy cannot decide with it ({aside.reason}")
    )


def test_many_bad_jobs_among_many_good_ones_are_all_found() -> None:
    names = [("bad" if i in (3, 17, 18, 30) else "good") + f"-{i}" for i in range(40)]
    loop, journal = run(Picky(), submitted(0.0, *names))
    assert {aside.job for aside in events(journal, JobSetAside)} == {3, 17, 18, 30}
    assert len(running(loop)) == 8


def test_a_search_is_cut_short_and_what_it_left_is_tried_again_soon() -> None:
    limit = Untimed()
    _, journal = run(Picky(), submitted(0.0, "a"), submitted(1.0, *(f"bad-{i}" for i in range(500))), limit=limit)
    found = events(journal, JobSetAside)
    waits = {aside.retry_at - aside.at for aside in found}
    assert (len(found), waits) == (500, {FIRST_RETRY, SUSPECT_RETRY})
    assert limit.calls < 600


def test_a_policy_that_fails_without_any_job_keeps_every_placement_and_sets_none_aside() -> None:
    @dataclass(frozen=True)
    class Turning:
        def decide(self, snapshot: Snapshot) -> Decision:
            return Picky(always=snapshot.now >= 5.0).decide(snapshot)

    loop, journal = run(Turning(), submitted(0.0, "a", "b"), submitted(5.0, "c"))
    assert (running(loop), events(journal, JobSetAside)) == ({"a", "b"}, [])


def test_a_policy_that_fails_on_most_running_jobs_is_itself_at_fault() -> None:
    @dataclass(frozen=True)
    class Later:
        def decide(self, snapshot: Snapshot) -> Decision:
            return Picky(bad="r" if snapshot.now >= 5.0 else "bad").decide(snapshot)

    loop, journal = run(Later(), submitted(0.0, "r1", "r2", "r3", "q"), submitted(5.0, "new"))
    assert (running(loop), events(journal, JobSetAside)) == ({"r1", "r2", "r3", "q"}, [])


def test_a_running_job_that_a_policy_begins_to_fail_on_is_stopped_by_the_usual_moves() -> None:
    @dataclass(frozen=True)
    class Later:
        def decide(self, snapshot: Snapshot) -> Decision:
            return Picky(bad="r2" if snapshot.now >= 5.0 else "bad").decide(snapshot)

    loop, journal = run(Later(), submitted(0.0, "r1", "r2", "r3"), submitted(5.0, "new"))
    assert running(loop) == {"r1", "r3", "new"}
    decided = [record for record in journal.read() if isinstance(record, Decided)]
    assert [type(command) for command in decided[-1].commands] == [Stop, Start]


def test_a_policy_too_slow_without_a_culprit_keeps_placements_and_is_recorded() -> None:
    @dataclass(frozen=True)
    class Slow:
        def decide(self, snapshot: Snapshot) -> Decision:
            return Picky(TooSlow, always=snapshot.now >= 5.0).decide(snapshot)

    loop, journal = run(Slow(), submitted(0.0, "a"), submitted(5.0, "b"))
    assert (running(loop), len(events(journal, PolicyOverran)), events(journal, JobSetAside)) == ({"a"}, 1, [])
    assert loop.review_at == 65.0


def test_a_job_set_aside_is_tried_again_after_a_pause_that_doubles_up_to_a_day() -> None:
    times = [0.0]
    for pause in (3600.0, 7200.0, 14400.0, 28800.0, 57600.0, LAST_RETRY):
        times.append(times[-1] + pause)
    loop, journal = run(Picky(), submitted(0.0, "a", "bad"), *((at, ()) for at in times[1:]))
    found = events(journal, JobSetAside)
    assert [aside.at for aside in found] == times
    assert found[-1].retry_at - found[-1].at == LAST_RETRY
    assert loop.review_at == found[-1].retry_at
    assert running(loop) == {"a"}


def test_an_owner_can_cancel_a_job_that_was_set_aside() -> None:
    loop, _ = run(Picky(), submitted(0.0, "a", "bad"), (9.0, (JobCancelled(9.0, 1),)))
    assert (dict(loop.state.freeze().set_aside), loop.review_at) == ({}, inf)


def test_another_policy_is_asked_about_all_jobs_again() -> None:
    state = new_state()
    state.decide_by({"policy": "picky"})
    state.apply_events(*submitted(0.0, "a", "bad"))
    state.apply_events(0.0, [JobSetAside(0.0, 1, "raised", 3600.0)])
    state.decide_by({"policy": "picky"})
    assert list(state.freeze().set_aside) == [1]
    state.decide_by({"policy": "fifo"})
    assert not state.freeze().set_aside


@pytest.mark.parametrize(
    ("changed", "kept"), [("policy", 0), ("round", 0), ("knowledge", 0), ("version", 0), ("epoch", 1)]
)
def test_jobs_stay_set_aside_while_nothing_changes_that_decides(changed: str, kept: int) -> None:
    settings = {"policy": "picky", "round": 60.0, "knowledge": "oracle", "version": "1", "epoch": 5.0}
    state = new_state()
    state.decide_by(settings)
    state.apply_events(*submitted(0.0, "a", "bad"))
    state.apply_events(0.0, [JobSetAside(0.0, 1, "raised", 3600.0)])
    state.decide_by({**settings, changed: "another"})
    assert len(state.freeze().set_aside) == kept


def test_verdicts_of_the_others_keep_their_numbers_and_reasons() -> None:
    state = new_state(parse_cluster("gpu:1x2"))
    state.apply_events(*submitted(0.0, "bad", "a", "b", "c"))
    state.apply_events(0.0, [JobSetAside(0.0, 0, "raised", 3600.0)])
    snapshot = state.freeze()
    verdicts = judge_or_keep(snapshot, Fifo(), PackedPlacer(), StopStartPlanner()).verdicts
    alone = Fifo().decide(snapshot.without(snapshot.kept_from_policy)).verdicts
    assert verdicts.gpus.tolist() == [0, 1, 1, 0]
    assert [verdicts[name].reason for name in "abc"] == [alone[name].reason for name in "abc"]
    assert [type(verdicts[name]) for name in ("bad", "a")] == [Refusal, Grant]


class Timed(Untimed):
    """A time limit under which calls take these seconds, then none; keeps the limits that it is asked to enforce."""

    def __init__(self, *taken: float) -> None:
        super().__init__()
        self.taken, self.limits = [*taken], list[float]()

    def run(self, call: Callable[[], T], seconds: float) -> tuple[T, float]:
        self.limits.append(seconds)
        taken = self.taken.pop(0) if self.taken else 0.0
        return call(), taken


def judged(guard: Guard, policy: Policy, seen: Snapshot) -> Judgement | tuple[Event, ...]:
    return guard.judge(seen, policy, PackedPlacer(), StopStartPlanner())


def seen(*names: str, held: tuple[str, ...] = (), now: float = 50.0) -> Snapshot:
    return snapshot([job(name, 0.0, 1, 100) for name in names], "gpu:2x4", held=dict.fromkeys(held, 1), now=now)


def set_aside(found: Judgement | tuple[Event, ...], at: Snapshot) -> dict[str, float]:
    """By job the seconds until it is tried again."""
    assert isinstance(found, tuple)
    events = [event for event in found if isinstance(event, JobSetAside)]
    assert len(events) == len(found)
    assert {event.at for event in events} <= {at.now}
    assert {event.reason for event in events} <= {events[0].reason}
    return {at.register.ids[event.job]: event.retry_at - at.now for event in events}


def test_a_decision_may_take_ten_seconds_or_four_times_as_long_as_the_last() -> None:
    limit = Timed(3.0, 1.0, 2.5)
    guard = Guard(limit)
    for _ in range(4):
        assert isinstance(judged(guard, Fifo(), seen("a")), Judgement)
    assert limit.limits == [10.0, 12.0, 10.0, 10.0]


@pytest.mark.parametrize(("usual", "probe"), [(0.0, 1.0), (0.2, 1.0), (2.0, 8.0), (30.0, 120.0)])
def test_a_probe_may_take_four_times_as_long_as_the_last_decision_and_a_second_at_least(
    usual: float, probe: float
) -> None:
    limit = Timed(usual)
    guard = Guard(limit)
    judged(guard, Fifo(), seen("a", "b"))
    at = seen("a", "b", "bad")
    assert set_aside(judged(guard, Picky(), at), at) == {"bad": FIRST_RETRY}
    assert set(limit.limits[2:]) == {probe}


def test_the_limit_doubles_each_time_that_it_is_reached_without_a_culprit_up_to_sixty_four_times() -> None:
    limit = Timed()
    guard = Guard(limit)
    found = []
    for _ in range(8):
        before = len(limit.limits)
        answer = judged(guard, Picky(TooSlow, always=True), seen("a"))
        assert isinstance(answer, tuple)
        (event,) = answer
        assert isinstance(event, PolicyOverran)
        assert event.at == 50.0
        found.append((limit.limits[before], event.reason))
    assert [seconds for seconds, _ in found] == [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 640.0]
    assert found[0][1] == "the policy took more than 10 CPU seconds"


def test_a_search_is_made_once_at_a_time() -> None:
    at = seen("a", "bad")
    aside = JobSetAside(at.now, 0, "why", at.now + 60.0)
    limit = Timed()
    assert isinstance(judged(Guard(limit), Picky(), replace(at, set_aside={0: aside})), Judgement)
    assert len(limit.limits) == 1
    earlier = replace(at, set_aside={0: replace(aside, at=at.now - 1.0, retry_at=at.now - 0.5)})
    assert set_aside(judged(Guard(limit), Picky(), earlier), at) == {"bad": FIRST_RETRY}


def test_jobs_that_the_search_had_no_time_for_are_tried_again_soon_with_the_same_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shoal.engine.guard._MOST_PROBES", 2)
    at = seen("a", "bad-1", "b", "bad-2")
    assert set_aside(judged(Guard(Timed()), Picky(), at), at) == dict.fromkeys(at.ids, SUSPECT_RETRY)


@pytest.mark.parametrize(
    ("error", "usual", "each", "probes", "examined"),
    [
        (OverflowError, 0.0, 0.0, 103, 24),
        (OverflowError, 0.0, 20.0, 17, 2),
        (OverflowError, 0.0, 29.0, 17, 2),
        (OverflowError, 0.0, 30.0, 3, 0),
        (TooSlow, 0.0, 0.0, 83, 19),
        (TooSlow, 5.0, 0.0, 7, 0),
        (TooSlow, 7.5, 0.0, 5, 0),
    ],
)
def test_a_search_ends_after_a_hundred_probes_or_a_minute_of_them(
    error: type[BaseException], usual: float, each: float, probes: int, examined: int
) -> None:
    names = [f"{'bad' if n % 2 else 'ok'}-{n:03}" for n in range(128)]
    at = snapshot([job(name, 0.0, 1, 100) for name in names], "gpu:32x4", now=50.0)
    limit = Timed(usual)
    guard = Guard(limit)
    judged(guard, Fifo(), seen("a"))
    limit.taken = [each] * 200
    found = set_aside(judged(guard, Picky(error), at), at)
    assert len(limit.limits) - 2 == probes, "halves that are left are tried once each"
    assert [*found.values()].count(FIRST_RETRY) == examined


def test_known_are_the_jobs_that_run_and_those_that_were_decided_on_before() -> None:
    guard = Guard(Timed())
    judged(guard, Fifo(), seen("a", "b"))
    assert guard._known(seen("a", "b", "c", "d", held=("d",))) == (0, 1, 3)
    assert Guard(Timed())._known(seen("a", "b")) == ()


@pytest.mark.parametrize(
    ("running", "aside"),
    [
        (("bad",), {"bad"}),
        (("bad", "a"), {"bad"}),
        (("bad-1", "bad-2"), None),
        (("bad-1", "bad-2", "a"), None),
        (("bad-1", "bad-2", "a", "b"), {"bad-1", "bad-2"}),
    ],
)
def test_a_policy_is_at_fault_if_it_fails_on_most_of_several_running_jobs(
    running: tuple[str, ...], aside: set[str] | None
) -> None:
    at = seen(*running, held=running)
    found = judged(Guard(Timed()), Picky(), at)
    if aside is None:
        assert isinstance(found, Judgement)
    else:
        assert set_aside(found, at).keys() == aside


def test_jobs_that_were_not_examined_count_as_those_that_a_policy_fails_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.engine.guard._MOST_PROBES", 2)
    running = ("a", "bad-1", "b", "bad-2")
    assert isinstance(judged(Guard(Timed()), Picky(), seen(*running, held=running)), Judgement)
