"""Grants that ask for one node: they get it where it can be had, others make room, and nobody waits for it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.decision import Grant, Refusal, Seating, Verdict, Verdicts
from shoal.core.free_gpus import FreeGpus
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement, parse_cluster
from shoal.placement.any import AnyPlacer
from shoal.placement.packed import PackedPlacer
from shoal.placement.rack import RackPlacer
from shoal.testing.builders import job, snapshot
from shoal.workload.schema import Job

PLACERS = [PackedPlacer(), AnyPlacer(), RackPlacer()]
every_placer = pytest.mark.parametrize("placer", PLACERS, ids=["packed", "any", "rack"])


def seat(placer: PackedPlacer | AnyPlacer | RackPlacer, moment: Snapshot, verdicts: dict[str, Verdict]) -> Seating:
    return placer.place(moment, Verdicts.of(moment, {name: verdicts.get(name, Refusal()) for name in moment.ids}))


def near(gpus: int) -> Grant:
    return Grant(gpus, consolidated=True)


@every_placer
def test_a_job_that_sits_apart_moves_to_a_node_with_the_room(placer: PackedPlacer) -> None:
    apart = Placement(((0, 1), (1, 2)))
    moment = snapshot([job("a", gpus=3)], "gpu:3x4", held={"a": apart})
    assert seat(placer, moment, {"a": Grant(3)}) == Seating()
    assert seat(placer, moment, {"a": near(3)}).seated == {0: Placement(((0, 3),))}


@every_placer
def test_a_job_that_sits_on_one_node_stays(placer: PackedPlacer) -> None:
    moment = snapshot([job("a", gpus=3)], "gpu:3x4", held={"a": Placement(((2, 3),))})
    assert seat(placer, moment, {"a": near(3)}) == Seating()


@every_placer
def test_jobs_that_ask_for_one_node_are_seated_before_others(placer: PackedPlacer) -> None:
    rows = [job("wide", gpus=4), job("asks", gpus=3)]
    moment = snapshot(rows, "gpu:1x4,gpu:3x1")
    assert seat(placer, moment, {"wide": Grant(4), "asks": near(3)}).seated == {
        0: Placement(((0, 1), (1, 1), (2, 1), (3, 1))),
        1: Placement(((0, 3),)),
    }


@every_placer
def test_the_fewest_move_to_make_room(placer: PackedPlacer) -> None:
    # Node 0 has two jobs of one GPU, node 1 one of two: all four come free where one moves.
    held = {"x": Placement(((0, 1),)), "y": Placement(((0, 1),)), "z": Placement(((1, 2),))}
    rows = [job("x"), job("y"), job("z", gpus=2), job("asks", gpus=4)]
    moment = snapshot(rows, "gpu:2x4", held=held)
    seating = seat(placer, moment, {"x": Grant(1), "y": Grant(1), "z": Grant(2), "asks": near(4)})
    assert seating.seated == {2: Placement(((0, 2),)), 3: Placement(((1, 4),))}
    assert (seating.leaving, seating.overruled) == ((), {})


@every_placer
def test_of_those_whose_move_would_do_the_narrowest_moves(placer: PackedPlacer) -> None:
    held = {"wide": Placement(((0, 5),)), "narrow": Placement(((0, 1),)), "other": Placement(((1, 6),))}
    rows = [job("wide", gpus=5), job("narrow"), job("other", gpus=6), job("asks", gpus=3)]
    moment = snapshot(rows, "gpu:2x8", held=held)
    grants: dict[str, Verdict] = {"wide": Grant(5), "narrow": Grant(1), "other": near(6), "asks": near(3)}
    assert seat(placer, moment, grants).seated == {1: Placement(((1, 1),)), 3: Placement(((0, 3),))}


@every_placer
def test_jobs_that_asked_for_their_node_are_not_displaced_and_the_job_is_spread(placer: PackedPlacer) -> None:
    held = {"x": Placement(((0, 2),)), "y": Placement(((1, 2),))}
    rows = [job("x", gpus=2), job("y", gpus=2), job("asks", gpus=3)]
    moment = snapshot(rows, "gpu:2x4", held=held)
    seating = seat(placer, moment, {"x": near(2), "y": near(2), "asks": near(3)})
    assert seating.seated == {2: Placement(((0, 2), (1, 1)))}


@every_placer
def test_a_job_apart_that_cannot_have_a_node_is_not_moved_for_nothing(placer: PackedPlacer) -> None:
    held = {"x": Placement(((0, 2),)), "y": Placement(((1, 2),)), "asks": Placement(((0, 1), (1, 2)))}
    rows = [job("x", gpus=2), job("y", gpus=2), job("asks", gpus=3)]
    moment = snapshot(rows, "gpu:2x4", held=held)
    assert seat(placer, moment, {"x": near(2), "y": near(2), "asks": near(3)}) == Seating()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 100_000))
def test_however_many_ask_everybody_is_seated_and_nothing_twice(seed: int) -> None:
    """What a cluster has by number it has with seats: whoever moves to make room finds room."""
    chance = np.random.default_rng(seed)
    cluster = parse_cluster("gpu:2x8,gpu:4x4,gpu:4x2")
    rows: list[Job] = []
    held, free, room = dict[str, int | Placement](), cluster.total_gpus, FreeGpus.of(cluster)
    while free:
        gpus = int(min(free, chance.choice([1, 1, 2, 3, 4, 6])))
        name = f"j{len(rows)}"
        rows.append(job(name, gpus=gpus))
        free -= gpus
        open_seats = [node for node, left in enumerate(room.node_free) for _ in range(left)]
        if chance.uniform() < 0.7:
            nodes, counts = np.unique(chance.choice(open_seats, gpus, replace=False), return_counts=True)
            seats = Placement(tuple(zip(nodes.tolist(), counts.tolist(), strict=True)))
            room.take(seats)
            held[name] = seats
    moment = snapshot(rows, cluster, held=held)
    seating = seat(PackedPlacer(), moment, {r.id: Grant(r.gpus, consolidated=chance.uniform() < 0.5) for r in rows})
    assert not seating.overruled
    assert not seating.leaving
    after = FreeGpus.of(cluster)
    for i, row in enumerate(rows):
        sits = seating.seated.get(i, held.get(row.id))
        assert isinstance(sits, Placement)
        assert sits.gpus == row.gpus
        after.take(sits)
    assert after.free == [0]
