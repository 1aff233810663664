"""``shoal solve --policy themis``: an auction that is written down."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

Shoal: TypeAlias = Callable[..., tuple[int, str, str]]
HALVES = {"app": "a", "rho": {"0": 8, "1": 4, "2": 2, "3": 4 / 3, "4": 1}}
NAMED = {"gpus": {"gpu-0": 4}, "rho": 1}


def solved(shoal: Shoal, folder: Path, problem: dict[str, Any], *options: str) -> tuple[int, str]:
    (folder / "problem.json").write_text(json.dumps(problem))
    code, out, err = shoal("solve", "--policy", "themis", "--problem", "problem.json", *options)
    return code, out + err


def test_two_linear_apps_on_four_gpus_keep_one_each(shoal: Shoal, tmp_path: Path) -> None:
    problem = {"cluster": {"gpu": 4}, "bids": [HALVES, {**HALVES, "app": "b"}]}
    code, text = solved(shoal, tmp_path, problem, "--json")
    answer = json.loads(text)
    assert code == 0
    assert answer["won"] == {"a": 2, "b": 2}
    assert answer["shares"] == pytest.approx({"a": 1.0, "b": 1.0})
    assert (answer["left"], answer["gap"]) == (pytest.approx(2.0), pytest.approx(0.0, abs=1e-12))
    assert answer["levels"] == pytest.approx({"a": 2.0, "b": 2.0})
    assert "50.0%" in solved(shoal, tmp_path, problem)[1]


def test_bids_may_name_machines(shoal: Shoal, tmp_path: Path) -> None:
    apart = {"gpus": {"gpu-1": 2}, "rho": 2}
    bids = [
        {"app": "a", "rho": {"0": 9}, "machines": [NAMED, apart]},
        {"app": "b", "rho": {"0": 9}, "machines": [NAMED]},
    ]
    problem = {"cluster": {"gpu": 8}, "gpus_per_node": {"gpu": 4}, "bids": bids}
    answer = json.loads(solved(shoal, tmp_path, problem, "--json")[1])
    assert answer["won"] == {"a": 2, "b": 4}
    assert answer["kept"] == pytest.approx({"a": 1.0, "b": 0.5})


@pytest.mark.parametrize(
    ("bids", "named"),
    [
        ([], "bids"),
        ([{"app": "a", "rho": {"1": 2}}], "nothing"),
        ([HALVES, HALVES], "twice"),
        ([{"app": "a", "rho": {"0": 2, "1": 0}}], "above 0"),
        ([{"app": "a", "rho": {"0": 2, "-1": 1}}], "at least 0"),
        ([{"app": "a", "rho": {"0": 2}, "machines": [{"gpus": {"gpu-9": 1}, "rho": 1}]}], "gpu-9"),
        ([{"app": "a", "rho": {"0": 2}, "machines": [{"gpus": {"gpu-0": 0}, "rho": 1}]}], "at least 1"),
        ([HALVES, {"app": "b", "rho": {"0": 2}, "machines": [NAMED]}], "name machines"),
    ],
)
def test_bids_that_make_no_sense_are_errors_that_name_them(
    shoal: Shoal, tmp_path: Path, bids: list[Any], named: str
) -> None:
    code, text = solved(shoal, tmp_path, {"cluster": {"gpu": 4}, "bids": bids})
    assert code == 2
    assert named in text


def test_bids_are_for_one_type_of_gpu(shoal: Shoal, tmp_path: Path) -> None:
    code, text = solved(shoal, tmp_path, {"cluster": {"v100": 4, "k80": 4}, "bids": [HALVES]})
    assert code == 2
    assert "one type" in text
