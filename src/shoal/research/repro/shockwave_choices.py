"""Ours, not the paper's: what each choice of our ``shockwave`` is worth on a public trace, and gaps of its windows."""

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from statistics import fmean
from time import process_time

import numpy as np

from shoal.research.bench.shockwave import MIXES, random_claims
from shoal.research.repro.context import ReproContext
from shoal.research.repro.parallel import Task, run_all
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.shockwave import TRACES, TraceCase, measure, public_trace
from shoal.research.repro.table import Cell, Column, Table, table
from shoal.solve.window import plan

SETTINGS = (
    "shockwave",
    "shockwave:welfare=slopes",
    "shockwave:welfare=log",
    "shockwave:layout=exact",
    "shockwave:k=2",
    "shockwave:k=5",
    "shockwave:lam=1",
    "shockwave:lam=0.1",
    "shockwave:lam=0",
    "shockwave:mode=lazy",
    "shockwave:predictor=reactive",
    "shockwave:predictor=agnostic",
)
_TRACE, _GPUS, _DRAWS = "120", 256, 20


def measure_setting(data: Path, policy: str, seed: int) -> Mapping[str, float]:
    """Run one setting on the trace of 120 jobs in one order of arrival."""
    _, name, gpus = TRACES[_TRACE]
    return measure(data, TraceCase(policy, public_trace(data, _TRACE, seed), name, gpus, seed))


def _settings(context: ReproContext) -> list[Table]:
    seeds = (0,) if context.quick else tuple(range(5))
    cases = [(policy, seed) for policy in SETTINGS for seed in seeds]
    tasks = [
        Task(
            {"shockwave": "choices", "trace": _TRACE, "policy": policy, "seed": seed},
            f"{policy}, order {seed}",
            measure_setting,
            (context.data, policy, seed),
        )
        for policy, seed in cases
    ]
    found = dict(zip(cases, run_all(context, tasks), strict=True))
    rows: list[Sequence[Cell]] = []
    for policy in SETTINGS:
        runs = [found[policy, seed] for seed in seeds]
        means = [fmean(run[name] for run in runs) for name in ("makespan", "jct")]
        unfair = fmean(run["unfair"] for run in runs)
        rows.append([policy, *means, max(run["rho"] for run in runs), unfair])
    columns = [Column("setting"), Column("makespan, s", ",.0f"), Column("mean JCT, s", ",.0f"), Column("worst ρ")]
    return [
        table(
            f"settings of shockwave: {_TRACE} jobs on {TRACES[_TRACE][2]} GPUs, {len(seeds)} orders of arrival",
            [*columns, Column("above 1.05", ".1%")],
            rows,
            here="not in the paper; `slopes` is the welfare of its code, `log` that of its text; worst ρ of all orders",
        )
    ]


def _windows(context: ReproContext) -> list[Table]:
    sizes, draws = ((500,), 2) if context.quick else ((500, 1000, 2000), _DRAWS)
    rows: list[Sequence[Cell]] = []
    for mix in MIXES:
        gaps: list[float] = []
        longest: list[float] = []
        for jobs in sizes:
            took = []
            for seed in range(draws):
                claims = random_claims(jobs, mix, seed=seed)
                for lam in (1.0, inf):
                    begin = process_time()
                    gaps.append(plan(claims, _GPUS, lam, np.argsort(claims.left, kind="stable")).gap)
                    took.append(process_time() - begin)
            longest.append(max(took))
        rows.append([", ".join(map(str, mix)), max(gaps), fmean(gaps), *longest])
    columns = [Column("gangs, as many jobs of each"), Column("worst gap", ".3%"), Column("mean gap", ".4%")]
    return [
        table(
            f"windows of 20 rounds on {_GPUS} GPUs, {2 * draws * len(sizes)} of each mix of gangs",
            [*columns, *(Column(f"{jobs} jobs, longest, CPU s", ".3f") for jobs in sizes)],
            rows,
            here="logarithmic welfare; the makespan counts as much as welfare, or before it",
        )
    ]


_PAPER = "Shockwave (NSDI '23)"
REPRODUCTIONS = (
    Reproduction("shockwave-choices", _PAPER, "ours: what each setting of the policy is worth", _settings, "shockwave"),
    Reproduction("shockwave-windows", _PAPER, "ours: gaps and CPU time of windows by mix of gangs", _windows),
)
