"""Network packing of shares: propositions 1 and 2 of AFS's Appendix E, by brute force."""

from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.solve.network_packing import packing_units, regulated

UNITS = [
    (4, 14, [1, 2, 4, 8, 12]),
    (8, 20, [1, 2, 4, 8, 16]),
    (1, 3, [1, 2, 3]),
    (6, 12, [1, 3, 6, 12]),
    (4, 3, [1, 2]),
    (3, 0, []),
]


@pytest.mark.parametrize(("machine", "most", "units"), UNITS)
def test_allowed_shares_are_a_chain_of_factors_and_whole_machines(machine: int, most: int, units: list[int]) -> None:
    assert packing_units(machine, most) == units


def partitions(total: int, most: int) -> Iterator[list[int]]:
    """Every way to write a total as a descending sum."""
    if not total:
        yield []
    for first in range(min(total, most), 0, -1):
        yield from ([first, *rest] for rest in partitions(total - first, first))


def floor(share: int, units: list[int]) -> int:
    """Proposition 2's x: the largest allowed share within this one."""
    return max((u for u in units if u <= share), default=0)


@pytest.mark.parametrize(("machine", "machines"), [(4, 1), (4, 2), (4, 3), (4, 4), (2, 5), (8, 2), (1, 6)])
def test_proposition_2_every_division_of_the_cluster_can_be_regulated_without_an_idle_gpu(
    machine: int, machines: int
) -> None:
    units, total = packing_units(machine, machine * machines), machine * machines
    for shares in partitions(total, total):
        new = regulated(shares, [total] * len(shares), machine)
        assert sum(new) == total
        assert all(r in units and r >= floor(s, units) for r, s in zip(new, shares, strict=True)), (shares, new)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 5)), min_size=1, max_size=5), st.sampled_from([2, 4, 6]))
def test_it_gives_the_most_it_may_with_the_least_difference(jobs: list[tuple[int, int]], machine: int) -> None:
    shares, most = [s for s, _ in jobs], [s + room for s, room in jobs]
    units, total = packing_units(machine, sum(shares)), sum(shares)
    ways = [
        [u for u in units if floor(s, units) <= u <= m] or [floor(s, units)] if s else [0]
        for s, m in zip(shares, most, strict=True)
    ]
    best = min(
        (total - sum(way), sum(abs(r - s) for r, s in zip(way, shares, strict=True)))
        for way in product(*ways)
        if sum(way) <= total
    )
    new = regulated(shares, most, machine)
    assert (total - sum(new), sum(abs(r - s) for r, s in zip(new, shares, strict=True))) == best
    assert all(r in way for r, way in zip(new, ways, strict=True))


def test_shares_that_are_allowed_stay_as_they_are() -> None:
    assert regulated([8, 4, 2, 1, 1, 0], [64] * 6, 4) == [8, 4, 2, 1, 1, 0]
    assert regulated([5, 3], [8, 8], 4) == [4, 4]
