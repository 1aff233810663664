"""One incarnation on its nodes: what follows from what the nodes say."""

import pytest

from shoal.core.batch_limits import BatchLimits
from shoal.core.job import BatchSetting, Launch
from shoal.core.topology import Node, Placement
from shoal.live.elastic_workers import ElasticWorkers
from shoal.live.gang import End, Gang, NodePhase
from shoal.live.rate_tracker import RateTracker
from shoal.wire.messages import RankExit, Roster, RunReport, SessionReport

NODES = (Node("n0", "gpu", 2), Node("n1", "gpu", 2))
TWO_NODES = Placement(((0, 2), (1, 1)))
ONE_NODE = Placement(((0, 2),))


def gang(placement: Placement = TWO_NODES, ranks: str = "gpu", *, resumed: bool = False, started: bool = False) -> Gang:
    launch = Launch("job", ("train",), ranks=ranks)
    return Gang(0, 1, "job-a", launch, placement, None, RateTracker(1.0), resumed=resumed, started=started)


def said(
    phase: str, *statuses: int, cause: str = "", blameless: bool = False, first: int = 0, warned: bool = False
) -> RunReport:
    exits = [RankExit(first + rank, status, warned) for rank, status in enumerate(statuses)]
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


CALLED_OFF = "its ranks were stopped, or never started, by order of a control plane that has died since"
EARLY = "its ranks on node {} were stopped, or not all of them were reported to have ended"
ENDS = {
    "nothing is known yet": ([], None),
    "every rank left with status 0": ([(0, said("ended", 0, 0)), (1, said("ended", 0, first=2))], (End.COMPLETED, "")),
    "a rank of another node was reported in place of one": (
        [(0, said("ended", 0, 0)), (1, said("ended", 0))],
        (End.LOST, EARLY.format("n1")),
    ),
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
    "ranks that saved and left with status 0 after a warning": (
        [(0, said("ended", 0, 0, warned=True)), (1, said("ended", 0, first=2))],
        (End.LOST, EARLY.format("n0")),
    ),
    "ranks that a warning killed": ([(1, said("ended", -15, warned=True, first=2))], (End.LOST, EARLY.format("n1"))),
    "the exit status of one rank is missing": (
        [(0, said("ended", 0)), (1, said("ended", 0, first=2))],
        (End.LOST, EARLY.format("n0")),
    ),
}


@pytest.mark.parametrize(("reports", "end"), ENDS.values(), ids=ENDS.keys())
def test_how_a_gang_ends(reports: list[tuple[int, RunReport]], end: tuple[End, str] | None) -> None:
    assert end_of(after(gang(), *reports)) == end


_LEASE = "its lease ended"


@pytest.mark.parametrize("stopping", [False, True], ids=["", "stop queued"])
@pytest.mark.parametrize("cause", ["", _LEASE, "its keeper died"])
@pytest.mark.parametrize("warned", [False, True], ids=["", "warned"])
@pytest.mark.parametrize("statuses", [(), (0,), (0, 0), (0, 3), (-15, 0)], ids=str)
def test_a_run_completed_only_if_every_rank_left_unwarned_with_status_0_and_no_cause(
    statuses: tuple[int, ...], *, warned: bool, cause: str, stopping: bool
) -> None:
    it = gang(ONE_NODE)
    it.stopping = stopping
    exits = [RankExit(rank, status, warned) for rank, status in enumerate(statuses)]
    blameless = bool(cause)
    it.update(0, RunReport(job=0, incarnation=1, phase="ended", exits=exits, cause=cause, blameless=blameless))
    completed = statuses == (0, 0) and not warned and not cause
    outcome = it.outcome(NODES)
    assert outcome is not None
    if completed:
        assert outcome.end is End.COMPLETED
    elif stopping:
        assert outcome.end is End.STOPPED
    else:
        assert outcome.end in (End.CRASHED, End.LOST)
        assert outcome.cause
        assert (outcome.end is End.CRASHED) == (not cause and not warned and any(statuses))


def test_a_lost_node_ends_it_without_blame() -> None:
    it = after(gang(), (0, said("running")), (1, said("running")))
    it.lose(1)
    assert end_of(it) == (End.LOST, "node n1 was lost")


