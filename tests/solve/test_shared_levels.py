"""Finish-time fairness, trees and the shortest job with shared GPUs, against a program over every pair of jobs."""

from typing import Literal

import numpy as np
import pytest
from tests.solve.test_space_sharing import GOOD, JobByJob, crowd_of, instances, obeys, without_pairs

from shoal.core.arrays import Floats
from shoal.core.errors import InputError
from shoal.solve import prices
from shoal.solve.job_classes import JobClasses
from shoal.solve.linear_program import LpSession
from shoal.solve.prices.paths import FinishTime, Path, ShareNode, Tree
from shoal.solve.space_sharing import (
    shared_finish_time,
    shared_hierarchical,
    shared_max_min,
    shared_shortest,
    shared_throughput,
)


def able(seed: int, count: int, most: int = 40) -> list[tuple[np.random.Generator, JobClasses, JobByJob]]:
    """Instances in which every job can run alone."""
    found = []
    for chance, crowd in instances(seed, 3 * count):
        fits = np.where(crowd.gangs[:, None] <= crowd.capacity, crowd.speed, 0.0)
        if fits.max(axis=1)[crowd.kinds].min() > 0 and len(crowd.kinds) <= most:
            found.append((chance, crowd, JobByJob(crowd)))
    return found[:count]


def highest(whole: JobByJob, path: Path, unit: Floats) -> float:
    """The path's objective at the largest τ that the program over every pair can reach, by bisection."""
    climb = path.climb(whole.top() / unit)
    low, high = 0.0, climb.top
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if whole.level(climb.at(middle) * unit) >= 1 - 1e-9 else (low, middle)
    return path.worth(climb.at(low))


def random_tree(chance: np.random.Generator, jobs: int) -> ShareNode:
    """One to four branches, fair or FIFO, of at least one job each; the first may have a branch below it."""
    cuts = np.sort(chance.choice(np.arange(1, jobs), min(int(chance.integers(0, 4)), jobs - 1), replace=False))
    parts = [part.tolist() for part in np.split(chance.permutation(jobs), cuts)]
    nodes: list[ShareNode | int] = []
    for part in parts:
        policy: Literal["fair", "fifo"] = "fifo" if chance.random() < 0.3 else "fair"
        children: list[ShareNode | int] = list(part)
        if len(part) > 3 and not nodes:
            children = [ShareNode(part[:2], 2.0), *part[2:]]
        nodes.append(ShareNode(children, float(chance.choice([1.0, 3.0])), policy))
    return ShareNode(nodes)


def test_finish_time_fairness_equals_the_program_over_every_two_jobs() -> None:
    found = able(11, 24)
    for chance, crowd, whole in found:
        top = whole.top()
        steps = chance.uniform(100, 5000, len(top)) * top
        elapsed = chance.uniform(0, 3000, len(top))
        alone = steps / top * chance.uniform(1.5, 8.0, len(top))
        answer = shared_finish_time(crowd, steps, elapsed, alone)
        obeys(answer, crowd)
        best = highest(whole, FinishTime(steps, elapsed, alone), np.ones(len(top)))
        assert answer.objective == pytest.approx(best, rel=1e-6)
        rho = (elapsed + steps / answer.throughput) / alone
        assert 1.0 / rho.max() == pytest.approx(answer.objective)
    assert len(found) == 24


def test_the_first_level_of_a_tree_equals_the_program_over_every_two_jobs() -> None:
    equal = 0
    for chance, crowd, whole in able(12, 40):
        count = len(crowd.kinds)
        tree, weights = random_tree(chance, count), chance.choice([1.0, 2.0], count)
        unit = chance.uniform(0.5, 2.0, len(crowd.gangs))[crowd.kinds] * whole.top()
        answer = shared_hierarchical(crowd, tree, weights, unit)
        obeys(answer, crowd)
        first = highest(whole, Tree(tree, weights), unit)
        assert answer.objective >= first * (1 - 1e-6)  # more where a branch goes on when one of its jobs cannot
        equal += answer.objective <= first * (1 + 1e-6)
    assert equal > 20


def test_no_job_under_a_tree_can_rise_without_the_fall_of_another() -> None:
    for chance, crowd, whole in able(13, 15, most=12):
        count = len(crowd.kinds)
        answer = shared_hierarchical(crowd, random_tree(chance, count), np.ones(count), whole.top())
        for job in range(count):
            alone = np.zeros(count)
            alone[job] = 1.0
            more = whole.most(whole.gain(alone), floors=answer.throughput * (1 - 1e-9))
            assert more <= answer.throughput[job] + 1e-5 * whole.top()[job]


