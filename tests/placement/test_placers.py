"""Where jobs sit: few nodes, no needless moves, never more than there is, and exact words when it cannot be."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.commands import Resize, Start, Stop
from shoal.core.decision import Grant, Refusal, Seating, Verdict, Verdicts
from shoal.core.free_gpus import FreeGpus
from shoal.core.interfaces import Placer
from shoal.core.reasons import FRAGMENTED, KEPT_SEATS, NO_KIND, Reason
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Locality, Node, Placement, Topology, parse_cluster, topology_of
from shoal.engine.moves import StopStartPlanner
from shoal.placement import any as any_placer
from shoal.placement import packed, rack
from shoal.placement.any import AnyPlacer
from shoal.placement.packed import PackedPlacer
from shoal.placement.rack import RackPlacer
from shoal.testing import strategies
from shoal.testing.builders import job, snapshot

PLACERS: dict[str, Placer] = {"packed": PackedPlacer(), "any": AnyPlacer(), "rack": RackPlacer()}
every_placer = pytest.mark.parametrize("placer", PLACERS.values(), ids=PLACERS.keys())


def seat(placer: Placer, moment: Snapshot, verdicts: Mapping[str, Verdict]) -> Seating:
    """What a placer makes of verdicts; whoever is not named is refused."""
    return placer.place(moment, Verdicts.of(moment, {name: verdicts.get(name, Refusal()) for name in moment.ids}))


def seats_by_name(moment: Snapshot, seating: Seating) -> dict[str, tuple[tuple[int, int], ...]]:
    return {moment.ids[i]: placement.seats for i, placement in seating.seated.items()}


def room_of(cluster: Topology, free: list[int]) -> FreeGpus:
    """A room with this many GPUs free on each node."""
    room = FreeGpus.of(cluster)
    for node, left in enumerate(free):
        taken = cluster.nodes[node].gpus - left
        if taken:
            room.take(Placement(((node, taken),)))
    return room


# ── counting ──────────────────────────────────────────────────────────────────────────────────────────────────────


@every_placer
def test_no_job_whose_grant_did_not_change_is_moved(placer: Placer) -> None:
    rows = [job("a", gpus=2), job("b", gpus=3)]
    moment = snapshot(rows, "gpu:3x4", held={"a": Placement(((1, 2),)), "b": Placement(((0, 1), (2, 2)))})
    assert seat(placer, moment, {"a": Grant(2), "b": Grant(3)}) == Seating()


@every_placer
def test_refused_jobs_leave_their_seats_and_jobs_without_seats_are_not_listed(placer: Placer) -> None:
    moment = snapshot([job("a", gpus=2), job("b", gpus=3)], "gpu:1x4", held={"a": 2})
    assert seat(placer, moment, {}) == Seating(leaving=(0,))


@every_placer
def test_seats_given_up_in_a_cycle_are_taken_in_the_same_one(placer: Placer) -> None:
    rows = [job("a", gpus=4), job("b", gpus=4)]
    moment = snapshot(rows, "gpu:1x4", held={"a": 4})
    seating = seat(placer, moment, {"b": Grant(4)})
    assert (seating.leaving, seats_by_name(moment, seating)) == ((0,), {"b": ((0, 4),)})


@every_placer
def test_a_running_job_can_be_pinned_to_anothers_seats_and_the_other_to_its(placer: Placer) -> None:
    rows = [job("a", gpus=4), job("b", gpus=4)]
    here, there = Placement(((0, 4),)), Placement(((1, 4),))
    moment = snapshot(rows, "gpu:2x4", held={"a": here, "b": there})
    seating = seat(placer, moment, {"a": Grant(4, placement=there), "b": Grant(4, placement=here)})
    assert (seating.leaving, seating.seated, seating.overruled) == ((), {0: there, 1: here}, {})


@every_placer
def test_pinned_jobs_are_seated_before_jobs_that_take_what_is_left(placer: Placer) -> None:
    rows = [job("free", gpus=3), job("pinned", gpus=2)]
    moment = snapshot(rows, "gpu:2x4")
    seating = seat(placer, moment, {"free": Grant(3), "pinned": Grant(2, placement=Placement(((0, 2),)))})
    assert seating.seated[1] == Placement(((0, 2),))
    assert seating.seated[0].gpus == 3


@every_placer
def test_a_running_job_pinned_to_seats_that_are_taken_keeps_its_own(placer: Placer) -> None:
    rows = [job("a", gpus=2), job("b", gpus=3)]
    moment = snapshot(rows, "gpu:2x4", held={"a": Placement(((0, 2),)), "b": Placement(((1, 3),))})
    seating = seat(placer, moment, {"a": Grant(2, placement=Placement(((1, 2),))), "b": Grant(3)})
    assert (seating.leaving, seating.seated) == ((), {})
    # It holds 2 and 2 could not be seated as asked; 2 and 1 are free on the two nodes.
    assert seating.overruled == {0: Grant(2, reason=Reason(KEPT_SEATS, (2, 2, 3, 2)))}


@every_placer
def test_a_waiting_job_pinned_to_seats_that_are_taken_waits(placer: Placer) -> None:
    rows = [job("a", gpus=2), job("b", gpus=3)]
    moment = snapshot(rows, "gpu:2x4", held={"b": Placement(((1, 3),))})
    seating = seat(placer, moment, {"a": Grant(2, placement=Placement(((1, 2),))), "b": Grant(3)})
    assert isinstance(seating.overruled[0], Refusal)
    assert not seating.seated


@every_placer
def test_shrinking_jobs_give_before_growing_ones_take(placer: Placer) -> None:
    rows = [job("grows", gpus=2, min_gpus=1, max_gpus=8), job("shrinks", gpus=6, min_gpus=1, max_gpus=8)]
    moment = snapshot(rows, "gpu:1x8", held={"grows": 2, "shrinks": 6})
    seating = seat(placer, moment, {"grows": Grant(6), "shrinks": Grant(2)})
    assert seats_by_name(moment, seating) == {"grows": ((0, 6),), "shrinks": ((0, 2),)}
    commands = StopStartPlanner().plan(moment, Verdicts.of(moment, {"grows": Grant(6), "shrinks": Grant(2)}), seating)
    assert [type(c) for c in commands] == [Resize, Resize]


@every_placer
def test_wide_jobs_are_seated_before_narrow_ones(placer: Placer) -> None:
    # In order of arrival the narrow one would break up the only whole node.
    rows = [job("narrow", gpus=1), job("wide", gpus=4)]
    moment = snapshot(rows, "gpu:1x4,gpu:1x1")
    seating = seat(placer, moment, {"narrow": Grant(1), "wide": Grant(4)})
    assert seats_by_name(moment, seating) == {"narrow": ((1, 1),), "wide": ((0, 4),)}


# ── what cannot be seated ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_grant_for_which_no_seats_are_left_is_refused_with_the_numbers() -> None:
    # 3 and 2 are free on two nodes: 5 in all, 3 on one. A gang of 6 cannot sit, whatever was granted.
    rows = [job("a", gpus=1), job("b", gpus=2), job("c", gpus=6)]
    moment = snapshot(rows, "gpu:2x4", held={"a": Placement(((0, 1),)), "b": Placement(((1, 2),))})
    for placer in PLACERS.values():
        seating = seat(placer, moment, {"a": Grant(1), "b": Grant(2), "c": Grant(6)})
        refusal = seating.overruled[2]
        assert refusal == Refusal(Reason(FRAGMENTED, (5, 3, 6)))
        assert refusal.reason.sentence() == "waits: fragmented, 5 GPUs free, largest block 3; needs 6"


def test_a_grant_of_a_kind_that_is_full_is_refused_with_the_numbers_of_that_kind() -> None:
    rows = [job("a", gpus=3), job("b", gpus=2)]
    moment = snapshot(rows, "v100:1x4,k80:1x8", held={"a": Placement(((0, 3),))})
    seating = seat(PackedPlacer(), moment, {"a": Grant(3), "b": Grant(2, kind="v100")})
    assert seating.overruled == {1: Refusal(Reason(FRAGMENTED, (1, 1, 2)))}


def test_a_running_job_that_cannot_grow_keeps_its_seats_and_has_the_reason() -> None:
    rows = [job("a", gpus=2, min_gpus=1, max_gpus=8), job("b", gpus=4)]
    moment = snapshot(rows, "gpu:2x4", held={"a": Placement(((0, 2),)), "b": Placement(((1, 4),))})
    for placer in PLACERS.values():
        seating = seat(placer, moment, {"a": Grant(6), "b": Grant(4)})
        (kept,) = seating.overruled.values()
        assert kept == Grant(2, reason=Reason(KEPT_SEATS, (2, 6, 2, 2)))
        free = "they are not free where it could use them (2 free, at most 2 on one node)"
        assert kept.reason.sentence() == f"keeps its 2 GPUs: it was granted 6, but {free}"
        assert not seating.seated
        assert not seating.leaving


def test_a_job_without_a_usable_kind_is_refused_for_that_and_not_for_fragmentation() -> None:
    rows = [job("a", gpus=1, kinds=("a100",))]
    seating = seat(PackedPlacer(), snapshot(rows, "gpu:2x4"), {"a": Grant(1)})
    assert seating.overruled == {0: Refusal(Reason(NO_KIND, ("gpu",)))}


# ── few nodes ─────────────────────────────────────────────────────────────────────────────────────────────────────


def fewest_by_trying(free: list[int], want: int) -> int | None:
    """The fewest nodes that have the GPUs together, by trying all sets of nodes."""
    for size in range(1, len(free) + 1):
        if any(sum(chosen) >= want for chosen in combinations(free, size)):
            return size
    return None


frees = st.lists(st.integers(0, 8), min_size=1, max_size=6)


@given(frees, st.integers(1, 30))
def test_packed_seats_use_as_few_nodes_as_any_could(free: list[int], want: int) -> None:
    cluster = parse_cluster(f"gpu:{len(free)}x8")
    found = packed.find(cluster, room_of(cluster, free), 0, want, None)
    assert (found and len(found.seats)) == fewest_by_trying(free, want)
    if found is not None:
        assert found.gpus == want
        assert list(found.nodes) == sorted(set(found.nodes))
        assert all(0 < count <= free[node] for node, count in found.seats)


def test_a_small_job_takes_the_tightest_node_and_leaves_whole_ones_whole() -> None:
    cluster = parse_cluster("gpu:3x8")
    assert packed.find(cluster, room_of(cluster, [8, 3, 5]), 0, 3, None) == Placement(((1, 3),))
    assert packed.find(cluster, room_of(cluster, [8, 3, 5]), 0, 4, None) == Placement(((2, 4),))
    assert packed.find(cluster, room_of(cluster, [8, 3, 5]), 0, 10, None) == Placement(((0, 8), (1, 2)))


@given(frees, st.integers(1, 30), st.data())
def test_a_resized_job_keeps_seats_it_has_where_that_costs_no_node(
    free: list[int], want: int, data: st.DataObject
) -> None:
    # `free` includes the seats the job holds: it is asked with them given back.
    cluster = parse_cluster(f"gpu:{len(free)}x8")
    sat_on = [node for node, count in enumerate(free) if count]
    if not sat_on:
        return
    nodes = sorted(data.draw(st.sets(st.sampled_from(sat_on), min_size=1)))
    before = Placement(tuple((n, data.draw(st.integers(1, free[n]))) for n in nodes))
    found = packed.find(cluster, room_of(cluster, free), 0, want, before)
    fewest = fewest_by_trying(free, want)
    assert (found and len(found.seats)) == fewest
    if found is not None and fewest_by_trying([free[n] for n in nodes], want) == fewest:
        assert set(found.nodes) <= set(nodes)


def test_a_job_that_shrinks_stays_on_seats_it_has() -> None:
    cluster = parse_cluster("gpu:3x4")
    before = Placement(((0, 4), (1, 4)))
    for want in range(1, 9):
        found = packed.find(cluster, room_of(cluster, [4, 4, 1]), 0, want, before)
        assert found is not None
        assert set(found.nodes) <= {0, 1}


@given(frees, st.integers(1, 30))
def test_any_never_refuses_when_the_count_is_there(free: list[int], want: int) -> None:
    cluster = parse_cluster(f"gpu:{len(free)}x8")
    found = any_placer.find(cluster, room_of(cluster, free), 0, want, None)
    assert (found is not None) == (sum(free) >= want)
    if found is not None:
        assert found.gpus == want
        assert all(0 < count <= free[node] for node, count in found.seats)


# ── racks ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def in_racks(*racks: str) -> Topology:
    return topology_of([Node(f"n{i}", "gpu", 8, name) for i, name in enumerate(racks)], {})


@given(st.lists(st.tuples(st.integers(0, 8), st.sampled_from("xyz")), min_size=1, max_size=6), st.integers(1, 30))
def test_one_rack_is_preferred_whenever_one_has_the_room(nodes: list[tuple[int, str]], want: int) -> None:
    free, cluster = [count for count, _ in nodes], in_racks(*(name for _, name in nodes))
    found = rack.find(cluster, room_of(cluster, free), 0, want, None)
    by_rack = {name: [count for count, r in nodes if r == name] for _, name in nodes}
    within = [fewest_by_trying(counts, want) for counts in by_rack.values()]
    if any(within):
        assert found is not None
        assert cluster.locality(found) < Locality.CROSS_RACK
        assert len(found.seats) == min(n for n in within if n)
    else:
        assert (found and len(found.seats)) == fewest_by_trying(free, want)


def test_of_two_racks_with_room_the_tighter_one_is_taken() -> None:
    cluster = in_racks("x", "x", "y", "y")
    assert rack.find(cluster, room_of(cluster, [6, 6, 6, 4]), 0, 9, None) == Placement(((2, 6), (3, 3)))


def test_more_nodes_in_one_rack_are_better_than_fewer_across() -> None:
    cluster = in_racks("x", "y", "y", "y")
    assert rack.find(cluster, room_of(cluster, [8, 4, 4, 4]), 0, 12, None) == Placement(((1, 4), (2, 4), (3, 4)))


# ── sharing ───────────────────────────────────────────────────────────────────────────────────────────────────────


@every_placer
def test_two_jobs_that_share_get_the_same_seats(placer: Placer) -> None:
    rows = [job("a", gpus=2), job("b", gpus=2)]
    moment = snapshot(rows, "gpu:1x2")
    seating = seat(placer, moment, {"a": Grant(2, shared_with="b"), "b": Grant(2, shared_with="a")})
    assert seats_by_name(moment, seating) == {"a": ((0, 2),), "b": ((0, 2),)}


@every_placer
@pytest.mark.parametrize("named_by", ["a", "b"])
def test_one_of_two_grants_naming_the_partner_is_enough(placer: Placer, named_by: str) -> None:
    rows = [job("a", gpus=2), job("b", gpus=2)]
    moment = snapshot(rows, "gpu:1x2")
    other = {"a": "b", "b": "a"}[named_by]
    verdicts = Verdicts.of(moment, {named_by: Grant(2, shared_with=other), other: Grant(2)})
    seating = placer.place(moment, verdicts)
    assert seats_by_name(moment, seating) == {"a": ((0, 2),), "b": ((0, 2),)}
    commands = StopStartPlanner().plan(moment, verdicts, seating)
    assert [(c.job, c.partner) for c in commands if isinstance(c, Start)] == [(0, 1), (1, 0)]


@every_placer
def test_a_guest_joins_a_running_host_where_it_sits(placer: Placer) -> None:
    rows = [job("host", gpus=2), job("guest", gpus=2)]
    moment = snapshot(rows, "gpu:2x2", held={"host": Placement(((1, 2),))})
    seating = seat(placer, moment, {"host": Grant(2, shared_with="guest"), "guest": Grant(2, shared_with="host")})
    assert seating.seated[1] == Placement(((1, 2),))
    assert seating.leaving == ()


@every_placer
def test_two_jobs_that_no_longer_share_get_seats_of_their_own(placer: Placer) -> None:
    rows = [job("a", gpus=2), job("b", gpus=2)]
    moment = snapshot(rows, "gpu:2x2", held={"a": Placement(((0, 2),))}, sharing={"b": "a"})
    seating = seat(placer, moment, {"a": Grant(2), "b": Grant(2)})
    after = {**{i: moment.placement(i) for i in (0, 1)}, **seating.seated}
    assert {p.seats for p in after.values() if p is not None} == {((0, 2),), ((1, 2),)}


@every_placer
def test_when_one_of_two_sharing_jobs_leaves_the_other_stays(placer: Placer) -> None:
    rows = [job("a", gpus=2), job("b", gpus=2), job("c", gpus=2)]
    moment = snapshot(rows, "gpu:1x4", held={"a": 2}, sharing={"b": "a"})
    seating = seat(placer, moment, {"b": Grant(2), "c": Grant(2)})
    assert seating.leaving == (0,)
    assert seats_by_name(moment, seating) == {"c": ((0, 2),)}


@every_placer
def test_a_job_that_was_to_share_with_a_refused_job_does_not_get_its_seats(placer: Placer) -> None:
    rows = [job("a", gpus=2), job("b", gpus=2)]
    moment = snapshot(rows, "gpu:1x2", held={"a": 2})
    seating = seat(placer, moment, {"b": Grant(2, shared_with="a")})
    assert seating.leaving == (0,)
    assert isinstance(seating.overruled[1], Refusal)
    assert not seating.seated


# ── whatever is granted ───────────────────────────────────────────────────────────────────────────────────────────


def draw_verdicts(moment: Snapshot, data: st.DataObject) -> Verdicts:
    """Grants within each job's bounds; nothing says that there is room for them, and some share."""
    verdicts: dict[str, Verdict] = {}
    kinds = st.none() | st.sampled_from(moment.cluster.kinds)
    for spec in moment.specs:
        gpus = data.draw(st.just(0) | st.integers(spec.min_gpus, spec.max_gpus))
        verdicts[spec.id] = Grant(gpus, kind=data.draw(kinds)) if gpus else Refusal()
        if gpus and data.draw(st.integers(0, 3)) == 0:
            seats = any_placer.find(moment.cluster, FreeGpus.of(moment.cluster), 0, gpus, None)
            verdicts[spec.id] = Grant(gpus, placement=seats)
    granted = [name for name, v in verdicts.items() if isinstance(v, Grant)]
    if len(granted) > 1 and data.draw(st.booleans()):
        a, b = granted[:2]
        count = getattr(verdicts[a], "gpus", 1)
        verdicts[a], verdicts[b] = Grant(count, shared_with=b), Grant(count, shared_with=a)
    return Verdicts.of(moment, verdicts)