def test_a_run_ordered_to_stop_has_stopped_once_no_process_is_left_whatever_the_status() -> None:
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


def test_only_the_head_node_tells_progress_and_what_it_does_not_tell_is_kept() -> None:
    it = gang()
    it.update(1, RunReport(job=0, incarnation=1, phase="running", done=5.0, saved=5.0))
    assert (it.done, it.saved, it.progress) == (None, None, 0.0)
    session = SessionReport(rate=1.0)
    it.update(0, RunReport(job=0, incarnation=1, phase="running", done=5.0, saved=4.0, session=session))
    it.update(0, RunReport(job=0, incarnation=1, phase="running"))
    assert (it.done, it.saved, it.session, it.progress) == (5.0, 4.0, session, 5.0)
    it.update(0, RunReport(job=0, incarnation=1, phase="running", done=3.0, saved=2.0))
    assert (it.done, it.saved) == (3.0, 2.0)


@pytest.mark.parametrize("figure", [-1.0, 1e19, float("inf"), float("nan")])
def test_progress_that_cannot_be_true_is_ignored(figure: float) -> None:
    for it in (gang(ONE_NODE), elastic()):
        it.update(0, RunReport(job=0, incarnation=1, phase="running", done=5.0, saved=4.0))
        it.update(0, RunReport(job=0, incarnation=1, phase="running", done=figure, saved=figure))
        assert (it.done, it.saved) == (5.0, 4.0)


def test_ranks_that_were_called_off_before_they_started_end_it_without_blame() -> None:
    assert end_of(after(gang(), (1, said("ended")))) == (
        End.LOST,
        CALLED_OFF,
    )


def test_a_run_that_completed_before_the_stop_reached_it_has_completed() -> None:
    it = after(gang(), (0, said("running")), (1, said("running")))
    it.stopping = True
    for node, ranks in ((0, (0, 1)), (1, (2,))):
        exits = [RankExit(rank, 0) for rank in ranks]
        it.update(node, RunReport(job=0, incarnation=1, phase="ended", exits=exits, finished=True))
    assert end_of(it) == (End.COMPLETED, "")
    it.end_reported = True
    assert end_of(it) is None


def test_a_node_that_is_lost_stays_so_and_one_that_ended_before_is_not_lost() -> None:
    it = after(gang(), (0, said("ended", 0, 0)))
    it.lose(0)
    it.lose(1)
    it.update(1, said("running"))
    assert [part.phase for part in it.parts.values()] == [NodePhase.ENDED, NodePhase.LOST]
    assert ([it.lost(node) for node in (0, 1)], it.over, it.up) == ([False, True], True, False)
    assert (it.order(1, "a"), it.order(0, "a") is None) == (None, False)


def test_it_is_up_when_every_node_runs_or_has_run_it() -> None:
    assert not after(gang(), (0, said("running")), (1, said("ready"))).up
    assert after(gang(), (0, said("running")), (1, said("ended", 0))).up


@pytest.mark.parametrize(
    ("statuses", "killed", "cause"),
    [
        ((0, 7), False, "rank 1 on n0 exited with status 7"),
        ((-6, 0), True, "rank 0 on n0 ended by signal 6 (it aborted)"),
        ((0, -11), True, "rank 1 on n0 ended by signal 11 (it broke memory protection)"),
        ((-15, 0), True, "rank 0 on n0 ended by signal 15 (it was terminated)"),
        ((-31, -9), True, "rank 0 on n0 ended by signal 31"),
    ],
)
def test_how_a_rank_failed(statuses: tuple[int, ...], killed: bool, cause: str) -> None:
    it = after(gang(), (0, said("ended", *statuses)))
    assert (it.killed, end_of(it)) == (killed, (End.CRASHED, cause))


def test_a_stopped_gang_may_not_go() -> None:
    it = after(gang(), (0, said("ready")), (1, said("ready")))
    it.stopping = True
    assert not it.may_go(alone=True)
    assert not after(gang(ONE_NODE), (0, said("running"))).may_go(alone=True)


