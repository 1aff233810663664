"""Which runs may be started before their GPUs are free, and which may go on meanwhile."""

import pytest
from tests.live.test_runs import BOTH, ONE, run, running

from shoal.core.commands import Start, Stop
from shoal.core.topology import Placement
from shoal.live.runs import RunRegistry
from shoal.wire.messages import RunOrder, SessionReport


def orders(it: RunRegistry) -> list[RunOrder]:
    return it.orders(0)


def started_again(placement: Placement = ONE, *, gate: bool = True) -> RunRegistry:
    """A job whose trainer library reported this of the gate, and whose second run was ordered."""
    it = running()
    it.report(0, [run("running", session=SessionReport(saves=True, gate=gate), done=1.0)], 5.0)
    it.carry_out(Stop(0, 1), 6.0)
    it.report(0, [run("ended", 0, warned=True), run("ended", 0, 0, warned=True)], 7.0)
    it.carry_out(Start(0, 2, placement), 8.0)
    return it


@pytest.mark.parametrize(("placement", "gate", "held"), [(ONE, True, True), (ONE, False, False), (BOTH, True, False)])
def test_a_job_is_held_at_the_gate_on_one_node_if_its_last_run_could_be(
    placement: Placement, gate: bool, held: bool
) -> None:
    (order,) = [order for order in orders(started_again(placement, gate=gate)) if order.incarnation == 2]
    assert order.gate is held


def test_no_job_is_held_at_its_first_start() -> None:
    it = running()
    assert [order.gate for order in orders(it)] == [False]


def test_a_run_yields_to_the_next_one_if_the_policy_stops_it_but_not_if_a_person_does() -> None:
    it = running()
    it.carry_out(Stop(0, 1), 6.0)
    assert [(order.phase, order.yields) for order in orders(it)] == [("stop", True)]
    it.cancel(0, 7.0)
    assert [(order.phase, order.yields) for order in orders(it)] == [("stop", False)]
    it = running()
    it.requeue(0, 6.0, "ann")
    assert [(order.phase, order.yields) for order in orders(it)] == [("stop", False)]
