"""The example scripts: each is stopped at its first steps, resumed, ends as it should, and then has nothing to do."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = {
    "train_ddp.py": ("torch", "epoch 2: loss"),
    "train_fsdp.py": ("torch", "epoch 2: loss"),
    "train_elastic.py": ("torch", "every sample used 3 times in 3 epochs"),
    "train_adaptive.py": ("torch", "epoch 2: 64 at once"),
    "train_trial.py": ("torch", "loss 0."),
    "train_huggingface.py": ("transformers", "step 12: done"),
    "train_lightning.py": ("lightning", "step 24: done"),
}
"""What each needs, and what it says when it has ended."""


FURTHER_STEPS = {"train_huggingface.py": 1, "train_fsdp.py": 1}
"""Optimizer steps of a start after the end, where there is one.

Transformers looks for the end only after a step. PyTorch creates an optimizer's state, before it loads a sharded one,
by a step that changes nothing.
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, int]]:
    """What each example that can be run here printed at its end, and its optimizer's steps when started again.

    One process runs them all.
    """
    names = [name for name, (needs, _) in EXAMPLES.items() if find_spec("torch") and find_spec(needs)]
    if not names:
        return {}
    done = subprocess.run(
        [sys.executable, "-m", "tests.trainer.example", str(tmp_path_factory.mktemp("examples")), *names],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, tuple[str, int]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_that_was_stopped_is_resumed_and_ends(ended: dict[str, tuple[str, int]], name: str) -> None:
    if name not in ended:
        pytest.skip(f"needs {EXAMPLES[name][0]}")
    assert EXAMPLES[name][1] in ended[name][0]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_that_has_ended_trains_nothing_when_it_is_started_again(
    ended: dict[str, tuple[str, int]], name: str
) -> None:
    if name not in ended:
        pytest.skip(f"needs {EXAMPLES[name][0]}")
    assert ended[name][1] == FURTHER_STEPS.get(name, 0)


def test_no_example_is_left_untried() -> None:
    folder = Path(__file__).resolve().parents[2] / "examples"
    assert {path.name for path in folder.glob("train_*.py")} == set(EXAMPLES)


def test_a_plain_loop_changes_in_at_most_five_lines() -> None:
    script = (Path(__file__).resolve().parents[2] / "examples" / "train_ddp.py").read_text()
    assert 0 < sum("# shoal" in line for line in script.split('"""')[2].splitlines()) <= 5
