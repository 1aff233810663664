"""Figures 9 to 11: completion time against load, with and without knowledge of kinds, with and without sharing."""

from collections.abc import Callable, Sequence
from functools import partial

from shoal.research.repro.context import ReproContext
from shoal.research.repro.gavel.claims import Claim, claims_table, interval, line, paired_ratio
from shoal.research.repro.gavel.runs import (
    AGNOSTIC,
    AWARE,
    GANDIVA,
    HERE,
    PAPER,
    QUANTILES,
    SHARING,
    LoadCase,
    LoadResult,
    Results,
    measure_all,
    seeds,
    span,
)
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.table import Cell, Chart, Column, Line, Table, table

SINGLE_RATES = (4.0, 4.8, 5.6)
MULTIPLE_RATES = (1.8, 2.2, 2.6)
"""Jobs an hour on 108 GPUs; the paper's printed factors are at the last."""

ALLOX = "allox"
FTF, FTF_AGNOSTIC, FTF_SHARING = "gavel.ftf", "gavel.ftf:aware=false", "gavel.ftf:space_sharing=true"
NAMES = {
    AGNOSTIC: "LAS, agnostic",
    GANDIVA: "LAS with Gandiva's sharing",
    ALLOX: "AlloX",
    AWARE: "Gavel",
    SHARING: "Gavel, sharing",
    FTF_AGNOSTIC: "FTF, agnostic",
    FTF: "Gavel FTF",
    FTF_SHARING: "Gavel FTF, sharing",
}
SINGLE_POLICIES = (AGNOSTIC, GANDIVA, ALLOX, AWARE, SHARING)
MULTIPLE_POLICIES = (AGNOSTIC, GANDIVA, AWARE, SHARING)
FTF_POLICIES = (FTF_AGNOSTIC, FTF, FTF_SHARING)


def load_cases(
    trace: str, rates: Sequence[float], policies: Sequence[str], draws: Sequence[int], hours: float
) -> list[LoadCase]:
    """All runs of one figure."""
    return [LoadCase(trace, rate, policy, seed, span=hours) for rate in rates for policy in policies for seed in draws]


def of(results: Results, policy: str, rate: float, shown: Callable[[LoadResult], float]) -> list[float]:
    """Return a figure of one policy at one rate, by seed."""
    return [shown(result) for case, result in results.items() if (case.policy, case.rate) == (policy, rate)]


def hours(result: LoadResult) -> float:
    """The mean completion time in hours."""
    return result.hours


def ratio(results: Results, above: str, below: str, rate: float, what: str, theirs: float) -> Claim:
    """A claim about how many times longer completion times are with one policy than with another."""
    return Claim(what, theirs, paired_ratio(of(results, above, rate, hours), of(results, below, rate, hours)))


def by_load(figure: str, results: Results, rates: Sequence[float], policies: Sequence[str]) -> Table:
    """Mean completion time by policy and rate, and its distribution at the highest rate."""
    rows: list[list[Cell]] = []
    for policy in policies:
        found = [interval(of(results, policy, rate, hours)) for rate in rates]
        tail = interval(of(results, policy, rates[-1], lambda r: r.quantiles[-1]))
        rows.append([NAMES[policy], *(cell for one in found for cell in (one.mean, one.half)), tail.mean])
    columns = [Column(text) for rate in rates for text in (f"{rate:g} jobs/h", "±")]
    lines = [line(NAMES[policy], rates, partial(_at, results, policy)) for policy in policies]
    against = Chart(f"figure {figure}a", "jobs an hour", "mean completion time, h", (), tuple(lines))
    cdf = Chart(
        f"figure {figure}b",
        "completion time, h",
        "part of jobs",
        (),
        tuple(_cdf(results, p, rates[-1]) for p in policies),
    )
    title = f"figure {figure}: mean completion time in hours by load, ± 95 %; 99th percentile at {rates[-1]:g} jobs/h"
    return table(
        title, ["policy", *columns, "p99"], rows, "curves without printed numbers", HERE, charts=(against, cdf)
    )


def _at(results: Results, policy: str, rate: float) -> list[float]:
    return of(results, policy, rate, hours)


