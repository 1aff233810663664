"""Links to a job's run in trackers of experiments."""

import sys
from types import SimpleNamespace

import pytest

from shoal.live.run_links import run_links
from shoal.trainer.session import Progress, _report


def test_the_environment_names_the_runs_of_both_trackers() -> None:
    env = {
        "WANDB_ENTITY": "lab", "WANDB_PROJECT": "vision/7", "WANDB_RUN_ID": "abc",
        "MLFLOW_TRACKING_URI": "http://mlflow:5000/", "MLFLOW_RUN_ID": "r1", "MLFLOW_EXPERIMENT_ID": "3",
    }  # fmt: skip
    assert run_links(env.items()) == [
        "https://wandb.ai/lab/vision%2F7/runs/abc",
        "http://mlflow:5000/#/experiments/3/runs/r1",
    ]
    assert run_links([("WANDB_ENTITY", "lab"), ("MLFLOW_RUN_ID", "r1")]) == []


@pytest.mark.parametrize(
    "link",
    ["javascript:alert(1)", "file:///etc/passwd", "https://user@host/", "http://[", "https://h/ x", "ftp://h/x"],
)
def test_only_addresses_of_the_web_are_links(link: str) -> None:
    assert run_links([("MLFLOW_TRACKING_URI", link), ("MLFLOW_RUN_ID", "r")], [link, "https://wandb.ai/r"]) == [
        "https://wandb.ai/r"
    ]


def test_links_are_few_and_each_is_there_once() -> None:
    assert run_links([], ["https://h/0", "https://h/0", *(f"https://h/{i}" for i in range(9))]) == [
        f"https://h/{i}" for i in range(4)
    ]


def test_the_trainer_library_reports_the_open_run_of_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "links" not in _report(Progress(1.0), None, False)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=SimpleNamespace(url="https://wandb.ai/lab/x/runs/1")))
    assert _report(Progress(1.0), None, False)["links"] == ["https://wandb.ai/lab/x/runs/1"]
