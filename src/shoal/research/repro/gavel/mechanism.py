"""Figures 3, 5, 15a and 15b: how well rounds follow the shares, by their length and against an ideal."""

import numpy as np

from shoal.core.arrays import Floats
from shoal.policy.gavel.rounds import cells_of, next_round
from shoal.policy.gavel.tuning import TUNING
from shoal.research.repro.context import ReproContext
from shoal.research.repro.gavel.claims import Claim, claims_table, interval, line, paired_ratio
from shoal.research.repro.gavel.fluid import completion_seconds
from shoal.research.repro.gavel.load import hours, of
from shoal.research.repro.gavel.runs import (
    AWARE,
    CLUSTER,
    HERE,
    HOUR,
    PAPER,
    LoadCase,
    Results,
    counts,
    measure_all,
    seeds,
    span,
)
from shoal.research.repro.parallel import Task, run_all
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.table import Cell, Chart, Column, Line, Table, table

EXAMPLE = np.array([[0.6, 0.4, 0.0], [0.2, 0.6, 0.2], [0.2, 0.0, 0.8]])
"""X^example of §3.1 for one V100, P100 and K80: three jobs × three kinds."""

ROUNDS = (360.0, 720.0, 1440.0, 2880.0)
"""Round lengths of 15a in seconds; the paper prints only the first."""

RATE = 5.6
IDEAL_RATES = (4.0, 5.6)


def received(rounds: int) -> Floats:
    """The part of ``rounds`` rounds that each job of the example ran on each kind."""
    cells = cells_of(EXAMPLE, np.ones(3, dtype=np.int32), np.zeros((0, 2), dtype=np.intp), np.zeros((0, 3)))
    ran, history = np.zeros(len(cells)), np.zeros((rounds, len(cells)))
    for number in range(rounds):
        since = max(number - TUNING.window + 1, 0)
        owed = cells.share * number - ran
        recent = cells.share * (number - since) - history[since:number].sum(axis=0)
        chosen = next_round(cells, owed, recent, 1.0, np.ones(3, dtype=np.intp), 3)
        history[number, chosen[chosen >= 0]] = 1.0
        ran += history[number]
    found = np.zeros(EXAMPLE.shape)
    found[cells.first, cells.kind] = ran / rounds
    return found


def figure_5() -> Table:
    """The example's shares against the time that rounds give, after five, ten and sixty rounds."""
    after = {rounds: received(rounds) for rounds in (5, 10, 60)}
    most = {rounds: float(np.abs(found - EXAMPLE).max()) for rounds, found in after.items()}
    claims = [
        Claim(f"most a share is off after {rounds} rounds", limit, interval([most[rounds]]), "most", certain=True)
        for rounds, limit in ((5, 0.2), (10, 0.1), (60, 0.02))
    ]
    paper = (
        "priorities move the time received towards the allocation; X^example is met in the long run (figures 3 and 5)"
    )
    here = "bounds are ours: one round of 5 and of 10, and 2 points over 60 rounds"
    return claims_table("figures 3 and 5: X^example carried out in rounds", claims, paper, here)


def figure_15a(results: Results) -> list[Table]:
    """Completion time by round length."""

    def at(seconds: float) -> list[float]:
        return [result.hours for case, result in results.items() if case.round == seconds]

    lengths = sorted({case.round for case in results})
    claims = [
        Claim(f"rounds of {length / 60:g} min / 6 min", 1.0, paired_ratio(at(length), at(lengths[0])), "least")
        for length in lengths[1:]
    ]
    rows: list[list[Cell]] = [[length / 60, interval(at(length)).mean, interval(at(length)).half] for length in lengths]
    chart = Chart("figure 15a", "round, s", "mean completion time, h", (), (line("Shoal", lengths, at),))
    paper = "shorter rounds follow the shares more closely; 6 minutes are a good tradeoff with the cost of restarts"
    return [
        claims_table("figure 15a: completion time by round length", claims, paper, HERE),
        table(
            "figure 15a: mean completion time in hours",
            [Column("minutes", "g"), "hours", "±"],
            rows,
            "",
            charts=(chart,),
        ),
    ]


def figure_15b(results: Results, ideal: dict[tuple[float, int], float]) -> list[Table]:
    """Rounds of six minutes against shares followed exactly."""
    rates = sorted({rate for rate, _ in ideal})

    def followed(rate: float) -> list[float]:
        return [seconds for (one, _), seconds in ideal.items() if one == rate]

    def rounds(rate: float) -> list[float]:
        return of(results, AWARE, rate, hours)

    claims = [
        Claim(f"rounds / ideal at {rate:g} jobs/h", 1.0, paired_ratio(rounds(rate), followed(rate))) for rate in rates
    ]
    lines: tuple[Line, ...] = (line("rounds of 6 minutes", rates, rounds), line("ideal", rates, followed))
    chart = Chart("figure 15b", "jobs an hour", "mean completion time, h", (), lines)
    paper = "rounds of 6 minutes behave almost identically to the ideal"
    here = f"{HERE}; the ideal has no restarts"
    return [claims_table("figure 15b: mechanism against ideal", claims, paper, here, [chart])]


def ideal_hours(case: LoadCase) -> dict[str, float]:
    """The mean hours of the jobs that count under shares followed exactly."""
    seconds = completion_seconds(case.workload(), CLUSTER)
    return {"hours": float(seconds[counts(len(seconds))].mean()) / HOUR}


def _round_lengths(context: ReproContext) -> list[Table]:
    cases = [LoadCase("single", RATE, AWARE, s, round=r, span=span(context)) for r in ROUNDS for s in seeds(context)]
    return figure_15a(measure_all(context, cases))


def _against_ideal(context: ReproContext) -> list[Table]:
    rates = IDEAL_RATES[-1:] if context.quick else IDEAL_RATES
    cases = [LoadCase("single", rate, AWARE, seed, span=span(context)) for rate in rates for seed in seeds(context)]
    planned = [
        Task(
            {"gavel": "ideal", "rate": case.rate, "seed": case.seed, "span": case.span},
            f"ideal, {case.rate:g} jobs/h, seed {case.seed}",
            ideal_hours,
            (case,),
        )
        for case in cases
    ]
    found = run_all(context, planned)
    ideal = {(case.rate, case.seed): one["hours"] for case, one in zip(cases, found, strict=True)}
    return figure_15b(measure_all(context, cases), ideal)


def _example(context: ReproContext) -> list[Table]:
    return [figure_5()]


REPRODUCTIONS = (
    Reproduction("gavel-5", PAPER, "the example's shares carried out in rounds (figures 3 and 5)", _example),
    Reproduction("gavel-15a", PAPER, "completion time by round length", _round_lengths),
    Reproduction("gavel-15b", PAPER, "rounds against shares followed exactly", _against_ideal),
)
