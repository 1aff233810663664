"""§7.3: makespan, first in first out, priorities, and cost with and without deadlines."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from shoal.core.topology import parse_cluster
from shoal.research.repro.context import ReproContext
from shoal.research.repro.gavel.claims import Claim, claims_table, interval, paired_ratio
from shoal.research.repro.gavel.problems import PRICES
from shoal.research.repro.gavel.runs import (
    AGNOSTIC,
    AWARE,
    CLUSTER,
    HERE,
    HOUR,
    PAPER,
    RESTART,
    LoadCase,
    LoadResult,
    Results,
    measure_all,
    seeds,
    span,
)
from shoal.research.repro.parallel import Task, run_all
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.table import Cell, Column, Table, table
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.workload.generators.registry import generate

FIFO_AGNOSTIC, FIFO, FIFO_SHARING = "gavel.fifo:aware=false", "gavel.fifo", "gavel.fifo:space_sharing=true"
MIGRATING = "gandiva:space_sharing=true,quantum=360"
"""Gandiva as a policy of its own, which moves jobs to faster kinds: else a batch ends with jobs on the slowest."""
MAKESPAN, MAKESPAN_SHARING = "gavel.makespan", "gavel.makespan:space_sharing=true"
THROUGHPUT, COST, COST_SLO = "gavel.throughput", "gavel.cost", "gavel.cost-slo"
SINGLE, MULTIPLE = 5.6, 2.6
"""The paper's high loads, in jobs an hour on 108 GPUs."""

STATIC_JOBS, DEADLINE_JOBS = 240, 200
DEADLINE_GAP = 28_800.0
"""Mean seconds between jobs with deadlines. The paper prints no load; at this one hardly any job waits."""
QUICK_JOBS = 40
URGENT = 0.2


@dataclass(frozen=True, slots=True)
class BatchCase:
    """One run of a generated trace to its end: the trace, the number of jobs, the policy and the seed.

    ``gap`` is the mean number of seconds between arrivals, None for that of the generator.
    """

    trace: str
    jobs: int
    policy: str
    seed: int
    gap: float | None = None


def measure_batch(case: BatchCase) -> dict[str, Any]:
    """Run a case: hours to the last completion, dollars (0 without prices), fraction of deadlines missed."""
    options = {} if case.gap is None else {"interarrival": case.gap}
    workload = generate(case.trace, jobs=case.jobs, seed=case.seed, **options)
    cluster = parse_cluster(CLUSTER, prices=PRICES)
    found = run(Scenario(cluster, case.policy, seed=case.seed, restart_cost=RESTART), workload)
    late = np.array([job.deadline if job.deadline is not None else np.inf for job in workload.jobs])
    return {
        "makespan": found.summary["makespan"] / HOUR,
        "cost": found.summary["cost"],
        "missed": float((found.jobs.completed > late).mean()),
    }


Batches = dict[BatchCase, dict[str, Any]]


def batches(
    context: ReproContext, trace: str, jobs: int, policies: tuple[str, ...], gap: float | None = None
) -> Batches:
    """The results of these policies on a trace, one for each seed."""
    count = QUICK_JOBS if context.quick else jobs
    cases = [BatchCase(trace, count, policy, seed, gap) for policy in policies for seed in seeds(context)]
    planned = [
        Task(
            {"gavel": "batch", "trace": c.trace, "jobs": c.jobs, "policy": c.policy, "seed": c.seed}
            | ({} if c.gap is None else {"gap": c.gap}),
            f"{c.policy}, {c.trace}, {c.jobs} jobs, seed {c.seed}",
            measure_batch,
            (c,),
        )
        for c in cases
    ]
    return dict(zip(cases, run_all(context, planned), strict=True))


def _of(found: Batches, policy: str, what: str) -> list[float]:
    return [result[what] for case, result in found.items() if case.policy == policy]


def makespan_table(found: Batches) -> Table:
    """Makespan against first in first out and Gandiva's sharing, with and without sharing."""

    def times(above: str, below: str) -> Any:
        return paired_ratio(_of(found, above, "makespan"), _of(found, below, "makespan"))

    claims = [
        Claim("FIFO / Gavel", 2.5, times(FIFO_AGNOSTIC, MAKESPAN)),
        Claim("Gandiva's sharing / Gavel", 1.4, times(MIGRATING, MAKESPAN)),
        Claim("Gavel / Gavel with sharing", 1.08, times(MAKESPAN, MAKESPAN_SHARING)),
    ]
    jobs = next(iter(found)).jobs
    paper = (
        "2.5 times shorter than FIFO, 1.4 times than Gandiva's sharing; sharing shortens by another 8 % with many jobs"
    )
    here = f"{jobs} jobs of the static trace, 30 % of them gangs, on 36 GPUs; FIFO is agnostic of kinds"
    return claims_table("§7.3: makespan", claims, paper, here)


