"""Where decisions take long, requests are acknowledged before the decision on them, and lose nothing by it."""

import threading
from pathlib import Path

import pytest
from tests.live.test_control_plane import job, opened, soon, state, submit

from shoal.core.decision import Decision
from shoal.core.interfaces import Policy
from shoal.core.snapshot import Snapshot
from shoal.live import control_plane
from shoal.live.control_plane import ControlPlane
from shoal.live.job_lists import JobFilter
from shoal.scenario.replay import replay_file


class HeldPolicy:
    """A policy that waits for ``go`` before it decides as another does."""

    def __init__(self, other: Policy) -> None:
        self.other, self.go, self.asked = other, threading.Event(), 0

    def decide(self, snapshot: Snapshot) -> Decision:
        self.asked += 1
        assert self.go.wait(20)
        return self.other.decide(snapshot)


def slow(plane: ControlPlane) -> HeldPolicy:
    """Let each decision count as slow, and return the policy, which can be held."""
    policy = HeldPolicy(plane._loop.policy)
    policy.go.set()
    plane._recorder.long = -1.0
    plane._loop.policy = policy
    while not plane._recorder.slow:
        submit(plane, job("first"))
    return policy


def test_a_submission_does_not_wait_for_the_decision_on_it(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        policy = slow(plane)
        soon(lambda: not plane.backend.pending)
        policy.go.clear()
        asked = policy.asked
        (id,) = submit(plane, job("early", key="k"))
        soon(lambda: policy.asked > asked)
        assert [row.id for row in plane.jobs("ann", only=JobFilter(match=id))] == [id]
        assert plane._last is not None
        assert plane._last.snapshot.position_of(plane.accounts.numbers[id]) < 0
        policy.go.set()
        soon(lambda: state(plane, id) == "starting")
    with opened(tmp_path) as plane:
        assert id in [row.id for row in plane.jobs(None)]
    assert replay_file(tmp_path / "home")[0].decisions > 0


def test_a_submission_cuts_a_long_rest_short_where_decisions_are_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = [0.0]
    monkeypatch.setattr(control_plane, "pause_after", lambda _: rest[0])
    with opened(tmp_path) as plane:
        slow(plane)
        rest[0] = 1000.0
        for _ in range(3):  # each but the first comes during the rest after the one before
            submit(plane, job("early"))


def test_where_decisions_are_quick_a_job_has_its_verdict_when_it_is_acknowledged(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        for _ in range(6):
            (id,) = submit(plane, job())
            assert plane.job(id, None).job.reason
            assert plane._last is not None
            assert plane._last.snapshot.position_of(plane.accounts.numbers[id]) >= 0
