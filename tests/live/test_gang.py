"""One incarnation on its nodes: what follows from what the nodes say."""

import pytest

from shoal.core.job import Launch
from shoal.core.topology import Node, Placement
from shoal.live.gang import End, Gang, NodePhase
from shoal.live.rate_tracker import RateTracker
from shoal.wire.messages import RankExit, RunReport

NODES = (Node("n0", "gpu", 2), Node("n1", "gpu", 2))
TWO_NODES = Placement(((0, 2), (1, 1)))
ONE_NODE = Placement(((0, 2),))


def gang(placement: Placement = TWO_NODES, ranks: str = "gpu", *, resumed: bool = False, started: bool = False) -> Gang:
    launch = Launch("job", ("train",), ranks=ranks)
    return Gang(0, 1, "job-a", launch, placement, None, RateTracker(1.0), resumed=resumed, started=started)


def said(phase: str, *statuses: int, cause: str = "", blameless: bool = False) -> RunReport:
    exits = [RankExit(rank, status) for rank, status in enumerate(statuses)]
    return RunReport(
        job=0,
        incarnation=1,
        phase=phase,  # type: ignore[arg-type]
        exits=exits,
        cause=cause,
        blameless=blameless,
    )


def after(it: Gang, *reports: tuple[int, RunReport]) -> Gang:
    for node, report in reports:
        it.update(node, report)
    return it


def end_of(it: Gang) -> tuple[End, str] | None:
    outcome = it.outcome(NODES)
    return None if outcome is None else (outcome.end, outcome.cause)


ENDS = {
    "nothing is known yet": ([], None),
    "every rank left with status 0": ([(0, said("ended", 0, 0)), (1, said("ended", 0))], (End.COMPLETED, "")),
    "some ranks are done and others go on": ([(0, said("ended", 0, 0)), (1, said("running"))], None),
    "one rank failed": (
        [(0, said("ended", 0, 3)), (1, said("running"))],
        (End.CRASHED, "rank 1 on n0 exited with status 3"),
    ),
    "one rank was killed": (
        [(0, said("running")), (1, said("ended", -9))],
        (End.CRASHED, "rank 0 on n1 ended by signal 9 (it was killed: out of memory?)"),
    ),
    "one node could not start its ranks": (
        [(1, said("ended", cause="cannot execute 'train': no such file"))],
        (End.CRASHED, "cannot execute 'train': no such file"),
    ),
    "an agent ended it for want of a lease": (
        [(1, said("ended", -15, cause="its lease ran out", blameless=True))],
        (End.LOST, "its lease ran out"),
    ),
}


@pytest.mark.parametrize(("reports", "end"), ENDS.values(), ids=ENDS.keys())
def test_how_a_gang_ends(reports: list[tuple[int, RunReport]], end: tuple[End, str] | None) -> None:
    assert end_of(after(gang(), *reports)) == end


def test_a_lost_node_ends_it_without_blame() -> None:
    it = after(gang(), (0, said("running")), (1, said("running")))
    it.lose(1)
    assert end_of(it) == (End.LOST, "node n1 was lost")


def test_one_that_was_told_to_stop_has_stopped_when_nothing_of_it_is_left_whatever_the_status() -> None:
    it = after(gang(), (0, said("running")), (1, said("running")))
    it.stopping = True
    it.update(0, said("ended", -15, 1))
    assert end_of(it) is None
    it.update(1, said("ended", 0))
    assert end_of(it) == (End.STOPPED, "")


def test_a_late_message_takes_nothing_back() -> None:
    it = after(gang(), (0, said("ended", 0, 0)), (0, said("running")), (1, said("running")), (1, said("ready")))
    assert [part.phase for part in it.parts.values()] == [NodePhase.ENDED, NodePhase.RUNNING]


GOING = {
    "on one node at once": (gang(ONE_NODE), [], True),
    "on two nodes not before both are ready": (gang(), [(0, said("ready"))], False),
    "on two nodes once both are": (gang(), [(0, said("ready")), (1, said("ready"))], True),
    "found in the journal, not before its node has answered": (
        gang(ONE_NODE, resumed=True),
        [],
        False,
    ),
    "found in the journal, once its node is ready": (gang(ONE_NODE, resumed=True), [(0, said("ready"))], True),
}


@pytest.mark.parametrize(("it", "reports", "may"), GOING.values(), ids=GOING.keys())
def test_when_the_ranks_may_start(it: Gang, reports: list[tuple[int, RunReport]], may: bool) -> None:
    assert after(it, *reports).may_go(alone=True) is may
    assert it.may_go(alone=False) is False


RESUMED = {
    "it ran and its node has nothing of it any more": (True, [(0, said("ready"))], True),
    "one node runs and the other has not begun": (False, [(0, said("running")), (1, said("ready"))], True),
    "both nodes run it still": (True, [(0, said("running")), (1, said("running"))], False),
    "one node has not answered yet": (True, [(0, said("running"))], False),
    "nobody had begun": (False, [(0, said("ready")), (1, said("ready"))], False),
}


@pytest.mark.parametrize(("started", "reports", "broken"), RESUMED.values(), ids=RESUMED.keys())
def test_a_gang_found_in_the_journal_is_given_up_where_it_cannot_be_whole(
    started: bool, reports: list[tuple[int, RunReport]], broken: bool
) -> None:
    outcome = after(gang(resumed=True, started=started), *reports).outcome(NODES)
    assert (outcome is not None and outcome.end is End.LOST) is broken


def test_orders_number_the_ranks_through_all_nodes() -> None:
    it = gang()
    first, second = it.order(0, "10.0.0.1"), it.order(1, "10.0.0.1")
    assert first is not None
    assert second is not None
    assert [(o.node_rank, o.first_rank, o.local_ranks, o.world, o.gpus) for o in (first, second)] == [
        (0, 0, 2, 3, 2),
        (1, 2, 1, 3, 1),
    ]
    by_node = [gang(ranks="node").order(node, "10.0.0.1") for node in (0, 1)]
    assert [(o.first_rank, o.local_ranks, o.world) for o in by_node if o] == [(0, 1, 2), (1, 1, 2)]
