"""``shoal solve --policy pollux``: against every other allotment and batch, and problems that make no sense."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

Shoal: TypeAlias = Callable[..., tuple[int, str, str]]

VISION = {
    "theta": {"gpu": {"alpha_grad": 0.05, "beta_grad": 0.003, "alpha_local": 0.02, "beta_local": 0.001, "gamma": 2.0}},
    "pgns": 900.0,
    "batch": {"initial": 64, "most": 1024, "most_local": 96},
}
SPEECH = {
    "theta": {"gpu": {"alpha_grad": 0.1, "beta_grad": 0.02, "alpha_local": 0.3, "beta_local": 0.05, "gamma": 1.5}},
    "pgns": 30.0,
    "batch": {"initial": 16, "most": 128, "most_local": 32},
}


def goodput(job: dict[str, Any], gpus: int) -> float:
    """The best over every batch a GPU holds and every number of passes (Pollux, eq. 4 to 6 and 8 to 12)."""
    theta, batch, noise, best = job["theta"]["gpu"], job["batch"], job["pgns"], 0.0
    sync = theta["alpha_local"] + theta["beta_local"] * (gpus - 2) if gpus > 1 else 0.0
    for local in range(1, batch["most_local"] + 1):
        for passes in range(1, 12):
            total = gpus * local * passes
            if not batch["initial"] <= total <= batch["most"]:
                continue
            grad = theta["alpha_grad"] + theta["beta_grad"] * local
            step = (passes - 1) * grad + (grad ** theta["gamma"] + sync ** theta["gamma"]) ** (1 / theta["gamma"])
            best = max(best, total / step * (noise + batch["initial"]) / (noise + total))
    return best


def test_no_other_split_of_a_node_has_a_higher_power_mean(shoal: Shoal, tmp_path: Path) -> None:
    problem = {"cluster": {"gpu": 4}, "jobs": [{"id": "a", "goodput": VISION}, {"id": "b", "goodput": SPEECH}]}
    (tmp_path / "problem.json").write_text(json.dumps(problem))
    code, out, err = shoal("solve", "--policy", "pollux", "--problem", "problem.json", "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    fair = goodput(VISION, 2), goodput(SPEECH, 2)  # of four GPUs and two jobs
    means = {(a, 4 - a): 2 / (fair[0] / goodput(VISION, a) + fair[1] / goodput(SPEECH, 4 - a)) for a in (1, 2, 3)}
    assert answer["objective"] == pytest.approx(max(means.values()), rel=1e-6)
    assert tuple(answer["shares"].values()) == max(means, key=lambda split: means[split])
    for name, job in (("a", VISION), ("b", SPEECH)):
        gpus, batch = answer["shares"][name], answer["batches"][name]
        assert answer["levels"][name] == pytest.approx(goodput(job, gpus), rel=1e-6)
        assert batch["size"] == gpus * batch["per_gpu"] * (batch["accumulation"] + 1)
        assert sum(answer["seats"][name].values()) == gpus


def test_the_table_shows_batches_and_seats(shoal: Shoal, tmp_path: Path) -> None:
    jobs = [{"id": "a", "goodput": VISION}, {"id": "gang", "gpus": 2, "throughput": {"gpu": 5.0}}]
    (tmp_path / "problem.json").write_text(json.dumps({"cluster": {"gpu": 4}, "jobs": jobs}))
    code, out, _ = shoal("solve", "--policy", "pollux", "--problem", "problem.json")
    assert code == 0
    assert "gpu-0:2" in out
    assert "times the goodput of its fair share" in out


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"pgns": -1.0}, "goodput.pgns: -1.0: must be a number of samples, at least 0"),
        ({"theta": {}}, "goodput.theta: {}: must have the parameters of one GPU type at least"),
        ({"theta": {"gpv": VISION["theta"]["gpu"]}}, "goodput.theta: 'gpv': unknown; did you mean gpu?"),  # type: ignore[index]
        ({"batch": {"initial": 64, "most": 32, "most_local": 8}}, "batch.initial: 64: must be from 1 to the most, 32"),
        ({"batch": {"initial": 8, "most": 32, "most_local": 0}}, "batch.most_local: 0: must be a whole number"),
        ({"theta": {"gpu": {"alpha_grad": 0.1, "beta_grad": 0.1, "gamma": 0.5}}}, "gpu.gamma: 0.5: must be a number"),
        ({"theta": {"gpu": {"alpha_grad": 0.0, "beta_grad": 0.0}}}, "a step must take some time: set beta_grad"),
    ],
)
def test_a_field_that_makes_no_sense_is_named(shoal: Shoal, tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    jobs = [{"id": "a", "goodput": {**VISION, **changed}}]
    (tmp_path / "problem.json").write_text(json.dumps({"cluster": {"gpu": 4}, "jobs": jobs}))
    code, out, err = shoal("solve", "--policy", "pollux", "--problem", "problem.json")
    assert (code, out) == (2, "")
    assert said in err
