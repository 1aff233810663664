"""Gangs onto nodes: nobody moves without need, wide gangs have nodes of their own, and no node is overfull."""

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.solve.node_packing import Packer, Seats

FOUR = {0: 4, 1: 4, 2: 4, 3: 4}


def pack(
    room: dict[int, int], staying: dict[int, Seats], coming: dict[int, int], cost: dict[int, float] | None = None
) -> Packer:
    packer = Packer(room, staying, cost or {})
    packer.seat(coming)
    return packer


def checked(room: dict[int, int], staying: dict[int, Seats], coming: dict[int, int], packing: Packer) -> None:
    """Everyone asked for is seated whole or left out, nodes suffice, and no two spanning gangs meet."""
    assert set(packing.seats) | packing.left == set(staying) | set(coming)
    assert not set(packing.seats) & packing.left
    wanted = coming | {gang: sum(n for _, n in seats) for gang, seats in staying.items()}
    for node, units in room.items():
        here = [(gang, n) for gang, seats in packing.seats.items() for at, n in seats if at == node]
        assert sum(n for _, n in here) <= units
        assert sum(len(packing.seats[gang]) > 1 for gang, _ in here) <= 1
    for gang, seats in packing.seats.items():
        assert sum(n for _, n in seats) == wanted[gang]
        assert seats == staying.get(gang, seats) or gang in packing.moved


def test_a_newcomer_takes_the_tightest_hole() -> None:
    packing = pack(FOUR, {1: ((0, 3),), 2: ((1, 2),)}, {3: 1, 4: 2})
    assert packing.seats == {1: ((0, 3),), 2: ((1, 2),), 3: ((0, 1),), 4: ((1, 2),)}
    assert not packing.moved


def test_a_wide_gang_takes_whole_empty_nodes() -> None:
    packing = pack(FOUR, {1: ((1, 1),)}, {2: 8})
    assert packing.seats[2] == ((0, 4), (2, 4))


def test_for_a_wide_gang_the_cheapest_leave_their_nodes() -> None:
    staying: dict[int, Seats] = {n: ((n, 2),) for n in range(4)}
    packing = pack(FOUR, staying, {9: 8}, {0: 5.0, 1: 1.0, 2: 4.0, 3: 2.0})
    assert packing.moved == {1, 3}
    assert packing.seats[9] == ((1, 4), (3, 4))
    checked(FOUR, staying, {9: 8}, packing)


def test_for_a_narrow_gang_a_node_is_made_free_if_its_guests_fit_elsewhere() -> None:
    staying: dict[int, Seats] = {0: ((0, 3),), 1: ((1, 1),), 2: ((2, 4),), 3: ((3, 4),)}
    packing = pack(FOUR, staying, {9: 4}, {1: 1.0})
    assert packing.moved == {1}
    assert packing.seats[9] == ((1, 4),)


def test_who_names_no_cost_stays_and_who_finds_no_room_is_left_out() -> None:
    staying: dict[int, Seats] = {n: ((n, 1),) for n in range(4)}
    packing = pack(FOUR, staying, {9: 4})
    assert packing.left == {9}
    assert packing.moved == set()


def test_a_wide_gang_sits_on_parts_of_nodes_before_it_is_left_out() -> None:
    staying: dict[int, Seats] = {n: ((n, 1),) for n in range(4)}
    packing = pack(FOUR, staying, {9: 8})
    assert packing.seats[9] == ((0, 3), (1, 3), (2, 2))


def test_two_gangs_that_span_nodes_never_meet_on_one() -> None:
    packing = pack({0: 4, 1: 4, 2: 4}, {}, {1: 6, 2: 6})
    assert len(packing.left) == 1


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_packing_is_whole_within_its_nodes_and_apart(data: st.DataObject) -> None:
    room = dict(enumerate(data.draw(st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=6))))
    first = data.draw(st.lists(st.integers(1, 10), max_size=8))
    staying = dict(pack(room, {}, dict(enumerate(first))).seats)
    kept = {gang: seats for gang, seats in staying.items() if data.draw(st.booleans())}
    coming = {100 + i: n for i, n in enumerate(data.draw(st.lists(st.integers(1, 12), max_size=8)))}
    cost = {gang: 1.0 for gang in kept if data.draw(st.booleans())}
    checked(room, kept, coming, pack(room, kept, coming, cost))
