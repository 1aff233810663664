"""Figures 1 and 4, tables 1 and 2, the example of §4.1: throughputs, pairs, models, and the optima of all policies."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from shoal.core.arrays import Floats
from shoal.core.errors import InputError
from shoal.policy.gavel.problem import ShareProblem
from shoal.policy.gavel.share_update import ShareRule
from shoal.policy.registry import parse_policy
from shoal.research.repro.context import ReproContext
from shoal.research.repro.gavel.claims import Claim, SeedInterval, claims_table, interval
from shoal.research.repro.gavel.problems import PRICES, problem_for
from shoal.research.repro.gavel.runs import PAPER
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.table import Cell, Chart, Column, Line, Table, cannot_be_told, table
from shoal.solve.prices import equal_share_speed, isolated_speed, max_min
from shoal.workload.generators.gavel import measured_types
from shoal.workload.generators.registry import generate

KINDS = ("v100", "p100", "k80")
SHOWN = ("ResNet-50 (batch size 128)", "CycleGAN", "LM (batch size 80)", "Transformer (batch size 128)", "A3C")
PAIRED = (*(f"ResNet-{d} (batch size {b})" for d, b in ((18, 64), (50, 64))), "LM (batch size 20)", "A3C", "CycleGAN")

EXAMPLE = np.array([[40.0, 10.0], [12.0, 4.0], [100.0, 50.0]])
X_HET = np.array([[0.45, 0.0], [0.45, 0.09], [0.09, 0.91]])
"""§4.1: steps per second of three jobs on one V100 and one K80, and the printed allocation."""

TABLE_1 = {
    "Makespan": "gavel.makespan",
    "LAS": "gavel.max-min:water_filling=false",
    "LAS with weights": "gavel.max-min",
    "Finish-time fairness": "gavel.ftf",
    "FIFO": "gavel.fifo",
    "Shortest job first": "gavel.sjf",
    "Minimize cost": "gavel.cost",
    "Minimize cost with SLOs": "gavel.cost-slo",
    "Hierarchical": "gavel.hierarchical:weights=0=1|1=2|2=3,fifo=2",
}
TABLE_2 = {
    "ResNet-50": (16, 32, 64, 128),
    "ResNet-18": (16, 32, 64, 128, 256),
    "A3C": (4,),
    "LM": (5, 10, 20, 40, 80),
    "Transformer": (16, 32, 64, 128, 256),
    "CycleGAN": (1,),
    "Recommendation": (512, 1024, 2048, 4096, 8192),
}
"""Models and batch sizes of the evaluation; the paper's LSTM and Recoder have the names of its public files."""

PROBLEMS = 5
_OPTIMAL = 1e-6


def _exactly(value: float) -> SeedInterval:
    return interval([value])


def _rates(context: ReproContext) -> Mapping[str, Mapping[str, float]]:
    """Steps per second by kind and model, one GPU: the table of figure 1."""
    whole = _file(context.data / "gavel" / "motivation_oracle_throughputs.json")
    return {kind: {name: _alone(row) for name, row in whole[kind].items()} for kind in KINDS}


