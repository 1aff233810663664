"""Suspended runs as values: each change gives a new value, compared whole."""

from shoal.core.suspension import NO_SUSPENSIONS, NodeSuspension, SuspendedRun, Suspensions
from shoal.core.topology import Placement

ON_ZERO = SuspendedRun(Placement(((0, 2),)), 10.0, 300)
ON_ONE = SuspendedRun(Placement(((1, 1),)), 20.0)
BOTH = Suspensions({0: NodeSuspension(1000, 2)}, {7: ON_ZERO, 8: ON_ONE}, {7: 300})


def test_each_change_changes_its_own_job_or_node_alone() -> None:
    nodes = {0: NodeSuspension(1000, 2)}
    assert NO_SUSPENSIONS.able(0, NodeSuspension(1000, 2)).suspended(7, ON_ZERO).suspended(8, ON_ONE) == BOTH
    assert BOTH.able(0, None) == Suspensions({}, BOTH.runs, BOTH.sizes)
    assert BOTH.resumed(7) == Suspensions(nodes, {8: ON_ONE}, {7: 300})
    assert BOTH.refuse(8, "no memory") == Suspensions(nodes, {7: ON_ZERO}, {7: 300}, {8: "no memory"})
    assert BOTH.refuse(8, "no memory").forget(8) == Suspensions(nodes, {7: ON_ZERO}, {7: 300})
    assert BOTH.forget(7) == Suspensions(nodes, {8: ON_ONE})


def test_a_change_that_changes_nothing_gives_the_same_value() -> None:
    assert BOTH.resumed(9) is BOTH
    assert BOTH.forget(9) is BOTH
    assert BOTH.holding(()) is BOTH


def test_suspended_jobs_that_a_person_holds_are_marked_and_no_others() -> None:
    held = BOTH.holding((8, 9))
    assert held.held == {8}
    assert held.holding((8,)) is held
    assert held.holding(()) == BOTH


def test_the_memory_of_suspended_runs_is_not_free() -> None:
    assert [BOTH.free_memory(node) for node in (0, 1)] == [700, 0]


def test_a_run_can_be_suspended_on_one_able_node_with_few_enough_gpus_unless_it_was_refused() -> None:
    free = BOTH.able(1, NodeSuspension(10))
    seats = {((0, 2),): True, ((0, 3),): False, ((1, 8),): True, ((2, 1),): False, ((0, 1), (1, 1)): False}
    assert {place: free.accepts(7, Placement(place)) for place in seats} == seats
    assert not free.refuse(7, "no memory").accepts(7, Placement(((0, 2),)))