def test_a_tree_without_pairs_has_the_levels_of_the_price_space_solver() -> None:
    for chance, crowd, whole in able(14, 40):
        count, plain = len(crowd.kinds), without_pairs(crowd)
        tree, weights = random_tree(chance, count), chance.choice([1.0, 2.0], count)
        unit = whole.top()
        answer = shared_hierarchical(plain, tree, weights, unit)
        speeds, gangs = plain.speed[plain.kinds] / unit[:, None], plain.gangs[plain.kinds]
        levels = prices.hierarchical(speeds, gangs, plain.capacity, tree, weights).levels
        assert answer.throughput / unit == pytest.approx(levels, abs=1e-6)


def test_a_tree_of_one_fair_node_is_max_min() -> None:
    for chance, crowd, whole in able(15, 25):
        weights = chance.choice([1.0, 2.0], len(crowd.kinds))
        tree = ShareNode(list(range(len(crowd.kinds))))
        answer = shared_hierarchical(crowd, tree, weights, whole.top())
        flat = shared_max_min(crowd, weights * whole.top())
        assert answer.throughput / whole.top() == pytest.approx(flat.throughput / whole.top(), abs=1e-6)


def test_a_fifo_branch_serves_its_second_job_with_what_the_first_leaves() -> None:
    # Two of three equal jobs share the GPU of their pair at 0.8 each; the first in line takes all time that it can.
    tree = ShareNode([ShareNode([0, 1, 2], 1.0, "fifo")])
    answer = shared_hierarchical(crowd_of([0, 0, 0], 0.8), tree, np.ones(3), np.ones(3))
    assert answer.throughput == pytest.approx([1.0, 0.0, 0.0])
    two = shared_hierarchical(crowd_of([0, 0, 0], 0.8, gpus=2.0), tree, np.ones(3), np.ones(3))
    assert two.throughput == pytest.approx([1.0, 1.0, 0.0])


def test_two_on_one_gpu_end_fairly_by_sharing_it() -> None:
    answer = shared_finish_time(crowd_of([0, 0], 0.8), np.full(2, 8.0), np.zeros(2), np.full(2, 16.0))
    assert answer.together.tolist() == [[1.0]]
    assert answer.objective == pytest.approx(16.0 / 10.0)


def test_the_shortest_job_has_its_fastest_type_alone_and_the_others_share_the_rest() -> None:
    for chance, crowd, whole in able(16, 40):
        top, count = whole.top(), len(crowd.kinds)
        steps = chance.uniform(10, 1000, count) * top
        answer = shared_shortest(crowd, steps)
        obeys(answer, crowd)
        order = np.argsort(steps / top, kind="stable")
        assert answer.objective == pytest.approx((steps / top)[order[0]], rel=1e-7)
        place = np.argsort(order)
        floors = np.zeros(count)
        floors[order[0]] = top[order[0]] * (1 - 1e-9)
        weights = (count - place) / top
        most = whole.most(whole.gain(weights), floors=floors)
        assert float(weights @ answer.throughput) == pytest.approx(most, rel=1e-6)


def test_sharing_never_makes_the_objective_worse() -> None:
    for chance, crowd, whole in able(17, 40):
        top, count, plain = whole.top(), len(crowd.kinds), without_pairs(crowd)
        steps, alone = top * 100.0, np.full(count, 300.0) * chance.uniform(1, 3, count)
        none = np.zeros(count)
        tree = random_tree(chance, count)
        pairs = (
            (shared_finish_time(crowd, steps, none, alone), shared_finish_time(plain, steps, none, alone)),
            (
                shared_hierarchical(crowd, tree, np.ones(count), top),
                shared_hierarchical(plain, tree, np.ones(count), top),
            ),
        )
        for more, less in pairs:
            assert more.objective >= less.objective * (1 - 1e-7)


def test_no_jobs_are_an_answer_and_bad_numbers_are_named() -> None:
    empty = JobClasses(np.zeros(0, dtype=np.intp), GOOD.speed, GOOD.gangs, GOOD.capacity, GOOD.pairs, GOOD.pair_speed)
    assert shared_shortest(empty, np.zeros(0)).status == "optimal"
    assert shared_throughput(empty).status == "optimal"
    with pytest.raises(InputError, match=r"steps\[1\]"):
        shared_finish_time(GOOD, np.array([1.0, 0.0]), np.zeros(2), np.ones(2))
    with pytest.raises(InputError, match="steps"):
        shared_shortest(GOOD, np.ones(3))


def test_a_failed_program_is_reported_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LpSession, "_run", lambda *_: False)
    ones = np.ones(2)
    for answer in (
        shared_finish_time(GOOD, ones, np.zeros(2), ones),
        shared_hierarchical(GOOD, ShareNode([0, 1]), ones, ones),
        shared_shortest(GOOD, ones),
    ):
        assert answer.status == "unsolved"
        assert not answer.alone.any()
