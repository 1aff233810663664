"""``shoal solve --policy shockwave``: windows by hand, against every other plan, and problems that make no sense."""

import json
import random
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import pytest

Shoal: TypeAlias = Callable[..., tuple[int, str, str]]

WELFARE_ALONE = "shockwave:k=0,lam=0"


def solved(shoal: Shoal, folder: Path, policy: str, problem: Any) -> Any:
    (folder / "problem.json").write_text(json.dumps(problem))
    code, out, err = shoal("solve", "--policy", policy, "--problem", "problem.json", "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def window(rounds: int, gpus: int, *jobs: dict[str, Any]) -> dict[str, Any]:
    named = [{"id": f"j{i}", **job} for i, job in enumerate(jobs)]
    return {"cluster": {"gpu": gpus}, "window": {"rounds": rounds, "seconds": 100.0}, "jobs": named}


def steady(steps: float, **more: Any) -> dict[str, Any]:
    return {"steps_left": steps, "throughput": {"gpu": 1.0}, **more}


def test_a_job_that_will_be_faster_is_worth_its_slow_rounds(shoal: Shoal, tmp_path: Path) -> None:
    # A round is a quarter of the steady job. The other's first is a quarter too, and its second three quarters: with
    # four rounds both of its and two of the steady job's come to 1.5. By its present speed it would never be finished.
    stages = [{"steps": 100.0, "throughput": {"gpu": 1.0}}, {"steps": 300.0, "throughput": {"gpu": 3.0}}]
    answer = solved(shoal, tmp_path, WELFARE_ALONE, window(4, 1, steady(400.0), {"regimes": stages}))
    assert answer["objective"] == pytest.approx(1.5)
    assert {job: len(rounds) for job, rounds in answer["rounds"].items()} == {"j0": 2, "j1": 2}
    assert answer["levels"] == pytest.approx({"j0": 0.5, "j1": 1.0})


def test_late_jobs_and_jobs_with_the_larger_budget_come_first(shoal: Shoal, tmp_path: Path) -> None:
    alike = steady(1000.0)
    late = solved(shoal, tmp_path, "shockwave:lam=0", window(4, 1, alike, {**alike, "elapsed": 3000.0}))
    assert [len(late["rounds"][job]) for job in ("j0", "j1")] == [0, 4]
    # 3,000 s waited and 1,000 to go, over 1,000 alone with two jobs on one GPU.
    assert late["rho"] == pytest.approx({"j0": 0.5, "j1": 2.0})
    rich = solved(shoal, tmp_path, "shockwave:lam=0", window(4, 1, alike, {**alike, "weight": 2.0}))
    assert [len(rich["rounds"][job]) for job in ("j0", "j1")] == [0, 4]


def test_the_makespan_forces_rounds_on_the_longest(shoal: Shoal, tmp_path: Path) -> None:
    # Welfare alone would finish the short ones. Put before all else, the makespan wants the long one in every round.
    jobs = [steady(2000.0), *(steady(300.0) for _ in range(4))]
    assert len(solved(shoal, tmp_path, WELFARE_ALONE, window(6, 1, *jobs))["rounds"]["j0"]) == 0
    pressed = solved(shoal, tmp_path, "shockwave:k=0,lam=inf", window(6, 2, *jobs))
    assert len(pressed["rounds"]["j0"]) == 6
    assert pressed["gap"] <= 1e-9


def layouts(gangs: list[int], gpus: int) -> Iterator[tuple[int, ...]]:
    for chosen in product((0, 1), repeat=len(gangs)):
        if sum(g * c for g, c in zip(gangs, chosen, strict=True)) <= gpus:
            yield chosen


def test_no_plan_is_better_than_the_bound_and_the_gap_says_how_far_off_it_is(shoal: Shoal, tmp_path: Path) -> None:
    drawn = random.Random(7)
    problems, best = [], []
    for _ in range(40):
        gangs = [drawn.choice((1, 2, 3)) for _ in range(4)]
        steps = [drawn.choice((300.0, 500.0, 800.0)) for _ in gangs]
        jobs = [steady(s, gpus=g) for g, s in zip(gangs, steps, strict=True)]
        problems.append(window(3, 4, *jobs))
        plans = product(list(layouts(gangs, 4)), repeat=3)
        best.append(
            max(sum(100.0 * sum(ran) / s for ran, s in zip(zip(*p, strict=True), steps, strict=True)) for p in plans)
        )
    answers = solved(shoal, tmp_path, WELFARE_ALONE, problems)
    for problem, answer, most in zip(problems, answers, best, strict=True):
        needs = {job["id"]: job["gpus"] for job in problem["jobs"]}
        for turn in range(3):
            assert sum(needs[job] for job, rounds in answer["rounds"].items() if turn in rounds) <= 4
        assert answer["welfare"] <= most + 1e-9 <= answer["bound"] + 2e-9
        assert most - answer["welfare"] <= answer["gap"] * answer["bound"] + 1e-9
    assert sum(answer["welfare"] >= most - 1e-9 for answer, most in zip(answers, best, strict=True)) >= 36


def test_the_table_draws_the_rounds(shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "problem.json").write_text(json.dumps(window(4, 1, steady(400.0), steady(100.0, gpus=2))))
    code, out, _ = shoal("solve", "--policy", "shockwave", "--problem", "problem.json")
    assert code == 0
    assert "■■■■" in out
    assert "j1 is refused: it needs 2 GPUs of one type; the most it can use is 1" in out


def test_jobs_are_divided_among_several_kinds(shoal: Shoal, tmp_path: Path) -> None:
    jobs = [{"id": n, "steps_left": 800.0, "throughput": {"new": 4.0, "old": 1.0}} for n in "ab"]
    problem = {"cluster": {"new": 1, "old": 1}, "window": {"rounds": 2, "seconds": 100.0}, "jobs": jobs}
    answer = solved(shoal, tmp_path, "shockwave", problem)
    assert set(answer["kinds"].values()) <= {"new", "old"}
    for kind in ("new", "old"):
        turns = [turn for job, rounds in answer["rounds"].items() if answer["kinds"][job] == kind for turn in rounds]
        assert len(turns) == len(set(turns))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"regimes": [{"steps": 0.0, "throughput": {"gpu": 1.0}}]}, "regimes[0].steps: 0.0: must be a number above 0"),
        ({"regimes": [{"steps": 5.0, "throughput": {"gpus": 1.0}}]}, "throughput: 'gpus': unknown; did you mean gpu?"),
        ({"throughput": {"gpu": 1.0}}, "steps_left: None: must be a number above 0, or give its regimes"),
        (
            {"steps_left": 9.0, "regimes": [{"steps": 5.0, "throughput": {"gpu": 1.0}}]},
            "steps_left: 9.0: its regimes add up to 5; leave it out, or make them agree",
        ),
        (
            {"regimes": [{"steps": 5.0, "throughput": {"gpu": 1.0}}, {"steps": 5.0, "throughput": {}}]},
            "regimes[1].throughput: None: must be above 0 on gpu, where it begins",
        ),
        ({**steady(5.0), "service": -1.0}, "service: -1.0: must be a number of at least 0"),
    ],
)
def test_a_field_that_makes_no_sense_is_named(shoal: Shoal, tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    (tmp_path / "problem.json").write_text(json.dumps(window(4, 1, fields)))
    code, out, err = shoal("solve", "--policy", "shockwave", "--problem", "problem.json")
    assert (code, out) == (2, "")
    assert said in err


def test_a_window_has_rounds_of_some_length(shoal: Shoal, tmp_path: Path) -> None:
    problem = window(4, 1, steady(5.0)) | {"window": {"rounds": 0, "seconds": 60.0}}
    (tmp_path / "problem.json").write_text(json.dumps(problem))
    code, _, err = shoal("solve", "--policy", "shockwave", "--problem", "problem.json")
    assert (code, "window.rounds: 0: must be a whole number" in err) == (2, True)
