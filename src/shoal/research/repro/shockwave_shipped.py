"""Shockwave's physical cluster (NSDI '23 figure 7, table 3): the results its authors ship, and our simulations.

They ship the 120-job trace on 32 GPUs under six policies, each run on the testbed and in their simulator. Their Themis
is Gavel's finish-time fairness. Ours are the runs of ``shockwave-9``, five orders of arrival, the first as shipped.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from shoal.research.repro.context import ReproContext
from shoal.research.repro.pollux_life import interval
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.shockwave import compared
from shoal.research.repro.shockwave_baselines import shipped_file
from shoal.research.repro.table import REPRODUCES, Cell, Chart, Column, Line, Table, differs, table

POLICIES: Mapping[str, tuple[str, str]] = {
    "Shockwave": ("shockwave", "shockwave"),
    "OSSP": ("min_total_duration", "ossp"),
    "Themis": ("finish_time_fairness", "gavel.ftf"),
    "Gavel": ("max_min_fairness", "gavel.max-min"),
    "AlloX": ("allox", "allox"),
    "MST": ("max_sum_throughput_perf", "mst"),
}
"""By the paper's name: the name of the shipped results, and our policy."""

FAIR_ONES = ("Themis", "Gavel", "AlloX")
STATED = {"makespan": 1.3, "worst ρ": 2.0}
"""§8.3: by how much Shockwave is better than the mean of Themis, Gavel and AlloX."""

FIDELITY = {"makespan": 0.0497, "JCT": 0.0462, "unfair": 0.0383}
"""Table 3: mean difference between simulated and physical cluster."""

_REACHED = 0.9
"""Fraction of a stated factor that counts as reached."""

_POINT = 0.01


def figures(result: Mapping[str, Any]) -> dict[str, float]:
    """Return makespan and mean JCT in seconds, worst ρ and the fraction of jobs above 1 of a shipped result."""
    rho = result["finish_time_fairness_list"]
    unfair = sum(value > 1.0 for value in rho) / len(rho)
    return {"makespan": result["makespan"], "JCT": result["avg_jct"], "worst ρ": max(rho), "unfair": unfair}


def shipped_pair(data: Path, name: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return the figures of a policy on the testbed and in the authors' simulator."""
    physical, simulated = (
        figures(shipped_file(data, f"tacc_32gpus_comparison__{name}_{where}.json"))
        for where in ("physical", "simulation")
    )
    return physical, simulated


def factors(found: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of Themis's, Gavel's and AlloX's figures over Shockwave's, by figure of ``STATED``."""
    return {name: fmean(found[one][name] for one in FAIR_ONES) / found["Shockwave"][name] for name in STATED}


def factors_verdict(ours: Sequence[Mapping[str, float]]) -> str:
    """Return the verdict: nine tenths of the stated factors are reached, within the interval over orders of arrival."""
    wrong = []
    for name, stated in STATED.items():
        low, high = interval([one[name] for one in ours])
        if high < _REACHED * stated:
            wrong.append(f"{name} {low:.2f} to {high:.2f} times better instead of {stated:g}")
    return differs("; ".join(wrong)) if wrong else REPRODUCES


def _figure_7(context: ReproContext) -> list[Table]:
    orders = (0,) if context.quick else range(5)
    ours = {name: [_named(run) for run in compared(context, "120", own, orders)] for name, (_, own) in POLICIES.items()}
    theirs = {name: shipped_pair(context.data, shipped) for name, (shipped, _) in POLICIES.items()}
    rows: list[list[Cell]] = []
    for name, (physical, simulated) in theirs.items():
        cells: list[Cell] = []
        for figure in ("makespan", "JCT", "worst ρ"):
            cells += [physical[figure], simulated[figure], fmean(one[figure] for one in ours[name])]
        rows.append([name, *cells])
    columns = [Column("policy")]
    for figure, form in (("makespan", ",.0f"), ("JCT", ",.0f"), ("worst ρ", ".2f")):
        columns += [Column(f"{figure}, physical", form), Column("their simulator", form), Column("ours", form)]
    charts = [
        Chart(
            f"figure 7: {figure}",
            "",
            unit,
            tuple(
                Line(where, tuple((float(n), pair[at][figure]) for n, pair in enumerate(theirs.values())))
                for at, where in enumerate(("physical", "their simulator"))
            ),
            (Line("ours", tuple((float(n), fmean(o[figure] for o in runs)) for n, runs in enumerate(ours.values()))),),
            "bars",
            tuple(POLICIES),
        )
        for figure, unit in (("makespan", "s"), ("JCT", "s"), ("worst ρ", "ρ"))
    ]
    each = [factors({name: runs[order] for name, runs in ours.items()}) for order in range(len(orders))]
    paper = (
        "makespan 1.3 times better than the mean of Themis's, Gavel's and AlloX's, worst ρ 2 times (1.82); OSSP's "
        "worst ρ 5.79 and MST's 5.2; AlloX's JCT best, OSSP's worst"
    )
    title = "figure 7: 120 jobs on 32 GPUs, physical and simulated"
    here = "physical and their simulator: as shipped; ours: mean of the orders, `gavel.ftf` for their Themis"
    return [table(title, columns, rows, paper, here, verdict=factors_verdict(each), charts=charts)]


def _named(run: Mapping[str, float]) -> dict[str, float]:
    return {"makespan": run["makespan"], "JCT": run["jct"], "worst ρ": run["rho"]}


def differences(pairs: Mapping[str, tuple[Mapping[str, float], Mapping[str, float]]]) -> dict[str, float]:
    """Return mean differences of simulated from physical figures: relative ones, in points for the unfair fraction."""
    relative = {
        name: fmean(abs(simulated[name] / physical[name] - 1.0) for physical, simulated in pairs.values())
        for name in ("makespan", "JCT")
    }
    return relative | {"unfair": fmean(abs(s["unfair"] - p["unfair"]) for p, s in pairs.values())}


def fidelity_verdict(found: Mapping[str, float]) -> str:
    """Return the verdict: the shipped results differ by what table 3 says, to one point."""
    off = [
        f"{name} {found[name]:.1%} instead of {stated:.1%}"
        for name, stated in FIDELITY.items()
        if abs(found[name] - stated) > _POINT
    ]
    return differs("; ".join(off)) if off else REPRODUCES


def _table_3(context: ReproContext) -> list[Table]:
    pairs = {name: shipped_pair(context.data, shipped) for name, (shipped, _) in POLICIES.items()}
    found = differences(pairs)
    rows: list[list[Cell]] = [[name, FIDELITY[name], found[name]] for name in FIDELITY]
    columns = [Column("figure"), Column("paper", ".2%"), Column("of the shipped results", ".2%")]
    paper = "the authors' simulator and their testbed differ by about 5 %"
    here = "six policies on the 120-job trace; the paper ran several workloads"
    return [table("table 3: fidelity", columns, rows, paper, here, verdict=fidelity_verdict(found))]


_PAPER = "Shockwave (NSDI '23)"
REPRODUCTIONS = (
    Reproduction("shockwave-7", _PAPER, "figure 7: the physical cluster", _figure_7, "shockwave"),
    Reproduction("shockwave-table3", _PAPER, "table 3: the authors' simulator and testbed", _table_3, "shockwave"),
)
