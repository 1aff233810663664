import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from shoal.core.arrays import Floats
from shoal.core.errors import InputError
from shoal.report.compare import MEASURES, bootstrap_interval, compare, settings_of_run, t_interval
from shoal.report.files import StoredRun
from shoal.report.metrics import DEFINITIONS, JobResults
from shoal.report.tables import change, table


def run(policy: str, seed: int, jct: Floats, **more: object) -> StoredRun:
    count = len(jct)
    zeros = np.zeros(count)
    rho = dict.fromkeys(DEFINITIONS, jct / 100.0)
    ids = [f"job-{i}" for i in range(count)]
    jobs = JobResults(
        ids, ["t"] * count, zeros, zeros, jct, jct, np.ones(count, int), np.zeros(count, int), zeros, zeros, jct, rho
    )
    figures = {"mean": float(jct.mean()) / 100, "max": float(jct.max()) / 100, "unfair_1.0": float((jct > 100).mean())}
    summary = {
        "policy": policy,
        "seed": seed,
        "cluster": "v100:1x4",
        "workload": "w",
        "jobs": count,
        "completed": count,
        "avg_jct": float(jct.mean()),
        "median_jct": float(np.median(jct)),
        "p99_jct": float(np.quantile(jct, 0.99)),
        "makespan": float(jct.max()),
        "utilization": 0.5,
        "restarts": 3,
        "cost": 10.0,
        "rho": dict.fromkeys(DEFINITIONS, figures),
        **more,
    }
    return StoredRun(Path(f"{policy}-seed{seed}"), summary, jobs, None)


def drawn(seed: int, count: int = 400) -> Floats:
    return np.random.default_rng(seed).exponential(100.0, count)


def test_students_interval_worked_by_hand() -> None:
    # Gaps 1, 2, 3: mean 2, deviation 1; the 97.5 % point of t with 2 degrees of freedom is 4.302653.
    low, high = t_interval(np.array([1.0, 2.0, 3.0]))
    assert (low, high) == pytest.approx((2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5), rel=1e-6)


@pytest.mark.parametrize("seeds", [1, 3], ids=["of one seed", "of three seeds"])
def test_identical_runs_show_no_difference(seeds: int) -> None:
    runs = [run(policy, seed, drawn(seed)) for policy in ("a", "b") for seed in range(seeds)]
    (comparison,) = compare(runs)
    assert {d.measure for d in comparison.differences} == {m.name for m in MEASURES}
    assert {d.verdict for d in comparison.differences} == {"no difference"}
    assert comparison.best == {}


@pytest.mark.parametrize(("seeds", "basis"), [(1, "jobs"), (4, "seeds")])
def test_a_real_difference_is_found_and_its_size_is_given(seeds: int, basis: str) -> None:
    base = [run("slow", seed, drawn(seed)) for seed in range(seeds)]
    fast = [run("fast", seed, 0.8 * drawn(seed)) for seed in range(seeds)]
    (comparison,) = compare([*base, *fast])
    found = comparison.difference("fast", "avg_jct")
    assert found is not None
    assert (found.verdict, found.basis, found.baseline) == ("better", basis, "slow")
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high < 0.0
    mean = float(np.mean([drawn(seed).mean() for seed in range(seeds)]))
    assert found.value == pytest.approx(-0.2 * mean)
    assert comparison.best["avg_jct"] == "fast"
    assert change(comparison, MEASURES[0], found)[0] == "−20.0 %"
    turned = compare([*base, *fast], baseline="fast")[0].difference("slow", "avg_jct")
    assert turned is not None
    assert turned.verdict == "worse"


def test_an_interval_that_covers_zero_is_not_significant_and_marks_no_best() -> None:
    # The second policy permutes the completion times: no mean changes by more than chance.
    runs = [run("a", 0, drawn(0)), run("b", 0, np.random.default_rng(9).permutation(drawn(0)) * 1.002)]
    comparison = compare(runs)[0]
    found = comparison.difference("b", "avg_jct")
    assert found is not None
    assert (found.verdict, found.low is not None and found.low < 0.0) == ("not significant", True)
    said, interval = change(comparison, MEASURES[0], found)
    assert said == "not significant"
    assert interval.startswith("(−")
    assert comparison.best == {}


def test_best_is_only_what_is_significantly_better_than_every_other() -> None:
    # b and c differ by chance alone, and both are far better than a; d is far better than all.
    noise = np.random.default_rng(9).normal(0.0, 3.0, 400)
    runs = [run("a", 0, drawn(0) + 200), run("b", 0, drawn(0)), run("c", 0, np.maximum(drawn(0) + noise, 0.0))]
    assert "avg_jct" not in compare(runs)[0].best
    better = [*runs, run("d", 0, drawn(0) / 2)]
    assert {compare(better, baseline)[0].best["avg_jct"] for baseline in "abd"} == {"d"}
    # A figure of which there is one observation a policy is never significant.
    assert "makespan" not in compare(better)[0].best


