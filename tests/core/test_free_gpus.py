"""Free GPUs: the counts, the bit sets and the totals never disagree, whatever is taken, given, closed and opened."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shoal.core.free_gpus import FreeGpus, FrozenFreeGpus
from shoal.core.topology import Placement, Topology, parse_cluster
from shoal.testing import strategies


def check_consistent(room: FrozenFreeGpus, cluster: Topology) -> None:
    """The three ways of telling what is free agree; a node in no set is closed."""
    for k, sets in enumerate(room.sets):
        members = [0] * len(cluster.nodes)
        for free, nodes in enumerate(sets):
            for node in range(len(cluster.nodes)):
                if nodes >> node & 1:
                    members[node] += 1
                    assert cluster.node_kind[node] == k
                    assert room.node_free[node] == free
        assert all(count <= 1 for count in members)
        assert room.free[k] == sum(f for f, kind in zip(room.node_free, cluster.node_kind, strict=True) if kind == k)
        free_here = [f for f, kind in zip(room.node_free, cluster.node_kind, strict=True) if kind == k]
        assert room.largest_block(k) == max(free_here)


@dataclass
class Ledger:
    """The same, kept in the plainest way: who sits where, and which nodes are closed."""

    cluster: Topology
    seats: list[Placement] = field(default_factory=list)
    closed: set[int] = field(default_factory=set)

    def free(self, node: int) -> int:
        if node in self.closed:
            return 0
        taken = sum(count for placement in self.seats for at, count in placement.seats if at == node)
        return self.cluster.nodes[node].gpus - taken


class RoomMachine(RuleBasedStateMachine):
    """Takes, gives, closes and opens in any order, beside a ledger."""

    @initialize(cluster=strategies.clusters())
    def begin(self, cluster: Topology) -> None:
        self.ledger = Ledger(cluster)
        self.room = FreeGpus.of(cluster)

    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        kind = data.draw(st.integers(0, len(self.ledger.cluster.kinds) - 1))
        nodes = [n for n, k in enumerate(self.ledger.cluster.node_kind) if k == kind and self.ledger.free(n)]
        if nodes:
            chosen = sorted(data.draw(st.sets(st.sampled_from(nodes), min_size=1)))
            seats = tuple((n, data.draw(st.integers(1, self.ledger.free(n)))) for n in chosen)
            self.room.take(Placement(seats))
            self.ledger.seats.append(Placement(seats))

    @precondition(lambda self: self.ledger.seats)
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        placement = self.ledger.seats.pop(data.draw(st.integers(0, len(self.ledger.seats) - 1)))
        self.room.give(placement)

    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        node = data.draw(st.integers(0, len(self.ledger.cluster.nodes) - 1))
        self.room.close(node)
        self.ledger.closed.add(node)

    @rule(data=st.data())
    def open(self, data: st.DataObject) -> None:
        node = data.draw(st.integers(0, len(self.ledger.cluster.nodes) - 1))
        self.room.open(node)
        self.ledger.closed.discard(node)

    @invariant()
    def agrees(self) -> None:
        frozen = self.room.freeze()
        assert list(frozen.node_free) == [self.ledger.free(n) for n in range(len(self.ledger.cluster.nodes))]
        check_consistent(frozen, self.ledger.cluster)


TestRoomMachine = RoomMachine.TestCase


@given(strategies.clusters(), st.data())
def test_taking_and_giving_back_leaves_the_room_as_it_was(cluster: Topology, data: st.DataObject) -> None:
    room = FreeGpus.of(cluster)
    before = room.freeze()
    node = data.draw(st.integers(0, len(cluster.nodes) - 1))
    placement = Placement(((node, data.draw(st.integers(1, cluster.nodes[node].gpus))),))
    room.take(placement)
    assert room.freeze() != before
    room.give(placement)
    assert room.freeze() == before


def test_planning_on_a_thawed_room_changes_nothing_but_the_plan() -> None:
    room = FreeGpus.of(parse_cluster("gpu:2x4")).freeze()
    plan = room.thaw()
    plan.take(Placement(((0, 3),)))
    assert (list(room.node_free), room.free) == ([4, 4], (8,))
    assert (list(plan.node_free), plan.free) == ([1, 4], [5])


def test_a_cluster_that_begins_with_a_node_down_has_no_room_there() -> None:
    room = FreeGpus.of(parse_cluster("gpu:2x4").without(1))
    assert (list(room.node_free), room.free) == ([4, 0], [4])
    room.open(1)
    assert (list(room.node_free), room.free) == ([4, 4], [8])


def test_seats_given_back_on_a_closed_node_come_free_when_it_opens() -> None:
    room = FreeGpus.of(parse_cluster("gpu:1x4"))
    room.take(Placement(((0, 3),)))
    room.close(0)
    room.give(Placement(((0, 3),)))
    assert room.free == [0]
    room.open(0)
    assert room.free == [4]


def test_a_plan_made_while_a_lost_node_still_seats_a_job_never_offers_those_seats() -> None:
    # A live cluster may hear that a node is lost before it hears that the job on it died.
    room = FreeGpus.of(parse_cluster("gpu:2x4"))
    held = Placement(((0, 2), (1, 1)))
    room.take(held)
    room.close(0)
    plan = room.freeze().thaw()
    plan.give(held)
    assert list(plan.node_free) == [0, 4]
    plan.take(held)
    assert list(plan.node_free) == [0, 3]


def test_nodes_that_join_show_in_the_next_frozen_copy_and_not_in_the_one_before() -> None:
    room = FreeGpus.of(parse_cluster("gpu:1x4"))
    before = room.freeze()
    room.add_nodes(parse_cluster("gpu:2x4"))
    assert (len(before.node_free), before.closed) == (1, frozenset())
    assert (len(room.freeze().node_free), room.freeze().closed) == (2, frozenset({1}))
