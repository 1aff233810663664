"""Shares that choose between one node and several, against linear programs written out row by row for scipy."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from shoal.core.arrays import Floats
from shoal.solve import linear_objectives, prices, ratio_program
from shoal.solve.consolidation import (
    Localities,
    first_come,
    most_for_the_money,
    most_throughput,
    shortest_first,
    water_filled,
)
from shoal.solve.linear_objectives import TimeShares
from shoal.solve.prices import ShareNode
from shoal.solve.prices.paths import FinishTime, Proportional, Tree

SEEDS = pytest.mark.parametrize("block", range(6))
"""50 instances each."""


def places(seed: int) -> Localities:
    """Up to 29 jobs, many of them gangs that do not divide the nodes, on up to 3 kinds with nodes of mixed sizes."""
    chance = np.random.default_rng(seed)
    kinds, jobs = int(chance.integers(1, 4)), int(chance.integers(1, 30))
    nodes = [chance.choice([2, 4, 8], int(chance.integers(1, 5))).tolist() for _ in range(kinds)]
    capacity, largest = np.array([float(sum(n)) for n in nodes]), np.array([max(n) for n in nodes])
    gangs = chance.choice([1.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0], jobs)
    best = np.where(gangs[:, None] <= capacity, chance.uniform(0.5, 10.0, (jobs, kinds)), 0.0)
    best[(best < 1.0) & (best < best.max(axis=1, keepdims=True))] = 0.0
    slower = np.where(chance.uniform(size=(jobs, 1)) < 0.7, chance.uniform(0.2, 1.0, (jobs, 1)), 1.0)
    apart = np.where((gangs[:, None] > 1) & (gangs[:, None] <= largest), best * slower, best)
    consolidated = np.where(gangs[:, None] <= largest, best, 0.0)
    runs = np.flatnonzero(best.max(axis=1) > 0)
    if not len(runs):
        return places(seed + 1_000_000)
    return Localities(consolidated[runs], apart[runs], gangs[runs], capacity, nodes)


def reference(p: Localities, gain: Floats, *, floors: Floats | None = None, level: Floats | None = None) -> float:
    """The largest Σ gain · throughput by scipy; with ``level`` the largest t at which all have t times theirs."""
    jobs, kinds = p.apart.shape
    size = jobs * kinds
    speed = np.concatenate([p.consolidated.ravel(), p.apart.ravel()])
    owner, kind = np.tile(np.repeat(np.arange(jobs), kinds), 2), np.tile(np.arange(kinds), 2 * jobs)
    one_node = np.arange(2 * size) < size
    rows, most = [], []
    for job in range(jobs):
        rows.append((owner == job).astype(float))
        most.append(1.0)
    for k in range(kinds):
        rows.append(p.gangs[owner] * (kind == k))
        most.append(p.capacity[k])
        for h in range(1, 9):
            rows.append((one_node & (kind == k) & (p.gangs[owner] >= h)).astype(float))
            most.append(float(sum(n // h for n in p.nodes[k])) if h > 1 else float(sum(p.nodes[k])))
    table = np.column_stack([np.array(rows), np.zeros(len(rows))])
    wanted = np.zeros((jobs, 2 * size + 1))
    for job in range(jobs):
        wanted[job, :-1] = -speed * (owner == job)
        wanted[job, -1] = 0.0 if level is None else level[job]
    least = np.zeros(jobs) if floors is None else -floors
    objective = np.append(gain[owner] * speed, 0.0) if level is None else np.append(np.zeros(2 * size), 1.0)
    bounds = [(0.0, None if s > 0 else 0.0) for s in speed] + [(0.0, None)]
    found = linprog(
        -objective, A_ub=np.vstack([table, wanted]), b_ub=np.concatenate([most, least]), bounds=bounds, method="highs"
    )
    return -float(found.fun) if found.status == 0 and found.fun is not None else -np.inf


def check(p: Localities, found: TimeShares) -> None:
    """Every limit is kept, and what the answer says of itself is true."""
    assert found.status == "optimal"
    assert (found.consolidated >= 0).all()
    assert (found.shares >= found.consolidated - 1e-12).all()
    assert (found.shares.sum(axis=1) <= 1 + 1e-9).all()
    assert (p.gangs @ found.shares <= p.capacity + 1e-7).all()
    for kind, size, most in p.limits():
        assert found.consolidated[p.gangs >= size, kind].sum() <= most + 1e-7
    rest = found.shares - found.consolidated
    assert found.throughput == pytest.approx((p.consolidated * found.consolidated + p.apart * rest).sum(axis=1))


def instances(block: int) -> list[tuple[Localities, np.random.Generator]]:
    return [(places(seed), np.random.default_rng(seed)) for seed in range(50 * block, 50 * block + 50)]


@SEEDS
def test_the_least_level_is_as_high_as_it_can_be(block: int) -> None:
    for p, chance in instances(block):
        demands = chance.uniform(0.5, 5.0, len(p.gangs))
        for water_filling in (True, False):
            found = water_filled(p, Proportional(demands), water_filling=water_filling)
            check(p, found)
            best = reference(p, np.zeros(len(demands)), level=demands)
            assert found.objective == pytest.approx(best, rel=1e-6)


@SEEDS
def test_the_worst_finish_time_is_as_good_as_it_can_be(block: int) -> None:
    for p, chance in instances(block):
        steps, elapsed, alone = (chance.uniform(a, b, len(p.gangs)) for a, b in ((10, 100), (0, 50), (20, 400)))
        found = water_filled(p, FinishTime(steps, elapsed, alone))
        check(p, found)
        # ρ is within reach if and only if throughputs of steps/(ρ·alone − elapsed) are: a hair better must not be.
        for rho, reached in (((1 + 1e-6) / found.objective, True), ((1 - 1e-6) / found.objective, False)):
            left = rho * alone - elapsed
            fits = (left > 0).all() and reference(p, np.zeros(len(left)), level=steps / left) >= 1
            assert fits == reached


@SEEDS
def test_sums_are_as_large_as_they_can_be(block: int) -> None:
    for p, chance in instances(block):
        jobs = len(p.gangs)
        weights = chance.uniform(0.5, 5.0, jobs)
        found = most_throughput(p, weights)
        check(p, found)
        assert found.objective == pytest.approx(reference(p, weights), rel=1e-6)
        order = chance.permutation(jobs)
        ahead = np.empty(jobs)
        ahead[order] = jobs - np.arange(jobs)
        line = first_come(p, order)
        check(p, line)
        assert line.objective == pytest.approx(reference(p, ahead / p.top_speed()), rel=1e-6)
        steps = chance.uniform(1.0, 9.0, jobs)
        short = shortest_first(p, steps)
        check(p, short)
        assert short.objective == pytest.approx((steps / p.top_speed()).min(), rel=1e-6)


@SEEDS
def test_no_other_shares_do_more_for_the_money(block: int) -> None:
    for p, chance in instances(block):
        jobs = len(p.gangs)
        price, weights = chance.uniform(0.5, 3.0, len(p.capacity)), chance.uniform(0.5, 5.0, jobs)
        floors = np.where(chance.uniform(size=jobs) < 0.3, 0.2 * p.top_speed() / jobs, 0.0)
        found = most_for_the_money(p, price, weights, floors)
        check(p, found)
        assert (found.throughput >= floors * (1 - 1e-6)).all()
        # Without floors the best single way is the best ratio; with them nothing beats it either.
        speed = np.maximum(p.consolidated, p.apart)
        single = float((weights[:, None] * speed / (price * p.gangs[:, None])).max())
        free = most_for_the_money(p, price, weights)
        assert free.objective == pytest.approx(single, rel=1e-9)
        paid = float((p.gangs @ found.shares) @ price)
        assert found.objective == pytest.approx(float(weights @ found.throughput) / paid)
        assert found.objective <= single * (1 + 1e-9)


def plain(p: Localities) -> Localities:
    """The same without any difference by distance."""
    return Localities(p.apart, p.apart, p.gangs, p.capacity, p.nodes)


@pytest.mark.parametrize("block", range(2))
def test_where_distance_makes_no_difference_the_answer_is_that_of_the_price_search(block: int) -> None:
    for p, chance in ((plain(p), chance) for p, chance in instances(block)):
        weights = chance.uniform(0.5, 5.0, len(p.gangs))
        levels = prices.max_min(p.apart, p.gangs, p.capacity, weights).levels
        assert water_filled(p, Proportional(weights)).throughput == pytest.approx(levels, rel=1e-6, abs=1e-9)
        home = chance.integers(0, 3, len(weights))
        kinds: tuple[Any, ...] = ("fair", "fifo", "fair")
        lists = [np.flatnonzero(home == e).tolist() for e in range(3)]
        tree = ShareNode([ShareNode(rows, 1.0 + e, kinds[e]) for e, rows in enumerate(lists) if rows])
        levels = prices.hierarchical(p.apart, p.gangs, p.capacity, tree, weights).levels
        assert water_filled(p, Tree(tree, weights)).throughput == pytest.approx(levels, rel=1e-6, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(st.integers(1_000, 1_000_000))
def test_between_all_apart_and_all_on_one_node(seed: int) -> None:
    """Never worse than if every gang sat apart, never better than if none had to."""
    p, chance = places(seed), np.random.default_rng(seed)
    weights, price = chance.uniform(0.5, 5.0, len(p.gangs)), chance.uniform(0.5, 3.0, len(p.capacity))
    well = np.maximum(p.consolidated, p.apart)
    args = p.gangs, p.capacity
    for found, low, high in (
        (
            water_filled(p, Proportional(weights)).objective,
            prices.max_min(p.apart, *args, weights).objective,
            prices.max_min(well, *args, weights).objective,
        ),
        (
            most_throughput(p, weights).objective,
            linear_objectives.maximise_throughput(p.apart, *args, weights).objective,
            linear_objectives.maximise_throughput(well, *args, weights).objective,
        ),
        (
            most_for_the_money(p, price, weights).objective,
            ratio_program.cheapest(p.apart, *args, price, weights).objective,
            ratio_program.cheapest(well, *args, price, weights).objective,
        ),
    ):
        assert low * (1 - 1e-7) <= found <= high * (1 + 1e-7)
    if p.fit(prices.max_min(well, *args, weights).X):
        best = prices.max_min(well, *args, weights).levels
        assert water_filled(p, Proportional(weights)).throughput == pytest.approx(best, rel=1e-6, abs=1e-9)


def test_of_three_gangs_of_three_two_sit_on_a_node_each_and_who_loses_least_sits_apart() -> None:
    near, apart = np.full((3, 1), 30.0), np.array([[12.0], [12.0], [28.0]])
    p = Localities(near, apart, np.full(3, 3.0), np.array([8.0]), [[4, 4]])
    assert p.limits() == [(0, 3, 2)]
    found = most_throughput(p, np.ones(3))
    assert found.consolidated.ravel() == pytest.approx([1.0, 1.0, 0.0])
    assert found.shares.ravel() == pytest.approx([1.0, 1.0, 2 / 3])


def test_a_gang_larger_than_every_node_is_never_on_one() -> None:
    p = Localities(np.zeros((1, 1)), np.array([[5.0]]), np.array([6.0]), np.array([8.0]), [[4, 4]])
    found = water_filled(p, Proportional(np.ones(1)))
    assert (found.shares.item(), found.consolidated.item(), found.throughput.item()) == (1.0, 0.0, 5.0)
    assert p.fit(found.shares)
