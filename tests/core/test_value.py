"""Values of the ring: which of them the garbage collector visits."""

import gc

from shoal.core.commands import Start
from shoal.core.decision import Decision, Grant
from shoal.core.topology import Placement


def test_the_collector_visits_decisions_which_may_hold_a_policys_objects_but_no_other_values() -> None:
    seats = Placement(((0, 1),))
    assert gc.is_tracked(Decision({"a": Grant(1)}))
    assert not any(map(gc.is_tracked, (Grant(1), seats, Start(0, 1, seats))))
