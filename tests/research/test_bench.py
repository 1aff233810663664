"""The benchmark table: its measurements, and its rows for benchmarks that cannot run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from shoal.policy.registry import POLICIES
from shoal.research.bench import scale, solve
from shoal.research.bench.registry import BENCHES, Result, chosen

Shoal: TypeAlias = Callable[..., tuple[int, str, str]]


def test_a_bench_reports_cpu_seconds_and_peak_memory_of_a_process_of_its_own(shoal: Shoal) -> None:
    code, out, err = shoal("bench", "import", "cycle-steady-fifo", "--json")
    assert code == 0
    first, second = json.loads(out)
    assert (first["name"], second["name"]) == ("import", "cycle-steady-fifo")
    assert 0 < first["seconds"] < 60
    assert 0 < second["seconds"] < 60
    assert second["peak_mb"] > 1
    assert "measuring import" in err


def test_a_bench_whose_trace_is_not_there_is_left_out_and_says_so(shoal: Shoal, tmp_path: Path) -> None:
    code, out, _ = shoal("bench", "philly-512x4-fifo", "--data", str(tmp_path), "--json")
    (only,) = json.loads(out)
    assert (code, only["seconds"], only["met"]) == (0, None, None)


def test_a_prefix_chooses_all_that_begin_with_it() -> None:
    assert {bench.name for bench in chosen(["philly-512x4"])} == {n for n in BENCHES if n.startswith("philly-512x4")}


@pytest.mark.parametrize("workload", scale.WORKLOADS)
def test_growth_is_the_exponent_of_the_cpu_seconds_of_a_cycle(workload: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "SIZES", ((40, 4), (80, 8), (160, 16)))
    monkeypatch.setattr(scale, "_CYCLES", 4)
    seconds = {40: 1.0, 80: 2.0, 160: 4.0}
    measured = scale.cycles("fifo", workload, 40, 4)
    assert 0 < measured.steady <= measured.longest < 60
    monkeypatch.setattr(scale, "cycles", lambda _p, _w, live, _n: scale.CycleSeconds(seconds[live], seconds[live], 9.0))
    figures = scale.growth("fifo", workload)
    assert figures["seconds"] == pytest.approx(4.0)
    assert figures["steady_exponent"] == pytest.approx(1.0)
    assert scale.growth_cell(figures) == "n^1.0; first 4 s (n^1.0, above 2 s), longest 9 s with 160 jobs"
    monkeypatch.setattr(scale, "_TOO_LONG", 3.0)
    figures = scale.growth("fifo", workload)
    assert figures["seconds"] == pytest.approx(4.0)
    assert scale.growth_cell(figures).startswith("extrapolated, n^1.0; first 2 s")


def test_every_policy_has_its_growth_measured_where_that_is_asked_for() -> None:
    assert {bench.name for bench in chosen(["scale"])} == {f"scale-{p}-{w}" for p in POLICIES for w in scale.WORKLOADS}
    assert not any(bench.name.startswith("scale-") for bench in chosen([]))


def test_a_budget_is_kept_only_in_time_and_memory_both() -> None:
    def met(seconds: float, megabytes: float) -> bool | None:
        return Result("b", "what", seconds, 1.0, megabytes, 100.0, {}).met

    assert (met(0.9, 99), met(1.1, 99), met(0.9, 101)) == (True, False, False)


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({}, "–"),
        ({"cvxpy_seconds": 0.0689}, "0.0689"),
        ({"cvxpy_seconds": 3.21, "cvxpy_settled": 2048.0, "cvxpy_jobs": 2048.0}, "3.21"),
        ({"cvxpy_seconds": 20.0, "cvxpy_settled": 700.0, "cvxpy_jobs": 2048.0}, "> 20, 700 of 2,048 jobs settled"),
        ({"cvxpy_seconds": 3.0, "cvxpy_settled": 96.0, "cvxpy_jobs": 96.0, "cvxpy_fewer": 1.0}, "3, 96 jobs only"),
    ],
)
def test_figures_of_cvxpy_are_shown_with_their_limits(figures: dict[str, float], words: str) -> None:
    assert solve.cvxpy_cell(figures) == words


def _by_cvxpy() -> dict[str, dict[str, float]]:
    objectives = ("max-min", "makespan", "ftf", "flat", "tree")
    figures = {name: solve.filling(name, 48, 3) for name in objectives}
    return {**figures, "cost": solve.cost(48, 3), "sharing": solve.sharing(24)}


def test_cvxpy_comes_to_the_same_beside_every_program_of_the_table() -> None:
    pytest.importorskip("cvxpy")
    for name, figures in _by_cvxpy().items():
        # Its interior points stop at about this of the objective, which for a makespan is small.
        assert figures["cvxpy_difference"] <= 1e-5, name
        assert figures.get("cvxpy_settled") == figures.get("cvxpy_jobs"), name


def test_without_cvxpy_its_column_stays_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr(solve, "import_module", absent)
    for figures in _by_cvxpy().values():
        assert figures["seconds"] > 0
        assert solve.cvxpy_cell(figures) == "–"


def test_a_cvxpy_that_takes_too_long_is_stopped_and_says_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cvxpy")
    monkeypatch.setattr(solve, "CVXPY_SECONDS", 0.0)
    figures = solve.filling("flat", 48, 3)
    assert (figures["cvxpy_settled"], figures["cvxpy_jobs"]) == (0, 48)