def test_an_order_says_everything_about_the_run() -> None:
    it = gang()
    it.work, it.batch, it.limits, it.partner = 9.0, BatchSetting(64), BatchLimits(64, 128, 1, 8), 7
    it.update(0, RunReport(job=0, incarnation=1, phase="ready", port=1234))
    order = it.order(1, "10.0.0.1")
    assert order is not None
    assert (order.phase, order.id, order.command, order.master, order.port) == (
        "prepare",
        "job-a",
        ["train"],
        "10.0.0.1",
        1234,
    )
    assert (order.work, order.batch, order.limits, order.shared_with, order.nodes, order.ranks) == (
        9.0,
        BatchSetting(64),
        BatchLimits(64, 128, 1, 8),
        7,
        2,
        "gpu",
    )
    it.going = True
    assert [order.phase for node in (0, 1) if (order := it.order(node, ""))] == ["go", "go"]
    it.stopping = True
    assert [order.phase for node in (0, 1) if (order := it.order(node, ""))] == ["stop", "stop"]
    assert (it.head, it.nodes, it.latest) == (0, {0, 1}, it)


# ── jobs that are resized in place ────────────────────────────────────────────────────────────────────────────────

IN_PLACE = Launch("job", ("python",), in_place=True)


def elastic(*, resumed: bool = False) -> Gang:
    """Workers 0 and 1 on node 0 and worker 2 on node 1, all up."""
    workers = ElasticWorkers(1)
    workers.add(1, TWO_NODES.seats)
    workers.set_members(workers.workers)
    it = Gang(0, 1, "job-a", IN_PLACE, TWO_NODES, None, RateTracker(1.0), workers=workers, resumed=resumed)
    it.started = True
    return after(it, (0, said("running")), (1, said("running")))


def joined(first: Gang, node: int = 1) -> Gang:
    """Worker 3 on a node, which joins the others."""
    assert first.workers is not None
    first.workers.add(2, ((node, 1),))
    placement = Placement(((0, 2), (1, 2)))
    tracker = RateTracker(1.0)
    first.end_reported = True
    return Gang(
        0, 2, "job-a", IN_PLACE, placement, None, tracker, workers=first.workers, chain=first.chain,
        own_seats=((node, 1),),
    )  # fmt: skip


def exits(*ended: RankExit, phase: str = "running", cause: str = "", blameless: bool = False) -> RunReport:
    return RunReport(
        job=0,
        incarnation=1,
        phase=phase,  # type: ignore[arg-type]
        exits=list(ended),
        cause=cause,
        blameless=blameless,
    )


ELASTIC_ENDS = {
    "while all train it goes on": ([], None),
    "a rank that fails is no end while others train": ([(1, exits(RankExit(2, 1)))], None),
    "when none is left that trains it has crashed": (
        [(0, exits(RankExit(0, 1), RankExit(1, -9))), (1, exits(RankExit(2, 1)))],
        (End.CRASHED, "rank 0 on n0 exited with status 1"),
    ),
    "all left by themselves": (
        [(0, exits(RankExit(0, 0), RankExit(1, 0), phase="ended")), (1, exits(RankExit(2, 0), phase="ended"))],
        (End.COMPLETED, ""),
    ),
    "a node that ends it for a reason of the job": (
        [(1, exits(phase="ended", cause="no such program"))],
        (End.CRASHED, "no such program"),
    ),
    "a node that ends it for a reason of its own": (
        [(1, exits(phase="ended", cause="its lease ended", blameless=True))],
        (End.LOST, "its lease ended"),
    ),
    "a node that ended with workers that were needed": ([(1, exits(phase="ended"))], (End.LOST, CALLED_OFF)),
    "a node that ended after its workers had": ([(1, exits(RankExit(2, 0), phase="ended"))], None),
}


@pytest.mark.parametrize(("reports", "end"), ELASTIC_ENDS.values(), ids=ELASTIC_ENDS.keys())
def test_how_a_job_that_is_resized_in_place_ends(
    reports: list[tuple[int, RunReport]], end: tuple[End, str] | None
) -> None:
    assert end_of(after(elastic(), *reports)) == end