def seats_after(moment: Snapshot, seating: Seating) -> dict[int, Placement]:
    after = {i: p for i in range(len(moment.columns)) if (p := moment.placement(i)) is not None}
    for i in seating.leaving:
        del after[i]
    return {**after, **seating.seated}


@every_placer
@settings(max_examples=60)
@given(moment=strategies.snapshots(), data=st.data())
def test_no_node_is_ever_given_more_than_it_has(placer: Placer, moment: Snapshot, data: st.DataObject) -> None:
    asked = draw_verdicts(moment, data)
    seating = placer.place(moment, asked)
    after = seats_after(moment, seating)
    final = asked.overruled(seating.overruled)
    # Everyone sits on exactly what the final verdict says, on GPUs of one kind.
    assert {i: p.gpus for i, p in after.items()} == {i: g for i, g in enumerate(final.gpus.tolist()) if g}
    taken = np.zeros(len(moment.cluster.nodes), dtype=int)
    partners = final.partners if final.partners is not None else np.full(len(final), -1)
    for i, placement in after.items():
        assert len({moment.cluster.node_kind[n] for n in placement.nodes}) == 1
        first = int(partners[i])
        if not (0 <= first < i and after.get(first) == placement):
            for node, count in placement.seats:
                taken[node] += count
    for node, count in enumerate(taken.tolist()):
        assert count <= (0 if node in moment.cluster.down else moment.cluster.nodes[node].gpus)


@every_placer
@settings(max_examples=60)
@given(moment=strategies.snapshots(), data=st.data())
def test_placing_is_pure_and_commands_lead_where_the_seating_says(
    placer: Placer, moment: Snapshot, data: st.DataObject
) -> None:
    asked = draw_verdicts(moment, data)
    seating = placer.place(moment, asked)
    assert placer.place(replace(moment), asked) == seating
    final = asked.overruled(seating.overruled)
    commands = StopStartPlanner().plan(moment, final, seating)
    rows = moment.columns.rows.tolist()
    assert [c.job for c in commands if isinstance(c, Stop)] == [rows[i] for i in sorted(seating.leaving)]
    begun = {c.job: c.placement for c in commands if isinstance(c, Start | Resize)}
    assert begun == {rows[i]: placement for i, placement in seating.seated.items()}
    for command in commands:
        held = moment.columns.held[moment.position_of(command.job)]
        assert isinstance(command, Start) == (held == 0)
