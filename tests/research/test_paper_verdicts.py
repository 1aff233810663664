"""Verdicts on the experiments of Pollux and Shockwave, both ways, on small made-up figures."""

from collections.abc import Sequence

from shoal.research.repro import shockwave_verdicts as shockwave
from shoal.research.repro.cloud import rental_verdict
from shoal.research.repro.hpo import search_verdict
from shoal.research.repro.pollux import EXPERIMENTS
from shoal.research.repro.pollux_verdicts import JUDGES, PUBLIC_SIA, kinds_verdict
from shoal.research.repro.table import REPRODUCES, Cell

TIRESIAS = "tiresias:thresholds=57600"


def verdict(experiment: str, means: dict[tuple[str, str], list[float]], folders: Sequence[str] = ("a",)) -> str:
    return JUDGES[experiment](means, folders).verdict


def test_every_judged_experiment_has_the_variants_that_its_statement_is_about() -> None:
    """On equal times for all policies no statement about a difference reproduces, and none fails for want of a run."""
    for one in EXPERIMENTS:
        if one.name in JUDGES:
            equal = {(f, str(v)): [100.0, 110.0, 120.0] for f in one.folders for v in one.variants}
            found = JUDGES[one.name](equal, one.folders)
            assert not found.verdict.startswith(REPRODUCES)
            assert found.charts


def test_mean_times_a_third_and_a_half_below_reproduce() -> None:
    means = {("a", "pollux"): [68.0] * 3, ("a", TIRESIAS): [100.0] * 3, ("a", "optimus"): [131.0] * 3}
    assert verdict("pollux-jct", means) == REPRODUCES
    assert verdict("pollux-jct", {**means, ("a", TIRESIAS): [70.0] * 3}).startswith("differs: below Tiresias 3%")


def test_improvements_must_be_alike_at_all_loads() -> None:
    folders = ("w-0.5", "w")
    means = {(f, p): [v] for f in folders for p, v in (("pollux", 50.0), (TIRESIAS, 80.0), ("optimus", 100.0))}
    assert verdict("pollux-8a", means, folders) == REPRODUCES
    assert "JCT below that of optimus by 50%, 9%" in verdict("pollux-8a", {**means, ("w", "optimus"): [55.0]}, folders)


def test_long_intervals_must_cost_time_and_short_ones_none() -> None:
    def at(times: dict[int, float]) -> dict[tuple[str, str], list[float]]:
        return {("a", f"pollux:interval={s},when=interval"): [t] for s, t in times.items()}

    assert verdict("pollux-8b", at({30: 100, 60: 100, 120: 102, 240: 110, 480: 130})) == REPRODUCES
    assert "120 s than at 30 s" in verdict("pollux-8b", at({30: 100, 60: 100, 120: 120, 240: 130, 480: 140}))
    assert "not longer at 480 s" in verdict("pollux-8b", at({30: 100, 60: 100, 120: 102, 240: 110, 480: 109}))


def test_interference_must_cost_two_fifths_where_it_is_not_avoided() -> None:
    base = "pollux:when=interval, genetic"
    means = {
        ("a", f"{base}, apart"): [100.0],
        ("a", f"{base}, apart, 50% slower where shared"): [100.0],
        ("a", f"{base}, crowded"): [101.0],
        ("a", f"{base}, crowded, 50% slower where shared"): [138.0],
    }
    assert verdict("pollux-8c", means) == REPRODUCES
    less = {**means, ("a", f"{base}, crowded, 50% slower where shared"): [107.0]}
    assert "1.07 times at 50 %" in verdict("pollux-8c", less)


def test_the_knob_is_judged_by_workload() -> None:
    means = {("a", "pollux:p=-1"): [100.0] * 3, ("a", "pollux:p=1"): [109.0] * 3, ("a", "pollux:p=-10"): [110.0] * 3}
    assert verdict("pollux-p", means) == REPRODUCES
    assert verdict("pollux-p", {**means, ("a", "pollux:p=1"): [90.0] * 3}).startswith("differs: pollux:p=1")
    unclear = {**means, ("a", "pollux:p=-10"): [90.0, 110.0, 103.0]}
    assert verdict("pollux-p", unclear).startswith("cannot be told")


