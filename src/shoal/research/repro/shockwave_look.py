"""Shockwave's schedules in detail (NSDI '23 §8.4, figure 8): a batch of 50 jobs by size, and their fairness.

The paper names neither the jobs nor the GPUs of its batch. Here 50 jobs of the public 120-job trace are drawn for each
seed and submitted together to 16 GPUs, about the paper's contention of three.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import numpy as np

from shoal.research.repro.context import ReproContext
from shoal.research.repro.pollux_life import interval
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.shockwave import ROUND, TraceCase, public_trace, simulate
from shoal.research.repro.table import (
    REPRODUCES,
    Cell,
    Chart,
    Column,
    Line,
    Table,
    cannot_be_told,
    differs,
    table,
)
from shoal.workload.schema import Workload

JOBS, GPUS, SEEDS = 50, 16, 5
POLICIES = ("shockwave", "allox", "gavel.max-min", "ossp")
GROUPS = ("XSmall", "Small", "Medium", "(X)Large")
"""Quarters of the jobs by GPU time; the paper's limits are not printed for this batch."""

STATED_WORST = 1.23
STATED_UNFAIR = 0.2
"""The paper's worst ρ of Shockwave; the fraction of jobs above 1 that AlloX and Gavel exceed."""


def batch(data: Path, seed: int) -> Workload:
    """Return a batch of jobs, all submitted at once."""
    whole = public_trace(data, "120")
    drawn = np.random.default_rng([seed, 8]).choice(len(whole.jobs), JOBS, replace=False).tolist()
    jobs = tuple(msgspec.structs.replace(whole.jobs[i], submitted=0.0) for i in sorted(drawn))
    return Workload(whole.name, jobs, whole.format, whole.source)


def look(data: Path, policy: str, seed: int) -> dict[str, Any]:
    """Return makespan and mean end by size group, in rounds; ρ by job; and the fraction of jobs with ρ above 1."""
    outcome = simulate(data, TraceCase(policy, batch(data, seed), "tacc", GPUS, seed))
    jobs = outcome.jobs
    order = np.argsort(jobs.exclusive * jobs.gpus, kind="stable")
    ends = {
        name: float(jobs.completed[part].mean()) / ROUND
        for name, part in zip(GROUPS, np.array_split(order, 4), strict=True)
    }
    rho = jobs.rho["contention"]
    makespan = float(jobs.completed.max()) / ROUND
    return {"makespan": makespan, "ends": ends, "rho": sorted(rho.tolist()), "unfair": float((rho > 1.0).mean())}


def look_verdict(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the verdict: Shockwave ends sooner, with fewer late jobs, than AlloX and Gavel; OSSP delays small jobs.

    Compared for each batch; a statement holds if the 95 % interval over batches is above 0.
    """
    wrong, unclear = [], []

    def check(what: str, values: Sequence[float]) -> None:
        low, high = interval(values)
        if high <= 0.0:
            wrong.append(what)
        elif low <= 0.0:
            unclear.append(what)

    ours = found["shockwave"]
    for name in ("allox", "gavel.max-min"):
        pairs = list(zip(found[name], ours, strict=True))
        check(f"sooner than {name}", [other["makespan"] - own["makespan"] for other, own in pairs])
        check(f"fewer late jobs than {name}", [other["unfair"] - own["unfair"] for other, own in pairs])
    late = [o["ends"]["XSmall"] - s["ends"]["XSmall"] for o, s in zip(found["ossp"], ours, strict=True)]
    check("OSSP ends small jobs later", late)
    if wrong:
        return differs(f"does not hold: {', '.join(wrong)}")
    return cannot_be_told(f"the interval holds 0: {', '.join(unclear)}") if unclear else REPRODUCES


def _figure_8(context: ReproContext) -> list[Table]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for policy in POLICIES:
        found[policy] = []
        for seed in range(2 if context.quick else SEEDS):
            key = {"shockwave": "figure 8", "policy": policy, "seed": seed, "jobs": JOBS, "gpus": GPUS}
            found[policy].append(context.run(key, f"batch {seed}, {policy}", look, context.data, policy, seed))
    rows: list[list[Cell]] = []
    for policy, runs in found.items():
        ends = [fmean(one["ends"][group] for one in runs) for group in GROUPS]
        worst = [one["rho"][-1] for one in runs]
        unfair = fmean(one["unfair"] for one in runs)
        stated = {"shockwave": STATED_WORST}.get(policy)
        rows.append(
            [policy, fmean(one["makespan"] for one in runs), *ends, stated, fmean(worst), *interval(worst), unfair]
        )
    columns = [Column("policy"), Column("makespan, rounds", ".0f"), *(Column(f"{g}, mean end", ".0f") for g in GROUPS)]
    columns += [Column("worst ρ, paper"), Column("worst ρ"), Column("from"), Column("to"), Column("ρ > 1", ".1%")]
    theirs = (
        Line("paper: shockwave", ((STATED_WORST, 1.0),)),
        Line("paper: AlloX, Gavel (at most)", ((1.0, 1.0 - STATED_UNFAIR),)),
    )
    lines = tuple(
        Line(
            policy,
            tuple(
                (x, fmean(sum(rho <= x for rho in one["rho"]) / JOBS for one in runs))
                for x in np.arange(0.0, 3.01, 0.1).round(2).tolist()
            ),
        )
        for policy, runs in found.items()
    )
    chart = Chart("figure 8b: distribution of ρ", "ρ", "fraction of jobs", theirs, lines)
    paper = (
        "Shockwave's worst ρ is 1.23; more than 20 % of jobs are above 1 under AlloX and Gavel, whose large jobs trail "
        "until round 230 and 220; OSSP delays the smallest jobs"
    )
    here = f"{JOBS} jobs drawn from the 120-job trace, {GPUS} GPUs, means over batches, 95 % interval of the worst ρ"
    title = "figure 8: schedules of a batch by size of job"
    return [table(title, columns, rows, paper, here, verdict=look_verdict(found), charts=[chart])]


REPRODUCTIONS = (
    Reproduction("shockwave-8", "Shockwave (NSDI '23)", "figure 8: a batch of 50 jobs by size", _figure_8, "shockwave"),
)
