"""The script behind docs/gpu.md, as small as it gets: a part gives figures or its error, and tables are made of it."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "gpu_measure.py"


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=240,
        check=False,
    )


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
def test_a_run_that_was_stopped_goes_on_as_it_would_have_and_stands_in_a_table(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    done = run("--tiny", "--parts", "checkpoints", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(out.read_text())["parts"]["checkpoints"]
    for figures in told["figures"].values():
        assert figures["state_identical"]
        assert figures["staged_s"] <= figures["durable_s"]
        if told["machine"]["gpu"] is None:
            assert figures["deterministic"]["resumed_apart"]["steps_identical"] == figures["steps"]
    assert "| gpt | deterministic | 5 of 8 |" in run("--table", str(out)).stdout


def test_a_part_that_fails_is_named_with_its_error_and_the_others_stand(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    alone = {"resnet small": 100.0, "gpt small": 10.0}
    pairs = [
        {"one": "resnet small", "other": "resnet small", "kept": [0.4, 0.6]},
        {"one": "resnet small", "other": "gpt small", "kept": [0.9, 0.2]},
        {"one": "gpt small", "other": "gpt small", "kept": [0.5, 0.5]},
    ]
    figures = {"time-slicing": {"alone": alone, "pairs": pairs}, "mps": {"skipped": "there is none"}}
    parts = {
        "noise": {"error": "ended with 1", "stderr": "Traceback\nRuntimeError: out of memory\n"},
        "pairs": {"figures": figures},
    }
    out.write_text(json.dumps({"tiny": False, "parts": parts}))
    page = run("--table", str(out)).stdout
    assert "Not measured: ended with 1. RuntimeError: out of memory" in page
    assert "| resnet small | 100/s | 0.50 | 0.90 |" in page
    assert "| gpt small | 10/s | 0.20 | 0.50 |" in page
    assert "By mps: not measured; there is none." in page


def test_a_part_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    done = run("--parts", "overhead,speed", "--out", str(tmp_path / "gpu.json"))
    assert done.returncode == 2
    assert "no part speed; there are overhead" in done.stderr
    assert not (tmp_path / "gpu.json").exists()
