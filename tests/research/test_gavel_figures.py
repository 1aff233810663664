"""Gavel's figures from results made by hand: every verdict both ways; and tiny runs through the public door."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shoal.research.repro.context import ReproContext, ResultCache
from shoal.research.repro.gavel.claims import Claim, SeedInterval, claims_table, interval, paired_ratio, verdict
from shoal.research.repro.gavel.estimates import ESTIMATED, TWELVE, EstimateError, estimate_error, figure_8, figure_16
from shoal.research.repro.gavel.fluid import completion_seconds
from shoal.research.repro.gavel.hierarchy import SharesOverTime, figure_12, figure_13
from shoal.research.repro.gavel.load import (
    FTF,
    FTF_AGNOSTIC,
    FTF_SHARING,
    MULTIPLE_POLICIES,
    SINGLE_POLICIES,
    figure_9,
    figure_10,
    figure_11,
)
from shoal.research.repro.gavel.mechanism import figure_5, figure_15a, figure_15b, received
from shoal.research.repro.gavel.models import SHOWN, TABLE_1, example_table, figure_1, figure_4, optimum, table_2
from shoal.research.repro.gavel.objectives import (
    COST,
    COST_SLO,
    DEADLINE_GAP,
    FIFO,
    FIFO_AGNOSTIC,
    FIFO_SHARING,
    MAKESPAN,
    MAKESPAN_SHARING,
    MIGRATING,
    THROUGHPUT,
    BatchCase,
    cost_tables,
    fifo_table,
    makespan_table,
    measure_batch,
    priority_table,
)
from shoal.research.repro.gavel.physical import OVERHEADS, ROWS, table_3, table_4
from shoal.research.repro.gavel.runs import (
    AGNOSTIC,
    AWARE,
    GANDIVA,
    QUANTILES,
    SHARING,
    LoadCase,
    LoadResult,
    counts,
    measure,
    measure_all,
)
from shoal.research.repro.gavel.solver import JOBS, RULES, figure_14, solve_seconds
from shoal.research.repro.parallel import Task, run_all
from shoal.research.repro.registry import chosen
from shoal.research.repro.table import REPRODUCES
from shoal.workload.generators.registry import generate

SEEDS = range(5)
SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def hours(value: float, rho: float = 1.0, **more: float) -> LoadResult:
    """A result whose completion times are all about this many hours."""
    return LoadResult(value, tuple(value * q for q in QUANTILES), rho, 3, **more)


def loads(by_policy: dict[str, float], rate: float, **more: float) -> dict[LoadCase, LoadResult]:
    """Five seeds of each policy, which differ by a percent."""
    return {
        LoadCase("single", rate, policy, seed): hours(value * (1 + 0.01 * seed), **more)
        for policy, value in by_policy.items()
        for seed in SEEDS
    }


def test_intervals_are_students_and_ratios_are_paired() -> None:
    found = interval([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.half == pytest.approx(4.303 / 3**0.5, rel=1e-3)
    assert interval([5.0]).half is None
    # Seeds differ by a factor of 100, their ratios not at all.
    paired = paired_ratio([2.0, 20.0, 200.0], [1.0, 10.0, 100.0])
    assert [paired.low, paired.mean, paired.high] == pytest.approx([2.0, 2.0, 2.0])


def test_a_claim_agrees_near_the_papers_number_and_differs_beyond() -> None:
    near, far = SeedInterval(2.3, 2.2, 2.4, 5), SeedInterval(1.6, 1.5, 1.7, 5)
    assert verdict([Claim("a", 2.2, near)]) == REPRODUCES
    assert verdict([Claim("a", 2.2, near), Claim("b", 2.2, far)]) == "differs: b 1.60 (paper 2.2); 1 of 2 agree"
    assert verdict([Claim("b", 1.0, far, "most")]) == "differs: b 1.60 (paper at most 1)"
    assert verdict([Claim("b", 1.0, far, "least")]) == REPRODUCES


def test_few_seeds_or_wide_intervals_give_no_verdict() -> None:
    few, wide, over = SeedInterval(2.2, 2.2, 2.2, 2), SeedInterval(2.2, 0.9, 3.5, 5), SeedInterval(1.1, 0.9, 1.3, 5)
    assert verdict([Claim("a", 2.2, few)]) == "cannot be told: a: 2 of 3 seeds"
    assert verdict([Claim("a", 2.2, wide)]) == "cannot be told: a: ± 1.30 around 2.20"
    assert verdict([Claim("a", 1.0, over, "least")]).startswith("cannot be told")
    assert verdict([Claim("a", 2.2, few, certain=True)]) == REPRODUCES
    assert verdict([]).startswith("cannot be told")


def test_a_table_of_claims_shows_theirs_ours_and_the_difference() -> None:
    made = claims_table("t", [Claim("a", 2.0, SeedInterval(3.0, 2.9, 3.1, 5)), Claim("b", 1.0, interval([1.0]))], "p")
    assert made.cells()[0] == ["a", "2", "3.00", "2.90", "3.10", "+50%", "no"]
    assert made.cells()[1][-1] == "cannot be told"
    (chart,) = made.charts
    assert [line.points for line in (*chart.theirs, *chart.ours)] == [
        ((0.0, 2.0), (1.0, 1.0)),
        ((0.0, 3.0), (1.0, 1.0)),
    ]


def test_figures_9_and_10_reproduce_the_papers_factors_and_say_where_not() -> None:
    paper = {AGNOSTIC: 70.0, GANDIVA: 41.8, "allox": 20.0, AWARE: 20.0, SHARING: 19.0}
    made = {**loads(paper, 4.0), **loads({**paper, "allox": 24.0}, 5.6)}
    factors, curves = figure_9(made, (4.0, 5.6))
    assert factors.verdict == REPRODUCES
    assert [row[0] for row in curves.rows] == [
        "LAS, agnostic", "LAS with Gandiva's sharing", "AlloX", "Gavel", "Gavel, sharing"
    ]  # fmt: skip
    assert len(curves.charts[0].ours) == len(SINGLE_POLICIES)
    worse = {**loads(paper, 4.0), **loads({**paper, AGNOSTIC: 30.0}, 5.6)}
    assert "agnostic / Gavel 1.50 (paper 3.5)" in figure_9(worse, (4.0, 5.6))[0].verdict
    gangs = loads({AGNOSTIC: 44.0, GANDIVA: 44.0, AWARE: 20.0, SHARING: 20.0}, 2.6)
    assert figure_10(gangs, (2.6,))[0].verdict == REPRODUCES
    assert len(figure_10(gangs, (2.6,))[1].rows) == len(MULTIPLE_POLICIES)


def test_figure_11_compares_completion_times_and_fairness() -> None:
    made = {**loads({FTF: 10.0, FTF_SHARING: 10.0}, 2.6, rho=1.0), **loads({FTF_AGNOSTIC: 30.0}, 2.6, rho=2.8)}
    assert figure_11(made, (2.6,))[0].verdict == REPRODUCES
    fair = {**made, **loads({FTF_AGNOSTIC: 30.0}, 2.6, rho=1.0)}
    assert figure_11(fair, (2.6,))[0].verdict == "differs: agnostic / Gavel, mean ρ 1.00 (paper 2.8); 1 of 2 agree"


def _joined(*levels: float, lost: float = 0.17) -> SharesOverTime:
    """Eighteen jobs with these levels of the jobs of each entity, at every time."""
    row = np.repeat(np.array(levels), 6)
    ours = np.tile(row, (18, 1))
    return SharesOverTime(ours, ours * (1 - lost))


def test_figure_12_reproduces_if_entities_are_fair_by_weight() -> None:
    assert figure_12([_joined(1.0, 2.0, 3.0, lost=0.16 + 0.005 * s) for s in SEEDS]).verdict == REPRODUCES
    unfair = figure_12([_joined(1.0, 1.0, 1.0, lost=0.5 + 0.01 * s) for s in SEEDS]).verdict
    assert unfair.startswith("differs: total lost by a static partition 0.52 (paper 0.17)")


def test_figure_13_reproduces_if_no_job_is_served_out_of_turn() -> None:
    first = _joined(0.0, 0.0, 0.0)
    first.ours[:, [0, 1, 6, 12]] = 1.0
    assert figure_13([first] * 3).verdict == REPRODUCES
    passing = _joined(0.0, 0.0, 0.0)
    passing.ours[:, 3] = 1.0
    assert "jobs served behind one of their entity that is not" in figure_13([passing] * 3).verdict


def test_figure_14_keeps_the_papers_bounds_or_says_so() -> None:
    quick = {(name, size): [0.1, 0.11, 0.1] for name in RULES for size in JOBS}
    quick |= {("hierarchical", size): [0.2, 0.21, 0.2] for size in JOBS}
    assert figure_14(quick, JOBS)[0].verdict == REPRODUCES
    slow = {**quick, ("hierarchical", 2048): [700.0, 701.0, 702.0]}
    assert "hierarchical, 2,048 jobs, s 701.00 (paper at most 600)" in figure_14(slow, JOBS)[0].verdict
    assert solve_seconds("hierarchical, sharing", 12, 0)["gap"] <= 1e-6


def test_the_example_is_carried_out_in_rounds_within_two_points() -> None:
    assert figure_5().verdict == REPRODUCES
    assert received(60).sum(axis=0) == pytest.approx(np.ones(3))


def test_figure_15_compares_round_lengths_and_the_ideal() -> None:
    made = loads({AWARE: 20.0}, 5.6)
    longer = {replace(case, round=2880.0): hours(result.hours * 1.2) for case, result in made.items()}
    assert figure_15a({**made, **longer})[0].verdict == REPRODUCES
    shorter = {case: hours(result.hours / 2) for case, result in longer.items()}
    assert figure_15a({**made, **shorter})[0].verdict.startswith("differs: rounds of 48 min / 6 min 0.60")
    ideal = {(5.6, seed): 20.0 * (1 + 0.01 * seed) for seed in SEEDS}
    assert figure_15b(made, ideal)[0].verdict == REPRODUCES
    assert figure_15b(made, {key: value / 2 for key, value in ideal.items()})[0].verdict.startswith("differs")


def test_the_ideal_serves_jobs_exactly_by_their_shares() -> None:
    workload = generate("gavel-continuous-single", jobs=6, seed=1, interarrival=60.0)
    alone = completion_seconds(workload.first(1), TWELVE)
    assert completion_seconds(workload, TWELVE)[0] == pytest.approx(alone[0])
    crowded = completion_seconds(workload, "v100:1x1")
    assert (crowded >= completion_seconds(workload, TWELVE) - 1e-6).all()
    assert crowded.sum() > 1.3 * completion_seconds(workload, TWELVE).sum()


def test_figure_16_compares_estimates_with_known_speeds() -> None:
    made = loads({AWARE: 12.0, SHARING: 10.0}, 5.6)
    guessed = {replace(case, knowledge=ESTIMATED): r for case, r in made.items() if case.policy == SHARING}
    assert figure_16({**made, **guessed})[0].verdict == REPRODUCES
    poor = {case: hours(result.hours * 2) for case, result in guessed.items()}
    assert "estimated / known at 5.6 jobs/h 2.00 (paper 1)" in figure_16({**made, **poor})[0].verdict


def test_estimates_improve_with_the_pairs_profiled() -> None:
    few, many = estimate_error(0.05, 0), estimate_error(0.8, 0)
    assert many.error < few.error
    assert 0.0 <= few.right <= 1.0
    assert figure_8({0.1: [few] * 5, 0.8: [EstimateError(0.0, 1.0)] * 5}).verdict.startswith("cannot be told")


def test_7_3_reproduces_from_the_papers_own_factors() -> None:
    def batch(values: dict[str, float], what: str) -> dict[BatchCase, dict[str, float]]:
        return {BatchCase("t", 9, p, s): {what: v, "missed": 0.0} for p, v in values.items() for s in SEEDS}

    times = batch({FIFO_AGNOSTIC: 25.0, MIGRATING: 14.0, MAKESPAN: 10.0, MAKESPAN_SHARING: 9.26}, "makespan")
    assert makespan_table(times).verdict == REPRODUCES
    single = loads({FIFO_AGNOSTIC: 38.0, FIFO: 14.0, FIFO_SHARING: 10.0}, 5.6)
    assert fifo_table(single, loads({FIFO: 11.0, FIFO_SHARING: 10.0}, 2.6)).verdict == REPRODUCES
    ranks = {**loads({AGNOSTIC: 1.0}, 5.6, high=15.0, low=27.0), **loads({AWARE: 1.0}, 5.6, high=10.0, low=10.0)}
    assert priority_table(ranks).verdict == REPRODUCES
    dollars = batch({THROUGHPUT: 140.0, COST: 100.0, COST_SLO: 117.0}, "cost")
    assert "cost: deadlines missed 0.00 (paper 0.35)" in cost_tables(dollars)[0].verdict
    for case in dollars:
        dollars[case]["missed"] = 0.35 if case.policy == COST else 0.0
    assert cost_tables(dollars)[0].verdict == REPRODUCES


def test_jobs_with_deadlines_arrive_so_far_apart_that_hardly_any_waits() -> None:
    dense, apart = (measure_batch(BatchCase("gavel-deadlines", 60, THROUGHPUT, 0, gap)) for gap in (None, DEADLINE_GAP))
    assert dense["missed"] > 0.0
    assert apart["missed"] == 0.0


def test_tables_3_and_4_compare_rows_and_renewals() -> None:
    moved = {model: [100.0 * renewed / without, 100.0] for model, (without, renewed) in OVERHEADS.items()}
    made = {name: [{"hours": row[4], "moved": moved}] * 3 for name, row in ROWS.items()}
    assert table_3(made)[0].verdict == REPRODUCES
    assert table_4(made).verdict == REPRODUCES
    slower = {**made, "static, Gavel": [{"hours": 22.0, "moved": moved}] * 3}
    assert "static, Gavel, h 22.00 (paper 17.6)" in table_3(slower)[0].verdict
    restless = {name: [{"hours": 1.0, "moved": {"LM": [100.0, 100.0]}}] * 3 for name in ROWS}
    assert table_4(restless).verdict.startswith("differs: LM")


def test_the_example_and_the_models_are_the_papers() -> None:
    assert example_table().verdict == REPRODUCES
    assert table_2().verdict == REPRODUCES
    assert max(optimum(spec, 0) for spec in TABLE_1.values()) <= 1e-6


@pytest.mark.skipif(not SHARED.is_dir(), reason="the public files are not here")
def test_figures_1_and_4_read_the_public_tables() -> None:
    context = ReproContext(SHARED)
    (one,), (four,) = (chosen([name])[0].tables(context) for name in ("gavel-1", "gavel-4"))
    assert one.verdict == REPRODUCES
    assert {len(row) for row in four.rows} == {6}


def test_figure_1_differs_where_kinds_are_alike() -> None:
    assert figure_1({kind: dict.fromkeys(SHOWN, 1.0) for kind in ("v100", "p100", "k80")}).verdict.startswith("differs")
    pairs = {f"('{name}', 1)": {"null": 2.0} for name in ("a",)}
    with pytest.raises(KeyError):
        figure_4(pairs)


def test_runs_are_stored_and_made_once_in_one_process_or_two(tmp_path: Path) -> None:
    case = LoadCase("single", 3.0, AWARE, 0, span=6.0)
    announced: list[str] = []
    context = ReproContext(None, cache=ResultCache(tmp_path / "kept.jsonl"), announce=announced.append)
    first = measure_all(context, [case, case])
    again = measure_all(ReproContext(None, cache=ResultCache(tmp_path / "kept.jsonl")), [case])
    assert first == again
    assert len(announced) == 1
    assert first[case] == LoadResult(**{**measure(case), "quantiles": tuple(measure(case)["quantiles"])})
    two = ReproContext(None, jobs=2)
    batch = [BatchCase("gavel-static", 4, THROUGHPUT, seed) for seed in (0, 1)]
    planned = [Task({"seed": one.seed}, "", measure_batch, (one,)) for one in batch]
    assert run_all(two, planned) == [measure_batch(one) for one in batch]


def test_a_fifth_of_the_jobs_weighs_more_and_the_middle_of_the_trace_counts() -> None:
    weights = [job.weight for job in LoadCase("single", 5.6, AWARE, 0, urgent=0.2).workload().jobs]
    assert set(weights) == {1.0, 5.0}
    assert 0.1 < np.mean(np.array(weights) > 1) < 0.3
    assert np.flatnonzero(counts(100)).tolist() == list(range(55, 80))
    assert counts(1).sum() <= 1


def test_all_figures_are_listed_once() -> None:
    names = [one.name for one in chosen(["gavel-*"])]
    figures = ["1", "4", "5", "8", "9", "10", "11", "12", "13", "14", "15a", "15b", "16"]
    numbers = [*figures, "7.3", "table3", "table4", "tables"]
    assert sorted(names) == sorted(f"gavel-{number}" for number in numbers)


def test_every_quick_figure_has_a_verdict() -> None:
    quick = ReproContext(None, quick=True)
    made = [one for each in chosen(["gavel-5", "gavel-12", "gavel-13"]) for one in each.tables(quick)]
    assert len(made) == 3
    assert all(one.verdict for one in made)
