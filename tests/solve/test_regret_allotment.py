"""Thousands of gangs, many of them alike: the answer fits the nodes, is within its bound, and misses little of it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.solve.test_core_allotment import Cluster

from shoal.solve.core_allotment import CoreAllotment, HeldSeats, Nodes
from shoal.solve.listed_options import ListedOptions
from shoal.solve.regret_allotment import allot_regretful, common_prices


def regretful(cluster: Cluster) -> CoreAllotment:
    return allot_regretful(cluster.options, cluster.held, cluster.nodes, cluster.pools)


def alike(gangs: int, wide: int) -> ListedOptions:
    """Gangs of one unit worth 19 and, after them, of two worth 19.5, in any of three pools."""
    row = np.repeat(np.arange(gangs), 3)
    units = np.where(row < gangs - wide, 1.0, 2.0)
    pool = np.tile(np.arange(3), gangs)
    return ListedOptions.of(gangs, row, 19.0 + 0.5 * (units - 1.0), units, pool, np.zeros(3 * gangs, dtype=bool))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 90), st.integers(1, 3), st.integers(1, 6), st.floats(0.0, 1.0))
def test_seats_fit_and_the_bound_holds(seed: int, gangs: int, pools: int, per_pool: int, waiting: float) -> None:
    cluster = Cluster(seed, gangs, pools, per_pool, waiting)
    found = regretful(cluster)
    cluster.check(found)
    assert found.bound >= cluster.at_once(0.0) * (1 - 1e-9)


@pytest.mark.parametrize(("seed", "pools", "waiting"), [(1, 1, 0.3), (2, 3, 0.3), (3, 3, 1.0), (4, 2, 0.0)])
def test_it_is_worth_as_much_as_all_gangs_at_once(seed: int, pools: int, waiting: float) -> None:
    cluster = Cluster(seed, 2500, pools, 120, waiting)
    found = regretful(cluster)
    cluster.check(found)
    assert found.value >= 0.995 * cluster.at_once(0.0)
    assert found.gap <= 0.01


def test_of_gangs_that_are_alike_in_every_pool_as_many_are_served_as_fit() -> None:
    """All at once, the first pool would be overfull, and gangs would leave it for more units elsewhere."""
    options = alike(1200, wide=600)
    nodes = Nodes(np.full(90, 8), np.repeat(np.arange(3), 30))
    found = allot_regretful(options, HeldSeats(np.full(1200, -1), lambda gang: None), nodes, 3)
    assert found.value == pytest.approx(600 * 19.0 + 60 * 19.5)
    assert found.gap < 1e-5
    assert common_prices(options, np.full(3, 240)) == pytest.approx(9.75)


def test_gangs_that_would_change_nothing_are_not_allotted_anew() -> None:
    options = alike(1200, wide=0)
    row, pool = options.row, options.pool
    sits = np.arange(1200) < 720
    node = np.where(sits, np.arange(1200) // 8, -1)
    stays = np.flatnonzero(sits)
    order = np.argsort(np.concatenate([stays, row]), kind="stable")
    listed = ListedOptions.of(
        1200,
        np.concatenate([stays, row])[order],
        np.full(len(order), 19.0),
        np.ones(len(order)),
        np.concatenate([node[stays] // 30, pool])[order],
        np.concatenate([np.ones(720, dtype=bool), np.zeros(3600, dtype=bool)])[order],
    )
    nodes = Nodes(np.full(90, 8), np.repeat(np.arange(3), 30))
    found = allot_regretful(listed, HeldSeats(node, lambda gang: ((int(node[gang]), 1),)), nodes, 3)
    assert listed.stays[found.picks[:720]].all()
    assert (found.picks[720:] == -1).all()
    assert (found.core, found.gap < 1e-5) == (0, True)


def test_gangs_without_any_option_get_nothing() -> None:
    none = np.empty(0, dtype=np.intp)
    options = ListedOptions.of(3, none, np.empty(0), np.empty(0), none, np.empty(0, dtype=bool))
    nodes = Nodes(np.array([8]), np.array([0]))
    found = allot_regretful(options, HeldSeats(np.full(3, -1), lambda gang: None), nodes, 1)
    assert found.picks.tolist() == [-1, -1, -1]
    assert found.bound == 0
