"""``shoal solve`` with policies that give GPUs: small problems with the answers written beside them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

Shoal: TypeAlias = Callable[..., tuple[int, str, str]]


def elastic(name: str, rates: list[float], steps: float | None = None, **more: Any) -> dict[str, Any]:
    by_gpus = {"gpu": {str(k + 1): rate for k, rate in enumerate(rates)}}
    return {"id": name, "by_gpus": by_gpus, "steps_left": steps, **more}


def solved(shoal: Shoal, folder: Path, policy: str, problem: Any) -> Any:
    (folder / "problem.json").write_text(json.dumps(problem))
    code, out, err = shoal("solve", "--policy", policy, "--problem", "problem.json", "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_the_cyclic_triple_is_settled_from_the_longest_to_the_shortest(shoal: Shoal, tmp_path: Path) -> None:
    jobs = [elastic(n, [1.0, f], s) for n, f, s in (("A", 1.30, 100.0), ("B", 1.42, 200.0), ("C", 1.667, 300.0))]
    answer = solved(shoal, tmp_path, "afs-l", {"cluster": {"gpu": 4}, "jobs": jobs})
    assert answer["shares"] == {"A": 2, "B": 1, "C": 1}
    assert answer["levels"] == {"A": pytest.approx(1.30), "B": 1.0, "C": 1.0}


def test_without_lengths_the_efficient_job_gets_the_gpu(shoal: Shoal, tmp_path: Path) -> None:
    jobs = [elastic("poor", [1.0, 1.1, 1.15]), elastic("good", [10.0, 19.0, 27.0])]
    answer = solved(shoal, tmp_path, "afs-p", {"cluster": {"gpu": 4}, "jobs": jobs})
    assert answer["shares"] == {"poor": 1, "good": 3}
    assert answer["notes"]["poor"] == "runs: it fits, 4 of 4 GPUs are in use"


def test_when_jobs_outnumber_gpus_the_shortest_get_one_each(shoal: Shoal, tmp_path: Path) -> None:
    jobs = [elastic(f"j{n}", [1.0, 2.0], 10.0 * n) for n in (3, 1, 2)]
    answer = solved(shoal, tmp_path, "afs-l", {"cluster": {"gpu": 2}, "jobs": jobs})
    assert answer["shares"] == {"j3": 0, "j1": 1, "j2": 1}
    assert answer["kinds"] == {"j3": None, "j1": "gpu", "j2": "gpu"}


def test_packed_shares_are_parts_of_the_machines_named(shoal: Shoal, tmp_path: Path) -> None:
    jobs = [elastic(f"j{n}", [float(k + 1) ** 0.9 for k in range(8)]) for n in range(3)]
    problem = {"cluster": {"gpu": 8}, "gpus_per_node": {"gpu": 4}, "jobs": jobs}
    assert sorted(solved(shoal, tmp_path, "afs-p", problem)["shares"].values()) == [2, 3, 3]
    assert sorted(solved(shoal, tmp_path, "afs-p:packing=true", problem)["shares"].values()) == [2, 2, 4]


def test_a_gang_and_an_elastic_job_share_a_problem(shoal: Shoal, tmp_path: Path) -> None:
    jobs = [{"id": "gang", "throughput": {"gpu": 3.0}, "gpus": 3}, elastic("e", [1.0, 1.9, 2.7])]
    assert solved(shoal, tmp_path, "afs-s", {"cluster": {"gpu": 5}, "jobs": jobs})["shares"] == {"gang": 3, "e": 2}


def test_the_table_shows_gpus_throughput_and_why(shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "problem.json").write_text(json.dumps({"cluster": {"gpu": 2}, "jobs": [elastic("a", [1.0, 1.5], 9.0)]}))
    code, out, _ = shoal("solve", "--policy", "rank", "--problem", "problem.json")
    assert code == 0
    assert "rank: GPUs by job" in out
    assert "runs on 2 GPUs: the last made it 50% faster, one more would make it 0%" in out


WRONG = [
    ({"by_gpus": {"tpu": {"1": 1.0}}}, "by_gpus: 'tpu'"),
    ({"by_gpus": {"gpu": {"0": 1.0}}}, "by_gpus.gpu: '0'"),
    ({"by_gpus": {"gpu": {"1": -1.0}}}, "by_gpus.gpu.1: -1.0"),
    ({"by_gpus": {"gpu": {"1": 1.0}}, "min_gpus": 2}, "min_gpus: 2"),
    ({"by_gpus": {"gpu": {"1": 1.0}}, "steps_left": -1.0}, "steps_left: -1.0"),
    ({"by_gpus": {"gpu": {"1": 1.0}}, "arrived": -1.0}, "arrived: -1.0"),
]


def test_a_cluster_without_gpus_is_refused(shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "problem.json").write_text(json.dumps({"cluster": {"gpu": 0}, "jobs": [elastic("a", [1.0])]}))
    code, _, err = shoal("solve", "--policy", "srtf-e", "--problem", "problem.json")
    assert code == 2
    assert "has no GPUs" in err


@pytest.mark.parametrize(("fields", "said"), WRONG)
def test_a_field_that_makes_no_sense_is_named(shoal: Shoal, tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    (tmp_path / "problem.json").write_text(json.dumps({"cluster": {"gpu": 4}, "jobs": [{"id": "a", **fields}]}))
    code, _, err = shoal("solve", "--policy", "afs-l", "--problem", "problem.json")
    assert code == 2
    assert said in err
