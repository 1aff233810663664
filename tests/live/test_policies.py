"""Operators switch the policy of a running cluster, and watch another beside it; the journal still replays."""

from pathlib import Path

import pytest
from tests.live.test_control_plane import job, opened, soon, state, submit
from tests.refusals import refusal

from shoal.core.decision import Grant, Verdicts
from shoal.engine.moves import StopStartPlanner
from shoal.live.shadow_policy import ShadowPolicy
from shoal.placement.packed import PackedPlacer
from shoal.policy.classic.fifo import Fifo
from shoal.scenario.replay import policies_of, replay_file
from shoal.testing.builders import job as job_of
from shoal.testing.builders import snapshot
from shoal.wire.messages import NewNode

HOME = "home"


def test_a_switched_policy_decides_from_then_on_and_the_journal_replays(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        long, wide = submit(plane, job("long", 4, work=1000.0, preemptible="yes"), job("wide", 4, work=10.0))
        soon(lambda: state(plane, long) == "starting")
        plane.members.add(NewNode(name="late", kind="gpu", gpus=1)).result(5)
        plane.policies.switch("srtf").result(5)
        assert plane.cluster().policy == "srtf"
        soon(lambda: state(plane, long) == "stopping")
        assert plane.job(wide, None).decision.startswith("runs: its remaining time")
    assert [name for name, _ in policies_of(tmp_path / HOME)] == ["fifo", "srtf"]
    assert replay_file(tmp_path / HOME)[0].decisions > 0
    with opened(tmp_path) as plane:
        assert plane.cluster().policy == "fifo", "the one that the control plane was started with"
        assert "late" in [row.name for row in plane.nodes(None)]
    assert replay_file(tmp_path / HOME)[0].decisions > 0


def test_a_shadow_policy_keeps_what_it_would_have_done_and_shows_a_tenant_its_own(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        plane.policies.shadow("srtf")
        (long,) = submit(plane, job("long", 4, work=1000.0, preemptible="yes"), tenant="ann")
        soon(lambda: state(plane, long) == "starting")
        (short,) = submit(plane, job("short", 4, work=10.0), tenant="bo")

        def row(tenant: str | None = None):  # type: ignore[no-untyped-def]
            found = plane.policies.in_force("fifo", tenant).shadow
            assert found is not None
            return found

        soon(lambda: row().would_run > 0)
        whole = row()
        assert (whole.policy, whole.failed) == ("srtf", "")
        assert whole.compared > whole.same > 0
        last = {found.job: (found.granted, found.would) for found in whole.decisions[0].jobs}
        assert last == {long: (4, 0), short: (0, 4)}
        assert state(plane, long) == "starting", "nothing was changed"
        own = [(found.job, found.granted) for decision in row("bo").decisions for found in decision.jobs]
        assert set(own) == {(short, 0)}
        assert {use.tenant for use in row("bo").tenants} <= {"bo"}
        plane.policies.shadow(None)
        assert plane.policies.in_force("fifo", None).shadow is None


def test_a_shadow_policy_that_is_busy_skips_all_waiting_decisions_but_the_last_and_none_once_closed() -> None:
    moment = snapshot([job_of("a")], "gpu:1x1")
    shadow = ShadowPolicy("fifo", Fifo(), PackedPlacer(), StopStartPlanner(), 1000.0, 5.0)
    for number in range(3):
        shadow.offer(number, moment, Verdicts.of(moment, {"a": Grant(1)}))
    assert (shadow.row.policy, shadow.row.since, shadow.row.skipped) == ("fifo", 1005.0, 2)
    shadow.close()
    shadow.offer(3, moment, Verdicts.of(moment, {"a": Grant(1)}))
    assert (shadow.row.skipped, shadow.row.compared) == (2, 0)


def test_a_shadow_policy_that_fails_says_why_and_decisions_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shoal.policy.classic.shortest import Srtf

    def fail(self: object, snapshot: object) -> None:
        raise ZeroDivisionError("no such luck")

    monkeypatch.setattr(Srtf, "decide", fail)
    with opened(tmp_path) as plane:
        plane.policies.shadow("srtf")
        (first,) = submit(plane, job("first"))
        soon(lambda: state(plane, first) == "starting")
        soon(lambda: bool(getattr(plane.policies.in_force("fifo", None).shadow, "failed", "")))
        found = plane.policies.in_force("fifo", None).shadow
        assert found is not None
        assert found.failed == "ZeroDivisionError: no such luck"
        (second,) = submit(plane, job("second"))
        soon(lambda: state(plane, second) == "starting")


def test_a_wrong_policy_is_refused(tmp_path: Path) -> None:
    file = "names a file, which is never loaded on a request; choose a policy of `shoal policies`"
    with opened(tmp_path) as plane:
        for policy, sentence in (
            ("nonsense", "policy: 'nonsense': unknown; did you mean ossp?"),
            ("srtf:nonsense=1", "policy srtf, option: 'nonsense': srtf takes no options"),
            ("evil.py:Policy", f"policy: 'evil.py:Policy': {file}"),
        ):
            with refusal(sentence):
                plane.policies.switch(policy)
            with refusal(sentence):
                plane.policies.shadow(policy)
        assert plane.cluster().policy == "fifo"
