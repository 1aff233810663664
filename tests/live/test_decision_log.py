"""Every decision has its number, also after a restart; a past one is made again as it was."""

from pathlib import Path

import pytest
from tests.live.test_compaction import compact
from tests.live.test_control_plane import job, obey, opened, soon, state, submit
from tests.refusals import refusal

from shoal.core.decision import Decision, Refusal
from shoal.forecast.past_decision import past_decision
from shoal.live.decision_log import DecisionLog
from shoal.live.home import JOURNAL
from shoal.policy.classic.fifo import Fifo
from shoal.scenario.replay import replay_file


def test_decisions_are_numbered_back_from_the_last_one() -> None:
    log = DecisionLog()
    for at, moves in ((1.0, []), (2.0, [("start", "a", "ann")]), (2.0, []), (5.0, [("stop", "a", "ann")])):
        log.note(at, moves)
    log.number_to(10)
    assert [(each.number, each.at) for each in log.moved()] == [(9, 5.0), (7, 2.0)]
    assert [each.number for each in log.moved(before=9)] == [7]
    assert (log.number_at(2.0), log.number_at(5.0), log.number_at(3.0), log.number_at(9.0)) == (8, 9, None, None)
    assert (log.at(6), log.at(9), log.at(5), log.at(10)) == (1.0, 5.0, None, None)


def test_numbers_set_again_move_on_from_the_last_ones_and_moves_stay() -> None:
    log = DecisionLog()
    log.note(1.0, [("start", "a", "ann")])
    log.number_to(10)
    log.note(2.0, [])
    log.number_to(30)
    assert [(each.number, each.at, each.moves) for each in log.moved()] == [(28, 1.0, (("start", "a", "ann"),))]
    assert (log.count, log.at(28), log.at(29), log.at(27)) == (30, 1.0, 2.0, None)


def test_the_oldest_times_are_dropped_an_eighth_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.live.decision_log._MOST_TIMES", 20)
    log = DecisionLog()
    first_known = []
    for number in range(25):
        log.note(float(number), [])
        first_known.append(next(at for at in range(30) if log.at(at) is not None))
        assert log.at(number) == float(number)
    assert first_known == [0] * 21 + [2, 2, 4, 4]
    assert (log.count, log.number_at(24.0), log.number_at(3.0)) == (25, 24, None)


def test_who_watches_decisions_gets_the_number_the_seconds_and_the_moves_of_each() -> None:
    seen: list[tuple[object, ...]] = []
    log = DecisionLog(watch=lambda *found: seen.append(found))
    log.took = 0.5
    log.note(1.0, [("start", "a", "ann")])
    log.took = 0.25
    log.note(2.0, [])
    assert seen == [(0, 0.5, (("start", "a", "ann"),)), (1, 0.25, ())]


def test_the_moves_kept_are_bounded_however_many_jobs_a_decision_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.live.decision_log._MOST_MOVED", 4)
    monkeypatch.setattr("shoal.live.decision_log._MOST_MOVES", 10)
    log = DecisionLog()

    def kept_after(*moves: int) -> list[tuple[int, int]]:
        for count in moves:
            log.note(float(log.count), [("start", f"job-{n}", "ann") for n in range(count)])
        return [(each.number, len(each.moves)) for each in log.moved()]

    assert kept_after(1, 1, 1, 1, 1) == [(4, 1), (3, 1), (2, 1), (1, 1)], "at most four decisions"
    assert kept_after(6, 3) == [(6, 3), (5, 6), (4, 1)], "at most ten moves"
    assert kept_after(12) == [(7, 12)], "the last decision is kept whole"
    assert kept_after(2) == [(8, 2)]


def test_a_past_decision_is_made_again_from_any_segment_and_shows_a_tenant_its_own_jobs(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        (first,) = submit(plane, job("first", 3), tenant="ann")
        soon(lambda: state(plane, first) == "starting")
        (moved,) = plane.pages.decisions("ann")
        compact(plane)
        (second,) = submit(plane, job("second", 4), tenant="bo")
        soon(lambda: plane.job(second, None).decision.startswith("waits: needs 4"))
        last = plane.cluster().decisions - 1
        assert [move.job for move in moved.moves] == [first]
        assert plane.pages.decisions("bo") == []
        assert plane.pages.decisions(None, job=first)[0] == moved
        seated = next(entry for entry in plane.job(first, "ann").story if entry.what.startswith("seated"))
        assert seated.decision == moved.number
        assert {row.decision for row in plane.pages.seats("ann") if row.job == first} == {moved.number}
        assert {row.decision for row in plane.pages.seats("bo")} == {None}
    journal = tmp_path / "home" / JOURNAL
    began = past_decision(journal, moved.number)
    assert (began.same, began.at, began.granted, began.gpus) == (True, moved.at, 3, 4)
    assert [(row.job, row.state, row.move, row.granted) for row in began.jobs] == [(first, "pending", "start", 3)]
    later = past_decision(journal, last, tenant="bo")
    assert (later.same, later.foreign, later.foreign_gpus) == (True, 1, 3)
    assert [(row.job, row.granted, row.reason[:20]) for row in later.jobs] == [(second, 0, "waits: needs 4 GPUs;")]
    assert first not in str(later)
    assert sum(node.free for node in later.nodes) == 1
    assert past_decision(journal, replay_file(journal.parent)[0].decisions - 1).same
    with refusal("decision: 1000000: has not been made yet"):
        past_decision(journal, 10**6)


def test_a_decision_that_comes_out_differently_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as plane:
        (first,) = submit(plane, job("first", 4))
        soon(lambda: state(plane, first) == "starting")
        (moved,) = plane.pages.decisions(None)
    refuse = lambda _, snapshot: Decision({job: Refusal() for job in snapshot.jobs})  # noqa: E731
    monkeypatch.setattr(Fifo, "decide", refuse)
    found = past_decision(tmp_path / "home" / JOURNAL, moved.number)
    assert not found.same
    assert found.difference == "commands: 1 in the journal, 0 now"


def test_numbers_go_on_after_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        (first,) = submit(plane, job("first"))
        soon(lambda: state(plane, first) == "starting")
        (before,) = plane.pages.decisions(None)
        compact(plane)
        made = plane.cluster().decisions
    with opened(tmp_path) as plane:
        assert plane.accounts.decisions.count >= made
        (second,) = submit(plane, job("second"))
        soon(lambda: state(plane, second) == "starting")
        assert plane.pages.decisions(None)[0].number >= made > before.number
        obey(plane, "gpu-0")
