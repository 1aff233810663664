"""Figures 12 and 13: a hierarchical policy over time, as the jobs of three entities join a small cluster.

Every fourth timestep a job joins; the first six belong to entity 0 (weight 1), the next six to entity 1 (weight 2), the
last six to entity 2 (weight 3). The types of the jobs, which the paper does not name, are drawn at random: a seed is a
draw. Shown are the shares that the policy computes; rounds are not simulated.
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from shoal.core.arrays import Floats
from shoal.policy.gavel.hierarchy import GavelHierarchical
from shoal.policy.gavel.problem import ShareProblem
from shoal.research.repro.context import ReproContext
from shoal.research.repro.gavel.claims import Claim, claims_table, interval
from shoal.research.repro.gavel.problems import levels, problem_for
from shoal.research.repro.gavel.runs import PAPER, SEEDS
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.table import Chart, Line, Table
from shoal.workload.generators.gavel import measured_types
from shoal.workload.schema import Job

SMALL = "v100:1x3,p100:1x3,k80:1x3"
WEIGHTS = (1.0, 2.0, 3.0)
PER_ENTITY, STEP = 6, 4
_SERVED = 1e-6
"""A job with a smaller level than this gets no GPU time."""

HERE = "types of jobs drawn at random, five draws; shares as computed, without rounds"


@dataclass(frozen=True, slots=True)
class SharesOverTime:
    """By number of jobs that have joined (from 1) and job: its level with the policy, and in a static partition.

    A level is throughput over that with time spread evenly over all GPUs; 0 for jobs that have not joined.
    """

    ours: Floats
    partition: Floats

    def entities(self) -> Floats:
        """The sum of levels by number of jobs that have joined and entity."""
        summed: Floats = self.ours.reshape(len(self.ours), len(WEIGHTS), PER_ENTITY).sum(axis=2)
        return summed

    @property
    def lost(self) -> float:
        """The part of the total level that the static partition loses, as a mean over time."""
        return 1.0 - float((self.partition.sum(axis=1) / self.ours.sum(axis=1)).mean())


def over_time(policy: GavelHierarchical, seed: int) -> SharesOverTime:
    """The shares of one draw of job types as jobs join one by one."""
    jobs = _jobs(seed)
    ours, partition = np.zeros((2, len(jobs), len(jobs)))
    for count in range(1, len(jobs) + 1):
        problem = problem_for(jobs[:count], SMALL)
        ours[count - 1, :count] = levels(problem, policy.shares(problem).alone)
        partition[count - 1, :count] = levels(problem, _static_partition(problem))
    return SharesOverTime(ours, partition)


def _jobs(seed: int) -> list[Job]:
    chance = np.random.default_rng([seed, 12])
    types = measured_types("v100", 1)
    chosen = [types[int(i)] for i in chance.integers(len(types), size=len(WEIGHTS) * PER_ENTITY)]
    return [
        Job(
            id=f"{number:02d}",
            submitted=0.0,
            gpus=1,
            work=1e9,
            model=kind.model,
            batch_size=kind.batch_size,
            tenant=f"entity-{number // PER_ENTITY}",
        )
        for number, kind in enumerate(chosen)
    ]


def _static_partition(problem: ShareProblem) -> Floats:
    """Each entity's part of every kind by weight, divided evenly among its jobs, at most all time of a job."""
    entity = np.array([int(problem.tenant_names[t].removeprefix("entity-")) for t in problem.tenant.tolist()])
    weights, jobs = np.array(WEIGHTS)[entity], np.bincount(entity, minlength=len(WEIGHTS))[entity]
    total = sum(WEIGHTS[one] for one in set(entity.tolist()))
    part = (weights / total / jobs)[:, None] * problem.capacity
    found: Floats = part / np.maximum(part.sum(axis=1, keepdims=True), 1.0)
    return found


def _policy(*, fifo: bool) -> GavelHierarchical:
    names = [f"entity-{number}" for number in range(len(WEIGHTS))]
    policy = GavelHierarchical(weights="|".join(f"{n}={w:g}" for n, w in zip(names, WEIGHTS, strict=True)))
    return replace(policy, fifo="|".join(names)) if fifo else policy


def _chart(title: str, found: SharesOverTime) -> Chart:
    """Total level of each entity over time, first draw."""
    times, totals = [STEP * i for i in range(len(found.ours))], found.entities()
    lines = [
        Line(f"entity {n}", tuple((float(t), float(y)) for t, y in zip(times, totals[:, n].tolist(), strict=True)))
        for n in range(len(WEIGHTS))
    ]
    split = found.partition.sum(axis=1).tolist()
    lines.append(Line("static partition, all", tuple((float(t), y) for t, y in zip(times, split, strict=True))))
    return Chart(title, "timestep", "sum of levels", (), tuple(lines), "steps")


def figure_12(found: list[SharesOverTime]) -> Table:
    """Fairness between entities and between their jobs, and the loss of a static partition."""
    between, inside = [], []
    for one in found:
        totals = one.entities()[-1] / np.array(WEIGHTS)
        jobs = one.ours[-1].reshape(len(WEIGHTS), PER_ENTITY)
        between.append(float(totals.min() / totals.max()))
        inside.append(float((jobs.min(axis=1) / jobs.max(axis=1)).min()))
    claims = [
        Claim("total lost by a static partition", 0.17, interval([one.lost for one in found])),
        Claim("least / largest level per weight of an entity", 1.0, interval(between)),
        Claim("least / largest level inside an entity", 1.0, interval(inside)),
    ]
    paper = "fair between entities and inside each; a static, agnostic partition has about 17 % less total throughput"
    title = "figure 12: fairness over fairness"
    return claims_table(title, claims, paper, HERE, [_chart("figure 12: levels of entities over time", found[0])])


def figure_13(found: list[SharesOverTime]) -> Table:
    """First in, first out inside each entity: whether only the first jobs of each are served."""
    unserved = [float((one.ours[-1, :PER_ENTITY] <= _SERVED).sum()) for one in found]
    passed = [float(sum(_out_of_turn(row) for row in one.ours)) for one in found]
    claims = [
        Claim("jobs of entity 0 without GPU time at the end", 1.0, interval(unserved), "least"),
        Claim("jobs served behind one of their entity that is not", 0.0, interval(passed), "most", certain=True),
    ]
    paper = "later jobs of entity 0 receive no GPU time, in respect of the order of arrival"
    title = "figure 13: fairness over first in, first out"
    return claims_table(title, claims, paper, HERE, [_chart("figure 13: levels of entities over time", found[0])])


def _out_of_turn(row: Floats) -> int:
    served = row.reshape(len(WEIGHTS), PER_ENTITY) > _SERVED
    return int((served[:, 1:] & ~served[:, :-1]).sum())


def _run(context: ReproContext, *, fifo: bool) -> list[Table]:
    found = []
    for seed in SEEDS:
        key = {"gavel": "hierarchy", "fifo": fifo, "seed": seed}
        stored = context.run(key, f"18 jobs join, draw {seed}", _plain, _policy(fifo=fifo), seed)
        found.append(SharesOverTime(*(np.array(one) for one in stored)))
    return [figure_13(found) if fifo else figure_12(found)]


def _plain(policy: GavelHierarchical, seed: int) -> list[list[list[float]]]:
    found = over_time(policy, seed)
    return [found.ours.tolist(), found.partition.tolist()]


REPRODUCTIONS = (
    Reproduction("gavel-12", PAPER, "hierarchy over time: fair over fair", partial(_run, fifo=False)),
    Reproduction("gavel-13", PAPER, "hierarchy over time: fair over FIFO", partial(_run, fifo=True)),
)