def test_public_figures_are_met_within_fifteen_percent() -> None:
    assert kinds_verdict(PUBLIC_SIA) == REPRODUCES
    assert kinds_verdict({**PUBLIC_SIA, "pollux:types=off": 1903.0}).startswith("differs: pollux:types=off 1,903 s")


def test_renting_and_searching_are_judged_to_five_points() -> None:
    base = {"node_hours": 100.0, "hours": 10.0}
    assert rental_verdict({"node_hours": 77.0, "hours": 10.5}, base) == REPRODUCES
    assert rental_verdict({"node_hours": 84.0, "hours": 10.5}, base) == "differs: 16.0% cheaper and +5.0% longer"
    assert search_verdict(-0.27, -0.27) == REPRODUCES
    assert search_verdict(-0.10, -0.27) == "differs: trials take -10%, the study -27%"


def row(name: str, makespan: float, jct: float = 1.0, rho: float = 2.0, unfair: float = 0.0) -> list[Cell]:
    return [name, makespan, None, jct, None, rho, unfair, 1.0, 0.0]


def test_shockwave_must_end_sooner_and_be_fairer_than_every_fair_policy() -> None:
    others = [row(name, 140.0) for name in shockwave.FASTER]
    assert shockwave.compared_verdict([row("shockwave", 100.0, rho=1.1), *others]) == REPRODUCES
    unfair = shockwave.compared_verdict([row("shockwave", 100.0, rho=2.1), *others])
    assert "themis's worst ρ is lower" in unfair
    assert "makespan 1.08" in shockwave.compared_verdict([row("shockwave", 130.0, rho=1.0), *others])


def test_mixes_contention_and_traces_are_judged_by_the_mean_of_the_fair_policies() -> None:
    def rows(prefix: str, ours: float) -> list[list[Cell]]:
        return [row(f"{prefix}shockwave", ours), *(row(f"{prefix}{name}", 130.0) for name in shockwave.FAIR_ONES)]

    assert shockwave.mixes_verdict([*rows("(1, 0) ", 105.0), *rows("(0, 1) ", 100.0)]) == REPRODUCES
    assert "(0, 1) 4% sooner" in shockwave.mixes_verdict([*rows("(1, 0) ", 105.0), *rows("(0, 1) ", 125.0)])
    wanted = [*rows("3, ", 97.0), *rows("2, ", 108.0), *rows("1.5, ", 120.0)]
    assert shockwave.factors_verdict(wanted) == REPRODUCES
    assert "0% sooner at 3" in shockwave.factors_verdict([*rows("3, ", 130.0), *wanted[4:]])
    assert shockwave.trace_verdict(rows("", 110.0)) == REPRODUCES
    assert shockwave.trace_verdict(rows("", 129.0)) == "differs: 1% sooner instead of 20%"


def test_errors_plans_and_predictions_are_judged() -> None:
    assert shockwave.noises_verdict([row("±0%", 100.0), row("±99%", 135.0)]) == REPRODUCES
    assert shockwave.noises_verdict([row("±0%", 100.0), row("±99%", 105.0)]) == "differs: makespan +5%"
    assert shockwave.plans_verdict([["500", 0.1, 0.0001, 15.0, 0.0003]]) == REPRODUCES
    assert "500 jobs" in shockwave.plans_verdict([["500", 0.1, 0.01, 15.0, 0.0003]])
    right: list[list[Cell]] = [
        ["120, restatement", 0.1, 0.05],
        ["120, bayesian", 0.2, 0.1],
        ["120, reactive", 0.3, 0.2],
    ]
    assert shockwave.predictions_verdict(right) == REPRODUCES
    assert "120, reactive is better" in shockwave.predictions_verdict([*right[:2], ["120, reactive", 0.01, 0.0]])
    assert shockwave.error_chart(right, (0.0, 0.5)).ours[0].points == ((0.0, 0.1), (0.5, 0.05))
