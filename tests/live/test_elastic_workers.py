"""The workers of a job that is resized in place: who stays, who comes, who is told of whom."""

import pytest

from shoal.core.topology import Placement
from shoal.live.elastic_workers import ElasticWorkers
from shoal.wire.messages import RankExit, Roster, RunReport, SessionReport

TWO_NODES = Placement(((0, 2), (1, 1)))


def founded() -> ElasticWorkers:
    """Workers 0 and 1 on node 0, worker 2 on node 1."""
    it = ElasticWorkers(1)
    it.add(1, TWO_NODES.seats)
    it.set_members(it.workers)
    return it


def grown() -> ElasticWorkers:
    """The same, with worker 3 on node 2, which was named and is not known to have trained yet."""
    it = founded()
    it.add(2, ((2, 1),))
    it.admit(2)
    return it


def said(*exits: RankExit, incarnation: int = 1, generation: int | None = None) -> RunReport:
    session = None if generation is None else SessionReport(generation=generation)
    return RunReport(job=0, incarnation=incarnation, phase="running", exits=list(exits), session=session)


KEPT = {
    "more seats keep everybody": (founded(), ((0, 2), (1, 2)), (0, 1, 2), ((1, 1),)),
    "fewer seats keep those who are first": (founded(), ((0, 1), (1, 1)), (0, 2), ()),
    "other seats keep nobody": (founded(), ((2, 3),), (), ((2, 3),)),
    "one who has just come is kept beside one who trains": (grown(), ((0, 1), (2, 1)), (0, 3), ()),
    "one who has just come is not kept alone": (grown(), ((2, 1),), (), ((2, 1),)),
}


@pytest.mark.parametrize(("it", "seats", "kept", "lacking"), KEPT.values(), ids=KEPT.keys())
def test_which_workers_stay_on_other_seats(
    it: ElasticWorkers, seats: tuple[tuple[int, int], ...], kept: tuple[int, ...], lacking: tuple[tuple[int, int], ...]
) -> None:
    assert it.members_on(Placement(seats)) == kept
    assert it.free_seats(Placement(seats), kept) == lacking


def test_a_new_worker_can_go_on_alone_only_once_it_is_known_to_train() -> None:
    it = grown()
    it.update(1, 0, said(RankExit(0, 1), RankExit(1, 1)))
    it.update(1, 1, said(RankExit(2, -9)))
    assert (it.drop_failed(), it.broken) == (False, True)
    it = grown()
    it.update(1, 0, said(RankExit(0, 1), RankExit(1, 1), generation=2))
    it.update(1, 1, said(RankExit(2, -9)))
    assert (it.drop_failed(), it.broken, it.members, it.generation) == (True, False, (3,), 3)


def test_newcomers_get_no_roster_before_they_are_members_and_a_number_is_given_once() -> None:
    it = founded()
    it.add(2, ((1, 1),))
    assert it.roster(2, 1, keeps_store=False).generation == 0
    it.set_members((0, 2))
    it.admit(2)
    assert it.roster(2, 1, keeps_store=False).members == [0, 2, 3]
    it.add(3, ((0, 1),))
    assert [number for number, _ in it.on(3, 0)] == [4]


def test_it_is_finished_when_all_that_were_to_train_left_unwarned() -> None:
    it = founded()
    it.set_members((0, 2))
    it.update(1, 0, said(RankExit(0, 0), RankExit(1, 0)))
    assert not it.finished
    it.update(1, 1, said(RankExit(2, 0, warned=True)))
    assert not it.finished
    it = founded()
    it.set_members((0,))
    it.update(1, 0, said(RankExit(0, 0)))
    assert it.finished


def test_a_warned_worker_that_ends_badly_has_not_died_of_itself() -> None:
    it = founded()
    it.update(1, 1, said(RankExit(2, -15, warned=True)))
    assert (it.drop_failed(), it.broken, it.members_on(TWO_NODES)) == (False, False, (0, 1))


def test_what_an_earlier_control_plane_ordered_is_taken_up() -> None:
    it = founded()
    told = founded().roster(1, 0, keeps_store=True)
    newer = RunReport(job=0, incarnation=1, phase="running", roster=type(told)(origin=1, generation=4, members=[1, 2]))
    it.update(1, 0, newer)
    assert (it.generation, it.members) == (4, (1, 2))


def test_orders_are_counted_and_the_same_one_again_is_none() -> None:
    it = founded()
    assert (it.generation, it.members, it.set_members((0, 1, 2))) == (1, (0, 1, 2), False)
    assert (it.set_members((0, 2)), it.generation, it.members) == (True, 2, (0, 2))
    assert [worker.joined for worker in it.workers.values()] == [1, 1, 1]
    assert it.places == [(0, 1, 0), (1, 1, 2)]


def test_a_worker_that_ended_before_all_were_up_does_not_join() -> None:
    it = founded()
    it.add(2, ((1, 2),))
    it.update(2, 1, said(RankExit(3, 0), incarnation=2))
    assert len(it.newcomers(2)) == 2
    it.admit(2)
    assert (it.members, len(it.newcomers(2))) == ((0, 1, 2, 4), 1)


def test_the_first_exit_of_a_worker_counts_and_only_those_of_its_own_run() -> None:
    it = founded()
    it.update(1, 0, said(RankExit(0, 1), RankExit(2, 1)))
    it.update(1, 0, said(RankExit(0, 0)))
    assert [worker.exit and worker.exit.status for worker in it.workers.values()] == [1, None, None]
    assert (it.workers[0].failed, it.workers[0].finished) == (True, False)


def test_a_node_is_needed_for_members_and_newcomers_that_are_alive() -> None:
    it = founded()
    it.add(2, ((2, 1),))
    assert [it.needs(*at) for at in ((1, 0), (1, 1), (1, 2), (2, 2))] == [True, True, False, True]
    it.set_members((0, 1))
    assert [it.needs(*at) for at in ((1, 0), (1, 1))] == [True, False]
    it.update(2, 2, said(RankExit(3, 0), incarnation=2))
    assert not it.needs(2, 2)


def test_generations_beyond_the_last_order_are_not_believed() -> None:
    it = grown()
    it.set_members((3,))
    it.update(2, 2, said(incarnation=2, generation=99))
    assert it.members_on(Placement(((2, 1),))) == (3,)
    it = grown()
    it.update(1, 0, said(generation=1))
    assert it.members_on(Placement(((2, 1),))) == ()


@pytest.mark.parametrize(("generation", "members"), [(1, [1]), (4, [1, 9])])
def test_a_roster_that_is_old_or_names_unknown_workers_is_not_taken_up(generation: int, members: list[int]) -> None:
    it = founded()
    it.update(1, 0, RunReport(job=0, incarnation=1, phase="running", roster=Roster(
        origin=1, generation=generation, members=members
    )))  # fmt: skip
    assert (it.generation, it.members) == (1, (0, 1, 2))


def test_a_roster_has_the_members_and_their_generation() -> None:
    it = founded()
    assert it.roster(1, 0, keeps_store=True) == Roster(origin=1, keeps_store=True, generation=1, members=[0, 1, 2])
    assert it.roster(1, 5, keeps_store=False) == Roster(origin=1)


def test_it_is_not_broken_while_a_member_that_trained_is_alive() -> None:
    it = grown()
    it.update(1, 0, said(RankExit(0, 1)))
    assert not it.broken
    it.update(1, 0, said(RankExit(1, 0, warned=True)))
    it.update(1, 1, said(RankExit(2, 0)))
    assert it.broken
