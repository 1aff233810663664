"""``shoal solve`` on problems small enough to solve by hand, and on those that make no sense."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

Shoal: TypeAlias = Callable[..., tuple[int, str, str]]

# Gavel §4.1: three jobs, one V100 and one K80; the unique optimum is 8/11 with these shares (see the paper's text).
THREE = {
    "cluster": {"v100": 1, "k80": 1},
    "jobs": [
        {"id": "a", "throughput": {"v100": 4.0, "k80": 1.0}},
        {"id": "b", "throughput": {"v100": 3.0, "k80": 1.0}},
        {"id": "c", "throughput": {"v100": 2.0, "k80": 1.0}},
    ],
}


def solved(shoal: Shoal, folder: Path, policy: str, problem: Any) -> Any:
    (folder / "problem.json").write_text(json.dumps(problem))
    code, out, err = shoal("solve", "--policy", policy, "--problem", "problem.json", "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_the_example_of_gavels_section_4_1(shoal: Shoal, tmp_path: Path) -> None:
    answer = solved(shoal, tmp_path, "gavel.max-min", THREE)
    assert answer["objective"] == pytest.approx(8 / 11, abs=1e-9)
    shares = [list(answer["allocation"][job].values()) for job in "abc"]
    assert shares[0] == pytest.approx([5 / 11, 0.0], abs=1e-8)
    assert shares[1] == pytest.approx([5 / 11, 1 / 11], abs=1e-8)
    assert shares[2] == pytest.approx([1 / 11, 10 / 11], abs=1e-8)
    assert answer["gap"] <= 1e-8


def test_water_filling_gives_everyone_a_gpu_where_there_is_one_for_each(shoal: Shoal, tmp_path: Path) -> None:
    # Gavel §4.3: weights 3, 1, 1, 1 on four equal GPUs. At first 1, 1/3, 1/3, 1/3; then the others rise to 1 too.
    jobs = [{"id": f"j{i}", "throughput": {"gpu": 1.0}, "weight": 3.0 if i == 0 else 1.0} for i in range(4)]
    answer = solved(shoal, tmp_path, "gavel.max-min", {"cluster": {"gpu": 4}, "jobs": jobs})
    assert list(answer["levels"].values()) == pytest.approx([1.0] * 4, abs=1e-9)


def test_makespan_is_in_seconds(shoal: Shoal, tmp_path: Path) -> None:
    # One GPU, 100 and 300 steps at 1 step/s: nothing can be done before 400 s.
    jobs = [{"id": n, "throughput": {"gpu": 1.0}, "steps_left": s} for n, s in (("a", 100.0), ("b", 300.0))]
    answer = solved(shoal, tmp_path, "gavel.makespan", {"cluster": {"gpu": 1}, "jobs": jobs})
    assert answer["objective"] == pytest.approx(400.0)
    assert answer["allocation"]["b"]["gpu"] == pytest.approx(0.75)


def test_an_entity_that_is_fifo_serves_its_first_job(shoal: Shoal, tmp_path: Path) -> None:
    # Two entities of equal weight on one GPU: half each; the FIFO one gives its half to the job that came first.
    jobs = [
        {"id": "first", "throughput": {"gpu": 1.0}, "entity": "lab", "arrived": 1.0},
        {"id": "second", "throughput": {"gpu": 1.0}, "entity": "lab", "arrived": 2.0},
        {"id": "x", "throughput": {"gpu": 1.0}, "entity": "shop"},
        {"id": "y", "throughput": {"gpu": 1.0}, "entity": "shop"},
    ]
    entities = {"lab": {"policy": "fifo"}, "shop": {"weight": 1.0}}
    problem = {"cluster": {"gpu": 1}, "entities": entities, "jobs": jobs}
    levels = solved(shoal, tmp_path, "gavel.hierarchical", problem)["levels"]
    assert levels == pytest.approx({"first": 0.5, "second": 0.0, "x": 0.25, "y": 0.25}, abs=1e-9)


def test_an_slo_that_is_past_or_out_of_reach_is_named_and_the_rest_is_solved(shoal: Shoal, tmp_path: Path) -> None:
    jobs = [
        {"id": "late", "throughput": {"gpu": 1.0}, "steps_left": 10.0, "slo": 5.0},
        {"id": "greedy", "throughput": {"gpu": 1.0}, "steps_left": 1000.0, "slo": 100.0},
        {"id": "fine", "throughput": {"gpu": 1.0}, "steps_left": 50.0, "slo": 110.0},
    ]
    problem = {"cluster": {"gpu": 3}, "prices": {"gpu": 1.0}, "now": 10.0, "jobs": jobs}
    answer = solved(shoal, tmp_path, "gavel.cost-slo", problem)
    assert answer["notes"] == {
        "late": "its deadline, t = 5 s, is past",
        "greedy": "its deadline, t = 100 s, cannot be met: it would need 11.11 a second, its fastest kind gives 1",
    }
    assert answer["levels"]["fine"] >= 0.5 - 1e-9


def test_jobs_that_cannot_run_are_refused_with_the_numbers_and_the_rest_is_solved(shoal: Shoal, tmp_path: Path) -> None:
    jobs = [
        {"id": "none", "throughput": {"gpu": 0.0}},
        {"id": "wide", "throughput": {"gpu": 1.0}, "gpus": 8},
        {"id": "fine", "throughput": {"gpu": 1.0}},
    ]
    answer = solved(shoal, tmp_path, "gavel.max-min", {"cluster": {"gpu": 4}, "jobs": jobs})
    assert answer["refused"] == {
        "none": "has no throughput on any of gpu",
        "wide": "needs 8 GPUs of one type; the most it can use is 4",
    }
    assert answer["levels"] == pytest.approx({"fine": 1.0})


def gangs(*apart: float, gpus: int = 3) -> dict[str, Any]:
    """Gangs that make 30 on one node and less apart, two nodes of four GPUs."""
    jobs = [
        {
            "id": f"j{i}",
            "gpus": gpus,
            "throughput": {"gpu": 30.0},
            "unconsolidated": {"gpu": speed},
            "steps_left": 600.0,
        }
        for i, speed in enumerate(apart)
    ]
    return {"cluster": {"gpu": 8}, "gpus_per_node": {"gpu": 4}, "prices": {"gpu": 1.0}, "jobs": jobs}


def test_the_gang_that_loses_least_sits_apart(shoal: Shoal, tmp_path: Path) -> None:
    # One gang of three on each node, and two GPUs left over for the third two thirds of the time.
    answer = solved(shoal, tmp_path, "gavel.throughput", gangs(12.0, 12.0, 28.0))
    assert answer["consolidated"] == {"j0": {"gpu": 1.0}, "j1": {"gpu": 1.0}, "j2": {"gpu": 0.0}}
    assert answer["allocation"]["j2"]["gpu"] == pytest.approx(2 / 3)
    assert answer["objective"] == pytest.approx(30.0 + 30.0 + 28.0 * 2 / 3)


@pytest.mark.parametrize(
    ("policy", "objective"),
    # All at the same level t: t = 30 a for the first two and 30 n + 28 f for the third, with 2a + n ≤ 2 on nodes and
    # 2a + n + f ≤ 8/3 in all. At the optimum n = 2 − 2a and f = 2/3: 90 a = 60 + 56/3, a = 118/135.
    [
        ("gavel.max-min", 118 / 135 * 3.0),
        ("gavel.max-min:water_filling=false", 118 / 135 * 3.0),
        ("gavel.makespan", 600.0 / (30.0 * 118 / 135)),
        ("gavel.hierarchical", 118 / 135 * 3.0),
        ("gavel.sjf", 20.0),
        ("gavel.cost", 10.0),
        ("gavel.cost-slo", 10.0),
    ],
)
def test_shares_between_one_node_and_several_by_hand(
    shoal: Shoal, tmp_path: Path, policy: str, objective: float
) -> None:
    answer = solved(shoal, tmp_path, policy, gangs(12.0, 12.0, 28.0))
    assert answer["objective"] == pytest.approx(objective, rel=1e-7)
    assert sum(row["gpu"] for row in answer["consolidated"].values()) <= 2 + 1e-9
    level = {job: 30.0 * answer["consolidated"][job]["gpu"] for job in answer["levels"]}
    level["j2"] += 28.0 * (answer["allocation"]["j2"]["gpu"] - answer["consolidated"]["j2"]["gpu"])
    assert all(answer["levels"][job] >= level[job] - 1e-6 for job in level)


@pytest.mark.parametrize("policy", ["gavel.max-min", "gavel.fifo", "gavel.ftf", "gavel.throughput"])
def test_where_every_gang_fits_on_a_node_the_answer_is_as_without_distance(
    shoal: Shoal, tmp_path: Path, policy: str
) -> None:
    problem = gangs(12.0, 12.0, 28.0, gpus=4)
    near = solved(shoal, tmp_path, policy, problem)
    plain = solved(
        shoal, tmp_path, policy, {**problem, "jobs": [{**job, "unconsolidated": {}} for job in problem["jobs"]]}
    )
    assert near.pop("consolidated") == near["allocation"]
    assert {**near, "seconds": 0} == {**plain, "seconds": 0}


def test_a_gang_larger_than_a_node_always_sits_apart(shoal: Shoal, tmp_path: Path) -> None:
    answer = solved(shoal, tmp_path, "gavel.throughput", gangs(12.0, gpus=6))
    assert (answer["levels"], answer["consolidated"]) == ({"j0": 12.0}, {"j0": {"gpu": 0.0}})


def test_distance_and_space_sharing_do_not_go_together(shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps(gangs(12.0)))
    code, _, err = shoal("solve", "--policy", "gavel.max-min:space_sharing=true", "--problem", "p.json")
    assert (code, "space_sharing" in err, err.count("\n")) == (2, True, 1)


def test_several_problems_give_a_list_of_answers(shoal: Shoal, tmp_path: Path) -> None:
    answers = solved(shoal, tmp_path, "gavel.max-min:aware=false", [THREE, THREE])
    assert len(answers) == 2


BAD = [
    ("a weight of 0", {"jobs": [{"id": "a", "throughput": {"gpu": 1.0}, "weight": 0.0}]}, ("jobs[0].weight", "0.0")),
    ("an unknown type", {"jobs": [{"id": "a", "throughput": {"gpv": 1.0}}]}, ("'gpv'", "gpu")),
    ("an unknown field", {"jobs": [], "color": 1}, ("color",)),
    ("the same job twice", {"jobs": [{"id": "a", "throughput": {"gpu": 1.0}}] * 2}, ("'a'", "twice")),
    ("an entity of no known kind", {"jobs": [], "entities": {"lab": {"policy": "fiar"}}}, ("'fiar'", "policy")),
    (
        "a gang faster apart",
        {"jobs": [{"id": "a", "gpus": 2, "throughput": {"gpu": 1.0}, "unconsolidated": {"gpu": 2.0}}]},
        ("job a, unconsolidated.gpu", "2.0", "from 0 to its throughput on one node, 1"),
    ),
    (
        "a distance without nodes",
        {"jobs": [{"id": "a", "gpus": 2, "throughput": {"gpu": 1.0}, "unconsolidated": {"gpu": 0.5}}]},
        ("job a, unconsolidated.gpu", "gpus_per_node.gpu"),
    ),
    (
        "one GPU apart",
        {
            "gpus_per_node": {"gpu": 2},
            "jobs": [{"id": "a", "throughput": {"gpu": 1.0}, "unconsolidated": {"gpu": 0.5}}],
        },
        ("job a, unconsolidated.gpu", "one GPU is always on one node"),
    ),
    (
        "a type nobody has, apart",
        {"jobs": [{"id": "a", "gpus": 2, "throughput": {"gpu": 1.0}, "unconsolidated": {"gpv": 0.5}}]},
        ("'gpv'", "gpu"),
    ),
    ("nodes of an unknown type", {"jobs": [], "gpus_per_node": {"gpv": 4}}, ("'gpv'", "gpu")),
    ("nodes of no GPUs", {"jobs": [], "gpus_per_node": {"gpu": 0}}, ("gpus_per_node.gpu", "0")),
    ("a negative speed", {"jobs": [{"id": "a", "throughput": {"gpu": -1.0}}]}, ("throughput.gpu", "-1.0")),
]


@pytest.mark.parametrize(("problem", "said"), [(p, s) for _, p, s in BAD], ids=[name for name, _, _ in BAD])
def test_what_makes_no_sense_is_one_line(
    shoal: Shoal, tmp_path: Path, problem: dict[str, Any], said: tuple[str, ...]
) -> None:
    (tmp_path / "p.json").write_text(json.dumps({"cluster": {"gpu": 4}, **problem}))
    code, out, err = shoal("solve", "--policy", "gavel.max-min", "--problem", "p.json")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert all(word in err for word in said)


def test_a_pair_with_an_unknown_job_is_one_line(shoal: Shoal, tmp_path: Path) -> None:
    problem = {**THREE, "pairs": [{"jobs": ["a", "zz"], "throughput": {"v100": [1.0, 1.0]}}]}
    (tmp_path / "p.json").write_text(json.dumps(problem))
    code, _, err = shoal("solve", "--policy", "gavel.max-min:space_sharing=true", "--problem", "p.json")
    assert (code, "'zz'" in err, err.count("\n")) == (2, True, 1)


def test_a_policy_that_is_not_an_optimization_gets_an_error_that_lists_those_that_are(
    shoal: Shoal, tmp_path: Path
) -> None:
    (tmp_path / "p.json").write_text(json.dumps(THREE))
    code, _, err = shoal("solve", "--policy", "fifo", "--problem", "p.json")
    assert (code, "gavel.max-min" in err) == (2, True)