SETTINGS: dict[str, tuple[Any, Any, str]] = {
    "measurement_noise": (0.0, 0.2, "measurement-noise 0.2"),
    "cloud": (None, "goodput", "cloud goodput"),
    "profiles": ([], ["traces", "more"], "profiles traces, more"),
    "round": (None, 60.0, "round 60"),
    "jobs": (None, 30, "jobs 30"),
    "prices": ({}, {"v100": 2.5}, "prices v100 2.5"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_runs_that_differ_in_a_setting_are_rows_of_their_own(name: str) -> None:
    usual, other, label = SETTINGS[name]
    runs = [
        run("las", 0, drawn(0), settings={name: usual}),
        run("las", 0, drawn(0), settings={name: other}),
        run("fifo", 0, drawn(0), settings={}),  # of a version that did not record it: the same as its default
    ]
    (comparison,) = compare(runs)
    assert [s.policy for s in comparison.standings] == ["las", f"las ({label})", "fifo"]
    assert comparison.standings[1].settings == {name.replace("_", "-"): label.partition(" ")[2]}
    assert compare(runs, baseline=f"las ({label})")[0].baseline == f"las ({label})"
    assert compare(runs, baseline="las")[0].baseline == "las"
    with pytest.raises(InputError, match="again"):
        compare([*runs, runs[1]])


def test_knowledge_that_differs_by_policy_is_named_in_each_row() -> None:
    runs = [run("pollux", 0, drawn(0), knowledge="online"), run("fifo", 0, drawn(0), knowledge="profiled")]
    standings = compare(runs)[0].standings
    assert [s.policy for s in standings] == ["pollux (knowledge online)", "fifo (knowledge profiled)"]


def test_one_run_gives_no_interval_for_the_makespan() -> None:
    runs = [run("a", 0, drawn(0)), run("b", 0, drawn(0) + 5.0)]
    found = compare(runs)[0].difference("b", "makespan")
    assert found is not None
    assert (found.low, found.high, found.verdict, found.basis) == (None, None, "one run", "none")


def test_the_bootstrap_pairs_jobs_and_repeats_itself() -> None:
    # Every pair differs by exactly 7, so every resample's mean does too, however wide the jobs spread.
    a = drawn(3)

    def mean(
        rows: Floats,
    ) -> Floats:
        return np.asarray(rows.mean(axis=-1))

    assert bootstrap_interval(a, a - 7.0, mean) == pytest.approx((7.0, 7.0))
    b = drawn(4)
    assert bootstrap_interval(a, b, mean) == bootstrap_interval(a, b, mean)


def test_only_like_is_compared_with_like() -> None:
    here, there = run("a", 0, drawn(0)), run("b", 0, drawn(0), workload="other")
    first, second = compare([here, there])
    assert (first.workload, second.workload) == ("w", "other")
    assert first.differences == second.differences == ()


def test_seeds_that_only_one_policy_ran_are_left_out_of_the_pairs() -> None:
    runs = [run("a", seed, drawn(seed)) for seed in (0, 1, 2)] + [run("b", seed, drawn(seed)) for seed in (1, 2, 3)]
    found = compare(runs)[0].difference("b", "avg_jct")
    assert found is not None
    assert (found.pairs, found.value) == (2, 0.0)


def test_wrong_requests_are_refused_with_a_way_out() -> None:
    runs = [run("fifo", 0, drawn(0)), run("las", 0, drawn(1))]
    with pytest.raises(InputError, match="did you mean fifo"):
        compare(runs, baseline="fifi")
    with pytest.raises(InputError, match="again"):
        compare([*runs, runs[0]])


def test_the_printed_table_names_policies_values_and_changes() -> None:
    runs = [run("slow", s, drawn(s) * 3600) for s in (0, 1, 2)] + [run("fast", s, drawn(s) * 1800) for s in (0, 1, 2)]
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(table(compare(runs)[0]))
    text = console.export_text()
    for expected in ("slow", "fast", "average JCT (h)", "−50.0 %", "95 % t-intervals", "no difference", "ρ > 1 (%)"):
        assert expected in text


def test_the_comparison_as_plain_values_holds_the_same() -> None:
    comparison = compare([run("a", 0, drawn(0)), run("b", 0, drawn(1))])[0]
    plain = comparison.as_dict()
    assert plain["baseline"] == "a"
    assert plain["standings"][1]["means"]["avg_jct"] == pytest.approx(drawn(1).mean())
    assert len(plain["differences"]) == len(MEASURES)


def test_how_a_live_journal_was_recorded_is_no_setting_of_a_comparison() -> None:
    recorded = {"epoch": 1.79e9, "opened": 1.79e9, "lease": 20.0, "steadfast": True, "constants": {"a": 1}}
    found = settings_of_run({"knowledge": "profiled", "settings": {**recorded, "restart_cost": "job"}})
    assert found == {"knowledge": "profiled", "restart-cost": "job"}
