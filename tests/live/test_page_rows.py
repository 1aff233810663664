"""Rows that pages show: how tenants fare, figures of training, and which decisions moved which jobs."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.live.test_control_plane import job, opened, soon, state, submit

from shoal.live.control_plane import UnknownJob
from shoal.live.decision_log import DecisionLog, Move
from shoal.live.fairness import fairness_rows
from shoal.live.page_rows import PageRows
from shoal.testing.builders import job as job_of
from shoal.testing.builders import snapshot
from shoal.wire.decision_messages import DecisionMove, DecisionRow


def rows(**parts: Any) -> PageRows:
    given = {"accounts": SimpleNamespace(), "lock": threading.RLock(), "figures": None, "account": None, **parts}
    return PageRows(**given)


def test_before_the_first_decision_nobody_fares_in_any_way() -> None:
    assert rows(views=lambda tenant: SimpleNamespace(last=None)).fairness(None) == []


def test_how_tenants_fare_is_as_of_the_last_decision_and_the_present_time() -> None:
    seen = snapshot([job_of("a", gpus=4, seconds=100, tenant="ann"), job_of("b", tenant="bo")], "gpu:1x4")
    pages = rows(views=lambda tenant: SimpleNamespace(last=SimpleNamespace(snapshot=seen), now=300.0))
    assert pages.fairness(None) == fairness_rows(seen, 300.0, None) != fairness_rows(seen, 0.0, None)
    assert pages.fairness("bo") == fairness_rows(seen, 300.0, "bo")


def test_a_tenant_sees_how_it_fares_itself_and_the_training_of_its_own_jobs(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        (first,) = submit(plane, job("first", 4, work=1000.0), tenant="ann")
        soon(lambda: state(plane, first) == "starting")
        (second,) = submit(plane, job("second", 4, work=1000.0), tenant="bo")
        soon(lambda: len(plane.pages.fairness(None)) == 2)
        assert [(row.tenant, row.jobs, row.held) for row in plane.pages.fairness(None)] == [("ann", 1, 4), ("bo", 1, 0)]
        assert [(row.tenant, row.held) for row in plane.pages.fairness("bo")] == [("bo", 0)]
        assert plane.pages.training(second, "bo") == plane.pages.training(second, None) == []
        with pytest.raises(UnknownJob):
            plane.pages.training(first, "bo")


def decisions(*noted: list[Move]) -> PageRows:
    log = DecisionLog()
    for at, moves in enumerate(noted):
        log.note(float(at), moves)
    return rows(accounts=SimpleNamespace(decisions=log), views=lambda tenant: SimpleNamespace(epoch=1000.0))


def test_decisions_are_listed_with_the_moves_that_a_tenant_may_see_and_the_number_of_all_others() -> None:
    a, b, c = ("start", "a", "ann"), ("stop", "b", "bo"), ("start", "c", "ann")
    pages = decisions([a], [b], [a, b, c], [], [c])
    whole = pages.decisions(None)
    assert [(row.number, row.at, row.foreign, len(row.moves)) for row in whole] == [
        (4, 1004.0, 0, 1), (2, 1002.0, 0, 3), (1, 1001.0, 0, 1), (0, 1000.0, 0, 1)
    ]  # fmt: skip
    assert pages.decisions("bo") == [
        DecisionRow(number=2, at=1002.0, moves=[DecisionMove(*b)], foreign=2),
        DecisionRow(number=1, at=1001.0, moves=[DecisionMove(*b)], foreign=0),
    ]
    assert [row.number for row in pages.decisions("ann", job="a")] == [2, 0]
    assert pages.decisions("bo", job="a") == []
    assert [row.number for row in pages.decisions(None, before=4, limit=2)] == [2, 1]
    assert [row.number for row in pages.decisions(None, job="c", limit=1)] == [4]
    assert len(decisions(*([a] for _ in range(60))).decisions(None)) == 50


def test_the_summary_has_the_version_the_jobs_that_wait_and_the_present_time(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        before = plane.about.epoch + plane.backend.clock.now()
        first, _, _ = (submit(plane, job(name, 4, work=10.0))[0] for name in "abc")
        soon(lambda: state(plane, first) == "starting")
        found = plane.cluster()
        assert (found.version, found.running, found.waiting, found.ended) == (plane.about.version, 1, 2, 0)
        assert before <= found.now <= plane.about.epoch + plane.backend.clock.now()