def fifo_table(single: Results, multiple: Results) -> Table:
    """First in, first out: knowledge of kinds and sharing."""

    def hours(results: Results, policy: str) -> list[float]:
        return [result.hours for case, result in results.items() if case.policy == policy]

    base = hours(single, FIFO_AGNOSTIC)
    claims = [
        Claim("agnostic / Gavel", 2.7, paired_ratio(base, hours(single, FIFO))),
        Claim("agnostic / Gavel with sharing", 3.8, paired_ratio(base, hours(single, FIFO_SHARING))),
        Claim("no sharing / sharing", 1.4, paired_ratio(hours(single, FIFO), hours(single, FIFO_SHARING))),
        Claim("no sharing / sharing, gangs", 1.1, paired_ratio(hours(multiple, FIFO), hours(multiple, FIFO_SHARING))),
    ]
    paper = "2.7 times shorter, 3.8 with sharing; sharing alone 1.4 times with jobs of one GPU, 1.1 with gangs"
    return claims_table("§7.3: first in, first out, mean completion time at high load", claims, paper, HERE)


def priority_table(results: Results) -> Table:
    """A fifth of the jobs with high priority."""

    def hours(policy: str, shown: Callable[[LoadResult], float]) -> list[float]:
        return [shown(result) for case, result in results.items() if case.policy == policy]

    claims = [
        Claim(f"agnostic / Gavel, {what} priority", theirs, paired_ratio(hours(AGNOSTIC, shown), hours(AWARE, shown)))
        for what, theirs, shown in (("high", 1.5, lambda r: r.high), ("low", 2.7, lambda r: r.low))
    ]
    paper = "completion times of high priority 1.5 times shorter, of low priority 2.7 times"
    here = f"{HERE}; jobs of high priority weigh 5, others 1; jobs of one GPU at {SINGLE:g} jobs/h"
    return claims_table("§7.3: LAS with a fifth of the jobs of high priority", claims, paper, here)


def cost_tables(found: Batches) -> list[Table]:
    """Dollars and missed deadlines of the cost policies against the most throughput."""
    fast = _of(found, THROUGHPUT, "cost")
    claims = [
        Claim("throughput / cost, dollars", 1.4, paired_ratio(fast, _of(found, COST, "cost"))),
        Claim("cost: deadlines missed", 0.35, interval(_of(found, COST, "missed"))),
        Claim("throughput / cost with SLOs, dollars", 1.2, paired_ratio(fast, _of(found, COST_SLO, "cost"))),
        Claim("cost with SLOs: deadlines missed", 0.0, interval(_of(found, COST_SLO, "missed")), "most"),
    ]
    rows: list[list[Cell]] = []
    for policy in (THROUGHPUT, COST, COST_SLO):
        means = [interval(_of(found, policy, what)) for what in ("cost", "missed")]
        rows.append([policy, means[0].mean, means[0].half, means[1].mean, means[1].half])
    jobs = next(iter(found)).jobs
    paper = "1.4 times cheaper with 35 % of deadlines missed; with SLOs 1.2 times cheaper and none missed"
    here = (
        f"{jobs} ResNet-50 and A3C jobs (paper: 500) on 36 GPUs, one in {DEADLINE_GAP / HOUR:g} hours, so that hardly "
        "any waits; prices of Google Cloud"
    )
    columns: list[str | Column] = [
        "policy",
        Column("dollars", ",.0f"),
        Column("±", ",.0f"),
        Column("missed", ".1%"),
        Column("±", ".1%"),
    ]
    return [
        claims_table("§7.3: cost", claims, paper, here),
        table("§7.3: dollars and missed deadlines", columns, rows, ""),
    ]


def _loads(context: ReproContext, trace: str, rate: float, policies: tuple[str, ...], urgent: float = 0.0) -> Results:
    hours = span(context)
    cases = [LoadCase(trace, rate, p, seed, urgent=urgent, span=hours) for p in policies for seed in seeds(context)]
    return measure_all(context, cases)


def _makespan(context: ReproContext) -> list[Table]:
    policies = (FIFO_AGNOSTIC, MIGRATING, MAKESPAN, MAKESPAN_SHARING)
    return [makespan_table(batches(context, "gavel-static", STATIC_JOBS, policies))]


def _fifo(context: ReproContext) -> list[Table]:
    single = _loads(context, "single", SINGLE, (FIFO_AGNOSTIC, FIFO, FIFO_SHARING))
    return [fifo_table(single, _loads(context, "multiple", MULTIPLE, (FIFO, FIFO_SHARING)))]


def _priorities(context: ReproContext) -> list[Table]:
    return [priority_table(_loads(context, "single", SINGLE, (AGNOSTIC, AWARE), URGENT))]


def _cost(context: ReproContext) -> list[Table]:
    return cost_tables(batches(context, "gavel-deadlines", DEADLINE_JOBS, (THROUGHPUT, COST, COST_SLO), DEADLINE_GAP))


def _all(parts: tuple[Callable[[ReproContext], list[Table]], ...], context: ReproContext) -> list[Table]:
    return [one for part in parts for one in part(context)]


REPRODUCTIONS = (
    Reproduction(
        "gavel-7.3",
        PAPER,
        "makespan, FIFO, priorities, cost",
        partial(_all, (_makespan, _fifo, _priorities, _cost)),
    ),
)
