"""Figure 14: seconds to compute the shares of the LAS and the hierarchical policy, by number of jobs.

The cluster has a GPU for each job, a third of each kind; the jobs are those of the continuous-single trace and belong
to three entities in turn. Times are CPU seconds of one core, pairs and classes of equal jobs included.
"""

from time import process_time

import msgspec
import numpy as np

from shoal.policy.gavel.fairness import GavelMaxMin
from shoal.policy.gavel.hierarchy import GavelHierarchical
from shoal.policy.gavel.share_update import ShareRule
from shoal.research.repro.context import ReproContext
from shoal.research.repro.gavel.claims import Claim, SeedInterval, claims_table, interval, line
from shoal.research.repro.gavel.problems import problem_for
from shoal.research.repro.gavel.runs import PAPER
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.table import Cell, Chart, Column, Table, table
from shoal.workload.generators.registry import generate

JOBS = (32, 128, 512, 2048)
QUICK_JOBS = (32, 128, 512)
DRAWS = (0, 1, 2)
LIMIT = 600.0
"""The paper's ten minutes."""

_WEIGHTS = "entity-0=1|entity-1=2|entity-2=3"
RULES: dict[str, ShareRule] = {
    "LAS": GavelMaxMin(),
    "LAS, sharing": GavelMaxMin(space_sharing=True),
    "hierarchical": GavelHierarchical(weights=_WEIGHTS),
    "hierarchical, sharing": GavelHierarchical(weights=_WEIGHTS, space_sharing=True),
}

Times = dict[tuple[str, int], list[float]]
"""CPU seconds by rule and number of jobs, one for each draw."""


def solve_seconds(name: str, jobs: int, seed: int) -> dict[str, float]:
    """CPU seconds to the shares of one problem, with their gap."""
    made = generate("gavel-continuous-single", jobs=jobs, seed=seed).jobs
    rows = [msgspec.structs.replace(job, tenant=f"entity-{i % 3}") for i, job in enumerate(made)]
    third = max(jobs // 3, 1)
    problem = problem_for(rows, f"v100:{third}x1,p100:{third}x1,k80:{third}x1")
    begin = process_time()
    shares = RULES[name].shares(problem)
    seconds = process_time() - begin
    if shares.trouble:
        raise ArithmeticError(f"{name}, {jobs} jobs, draw {seed}: {shares.trouble}")
    return {"seconds": seconds, "gap": shares.gap, "rows": float(np.prod(problem.speeds.shape))}


def figure_14(found: Times, sizes: tuple[int, ...]) -> list[Table]:
    """The paper's bounds, and the times by number of jobs."""
    largest = sizes[-1]
    shared = min(512, largest)
    claims = [
        Claim(f"hierarchical, {largest:,} jobs, s", LIMIT, interval(found["hierarchical", largest]), "most"),
        Claim(
            f"hierarchical, sharing, {shared} jobs, s", LIMIT, interval(found["hierarchical, sharing", shared]), "most"
        ),
        Claim(f"LAS / hierarchical, {largest:,} jobs", 1.0, _mean_ratio(found, largest), "most"),
    ]
    paper = "hierarchical under 10 minutes with 2,048 jobs, and with sharing with 512; LAS is much cheaper"
    rows: list[list[Cell]] = [[name, *(interval(found[name, size]).mean for size in sizes)] for name in RULES]
    lines = [line(name, sizes, lambda x, n=name: found[n, int(x)]) for name in RULES]  # type: ignore[misc]
    chart = Chart("figure 14: solver time", "jobs", "CPU seconds", (), tuple(lines))
    columns: list[str | Column] = ["policy", *(Column(f"{size:,} jobs", ".3f") for size in sizes)]
    title = "figure 14: CPU seconds to the shares, mean of three draws"
    here = "one core of this machine; the paper's curves go from 32 to 2,048 jobs without printed numbers"
    return [
        claims_table("figure 14: solver time", claims, paper),
        table(title, columns, rows, "", here, charts=(chart,)),
    ]


def _mean_ratio(found: Times, size: int) -> SeedInterval:
    return interval([a / b for a, b in zip(found["LAS", size], found["hierarchical", size], strict=True)])


def _run(context: ReproContext) -> list[Table]:
    sizes = QUICK_JOBS if context.quick else JOBS
    solve_seconds("LAS, sharing", 8, 0)  # the first call imports the solver
    found: Times = {}
    for name in RULES:
        for size in sizes:
            for seed in DRAWS:
                key = {"gavel": "solver", "policy": name, "jobs": size, "seed": seed}
                one = context.run(key, f"{name}, {size} jobs, draw {seed}", solve_seconds, name, size, seed)
                found.setdefault((name, size), []).append(one["seconds"])
    return figure_14(found, sizes)


REPRODUCTIONS = (Reproduction("gavel-14", PAPER, "seconds to the shares by number of jobs", _run),)
