"""Gavel's rules: the shares of every policy against linear programs written down independently, and by hand."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from shoal.core.arrays import Floats
from shoal.core.events import JobSubmitted
from shoal.core.job import JobSpec
from shoal.core.snapshot import Snapshot
from shoal.core.topology import parse_cluster
from shoal.engine.state import State
from shoal.perf.catalog import catalog
from shoal.perf.model import ProfiledModel
from shoal.policy.gavel.cost import GavelCost, GavelCostSlo
from shoal.policy.gavel.fairness import GavelFinishTime, GavelMakespan, GavelMaxMin
from shoal.policy.gavel.hierarchy import GavelHierarchical
from shoal.policy.gavel.problem import HOUR, ShareProblem, Shares
from shoal.policy.gavel.share_update import problem_of
from shoal.policy.gavel.sums import GavelFifo, GavelShortest, GavelThroughput

PRICES = {"v100": 2.48, "p100": 1.46, "k80": 0.45}
MODELS = [("ResNet-18", 64), ("ResNet-50", 32), ("Transformer", 64), ("LM", 20), ("A3C", 1), ("CycleGAN", 1)]


class Written(ProfiledModel):
    """Speeds written down job by job, where they are."""

    table: Mapping[str, tuple[float, ...]] = {}

    def speeds(self, spec: JobSpec, batch_size: int | None = None) -> Floats:
        """As written, or as profiled."""
        written = self.table.get(spec.id)
        return super().speeds(spec, batch_size) if written is None else np.array(written)


def world(
    specs: Sequence[JobSpec],
    cluster: str = "v100:1x2,p100:1x3,k80:1x4",
    now: float = 0.0,
    table: Mapping[str, tuple[float, ...]] | None = None,
) -> Snapshot:
    topology = parse_cluster(cluster, prices=PRICES)
    perf = Written(topology, catalog())
    perf.table = table or {}
    state = State(topology, perf, 0)
    state.apply_events(now, [JobSubmitted(spec.submitted, spec) for spec in specs])
    return state.freeze()


def spec(name: str, gpus: int = 1, work: float | None = 1e6, **more: Any) -> JobSpec:
    return JobSpec(name, more.pop("submitted", 0.0), gpus, work, gpus, gpus, **more)


def problem(snapshot: Snapshot, *, aware: bool = True, isolated: float = 0.0, round: float = 360.0) -> ShareProblem:
    rows = np.flatnonzero(snapshot.possible)
    return replace(problem_of(snapshot, rows, aware=aware, round=round), isolated=np.full(len(rows), isolated))


def crowd(seed: int) -> Snapshot:
    """Some jobs of well-known models, wide ones among them, submitted over an hour, seen after two."""
    chance = np.random.default_rng(seed)
    specs = []
    for i in range(int(chance.integers(1, 14))):
        model, size = MODELS[int(chance.integers(len(MODELS)))]
        wide = int(chance.choice([1, 1, 2, 4])) if model.startswith(("ResNet", "Tr")) else 1
        late = float(chance.uniform(0, HOUR))
        specs.append(
            spec(
                f"j{i}",
                wide,
                float(10 ** chance.uniform(4, 7)),
                model=model,
                batch_size=size,
                weight=float(chance.choice([0.5, 1.0, 1.0, 3.0])),
                submitted=late,
                deadline=late + float(10 ** chance.uniform(3.5, 6.5)),
                tenant=str(chance.choice(["a", "b", "c"])),
            )
        )
    return world(sorted(specs, key=lambda s: s.submitted), now=2 * HOUR)


def within_limits(p: ShareProblem, shares: Shares) -> None:
    x = shares.alone
    assert shares.trouble == ""
    assert (x >= 0).all()
    assert (x[p.speeds == 0] == 0).all()
    assert (x.sum(axis=1) <= 1 + 1e-9).all()
    assert (p.gangs @ x <= p.capacity * (1 + 1e-9)).all()


def program(p: ShareProblem, gain: Floats, floors: Floats | None = None, level: Floats | None = None) -> float:
    """max gain·X [+ t] over all time shares; with ``level`` every throughput ≥ t · level, with ``floors`` ≥ floor."""
    rows, kinds = p.speeds.shape
    size = rows * kinds + (level is not None)
    time, room, reach = np.zeros((rows, size)), np.zeros((kinds, size)), np.zeros((rows, size))
    for m in range(rows):
        for j in range(kinds):
            time[m, m * kinds + j] = 1.0
            room[j, m * kinds + j] = p.gangs[m]
            reach[m, m * kinds + j] = -p.speeds[m, j]
    cost = np.zeros(size)
    cost[: rows * kinds] = -gain.ravel()
    asked = np.zeros(rows) if floors is None else -floors
    scale = 1.0
    if level is not None:  # in units of what the slowest job asks for at best: the solver's tolerances are absolute
        scale = float((level / p.speeds.max(axis=1)).max())
        reach = reach / p.speeds.max(axis=1, keepdims=True)
        reach[:, -1] = level / p.speeds.max(axis=1) / scale
        cost[-1] = -1.0
    bounds = [(0.0, None if s > 0 else 0.0) for s in p.speeds.ravel()] + [(0.0, None)] * (level is not None)
    answer = linprog(
        cost,
        A_ub=np.vstack([time, room, reach]),
        b_ub=np.concatenate([np.ones(rows), p.capacity, asked]),
        bounds=bounds,
    )
    assert answer.status == 0
    assert answer.fun is not None
    return float(-answer.fun) / scale


def throughput(p: ShareProblem, shares: Shares) -> Floats:
    rate: Floats = (p.speeds * shares.alone).sum(axis=1)
    return rate


SEEDS = pytest.mark.parametrize("seed", range(25))


@SEEDS
@pytest.mark.parametrize("water_filling", [True, False])
def test_max_min_has_the_largest_least_level(seed: int, water_filling: bool) -> None:
    p = problem(crowd(seed))
    shares = GavelMaxMin(water_filling=water_filling).shares(p)
    within_limits(p, shares)
    equal = p.speeds @ p.capacity / p.capacity.sum()
    least = (p.gangs / p.weight * throughput(p, shares) / equal).min()
    level = p.weight * equal / p.gangs
    assert least == pytest.approx(program(p, np.zeros(p.speeds.shape), level=level), rel=1e-6)


@SEEDS
def test_makespan_has_the_least_largest_duration(seed: int) -> None:
    snapshot = crowd(seed)
    p = problem(snapshot)
    shares = GavelMakespan().shares(p)
    within_limits(p, shares)
    left = snapshot.columns.remaining
    longest = float((left / throughput(p, shares)).max())
    assert 1 / longest == pytest.approx(program(p, np.zeros(p.speeds.shape), level=left), rel=1e-6)


@SEEDS
def test_finish_time_fairness_has_the_least_largest_rho(seed: int) -> None:
    snapshot = crowd(seed)
    p = problem(snapshot, isolated=1000.0)
    shares = GavelFinishTime().shares(p)
    within_limits(p, shares)
    elapsed, left = snapshot.now - snapshot.columns.submitted, snapshot.columns.remaining
    part = np.array([p.capacity / (len(p) * g) for g in p.gangs])
    part /= np.maximum(part.sum(axis=1, keepdims=True), 1.0)
    alone = (1000.0 + left / (p.speeds * part).sum(axis=1)) / p.weight
    worst = float(((elapsed + left / throughput(p, shares)) / alone).max())
    # ρ is within reach if and only if throughputs of left/(ρ·alone − elapsed) are, so a hair better must not be.
    for rho, reached in ((worst * (1 + 1e-6), True), (worst * (1 - 1e-6), False)):
        slack = rho * alone - elapsed
        needed = left / slack
        fits = bool((slack > 0).all()) and program(p, np.zeros(p.speeds.shape), level=needed) >= 1
        assert fits == reached


@SEEDS
def test_fifo_and_throughput_have_the_largest_sums(seed: int) -> None:
    p = problem(crowd(seed))
    fastest = p.speeds.max(axis=1, keepdims=True)
    place = np.arange(len(p))[:, None]
    for rule, gain in (
        (GavelFifo(), p.speeds / fastest * (len(p) - place)),
        (GavelThroughput(), p.speeds / fastest * p.gangs[:, None]),
        (GavelThroughput(weighted=True), p.speeds / fastest * (p.weight * p.gangs)[:, None]),
    ):
        shares = rule.shares(p)
        within_limits(p, shares)
        assert float((gain * shares.alone).sum()) == pytest.approx(program(p, gain), rel=1e-6)


@SEEDS
def test_shortest_first_gives_the_shortest_its_fastest_kind(seed: int) -> None:
    snapshot = crowd(seed)
    p = problem(snapshot)
    shares = GavelShortest().shares(p)
    within_limits(p, shares)
    left = snapshot.columns.remaining
    with np.errstate(divide="ignore"):
        assert (left / throughput(p, shares)).min() == pytest.approx((left / p.speeds.max(axis=1)).min())


def best_ratio(p: ShareProblem, gain: Floats, cost: Floats, floors: Floats) -> float:
    """The largest Σ gain·X / Σ cost·X, by halving the bracket of ratios at which something is gained."""
    low, high = 0.0, float((gain / cost)[p.speeds > 0].max()) + 1.0
    for _ in range(60):
        ratio = (low + high) / 2
        if program(p, gain - ratio * cost, floors=floors) > 0:
            low = ratio
        else:
            high = ratio
    return low


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    "rule", [GavelCost(), GavelCost(weighted=True), GavelCostSlo()], ids=["cost", "weighted", "cost-slo"]
)
def test_cost_has_the_most_throughput_for_the_money(seed: int, rule: GavelCost | GavelCostSlo) -> None:
    snapshot = crowd(seed)
    p = problem(snapshot)
    shares = rule.shares(p)
    within_limits(p, shares)
    prices = np.array([PRICES[kind] for kind in snapshot.cluster.kinds])
    cost = p.gangs[:, None] * prices
    gain = p.speeds / (p.speeds / cost).max(axis=1, keepdims=True)
    if rule.weighted:
        gain = gain * p.weight[:, None]
    columns, floors = snapshot.columns, np.zeros(len(p))
    if isinstance(rule, GavelCostSlo):
        left = columns.deadline - snapshot.now
        fastest = p.speeds.max(axis=1)
        attainable = (left > 0) & (columns.remaining / np.maximum(left, 1e-9) <= fastest)
        usable = left * 0.9 - 2 * rule.round
        floors[attainable] = np.where(usable > 0, columns.remaining / np.maximum(usable, 1e-9), np.inf)[attainable]
        floors = np.minimum(floors, np.where(attainable, fastest, 0.0))
        given_up = [row for row, note in shares.notes.items() if attainable[row]]
        if given_up:  # not all deadlines can be met at once: then these cannot be
            assert program(p, np.zeros(p.speeds.shape), level=np.maximum(floors, 1e-9)) < 1 + 1e-6
            return
        assert (throughput(p, shares) >= floors * (1 - 1e-6)).all()
    reached = float((gain * shares.alone).sum() / (cost * shares.alone).sum())
    assert reached == pytest.approx(best_ratio(p, gain, cost, floors), rel=1e-5)


@SEEDS
def test_the_least_entity_of_a_hierarchy_is_as_high_as_it_can_be(seed: int) -> None:
    # With fair entities of one level, the least Σ over an entity's jobs cannot be raised: an LP over entities.
    snapshot = crowd(seed)
    p = problem(snapshot)
    shares = GavelHierarchical(weights="a=2").shares(p)
    within_limits(p, shares)
    equal = p.speeds @ p.capacity / p.capacity.sum()
    level = p.gangs * throughput(p, shares) / equal
    names = [p.tenant_names[tenant] for tenant in p.tenant]
    sums = {name: sum(v for v, n in zip(level, names, strict=True) if n == name) for name in names}
    least = min(sums[name] / (2.0 if name == "a" else 1.0) for name in sums)
    # Inside an entity weights split the level, so the LP asks each job for its part until one is at its top speed;
    # the bound below drops that, so it can only be higher.
    rows, kinds = p.speeds.shape
    reach = np.zeros((len(sums), rows * kinds + 1))
    for e, name in enumerate(sums):
        for m in range(rows):
            if names[m] == name:
                reach[e, m * kinds : (m + 1) * kinds] = -p.speeds[m] * p.gangs[m] / equal[m]
        reach[e, -1] = 2.0 if name == "a" else 1.0
    time, room = np.zeros((rows, rows * kinds + 1)), np.zeros((kinds, rows * kinds + 1))
    for m in range(rows):
        time[m, m * kinds : (m + 1) * kinds] = 1.0
        room[np.arange(kinds), m * kinds + np.arange(kinds)] = p.gangs[m]
    bounds = [(0.0, None if s > 0 else 0.0) for s in p.speeds.ravel()] + [(0.0, None)]
    limits = np.concatenate([np.ones(rows), p.capacity, np.zeros(len(sums))])
    top = linprog(
        np.append(np.zeros(rows * kinds), -1.0), A_ub=np.vstack([time, room, reach]), b_ub=limits, bounds=bounds
    )
    assert top.fun is not None
    assert least <= -top.fun * (1 + 1e-6)
    if len({*names}) == len(names):  # one job each: the bound is the answer
        assert least == pytest.approx(-top.fun, rel=1e-6)


def test_the_paper_s_example_of_three_jobs() -> None:
    # §4.1: one V100 and one K80; the optimum is 8/11 of normalised throughput, reached in one way only.
    table = {"0": (40.0, 10.0), "1": (12.0, 4.0), "2": (100.0, 50.0)}
    p = problem(world([spec(name) for name in table], "v100:1x1,k80:1x1", table=table))
    shares = GavelMaxMin().shares(p)
    assert shares.alone == pytest.approx(np.array([[5, 0], [5, 1], [1, 10]]) / 11, abs=1e-9)


def test_the_paper_s_example_of_weights() -> None:
    # §4.3: four equal jobs of weights 3, 1, 1, 1 and four GPUs. Without water filling the last three might stay at a
    # third; filled up, everyone has a GPU.
    specs = [spec(str(i), weight=3.0 if i == 0 else 1.0) for i in range(4)]
    p = problem(world(specs, "v100:1x4"))
    assert GavelMaxMin().shares(p).alone.ravel() == pytest.approx(np.ones(4))


def test_two_jobs_of_opposite_taste_each_get_theirs() -> None:
    # a is 4 times as fast on the V100, b no faster: both can have all they want, and no fairness stands in the way.
    table = {"a": (4.0, 1.0), "b": (1.0, 1.0)}
    p = problem(world([spec("a"), spec("b")], "v100:1x1,k80:1x1", table=table))
    rules: list[Callable[[ShareProblem], Shares]] = [
        GavelMaxMin().shares,
        GavelMakespan().shares,
        GavelFinishTime().shares,
        GavelFifo().shares,
    ]
    for rule in rules:
        assert rule(p).alone == pytest.approx(np.array([[1.0, 0.0], [0.0, 1.0]]), abs=1e-9)


def test_makespan_balances_unequal_work() -> None:
    # One GPU, 300 and 100 seconds of work: three quarters and one quarter of the time, both done at 400.
    p = problem(world([spec("long", work=300.0), spec("short", work=100.0)], "v100:1x1"))
    assert GavelMakespan().shares(p).alone.ravel() == pytest.approx([0.75, 0.25])


def test_a_tree_of_tenants_splits_at_every_node() -> None:
    # One GPU; a has weight 2 and b 1. Inside a the branch a/x is first in first out, and a/y has one job of its own.
    tenants = {"x1": "a/x", "x2": "a/x", "y": "a/y", "b1": "b", "b2": "b"}
    p = problem(world([spec(name, tenant=tenant) for name, tenant in tenants.items()], "v100:1x1"))
    shares = GavelHierarchical(weights="a=2", fifo="a/x").shares(p)
    assert shares.alone.ravel() == pytest.approx([1 / 3, 0.0, 1 / 3, 1 / 6, 1 / 6], abs=1e-9)


@pytest.mark.parametrize("text", ["a", "a=", "a=0", "a=-1", "=2", "a=x", "a=inf", "a=1|b"])
def test_weights_of_branches_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="weights must be like"):
        GavelHierarchical(weights=text)


def test_unknown_work_counts_as_the_longest_known_or_an_hour() -> None:
    p = problem(world([spec("known", work=9000.0), spec("unknown", work=None)], "v100:1x1"))
    assert p.steps.tolist() == [9000.0, 9000.0]
    p = problem(world([spec("unknown", work=None)], "v100:1x1"))
    assert p.steps.tolist() == [HOUR]


ALL = [
    GavelMaxMin,
    GavelMakespan,
    GavelFinishTime,
    GavelFifo,
    GavelShortest,
    GavelThroughput,
    GavelCost,
    GavelCostSlo,
    GavelHierarchical,
]


@pytest.mark.parametrize("rule", ALL, ids=lambda r: r.__name__)
def test_on_one_kind_of_gpu_knowing_kinds_makes_no_difference(rule: Any) -> None:
    specs = [spec(f"j{i}", 1 + i % 3, 1000.0 * (1 + i), weight=1.0 + i % 2, tenant="ab"[i % 2]) for i in range(7)]
    snapshot = world(specs, "v100:2x4")
    knows, does_not = rule().shares(problem(snapshot)), rule(aware=False).shares(problem(snapshot, aware=False))
    assert does_not.alone == pytest.approx(knows.alone, abs=1e-9)


def test_an_agnostic_rule_spreads_every_job_over_the_kinds_alike() -> None:
    # Twelve jobs on nine GPUs: everyone has three quarters of the time, in proportion to what there is.
    p = problem(world([spec(f"j{i}") for i in range(12)]), aware=False)
    shares = GavelMaxMin(aware=False).shares(p)
    assert shares.alone == pytest.approx(np.tile(np.array([2, 3, 4]) / 12, (12, 1)), abs=1e-9)


def test_an_agnostic_rule_stays_within_limits_where_some_jobs_cannot_go_everywhere() -> None:
    specs = [spec(f"j{i}", 1 + i % 2, kinds=("v100",) if i < 3 else None) for i in range(8)]
    p = problem(world(specs, "v100:1x2,k80:1x3"), aware=False)
    within_limits(p, GavelMaxMin(aware=False).shares(p))


def test_sharing_gpus_is_never_worse() -> None:
    for seed in range(8):
        snapshot = crowd(seed)
        p = problem(snapshot)
        alone, shared = GavelMaxMin().shares(p), GavelMaxMin(space_sharing=True).shares(p)
        equal = p.speeds @ p.capacity / p.capacity.sum()
        rate = (p.speeds * shared.alone).sum(axis=1)
        for (a, b), together in zip(shared.pairs.tolist(), shared.together, strict=True):
            keeps = snapshot.perf.colocated(snapshot.jobs.at(a), snapshot.jobs.at(b))
            rate[a] += keeps[0] * (p.speeds[a] @ together)
            rate[b] += keeps[1] * (p.speeds[b] @ together)
        level = p.gangs / p.weight / equal
        assert (level * rate).min() >= (level * throughput(p, alone)).min() * (1 - 1e-7)


def test_without_prices_every_gpu_costs_the_same() -> None:
    # Then a job is cheapest where it is fastest.
    bare = replace(world([spec("a")]), cluster=parse_cluster("v100:1x2,p100:1x3,k80:1x4"))
    table = {"a": (1.0, 3.0, 2.0)}
    priced = world([spec("a")], table=table)
    unpriced = replace(priced, cluster=bare.cluster)
    assert GavelCost().shares(problem(unpriced)).alone.tolist() == [[0.0, 1.0, 0.0]]
    assert GavelCost().shares(problem(priced)).alone.tolist() == [[0.0, 0.0, 1.0]]