def test_a_lost_node_ends_it_only_where_a_worker_or_the_store_is_needed() -> None:
    it = elastic()
    it.lose(1)
    assert end_of(it) == (End.LOST, "node n1 was lost")
    it = after(elastic(), (1, exits(RankExit(2, 0))))
    it.lose(1)
    assert end_of(it) is None
    it = after(elastic(), (0, exits(RankExit(0, 0), RankExit(1, 0))))
    it.lose(0)
    assert end_of(it) == (End.LOST, "node n0 was lost")


def test_the_latest_of_a_chain_speaks_for_all_and_a_newcomer_that_fails_ends_it() -> None:
    first = elastic()
    it = joined(first)
    assert (first.latest, it.head, it.nodes, list(it.parts), it.own_seats) == (it, 0, {0, 1}, [1], ((1, 1),))
    first.update(0, RunReport(job=0, incarnation=1, phase="running", done=5.0, saved=4.0))
    first.update(1, RunReport(job=0, incarnation=1, phase="running", done=3.0, saved=2.0))
    assert (it.done, it.saved, first.done) == (5.0, 4.0, None)
    it.update(1, exits(RankExit(3, 1)))
    assert end_of(it) == (End.CRASHED, "rank 3 on n1 exited with status 1")
    assert end_of(first) is None


def test_a_stopped_chain_is_over_when_nothing_of_any_of_its_gangs_is_left() -> None:
    first = elastic()
    it = joined(first)
    it.stopping = True
    it.update(1, exits(phase="ended"))
    assert (it.over, first.over, end_of(it)) == (False, False, None)
    for node in (0, 1):
        first.update(node, exits(phase="ended"))
    assert (it.over, end_of(it)) == (True, (End.STOPPED, ""))


def test_a_gang_whose_ranks_were_called_off_does_not_end_its_chain() -> None:
    first = elastic()
    second = joined(first)
    assert second.workers is not None
    second.workers.add(3, ((1, 1),))
    third = Gang(
        0, 3, "job-a", IN_PLACE, TWO_NODES, None, RateTracker(1.0), workers=first.workers, chain=first.chain,
        own_seats=((1, 1),),
    )  # fmt: skip
    second.lose(1)
    assert end_of(third) == (End.LOST, "node n1 was lost")
    second.stopping = True
    assert end_of(third) is None


def test_the_workers_that_can_stay_are_those_of_a_gang_that_is_up_and_goes_on() -> None:
    seats = Placement(((0, 1), (1, 1)))
    assert elastic().workers_to_keep(seats) == (0, 2)
    assert gang().workers_to_keep(seats) == ()
    for name in ("stopping", "end_reported"):
        it = elastic()
        setattr(it, name, True)
        assert it.workers_to_keep(seats) == ()
    it = elastic()
    it.started = False
    assert it.workers_to_keep(seats) == ()
    it = elastic()
    it.lose(1)
    assert it.workers_to_keep(seats) == ()


def test_one_from_the_journal_whose_workers_joined_others_is_given_up() -> None:
    lost = "the control plane was away after it was resized in place, or an agent restarted"
    for resumed, end in ((True, (End.LOST, lost)), (False, None)):
        it = elastic(resumed=resumed)
        it.update(0, RunReport(job=0, incarnation=1, phase="running", roster=Roster(origin=1)))
        assert end_of(it) is None
        it.update(0, RunReport(job=0, incarnation=1, phase="running", roster=Roster(origin=7)))
        assert end_of(it) == end


def test_orders_of_a_chain_number_its_own_workers_and_name_the_run_with_the_store() -> None:
    first = elastic()
    orders = [first.order(node, "here") for node in (0, 1)]
    found = [(o.first_rank, o.local_ranks, o.gpus, o.roster.keeps_store) for o in orders if o and o.roster]
    assert found == [(0, 2, 2, True), (2, 1, 1, False)]
    it = joined(first, node=0)
    order = it.order(0, "here")
    assert order is not None
    assert order.roster is not None
    assert (order.first_rank, order.local_ranks, order.gpus, order.roster.keeps_store) == (3, 1, 1, False)
