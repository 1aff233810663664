"""``shoal workload import --models``: a trace that names no models becomes one of elastic trainings."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

Shoal: TypeAlias = Callable[..., tuple[int, str, str]]


def test_jobs_get_models_by_seed_and_can_be_simulated(shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("job_id,submit,duration,num_gpu\na,0,600,1\nb,10,900,8\nc,20,60,2\n")

    def imported(seed: int) -> str:
        arguments = ("trace.csv", "--models", "afs", "--seed", str(seed), "--out", "jobs.jsonl")
        assert shoal("workload", "import", *arguments)[0] == 0
        return (tmp_path / "jobs.jsonl").read_text()

    assert imported(1) == imported(1) != imported(2)
    code, out, _ = shoal(
        *("simulate", "--workload", "jobs.jsonl", "--cluster", "gtx1080:4x4", "--restart-cost", "0", "--json"),
        *("--policy", "srtf", "--policy", "afs-p:packing=true", "--placement", "network"),
    )
    assert code == 0
    plain, elastic = json.loads(out)
    assert plain["completed"] == elastic["completed"] == 3
    assert elastic["avg_jct"] < plain["avg_jct"]
