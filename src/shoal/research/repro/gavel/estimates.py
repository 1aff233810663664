"""Figures 8 and 16: estimated speeds of jobs that share a GPU, their error, and its cost in completion time."""

from dataclasses import asdict, dataclass

import numpy as np

from shoal.core.topology import parse_cluster
from shoal.perf.catalog import catalog
from shoal.perf.colocation import EstimatedModel
from shoal.perf.model import ProfiledModel
from shoal.research.repro.context import ReproContext
from shoal.research.repro.gavel.claims import Claim, claims_table, interval, paired_ratio
from shoal.research.repro.gavel.problems import snapshot_of
from shoal.research.repro.gavel.runs import (
    AWARE,
    HERE,
    PAPER,
    SEEDS,
    SHARING,
    LoadCase,
    Results,
    measure_all,
    seeds,
    span,
)
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.table import Cell, Chart, Column, Line, Table, cannot_be_told, table
from shoal.workload.generators.gavel import measured_types
from shoal.workload.schema import Job

PROFILED = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Fractions of the pairs of types that are measured; Shoal's ``estimated`` knowledge has 0.2."""

TWELVE = "v100:1x4,p100:1x4,k80:1x4"
TWELVE_SCALE = 9.0
RATES = (4.8, 5.6)
ESTIMATED = "estimated"


@dataclass(frozen=True, slots=True)
class EstimateError:
    """Mean absolute error of the fraction of its speed that a job keeps, over all pairs that were not measured.

    ``right`` is the fraction of pairs for which sharing is rightly judged to gain, or not.
    """

    error: float
    right: float


def estimate_error(fraction: float, seed: int) -> EstimateError:
    """Compare estimates with the catalogue's measurements, with this fraction of the pairs profiled."""
    cluster = parse_cluster(TWELVE)
    jobs = [
        Job(id=str(i), submitted=0.0, gpus=1, work=1e6, model=kind.model, batch_size=kind.batch_size)
        for i, kind in enumerate(measured_types("v100", 1))
    ]
    snapshot = snapshot_of(jobs, TWELVE)
    views = [snapshot.jobs.at(i) for i in range(len(jobs))]
    real, guess = ProfiledModel(cluster, catalog()), EstimatedModel(cluster, catalog(), fraction, seed)
    off: list[float] = []
    right: list[float] = []
    for i, one in enumerate(views):
        for other in views[i + 1 :]:
            true, estimated = real.colocated(one, other), guess.colocated(one, other)
            if true != estimated:
                off += [abs(a - b) for a, b in zip(true, estimated, strict=True)]
                right.append(float(_gains(true) == _gains(estimated)))
    return EstimateError(float(np.mean(off or [0.0])), float(np.mean(right or [1.0])))


def _gains(kept: tuple[float, float]) -> bool:
    return min(kept) > 0 and sum(kept) > 1


def figure_8(found: dict[float, list[EstimateError]]) -> Table:
    """Return the table of the estimates' error by fraction of pairs profiled."""
    rows: list[list[Cell]] = []
    for fraction, errors in found.items():
        error, right = interval([e.error for e in errors]), interval([e.right for e in errors])
        rows.append([fraction, error.mean, error.half, right.mean, right.half])
    points = tuple((fraction, interval([e.error for e in errors]).mean) for fraction, errors in found.items())
    chart = Chart("figure 8, measured", "part of pairs profiled", "mean absolute error", (), (Line("Shoal", points),))
    return table(
        "figure 8: error of the estimated part of its speed that a job keeps beside another",
        [
            Column("profiled", ".0%"),
            Column("mean error", ".3f"),
            Column("±", ".3f"),
            Column("gain judged right", ".1%"),
            "±",
        ],
        rows,
        "a drawing of the estimator, without figures",
        "26 types, pairs not profiled only, five draws of the profiled pairs",
        verdict=cannot_be_told("the paper's figure is a drawing"),
        charts=(chart,),
    )


def figure_16(results: Results) -> list[Table]:
    """Return the table of sharing with estimated speeds, with known ones, and of no sharing."""
    rates = sorted({case.rate for case in results})

    def hours(rate: float, policy: str, knowledge: str | None) -> list[float]:
        wanted = (rate, policy, knowledge)
        return [result.hours for c, result in results.items() if (c.rate, c.policy, c.knowledge) == wanted]

    claims, rows = [], []
    for rate in rates:
        known, guessed, none = (hours(rate, p, k) for p, k in ((SHARING, None), (SHARING, ESTIMATED), (AWARE, None)))
        claims += [
            Claim(f"estimated / known at {rate:g} jobs/h", 1.0, paired_ratio(guessed, known)),
            Claim(f"no sharing / known at {rate:g} jobs/h", 1.0, paired_ratio(none, known), "least"),
        ]
        rows.append([rate, *(cell for one in map(interval, (none, known, guessed)) for cell in (one.mean, one.half))])
    paper = "with estimates a very small decrease against known speeds at high load, both ahead of no sharing"
    here = HERE.replace("a third", "a ninth")
    columns: list[str | Column] = [Column("jobs/h", "g"), "no sharing", "±", "known", "±", "estimated", "±"]
    return [
        claims_table("figure 16: sharing with estimated speeds, 12 GPUs", claims, paper, here),
        table("figure 16: mean completion time in hours", columns, rows, ""),
    ]


def _errors(context: ReproContext) -> list[Table]:
    found: dict[float, list[EstimateError]] = {}
    for fraction in PROFILED:
        for seed in SEEDS:
            key = {"gavel": "estimates", "profiled": fraction, "seed": seed}
            one = context.run(key, f"{fraction:.0%} of the pairs profiled, draw {seed}", _plain, fraction, seed)
            found.setdefault(fraction, []).append(EstimateError(**one))
    return [figure_8(found)]


def _plain(fraction: float, seed: int) -> dict[str, float]:
    return asdict(estimate_error(fraction, seed))


def _estimated(context: ReproContext) -> list[Table]:
    rates = RATES[-1:] if context.quick else RATES
    cases = [
        LoadCase("single", r, p, s, cluster=TWELVE, scale=TWELVE_SCALE, knowledge=k, span=span(context))
        for r in rates
        for p, k in ((AWARE, None), (SHARING, None), (SHARING, ESTIMATED))
        for s in seeds(context)
    ]
    return figure_16(measure_all(context, cases))


REPRODUCTIONS = (
    Reproduction("gavel-8", PAPER, "error of the estimated speeds of pairs", _errors),
    Reproduction("gavel-16", PAPER, "sharing with estimated speeds", _estimated),
)
