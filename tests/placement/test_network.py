"""Network packing: AFS's proposition 1 from any seats before, nobody moved without need."""

from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.decision import Grant, Refusal, Seating, Verdicts
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement
from shoal.placement.network import NetworkPlacer, machine_gpus
from shoal.solve.network_packing import packing_units, regulated
from shoal.testing.builders import job, snapshot, topology

Seats = tuple[tuple[int, int], ...]


def seated(moment: Snapshot, shares: dict[str, int]) -> tuple[Seating, dict[str, Placement]]:
    """What the placer does, and where everyone then sits."""
    verdicts = {name: Grant(shares[name]) if shares.get(name) else Refusal() for name in moment.ids}
    seating = NetworkPlacer().place(moment, Verdicts.of(moment, verdicts))
    after = {name: moment.placement(i) for i, name in enumerate(moment.ids) if i not in seating.leaving}
    after |= {moment.ids[i]: seats for i, seats in seating.seated.items()}
    return seating, {name: seats for name, seats in after.items() if seats is not None}


def check_packed(where: dict[str, Placement], shares: dict[str, int], machine: int) -> None:
    """Everyone on the fewest machines, and at most one job on a machine that reaches beyond it."""
    assert {name: seats.gpus for name, seats in where.items()} == {n: s for n, s in shares.items() if s}
    reaching: dict[int, int] = {}
    taken: dict[int, int] = {}
    for name, seats in where.items():
        assert len(seats.nodes) == -(-shares[name] // machine)
        for node, count in seats.seats:
            taken[node] = taken.get(node, 0) + count
            reaching[node] = reaching.get(node, 0) + (len(seats.nodes) > 1)
    assert all(count <= machine for count in taken.values())
    assert all(jobs <= 1 for jobs in reaching.values())


SHARES = st.lists(st.integers(0, 16), min_size=1, max_size=10)


def whole(shares: list[int], machine: int, machines: int) -> list[int]:
    """Shares cut down to the cluster and regulated."""
    left, cut = machine * machines, []
    for share in shares:
        cut.append(min(share, left))
        left -= cut[-1]
    return regulated(cut, [machine * machines] * len(cut), machine)


@settings(max_examples=150, deadline=None)
@given(SHARES, SHARES, st.sampled_from([(4, 4), (2, 5), (8, 2)]))
def test_regulated_shares_are_always_seated_apart_whatever_was_before(
    before: list[int], after: list[int], cluster: tuple[int, int]
) -> None:
    machine, machines = cluster
    count = max(len(before), len(after))
    rows = [job(f"j{i}", 0, 1, 100, max_gpus=machine * machines) for i in range(count)]
    old, new = (whole([*s, *[0] * (count - len(s))], machine, machines) for s in (before, after))
    spec = f"gpu:{machines}x{machine}"
    _, first = seated(snapshot(rows, spec), {f"j{i}": s for i, s in enumerate(old)})
    moment = snapshot(rows, spec, held=first)
    shares = {f"j{i}": s for i, s in enumerate(new)}
    seating, where = seated(moment, shares)
    check_packed(where, shares, machine)
    assert not seating.overruled
    if old == new:
        assert not seating.seated


def most_reuse(before: dict[str, Seats], shares: dict[str, int], machine: int, machines: int) -> int:
    """The most jobs that can keep a GPU in any packed seating, by trying all of them."""
    wide = [n for n, s in shares.items() if s >= machine]
    narrow = [n for n, s in shares.items() if 0 < s < machine]
    order = [n for n in wide for _ in range(shares[n] // machine)]
    best = -1
    for nodes in set(permutations(range(machines), len(order))):
        whole_nodes = {n: {node for node, m in zip(nodes, order, strict=True) if m == n} for n in wide}
        rest = [node for node in range(machines) if node not in nodes]
        for choice in product(rest, repeat=len(narrow)):
            load = [sum(shares[n] for n, at in zip(narrow, choice, strict=True) if at == node) for node in rest]
            if all(used <= machine for used in load):
                on = {**whole_nodes, **{n: {at} for n, at in zip(narrow, choice, strict=True)}}
                best = max(best, sum(bool(on[n] & {node for node, _ in before.get(n, ())}) for n in on))
    return best


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([0, 1, 2, 4, 8]), min_size=1, max_size=5),
    st.lists(st.sampled_from([0, 1, 2, 4, 8]), min_size=1, max_size=5),
)
def test_nearly_as_many_keep_a_gpu_as_could(before: list[int], after: list[int]) -> None:
    """One job fewer than the best of all seatings at worst: who sits where is chosen job by job, the widest first."""
    count = max(len(before), len(after))
    rows = [job(f"j{i}", 0, 1, 100, max_gpus=12) for i in range(count)]
    old, new = (whole([*s, *[0] * (count - len(s))], 4, 3) for s in (before, after))
    _, first = seated(snapshot(rows, "gpu:3x4"), {f"j{i}": s for i, s in enumerate(old)})
    shares = {f"j{i}": s for i, s in enumerate(new)}
    _, where = seated(snapshot(rows, "gpu:3x4", held=first), shares)
    kept = sum(bool(set(where[n].nodes) & set(first[n].nodes)) for n in where if n in first)
    assert kept >= most_reuse({n: p.seats for n, p in first.items()}, shares, 4, 3) - 1


def test_jobs_that_need_not_move_stay() -> None:
    rows = [job(n, 0, 1, 100, max_gpus=8) for n in "abcd"]
    held = {"a": Placement(((0, 2),)), "b": Placement(((1, 4),)), "c": Placement(((2, 1),))}
    _, where = seated(snapshot(rows, "gpu:3x4", held=held), {"a": 2, "b": 2, "c": 1, "d": 4})
    # d needs a whole machine, and the one where the least is lost is c's; c then fits beside a.
    assert {n: p.seats for n, p in where.items()} == {"a": ((0, 2),), "b": ((1, 2),), "c": ((0, 1),), "d": ((2, 4),)}


def test_a_job_that_grows_keeps_its_machine_and_the_guest_goes() -> None:
    rows = [job(n, 0, 1, 100, max_gpus=8) for n in "ab"]
    held = {"a": Placement(((0, 2),)), "b": Placement(((0, 1),))}
    _, where = seated(snapshot(rows, "gpu:2x4", held=held), {"a": 4, "b": 1})
    assert {n: p.seats for n, p in where.items()} == {"a": ((0, 4),), "b": ((1, 1),)}


def test_gangs_that_are_not_regulated_sit_on_few_machines_or_wait_with_the_largest_block() -> None:
    rows = [job("three", 0, 3, 100), job("five", 0, 5, 100), job("nine", 0, 9, 100)]
    _, where = seated(snapshot(rows[:2], "gpu:2x4"), {"three": 3, "five": 5})
    assert {n: len(p.nodes) for n, p in where.items()} == {"three": 1, "five": 2}
    seating, _ = seated(snapshot(rows, "gpu:2x4"), {"five": 5, "nine": 9})
    assert [v.reason.sentence() for v in seating.overruled.values()] == [
        "waits: fragmented, 8 GPUs free, largest block 4; needs 9"
    ]


@pytest.mark.parametrize(("cluster", "gpus"), [("gpu:3x4", 4), ("gpu:1x8,gpu:2x4", 4), ("gpu:1x6,gpu:1x4", 2)])
def test_where_machines_differ_a_machine_is_what_divides_them_all(cluster: str, gpus: int) -> None:
    assert machine_gpus(topology(cluster), 0) == gpus


def test_allowed_shares_come_from_the_same_rule() -> None:
    assert packing_units(machine_gpus(topology("gpu:4x4"), 0), 12) == [1, 2, 4, 8, 12]
