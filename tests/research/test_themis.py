"""Themis's experiment on a small workload: every figure is computed from runs as its table says."""

from math import exp, log

import pytest

from shoal.research.repro.context import ReproContext
from shoal.research.repro.table import Table
from shoal.research.repro.themis import (
    BASELINES,
    ERROR_FILTERS,
    ERRORS,
    FILTERS,
    LEASES_MINUTES,
    MIXES,
    THEMIS,
    ThemisCase,
    ThemisResult,
    against_baselines,
    baseline_cases,
    by_error,
    by_filter_and_lease,
    by_mix,
    error_cases,
    filter_lease_cases,
    measure,
    measure_all,
    mistaken_policy,
    themis_policy,
)
from shoal.research.repro.themis_lies import (
    LIES,
    Contest,
    LieEffect,
    app_seconds,
    by_lie,
    contests,
    identical_apps,
    lie_effects,
)
from shoal.workload.schema import Workload

SEEDS = (0, 1)


@pytest.fixture(scope="module")
def made_up() -> dict[ThemisCase, ThemisResult]:
    """Results one can check by hand: 1 everywhere for Themis, and for others what the tests below say."""
    results = dict.fromkeys(
        (*baseline_cases(SEEDS), *error_cases(SEEDS), *filter_lease_cases(SEEDS)), ThemisResult(1.0, 3600.0, 10)
    )
    for seed in SEEDS:
        results[ThemisCase("tiresias", seed)] = ThemisResult(2.0 + seed, 7200.0, 20)
        results[ThemisCase(mistaken_policy(0.2, 0.9), seed)] = ThemisResult(1.1 - 0.3 * seed, 3600.0, 10)
        results[ThemisCase(themis_policy(1.0, 40), seed)] = ThemisResult(4.5, 1800.0, 10)
        results[ThemisCase("gandiva", seed, 1.0)] = ThemisResult(9.25, 5400.0, 10)
    return results


def _row(table: Table, name: str) -> list[str]:
    (row,) = [row for row in table.cells() if row[0] == name]
    return row


def test_baselines_are_shown_by_the_median_of_their_ratios_to_themis(made_up: dict[ThemisCase, ThemisResult]) -> None:
    table = against_baselines(made_up, SEEDS)
    assert _row(table, "tiresias") == ["tiresias", "2.50", "2.50", "2.00–3.00", "2.000", "20"]
    assert [row[0] for row in table.rows] == ["themis", *BASELINES]
    assert "paper: 2.2 to 3.25" in table.notes()[0]


def test_mixes_have_a_column_each_for_fairness_and_gpu_time(made_up: dict[ThemisCase, ThemisResult]) -> None:
    row = _row(by_mix(made_up, SEEDS), "gandiva")
    assert row == ["gandiva", "1.00", "1.00", "9.25", "1.000", "1.000", "1.500"]
    assert len(row) == 1 + 2 * len(MIXES)


def test_errors_are_shown_as_changes_by_seed(made_up: dict[ThemisCase, ThemisResult]) -> None:
    rows = by_error(made_up, SEEDS).cells()
    assert [row for row in rows if row[1] == "20%"] == [
        ["0.9", "20%", "-5.0%", "-5.0%", "+10.0%  -20.0%"],
        ["0", "20%", "+0.0%", "+0.0%", "+0.0%  +0.0%"],
    ]
    assert len(rows) == len(ERRORS) * len(ERROR_FILTERS)


def test_the_sweep_is_a_grid_of_filters_and_leases(made_up: dict[ThemisCase, ThemisResult]) -> None:
    fairness, gpu_time = by_filter_and_lease(made_up, SEEDS)
    assert _row(fairness, "1")[-1] == "4.50"
    assert _row(gpu_time, "1")[-1] == "0.500"
    assert sum(row.count("1.00") for row in fairness.cells()) == len(FILTERS) * len(LEASES_MINUTES) - 1