def _cdf(results: Results, policy: str, rate: float) -> Line:
    times = [interval(of(results, policy, rate, lambda r, i=i: r.quantiles[i])) for i in range(len(QUANTILES))]  # type: ignore[misc]
    return Line(NAMES[policy], tuple((one.mean, part) for one, part in zip(times, QUANTILES, strict=True)))


def figure_9(results: Results, rates: Sequence[float]) -> list[Table]:
    """Least attained service with jobs of one GPU."""
    top, moderate = rates[-1], rates[0]
    tails = [of(results, policy, top, lambda r: r.quantiles[-1]) for policy in (ALLOX, AWARE)]
    claims = [
        ratio(results, AGNOSTIC, AWARE, top, "agnostic / Gavel", 3.5),
        ratio(results, GANDIVA, SHARING, top, "Gandiva's sharing / Gavel's", 2.2),
        ratio(results, AWARE, ALLOX, moderate, f"Gavel / AlloX at {moderate:g} jobs/h", 1.0),
        Claim(f"AlloX / Gavel, 99th percentile at {top:g} jobs/h", 1.0, paired_ratio(*tails), "least"),
    ]
    paper = (
        "at 5.6 jobs/h Gavel's mean is 3.5 times shorter than agnostic LAS's, and with sharing 2.2 times shorter than "
        "with Gandiva's; at moderate load it matches AlloX, whose long jobs starve at high load"
    )
    return [
        claims_table("figure 9: factors of the mean completion time, one GPU a job", claims, paper, HERE),
        by_load("9", results, rates, SINGLE_POLICIES),
    ]


def figure_10(results: Results, rates: Sequence[float]) -> list[Table]:
    """Least attained service with jobs of one to eight GPUs."""
    top = rates[-1]
    claims = [
        ratio(results, AGNOSTIC, AWARE, top, "agnostic / Gavel", 2.2),
        ratio(results, GANDIVA, SHARING, top, "Gandiva's sharing / Gavel's", 2.2),
    ]
    paper = "at 2.6 jobs/h 2.2 times shorter than agnostic LAS, and with sharing 2.2 times shorter than with Gandiva's"
    return [
        claims_table("figure 10: factors of the mean completion time, one to eight GPUs a job", claims, paper, HERE),
        by_load("10", results, rates, MULTIPLE_POLICIES),
    ]


def figure_11(results: Results, rates: Sequence[float]) -> list[Table]:
    """Finish-time fairness with jobs of one to eight GPUs."""
    top = rates[-1]
    rho = [of(results, policy, top, lambda r: r.rho) for policy in (FTF_AGNOSTIC, FTF)]
    claims = [
        ratio(results, FTF_AGNOSTIC, FTF, top, "agnostic / Gavel, completion time", 3.0),
        Claim("agnostic / Gavel, mean ρ", 2.8, paired_ratio(*rho)),
    ]
    here = f"{HERE}; ρ is `rho_isolated`"
    paper = "completion times 3 times shorter and mean finish-time fairness 2.8 times better than agnostic"
    return [
        claims_table("figure 11: factors of finish-time fairness, one to eight GPUs a job", claims, paper, here),
        by_load("11", results, rates, FTF_POLICIES),
    ]


def _run(
    tabulate: Callable[[Results, Sequence[float]], list[Table]],
    trace: str,
    rates: Sequence[float],
    policies: Sequence[str],
    context: ReproContext,
) -> list[Table]:
    chosen = rates[-1:] if context.quick else rates
    return tabulate(measure_all(context, load_cases(trace, chosen, policies, seeds(context), span(context))), chosen)


REPRODUCTIONS = (
    Reproduction(
        "gavel-9",
        PAPER,
        "LAS, jobs of one GPU: completion time by load",
        partial(_run, figure_9, "single", SINGLE_RATES, SINGLE_POLICIES),
    ),
    Reproduction(
        "gavel-10",
        PAPER,
        "LAS, jobs of one to eight GPUs: completion time by load",
        partial(_run, figure_10, "multiple", MULTIPLE_RATES, MULTIPLE_POLICIES),
    ),
    Reproduction(
        "gavel-11",
        PAPER,
        "finish-time fairness: completion time and ρ by load",
        partial(_run, figure_11, "multiple", MULTIPLE_RATES, FTF_POLICIES),
    ),
)
