"""Tables 3 and 4: the public traces of the physical cluster, and how often a lease is not renewed.

Seed 0 is the trace itself, other seeds permute its jobs over its arrival times. Speeds are those of the public file of
the physical cluster.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.topology import parse_cluster
from shoal.research.repro.context import ReproContext
from shoal.research.repro.gavel.claims import Claim, claims_table, interval, paired_ratio
from shoal.research.repro.gavel.runs import HOUR, PAPER, RESTART, seeds
from shoal.research.repro.parallel import Task, run_all
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.shockwave import permuted
from shoal.research.repro.table import Cell, Column, Table, table
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.workload.files import read_workload
from shoal.workload.schema import Workload

CONTINUOUS, STATIC = "max_min_fairness", "minimize_makespan"
ROWS: Mapping[str, tuple[str, str, str, float, float]] = {
    "continuous, Gavel": (CONTINUOUS, "gavel.max-min", "avg_jct", 3.4, 3.7),
    "continuous, LAS": (CONTINUOUS, "gavel.max-min:aware=false", "avg_jct", 5.1, 5.4),
    "static, Gavel": (STATIC, "gavel.makespan", "makespan", 17.7, 17.6),
    "static, Gandiva": (STATIC, "gandiva:space_sharing=true,quantum=360", "makespan", 21.3, 22.1),
}
"""By row of Table 3: trace, policy, figure of the summary, and the paper's hours on hardware and simulated."""

CLUSTER = "v100:2x4,p100:4x4,k80:6x4"
ROUND = 360.0

OVERHEADS: Mapping[str, tuple[float, float]] = {
    "ResNet-18": (0.94, 0.17),
    "ResNet-50": (1.58, 0.25),
    "A3C": (0.22, 0.0),
    "LM": (2.91, 0.47),
    "Transformer": (0.77, 0.11),
    "CycleGAN": (0.77, 0.11),
}
"""Table 4: percent of time lost without and with renewal of leases."""


def public_trace(data: Path, name: str, seed: int = 0) -> Workload:
    """One of the public traces; a seed above 0 permutes its jobs over the same arrival times."""
    whole = read_workload(data / "gavel" / "traces" / "physical_cluster" / f"{name}.trace", "gavel")
    return permuted(whole, [seed, 3]) if seed else whole


def measure(data: Path, row: str, seed: int) -> dict[str, Any]:
    """The hours of a row, and by model the starts and the rounds that its jobs ran."""
    trace, policy, what, _, _ = ROWS[row]
    workload = public_trace(data, trace, seed)
    speeds = str(data / "gavel" / "physical_cluster_throughputs.json")
    scenario = Scenario(
        parse_cluster(CLUSTER), policy, seed=seed, round=ROUND, restart_cost=RESTART, throughputs=speeds
    )
    found = run(scenario, workload)
    rounds = found.jobs.gpu_seconds / np.maximum(found.jobs.gpus, 1) / ROUND
    models = [job.model or "" for job in workload.jobs]
    moved = {model: [0.0, 0.0] for model in models}
    for model, starts, ran in zip(models, found.jobs.restarts.tolist(), rounds.tolist(), strict=True):
        moved[model][0] += starts
        moved[model][1] += ran
    return {"hours": found.summary[what] / HOUR, "moved": moved}


Measured = Mapping[str, list[dict[str, Any]]]
"""By row of Table 3 the results of its seeds, the trace itself first."""


def table_3(found: Measured) -> list[Table]:
    """The four rows on the traces themselves, and the two factors over orders of arrival."""
    rows: list[list[Cell]] = []
    for name, (_, _, _, physical, simulated) in ROWS.items():
        ours = float(found[name][0]["hours"])
        rows.append([name, physical, simulated, ours, ours / simulated - 1.0])
    hours = {name: [one["hours"] for one in results] for name, results in found.items()}
    claims = [Claim(f"{name}, h", ROWS[name][4], interval(hours[name][:1]), certain=True) for name in ROWS]
    claims += [
        Claim("continuous: LAS / Gavel", 1.5, paired_ratio(hours["continuous, LAS"], hours["continuous, Gavel"])),
        Claim("static: Gandiva / Gavel", 1.2, paired_ratio(hours["static, Gandiva"], hours["static, Gavel"])),
    ]
    columns: list[str | Column] = ["row", "hardware", "simulated", "ours", Column("ours / simulated", "+.1%")]
    paper = "mean completion time 1.5 and makespan 1.2 times shorter; simulation within 8 % of the hardware"
    here = (
        "the public traces: 96 and 100 jobs, all of whose completion times count (paper: 25 in steady state); theirs "
        "are the paper's simulations; factors over the trace and four orders of arrival"
    )
    return [
        claims_table("table 3: the physical cluster's traces", claims, paper, here),
        table("table 3: hours on hardware, simulated, and ours on the trace itself", columns, rows, ""),
    ]


def table_4(found: Measured) -> Table:
    """Rounds after which a job loses its lease: the part of the cost of preemption that renewal leaves."""
    results = found["continuous, Gavel"]
    claims = []
    for model, (without, renewed) in OVERHEADS.items():
        parts = [one["moved"][model] for one in results if model in one["moved"]]
        lost = [starts / max(ran, 1.0) for starts, ran in parts]
        if lost:
            claims.append(Claim(f"{model}: part of rounds without renewal", renewed / without, interval(lost)))
    paper = "overhead of 6-minute rounds 0.22 to 2.91 % without renewal and 0 to 0.47 % with it; theirs is the ratio"
    here = "starts after the first over rounds run, by model; the seconds of a checkpoint need the hardware"
    return claims_table("table 4: what renewal of leases leaves of the cost of preemption", claims, paper, here)


def _measured(context: ReproContext, rows: tuple[str, ...]) -> Measured:
    planned = [
        Task({"gavel": "physical", "row": row, "seed": seed}, f"{row}, seed {seed}", measure, (context.data, row, seed))
        for row in rows
        for seed in seeds(context)
    ]
    found = iter(run_all(context, planned))
    return {row: [next(found) for _ in seeds(context)] for row in rows}


def _physical(context: ReproContext) -> list[Table]:
    return table_3(_measured(context, tuple(ROWS)))


def _renewals(context: ReproContext) -> list[Table]:
    return [table_4(_measured(context, ("continuous, Gavel",)))]


REPRODUCTIONS = (
    Reproduction("gavel-table3", PAPER, "the physical cluster's traces", _physical, "gavel"),
    Reproduction("gavel-table4", PAPER, "rounds after which a lease is not renewed", _renewals, "gavel"),
)
