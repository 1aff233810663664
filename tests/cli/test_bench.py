"""The speed table: what it measures, and what it says of a bench it cannot run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from shoal.bench import BENCHES, Result, chosen

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


def test_a_budget_is_kept_only_in_time_and_memory_both() -> None:
    def met(seconds: float, megabytes: float) -> bool | None:
        return Result("b", "what", seconds, 1.0, megabytes, 100.0, {}).met

    assert (met(0.9, 99), met(1.1, 99), met(0.9, 101)) == (True, False, False)
