"""Properties that Gavel's §4.4 claims, on random problems, and counterexamples: see docs/gavel-properties.md."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from shoal.core.arrays import Floats
from shoal.policy.gavel.cost import GavelCost, GavelCostSlo
from shoal.policy.gavel.fairness import GavelFinishTime, GavelMakespan, GavelMaxMin
from shoal.policy.gavel.hierarchy import GavelHierarchical
from shoal.policy.gavel.problem import ShareProblem
from shoal.policy.gavel.share_update import ShareRule
from shoal.policy.gavel.sums import GavelFifo, GavelShortest, GavelThroughput
from shoal.solve.consolidation import Localities
from shoal.solve.job_classes import JobClasses

RULES: tuple[Any, ...] = (
    GavelMaxMin,
    GavelMakespan,
    GavelFinishTime,
    GavelFifo,
    GavelShortest,
    GavelThroughput,
    GavelCost,
    GavelCostSlo,
    GavelHierarchical,
)
SMALLER_IS_BETTER = (GavelMakespan, GavelFinishTime, GavelShortest)


def problem(
    speeds: Any,
    capacity: Sequence[float],
    gangs: Sequence[float] | None = None,
    steps: Sequence[float] | None = None,
    pairs: JobClasses | None = None,
) -> ShareProblem:
    """Jobs that arrived just now, one row each; every node of a kind is as large as the kind."""
    rows = np.array(speeds, dtype=np.float64)
    count, kinds = rows.shape
    gpus = np.array(capacity, dtype=np.float64)
    wide = np.ones(count) if gangs is None else np.array(gangs, dtype=np.float64)
    rows = np.where(wide[:, None] <= gpus, rows, 0.0)
    nodes = [[int(n)] for n in capacity]
    return ShareProblem(
        speeds=rows,
        gangs=wide,
        capacity=gpus,
        weight=np.ones(count),
        steps=rows.max(axis=1) * 1e4 if steps is None else np.array(steps, dtype=np.float64),
        elapsed=np.zeros(count),
        isolated=np.zeros(count),
        deadline=np.full(count, np.inf),
        prices=np.linspace(3.0, 1.0, kinds),
        tenant=np.arange(count) % 2,
        tenant_names=["a", "b"],
        now=0.0,
        find_localities=lambda: Localities(rows, rows, wide, gpus, nodes),
        find_job_classes=lambda: pairs or _without_pairs(rows, wide, gpus),
    )


def _without_pairs(rows: Floats, gangs: Floats, gpus: Floats) -> JobClasses:
    nothing = np.zeros((0, 2), dtype=np.intp)
    return JobClasses(np.arange(len(rows)), rows, gangs, gpus, nothing, np.zeros((0, 2, len(gpus))))


def random_problem(seed: int, *, gangs: bool = False, kinds: int = 3, pairs: bool = False) -> ShareProblem:
    """Two to eight jobs; speeds in whole numbers, so that jobs are often alike."""
    chance = np.random.default_rng([seed, kinds])
    count = int(chance.integers(2, 9))
    speeds = chance.integers(1, 9, (count, kinds)).astype(np.float64)
    capacity = chance.integers(2 if gangs else 1, 5, kinds).astype(np.float64)
    wide = chance.choice([1.0, 1.0, 2.0], count) if gangs else np.ones(count)
    steps = speeds.max(axis=1) * chance.uniform(1e4, 2e4, count)
    classes = None
    if pairs:
        named = np.array([(a, b) for a in range(count) for b in range(a)], dtype=np.intp)
        kept = chance.uniform(0.3, 0.9, (len(named), 2, 1))
        classes = JobClasses(np.arange(count), speeds, wide, capacity, named, kept * speeds[named])
    return problem(speeds, capacity.tolist(), wide.tolist(), steps.tolist(), classes)


def throughput(p: ShareProblem, alone: Floats) -> Floats:
    rates: Floats = (p.speeds * alone).sum(axis=1)
    return rates


def an_nth_each(p: ShareProblem) -> Floats:
    """The shares with which every job has an n-th of each kind, its row at most all its time."""
    part = np.where(p.speeds >= 0, p.capacity / (len(p) * p.gangs[:, None]), 0.0)
    shares: Floats = part / np.maximum(part.sum(axis=1, keepdims=True), 1.0)
    return shares


def most(p: ShareProblem, job: int, floors: Floats) -> float:
    """The highest throughput of one job while all jobs keep ``floors``, by scipy."""
    count, kinds = p.speeds.shape
    owner, kind = np.repeat(np.arange(count), kinds), np.tile(np.arange(kinds), count)
    speed = p.speeds.ravel()
    rows = [*((owner == m).astype(float) for m in range(count)), *(p.gangs[owner] * (kind == k) for k in range(kinds))]
    rows += [-speed * (owner == m) for m in range(count)]
    limits = np.concatenate([np.ones(count), p.capacity, -floors])
    found = linprog(
        -speed * (owner == job), A_ub=np.array(rows), b_ub=limits, bounds=[(0, float(s > 0)) for s in speed]
    )
    assert found.status == 0, found.message
    return -float(found.fun or 0.0)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_on_one_kind_a_policy_that_knows_kinds_is_the_one_that_does_not(rule: Any) -> None:
    for seed in range(40):
        p = random_problem(seed, gangs=True, kinds=1)
        aware, agnostic = rule().shares(p), rule(aware=False).shares(p)
        assert agnostic.objective == pytest.approx(aware.objective, rel=1e-7)


def _objective(rule: ShareRule, p: ShareProblem, rates: Floats) -> float:
    """What the paper says each policy is compared by, for any throughputs."""
    if isinstance(rule, GavelMaxMin):
        return float((rates / p.equal_speed * p.gangs).min())
    if isinstance(rule, GavelMakespan):
        return float((p.steps / rates).max())
    if isinstance(rule, GavelFinishTime):
        return float((p.steps / rates / (p.steps / p.isolated_speed)).max())
    return float((p.steps[rates > 0] / rates[rates > 0]).min())


@pytest.mark.parametrize(
    "rule", [GavelMaxMin(), GavelMakespan(), GavelFinishTime(), GavelShortest()], ids=lambda rule: type(rule).__name__
)
def test_the_objective_is_at_least_that_of_an_nth_of_the_cluster_for_each(rule: ShareRule) -> None:
    for seed in range(80):
        p = random_problem(seed, gangs=True)
        ours = _objective(rule, p, throughput(p, rule.shares(p).alone))
        split = _objective(rule, p, throughput(p, an_nth_each(p)))
        better = split - ours if isinstance(rule, SMALLER_IS_BETTER) else ours - split
        assert better >= -1e-7 * split


def test_under_max_min_every_job_of_one_gpu_has_at_least_its_nth() -> None:
    for seed in range(80):
        p = random_problem(seed)
        rates = throughput(p, GavelMaxMin().shares(p).alone)
        assert (rates >= p.isolated_speed * (1 - 1e-9)).all()


def test_under_max_min_a_gang_may_have_less_than_its_nth() -> None:
    # Jobs of 1, 1 and 2 GPUs on 4 and 2 GPUs: the gang is raised no further than the others can follow.
    p = problem([[4, 6], [7, 8], [1, 4]], [4, 2], [1, 1, 2])
    rates = throughput(p, GavelMaxMin().shares(p).alone)
    assert rates[2] / p.isolated_speed[2] == pytest.approx(0.6111, abs=1e-4)
    assert (rates[:2] > p.isolated_speed[:2]).all()


def test_the_least_makespan_gives_a_short_job_less_than_its_nth() -> None:
    p = problem([[1.0], [1.0]], [1], steps=[1000, 9000])
    assert throughput(p, GavelMakespan().shares(p).alone) == pytest.approx([0.1, 0.9])
    assert p.isolated_speed == pytest.approx([0.5, 0.5])


def test_first_in_first_out_may_give_the_first_job_less_than_its_nth() -> None:
    # The first loses little on the second kind, the other job cannot use it: their weighted sum puts the first there.
    p = problem([[1.0, 0.9], [1.0, 0.01]], [1, 1])
    assert throughput(p, GavelFifo().shares(p).alone) == pytest.approx([0.9, 1.0])
    assert p.isolated_speed[0] == pytest.approx(0.95)
    # A gang of all GPUs yields to narrow jobs behind it, whose weights add up to more than its own.
    wide = problem([[1.0]] * 5, [2], [2, 1, 1, 1, 1])
    assert throughput(wide, GavelFifo().shares(wide).alone)[0] == pytest.approx(0.0)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_sharing_gpus_never_makes_the_objective_worse(rule: Any) -> None:
    gained = 0
    for seed in range(30):
        p = random_problem(seed, pairs=True)
        alone, shared = rule().shares(p), rule(space_sharing=True).shares(p)
        assert (alone.trouble, shared.trouble) == ("", "")
        least = 1 - 1e-7
        if rule in SMALLER_IS_BETTER:
            assert shared.objective * least <= alone.objective
            gained += shared.objective < alone.objective * 0.999
        else:
            assert shared.objective >= alone.objective * least
            gained += shared.objective > alone.objective * 1.001
    # The shortest job has its fastest kind alone in any case.
    assert gained == 0 if rule is GavelShortest else gained > 0


def test_with_sharing_one_job_may_have_less_than_without() -> None:
    # Two jobs on one GPU: 1.1 together beats taking turns for the sum, though the second keeps only a tenth.
    named, kept = np.array([[0, 1]]), np.array([[[1.0], [0.1]]])
    classes = JobClasses(np.arange(2), np.ones((2, 1)), np.ones(2), np.ones(1), named, kept)
    p = problem([[1.0], [1.0]], [1], pairs=classes)
    fair = GavelMaxMin(space_sharing=True).shares(p)
    assert fair.objective >= GavelMaxMin().shares(p).objective
    most_sum = GavelThroughput(space_sharing=True).shares(p)
    assert most_sum.together.tolist() == [[1.0]]
    assert throughput(p, GavelMaxMin().shares(p).alone)[1] > 0.1


@pytest.mark.parametrize(
    "rule",
    [
        GavelMaxMin(),
        GavelMakespan(),
        GavelFinishTime(),
        GavelHierarchical(),
        GavelHierarchical(fifo="a|b"),
        GavelFifo(),
        GavelShortest(),
        GavelThroughput(),
    ],
    ids=repr,
)
def test_no_job_can_gain_without_the_loss_of_another(rule: ShareRule) -> None:
    for seed in range(12):
        p = random_problem(seed, gangs=True)
        rates = throughput(p, rule.shares(p).alone)
        for job in range(len(p)):
            assert most(p, job, rates * (1 - 1e-9)) <= rates[job] + 1e-6 * p.fastest[job]


def test_the_cheapest_shares_leave_gpus_idle_that_a_job_could_use() -> None:
    p = problem([[10.0, 8.0], [10.0, 8.0]], [1, 1])
    rates = throughput(p, GavelCost().shares(p).alone)
    assert most(p, 0, rates) > rates[0] + 1.0


def test_a_job_gains_by_declaring_another_speed() -> None:
    # §4.1's example. Each of the three jobs has a lie that pays; the other jobs pay for it.
    honest = np.array([[40.0, 10.0], [12.0, 4.0], [100.0, 50.0]])
    fair = throughput(problem(honest, [1, 1]), GavelMaxMin().shares(problem(honest, [1, 1])).alone)
    for job, kind, factor, gain in ((0, 1, 1.5, 1.055), (1, 1, 1.25, 1.034), (2, 0, 1.25, 1.052)):
        declared = honest.copy()
        declared[job, kind] *= factor
        rates = (honest * GavelMaxMin().shares(problem(declared, [1, 1])).alone).sum(axis=1)
        assert rates[job] / fair[job] == pytest.approx(gain, abs=1e-3)
        assert (np.delete(rates / fair, job) < 1.0).all()
