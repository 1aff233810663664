"""A shadow policy by itself: what it counts, what it keeps, what it costs, and what a tenant sees of it."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.live.test_control_plane import soon

from shoal.core.decision import Decision, Grant, Refusal, Verdict, Verdicts
from shoal.core.reasons import in_words
from shoal.core.snapshot import Snapshot
from shoal.engine.guard import TooSlow
from shoal.engine.moves import StopStartPlanner
from shoal.live import shadow_policy
from shoal.live.shadow_policy import ShadowPolicy, as_seen
from shoal.placement.packed import PackedPlacer
from shoal.policy.classic.fifo import Fifo
from shoal.testing.builders import job, snapshot
from shoal.wire.policy_messages import ShadowDecision, ShadowDifference, ShadowRow, ShadowUse

EPOCH = 1000.0


@dataclass
class Scripted:
    """A policy that grants these GPUs to jobs and refuses all others with one sentence; its carry counts decisions."""

    gpus: Mapping[str, int]
    sentence: str = "waits: behind b until t = 70 s"
    carries: list[object] = field(default_factory=list)
    overran: list[str | None] = field(default_factory=list)

    def decide(self, snapshot: Snapshot) -> Decision:
        self.carries.append(snapshot.carry)
        self.overran.append(snapshot.overran)
        verdicts: dict[str, Verdict] = {
            id: Grant(self.gpus[id]) if id in self.gpus else Refusal(in_words(self.sentence)) for id in snapshot.ids
        }
        return Decision(verdicts, carry=len(self.carries))


def shadow_of(policy: Any) -> ShadowPolicy:
    return ShadowPolicy("scripted", policy, PackedPlacer(), StopStartPlanner(), EPOCH, 5.0)


def moment(now: float) -> Snapshot:
    """Jobs a and c of ann, b of bo, d of cy, on twelve GPUs; c and d are elastic."""
    rows = [
        job("a", gpus=2, tenant="ann"),
        job("b", gpus=2, tenant="bo"),
        job("c", gpus=2, min_gpus=1, max_gpus=4, tenant="ann"),
        job("d", gpus=2, min_gpus=1, max_gpus=4, tenant="cy"),
    ]
    return snapshot(rows, "gpu:1x12", now=now)


def made(at: Snapshot, **gpus: int) -> Verdicts:
    return Verdicts.of(at, {id: Grant(gpus[id]) if id in gpus else Refusal() for id in at.ids})


def test_jobs_that_would_run_would_wait_or_have_another_size_are_counted_and_kept_with_their_reasons() -> None:
    shadow, at = shadow_of(Scripted({"b": 2, "c": 4, "d": 1})), moment(50.0)
    assert shadow.row == ShadowRow(policy="scripted", since=1005.0)
    shadow.compare(7, at, made(at, a=2, c=1, d=2))
    row = shadow.row
    assert (row.compared, row.same, row.skipped, row.failed) == (1, 0, 0, "")
    assert (row.would_run, row.would_wait, row.other_size) == (1, 1, 2)
    (decision,) = row.decisions
    assert (decision.number, decision.at, decision.differing) == (7, 1050.0, 4)
    clock = time.strftime("%H:%M:%S", time.localtime(EPOCH + 70.0))
    a, b, c, d = decision.jobs
    assert a == ShadowDifference("a", "ann", 2, 0, f"waits: behind another job until {clock} (in 20 s)")
    assert (b.job, b.tenant, b.granted, b.would) == ("b", "bo", 0, 2)
    assert (c.job, c.tenant, c.granted, c.would) == ("c", "ann", 1, 4)
    assert (d.job, d.tenant, d.granted, d.would) == ("d", "cy", 2, 1)
    shadow.compare(8, at, made(at, a=2, c=1, d=2))
    assert (shadow.row.would_run, shadow.row.would_wait, shadow.row.other_size) == (2, 2, 4)


def test_an_equal_decision_is_counted_and_not_kept() -> None:
    shadow, at = shadow_of(Scripted({"a": 2, "b": 2, "c": 2})), moment(50.0)
    for number in range(2):
        shadow.compare(number, at, made(at, a=2, b=2, c=2))
    row = shadow.row
    assert (row.compared, row.same, row.decisions) == (2, 2, [])
    assert (row.would_run, row.would_wait, row.other_size) == (0, 0, 0)
    shadow.compare(2, at, made(at, a=2, b=2))
    assert (shadow.row.compared, shadow.row.same, shadow.row.would_run) == (3, 2, 1)


def test_gpu_seconds_of_tenants_are_those_granted_from_each_decision_to_the_next() -> None:
    shadow = shadow_of(Scripted({"b": 2, "c": 4}))
    for number, (now, gpus) in enumerate(((50.0, {"a": 2, "c": 2}), (60.0, {"b": 2}), (65.0, {"b": 2}))):
        at = moment(now)
        shadow.compare(number, at, made(at, **gpus))
        if number == 0:
            assert shadow.row.tenants == [], "nothing was compared before"
    assert shadow.row.tenants == [ShadowUse("ann", 40.0, 60.0), ShadowUse("bo", 10.0, 30.0)]


def test_a_tenant_without_any_grant_has_no_row_and_one_granted_by_the_shadow_alone_has() -> None:
    shadow = shadow_of(Scripted({"b": 2}))
    for number, now in enumerate((50.0, 60.0)):
        at = moment(now)
        shadow.compare(number, at, made(at))
    assert shadow.row.tenants == [ShadowUse("bo", 0.0, 20.0)]


def test_the_shadow_has_a_carry_of_its_own_and_is_asked_where_the_deciding_policy_overran_its_time() -> None:
    policy = Scripted({})
    shadow = shadow_of(policy)
    at = replace(moment(50.0), carry="that of the deciding policy", overran="it took 10 s")
    for number in range(3):
        shadow.compare(number, at, made(at))
    assert policy.carries == [None, 1, 2]
    assert policy.overran == [None, None, None]


def test_the_latest_twenty_differing_decisions_are_kept_with_twenty_jobs_each() -> None:
    at = snapshot([job(f"j{n:02}") for n in range(25)], "gpu:1x32", now=50.0)
    shadow = shadow_of(Scripted({}))
    for number in range(22):
        shadow.compare(number, at, Verdicts.of(at, {id: Grant(1) for id in at.ids}))
    assert [decision.number for decision in shadow.row.decisions] == list(range(21, 1, -1))
    latest = shadow.row.decisions[0]
    assert (latest.differing, [one.job for one in latest.jobs]) == (25, [f"j{n:02}" for n in range(20)])
    assert shadow.row.would_wait == 22 * 25


def test_a_tenant_sees_differences_and_use_of_its_own_alone_and_an_admin_sees_all() -> None:
    own, other = ShadowDifference("a", "ann", 2, 0, "waits"), ShadowDifference("b", "bo", 0, 2, "runs")
    kept = [
        ShadowDecision(number=8, at=60.0, differing=9, jobs=[other]),
        ShadowDecision(number=7, at=50.0, differing=3, jobs=[own, other]),
    ]
    tenants = [ShadowUse("ann", 1.0, 2.0), ShadowUse("bo", 3.0, 4.0)]
    row = ShadowRow(policy="p", since=1.0, compared=4, decisions=kept, tenants=tenants)
    assert as_seen(row, None) is row
    seen = as_seen(row, "ann")
    assert seen.decisions == [ShadowDecision(number=7, at=50.0, differing=1, jobs=[own])]
    assert seen.tenants == [ShadowUse("ann", 1.0, 2.0)]
    assert (seen.policy, seen.since, seen.compared) == ("p", 1.0, 4)


@dataclass
class FakeLimit:
    """Stands in for ``CpuLimit``: every call takes half a CPU second."""

    limits: list[float] = field(default_factory=list)
    closed: threading.Event = field(default_factory=threading.Event)

    def run(self, call: Callable[[], Any], seconds: float) -> tuple[Any, float]:
        self.limits.append(seconds)
        return call(), 0.5

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> FakeLimit:
    made = FakeLimit()
    monkeypatch.setattr(shadow_policy, "CpuLimit", lambda: made)
    return made


def test_it_takes_a_twentieth_of_a_core_at_most_ten_seconds_for_a_decision_and_ends_when_it_is_closed(
    monkeypatch: pytest.MonkeyPatch, limit: FakeLimit
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(shadow_policy, "time", SimpleNamespace(sleep=slept.append))
    at, shadow = moment(50.0), shadow_of(Fifo())
    shadow.start()
    assert any(thread.name == "shadow" and thread.daemon for thread in threading.enumerate())
    for number in range(2):
        shadow.offer(number, at, made(at))
        soon(lambda number=number: len(slept) == number + 1)  # type: ignore[misc]
    assert (slept, limit.limits) == ([10.0, 10.0], [10.0, 10.0])
    assert (shadow.row.seconds, shadow.row.compared, shadow.row.skipped) == (1.0, 2, 0)
    assert not limit.closed.is_set()
    shadow.close()
    assert limit.closed.wait(5)
    assert shadow.row.failed == ""


def test_a_decision_that_takes_too_long_ends_the_shadow_with_the_reason(limit: FakeLimit) -> None:
    class Endless:
        def decide(self, snapshot: Snapshot) -> Decision:
            raise TooSlow

    at, shadow = moment(50.0), shadow_of(Endless())
    shadow.start()
    shadow.offer(0, at, made(at))
    assert limit.closed.wait(5)
    assert shadow.row.failed == "one decision took more than 10 s"
    shadow.offer(1, at, made(at))
    shadow.offer(2, at, made(at))
    assert (shadow.row.compared, shadow.row.skipped, shadow.row.seconds) == (0, 0, 0.0)


def test_an_error_of_the_placer_is_named_like_one_of_the_policy(limit: FakeLimit) -> None:
    class Broken(PackedPlacer):
        def place(self, snapshot: Snapshot, verdicts: Verdicts) -> Any:
            raise KeyError("node")

    at = moment(50.0)
    shadow = ShadowPolicy("fifo", Fifo(), Broken(), StopStartPlanner(), EPOCH, 5.0)
    shadow.start()
    shadow.offer(0, at, made(at))
    assert limit.closed.wait(5)
    assert shadow.row.failed == "KeyError: 'node'"