def _file(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError("data", str(path), "must be a throughput file of Gavel's repository") from error


def _alone(row: Any) -> float:
    return float(row["null"] if isinstance(row, dict) else row)


def figure_1(rates: Mapping[str, Mapping[str, float]]) -> Table:
    """Throughput by kind, as it is and per dollar."""
    resnet, a3c = SHOWN[0], SHOWN[-1]
    per_dollar = {name: [rates[kind][name] / PRICES[kind] for kind in KINDS] for name in SHOWN}
    competitive = [name for name, (v, p, k) in per_dollar.items() if p >= 0.9 * max(v, p, k)]
    claims = [
        Claim("ResNet-50: V100 / K80", 10.0, _exactly(rates["v100"][resnet] / rates["k80"][resnet]), certain=True),
        Claim("A3C: V100 / K80", 2.0, _exactly(rates["v100"][a3c] / rates["k80"][a3c]), certain=True),
        Claim("ResNet-50: V100 per dollar / best other", 1.0, _lead(per_dollar[resnet], 0), "least", certain=True),
        Claim("A3C: K80 per dollar / best other", 1.0, _lead(per_dollar[a3c], 2), "least", certain=True),
    ]
    lines = tuple(
        Line(kind, tuple((float(i), rates[kind][name] / rates["k80"][name]) for i, name in enumerate(SHOWN)))
        for kind in KINDS
    )
    dollars = tuple(
        Line(kind, tuple((float(i), per_dollar[name][j]) for i, name in enumerate(SHOWN)))
        for j, kind in enumerate(KINDS)
    )
    charts = [
        Chart("figure 1a", "", "throughput over that on a K80", (), lines, "bars", SHOWN),
        Chart("figure 1b", "", "steps per second and dollar per hour", (), dollars, "bars", SHOWN),
    ]
    paper = "V100 over K80: ResNet-50 nearly 10, A3C 2; per dollar ResNet-50 is best on V100, A3C on K80"
    here = f"the public table; per dollar P100 is within a tenth of the best for {', '.join(competitive) or 'none'}"
    return claims_table("figure 1: throughputs, and per dollar", claims, paper, here, charts)


def _lead(values: list[float], at: int) -> SeedInterval:
    return _exactly(values[at] / max(value for i, value in enumerate(values) if i != at))


def figure_4(pairs: Mapping[str, Any]) -> Table:
    """The fractions of their throughput that two models keep when they share a P100."""
    keys = {name: f"('{name}', 1)" for name in PAIRED}
    rows: list[list[Cell]] = []
    for name, key in keys.items():
        alone = float(pairs[key]["null"])
        rows.append([name, *(float(pairs[key][other][0]) / alone for other in keys.values())])
    columns = ["kept by, beside", *PAIRED]
    paper = "a matrix of colours: pairs differ widely, and some do not fit in memory (0 here)"
    here = "five of the models, from the public table"
    verdict = cannot_be_told("the paper prints colours, no numbers")
    return table(
        "figure 4: part of its throughput kept beside another, P100", columns, rows, paper, here, verdict=verdict
    )


def example_table() -> Table:
    """The allocation of §4.1, and its gain over an n-th of the cluster for each job."""
    capacity, ones = np.ones(2), np.ones(3)
    unit = equal_share_speed(EXAMPLE, capacity)
    found = max_min(EXAMPLE, ones, capacity, unit)
    gain = float((found.levels / isolated_speed(EXAMPLE, ones, capacity)).min()) - 1.0
    off = float(np.abs(found.X - X_HET).max())
    claims = [
        Claim("most an entry of X differs from the printed one", 0.01, _exactly(off), "most", certain=True),
        Claim("gain of a job over an n-th of the cluster", 0.1, _exactly(gain), certain=True),
    ]
    paper = "X = (0.45, 0; 0.45, 0.09; 0.09, 0.91), about 10 % above an isolated allocation"
    return claims_table("§4.1: three jobs on a V100 and a K80", claims, paper, f"X = ({_written(found.X)})")


def _written(shares: Floats) -> str:
    return "; ".join(", ".join(f"{x:.4f}" for x in row) for row in shares.tolist())


def optimum(name: str, seed: int) -> float:
    """The larger of gap and residual of a policy's shares for one of the random problems of table 1."""
    rule: Any = parse_policy(name)
    return _proven(rule, _problem(seed, aware=rule.aware))


def _proven(rule: ShareRule, problem: ShareProblem) -> float:
    shares = rule.shares(problem)
    return max(shares.gap, shares.residual)


def _problem(seed: int, *, aware: bool) -> ShareProblem:
    made = generate("gavel-deadlines", jobs=20, seed=seed).jobs + generate("gavel-static", jobs=30, seed=seed).jobs
    jobs = [msgspec.structs.replace(job, id=str(i), tenant=str(i % 3)) for i, job in enumerate(made)]
    return problem_for(jobs, "v100:2x4,p100:2x4,k80:2x4", aware=aware)


def table_1() -> Table:
    """Every policy solved to its optimum, aware, agnostic and with sharing."""
    rows: list[list[Cell]] = []
    for name, spec in TABLE_1.items():
        forms = [_with(spec, option) for option in ("", "aware=false", "space_sharing=true")]
        rows.append([name, spec.partition(":")[0], *(max(optimum(f, s) for s in range(PROBLEMS)) for f in forms)])
    solved = sum(all(float(cell) <= _OPTIMAL for cell in row[2:] if isinstance(cell, float)) for row in rows)
    columns: list[str | Column] = [
        "policy",
        "here",
        *(Column(text, ".1e") for text in ("aware", "agnostic", "sharing")),
    ]
    head = claims_table(
        "table 1: policies solved to a proven optimum, aware, agnostic and with sharing",
        [Claim("policies", float(len(TABLE_1)), _exactly(float(solved)), "least", certain=True)],
        "nine policies can be expressed",
    )
    title = "table 1: policies, and the largest gap or residual of their optima on five problems of 50 jobs"
    return table(title, columns, rows, head.paper, verdict=head.verdict)


def _with(spec: str, option: str) -> str:
    return f"{spec}{',' if ':' in spec else ':'}{option}" if option else spec


def table_2() -> Table:
    """The 26 types of the evaluation, in the catalogue."""
    sizes: dict[str, list[int]] = {}
    for kind in measured_types("v100", 1):
        sizes.setdefault(kind.model, []).append(kind.batch_size)
    found = sum(len(TABLE_2[name]) == len(sizes.get(name, ())) for name in TABLE_2)
    claims = [
        Claim("job types", 26.0, _exactly(float(sum(map(len, sizes.values())))), certain=True),
        Claim("models with as many batch sizes", float(len(TABLE_2)), _exactly(float(found)), "least", certain=True),
    ]
    return claims_table("table 2: models of the evaluation", claims, "7 models, 26 types of jobs")


def _figure_1(context: ReproContext) -> list[Table]:
    return [figure_1(_rates(context))]


def _figure_4(context: ReproContext) -> list[Table]:
    return [figure_4(_file(context.data / "gavel" / "simulation_throughputs.json")["p100"])]


def _tables(context: ReproContext) -> list[Table]:
    return [table_1(), table_2(), example_table()]


REPRODUCTIONS = (
    Reproduction("gavel-1", PAPER, "throughputs by kind, and per dollar", _figure_1, "gavel"),
    Reproduction("gavel-4", PAPER, "pairs of models on one GPU", _figure_4, "gavel"),
    Reproduction("gavel-tables", PAPER, "policies and models (tables 1 and 2), the example of §4.1", _tables),
)