def test_lies_are_averaged_and_counted_by_what_became_of_the_liar() -> None:
    found = {0.5: [LieEffect(0.9, 1.0, 0), LieEffect(1.0, 1.0, 1), LieEffect(1.2, 0.98, 2)]}
    row = _row(by_lie(contests()[0], found), "50%")
    assert row[1] == f"{exp((log(0.9) + log(1.2)) / 3):.3f}"
    assert row[-3:] == ["1", "1", "1"]


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([0.9, 0.91], "with lies of 50%"),
        ([0.9, 1.1], "with lies of no size"),
        ([0.9], "with lies of no size"),
        ([1.1, 1.11], "with lies of no size"),
    ],
)
def test_a_lie_counts_as_paying_only_beyond_chance(times: list[float], message: str) -> None:
    table = by_lie(contests()[0], {0.5: [LieEffect(time, 1.0, seed) for seed, time in enumerate(times)]})
    assert table.here == f"the liar is sooner beyond chance {message}"


def test_many_liars_of_one_seed_are_no_more_than_one_case() -> None:
    together = [LieEffect(0.9, 1.0, 0), LieEffect(0.91, 1.0, 0)]
    assert by_lie(contests()[0], {0.5: together}).here.endswith("no size")
    # Each seed's liars make up for each other: nothing is left to chance.
    even = [LieEffect(0.8, 1.0, 0), LieEffect(1.25, 1.0, 0), LieEffect(0.5, 1.0, 1), LieEffect(2.0, 1.0, 1)]
    assert _row(by_lie(contests()[0], {0.5: even}), "50%")[1:3] == ["1.000", "0.000"]


def test_each_run_is_made_once_and_every_knob_of_the_figures_makes_a_difference() -> None:
    cases = (
        ThemisCase(THEMIS, 0),
        ThemisCase("tiresias", 0),
        ThemisCase(themis_policy(0.0, 40), 0),
        ThemisCase(mistaken_policy(0.2, 0.9), 0),
        ThemisCase(THEMIS, 0),
    )
    announced: list[str] = []
    results = measure_all(ReproContext(None, announce=announced.append), cases, 100)
    assert len(announced) == len(results) == 4
    assert len(set(results.values())) == 4
    assert results[ThemisCase(THEMIS, 0)] == measure(ThemisCase(THEMIS, 0), 100)


def test_the_contest_of_figure_18_has_eight_apps_alike_that_want_twice_the_gpus() -> None:
    jobs = identical_apps(0).jobs
    assert len({job.app for job in jobs}) == 8
    assert len({(job.model, job.work, job.gpus, job.submitted) for job in jobs}) == 1
    assert sum(job.gpus for job in jobs) == 2 * 64


def _two_apps(seed: int) -> Workload:
    return identical_apps(seed).first(8)


SMALL = Contest("two apps", "p100:1x8,p100:4x2", _two_apps, lambda _: ("app-0",), "themis:f=0,bids=machines")


def test_a_liar_and_its_rivals_are_compared_with_themselves_when_it_is_honest() -> None:
    found = lie_effects(ReproContext(None), SMALL, (0,))
    assert {lie: len(cases) for lie, cases in found.items()} == dict.fromkeys(LIES, 1)
    honest, lied = app_seconds(SMALL, 0), app_seconds(SMALL, 0, "app-0", LIES[-1])
    (case,) = found[LIES[-1]]
    assert case.liar == pytest.approx(lied["app-0"] / honest["app-0"])
    assert case.others == pytest.approx(lied["app-1"] / honest["app-1"])
    assert case.liar != 1.0, "the lie made a difference"


def test_stored_lies_are_not_simulated_again() -> None:
    announced: list[str] = []
    context = ReproContext(None, announce=announced.append)
    first = lie_effects(context, SMALL, (0,))
    assert announced == [
        f"two apps, seed 0, {what}" for what in ("all are honest", *(f"app-0 lies by {x:.0%}" for x in LIES))
    ]
    assert lie_effects(context, SMALL, (0,)) == first
    assert len(announced) == 1 + len(LIES)


def test_without_a_lie_nothing_changes() -> None:
    assert app_seconds(SMALL, 0, "app-0", 0.0) == app_seconds(SMALL, 0)


@pytest.mark.parametrize("contest", contests(), ids=lambda contest: contest.policy)
def test_liars_are_network_intensive_apps_with_rivals(contest: Contest) -> None:
    workload = contest.make_workload(0)
    liars = contest.liars(workload)
    assert liars
    assert {job.model for job in workload.jobs if job.app in liars} == {"VGG16"}
    assert len({job.app for job in workload.jobs}) > 1
