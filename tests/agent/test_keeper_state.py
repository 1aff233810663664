"""The decisions of a keeper, without a process."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.keeper_state import KeeperState

Step = Callable[[KeeperState, float], object]

STEPS: dict[str, Step] = {
    "order": lambda state, now: state.stop(now, 5.0, "order"),
    "lease": lambda state, now: state.expire(now + 100.0),
    "agent": lambda state, now: state.orphan(now),
    "start": lambda state, now: state.fail(now, "start"),
    "rank": lambda state, now: state.ended(0, 1, now),
    "ended": lambda state, now: state.ended(1, 0, now),
    "renewed": lambda state, now: state.renew(now + 50.0),
    "released": lambda state, now: state.release(1, now, 3.0),
}


def keeper(**options: bool) -> KeeperState:
    return KeeperState(10.0, 4.0, [0, 1], **options)


@given(st.lists(st.sampled_from(sorted(STEPS)), max_size=8))
def test_the_first_reason_to_stop_stays_and_the_kill_never_moves_back(steps: list[str]) -> None:
    state = keeper()
    now = 0.0
    why, kill_at = "", None
    for step in steps:
        now += 1.0
        STEPS[step](state, now)
        assert not why or state.why == why
        assert kill_at is None or (state.kill_at is not None and state.kill_at <= kill_at)
        why, kill_at = state.why, state.kill_at
    assert bool(state.why) <= state.warned


@pytest.mark.parametrize("why", ["order", "lease", "agent", "start", "rank"])
def test_a_run_whose_ranks_did_not_all_end_by_themselves_has_a_reason(why: str) -> None:
    state = keeper()
    STEPS[why](state, 1.0)
    assert state.why == why


def test_ranks_that_ended_by_themselves_were_not_stopped() -> None:
    state = keeper()
    for rank in (0, 1):
        assert state.ended(rank, 0, 1.0) is False
    assert state.stop(2.0, 4.0, "order") is True
    assert state.why == ""


def test_a_rank_that_should_leave_is_overdue_once_and_not_before_its_time() -> None:
    state = keeper()
    state.release(1, 1.0, 3.0)
    state.release(1, 2.0, 3.0)
    assert state.next_deadline() == 4.0
    assert [state.overdue(now) for now in (3.9, 4.0, 4.1)] == [[], [1], []]


def test_workers_apart_end_alone() -> None:
    assert keeper(apart=True).ended(0, 1, 1.0) is False
    assert keeper().ended(0, 1, 1.0) is True


def test_the_signal_before_the_time_limit_is_due_once_unless_the_ranks_must_leave_before() -> None:
    state = KeeperState(10.0, 4.0, [0, 1], signal_after=3.0)
    assert state.signal_due(5.0) is False, "its ranks are not up yet"
    state.started(1.0)
    assert state.next_deadline() == 4.0
    assert [state.signal_due(now) for now in (3.9, 4.0, 4.1)] == [False, True, False]
    assert state.next_deadline() == 10.0
    stopped = KeeperState(10.0, 4.0, [0, 1], signal_after=3.0)
    stopped.started(1.0)
    stopped.stop(2.0, 4.0, "order")
    assert stopped.signal_due(4.0) is False
