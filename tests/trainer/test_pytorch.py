"""A PyTorch run that is stopped, moved and resized ends as one that was left alone."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.live.report_filter import credible
from shoal.wire.messages import SessionReport

pytest.importorskip("torch")


ADAPTIVE = {"job": "adapts", "world": 2, "adapts": True, "env": {"SHOAL_BATCH": "adaptive", "SHOAL_LEASE": "none"}}


def drill(folder: Path, *runs: dict[str, Any]) -> list[list[int]]:
    """Carry out runs one after another; the exit statuses of their ranks."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.trainer.drill", str(folder)],
        input=json.dumps([{"dropout": 0.0, "job": "job", **run} for run in runs]),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return [list(statuses) for statuses in json.loads(done.stdout)]


def log(folder: Path, rank: int, job: str = "job") -> list[Any]:
    return [json.loads(line) for line in (folder / job / f"log.{rank}").read_text().splitlines()]


def samples(folder: Path, ranks: int, job: str = "job") -> dict[int, list[int]]:
    """The samples of each epoch, from all ranks."""
    seen: dict[int, list[int]] = {}
    for rank in range(ranks):
        for epoch, numbers, _ in log(folder, rank, job):
            if epoch != "end":
                seen.setdefault(epoch, []).extend(numbers)
    return {epoch: sorted(numbers) for epoch, numbers in seen.items()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run left alone and its twins, which were not; all in one process tree, to be quick."""
    folder = tmp_path_factory.mktemp("runs")
    statuses = drill(
        folder,
        {"job": "alone", "world": 2, "dropout": 0.2},
        # The eighth step of nine: all hear of it at the end of the epoch.
        *({"job": "stopped", "world": 2, "dropout": 0.2, "warned_at": step} for step in (4, 3, 8)),
        {"job": "stopped", "world": 2, "dropout": 0.2},
        {"job": "seldom", "world": 2, "dropout": 0.2, "warned_at": 4, "exchange_seconds": 0.02},
        {"job": "seldom", "world": 2, "dropout": 0.2},
        {"job": "plain", "world": 2},
        {"job": "resized", "world": 2, "warned_at": 4},
        # As many samples at once as before: the same batch takes two passes, and three ranks have uneven shares.
        {"job": "resized", "world": 1, "local": 6, "warned_at": 9},
        {"job": "resized", "world": 3, "local": 6, "warned_at": 5},
        {"job": "resized", "world": 2},
        {"job": "shards", "world": 2, "sharded": True, "warned_at": 5},
        {"job": "shards", "world": 1, "sharded": True, "local": 6, "warned_at": 9},
        {"job": "shards", "world": 2, "sharded": True},
        ADAPTIVE,
    )
    assert all(status == 0 for ranks in statuses for status in ranks), statuses
    return folder


def test_a_run_resumed_with_as_many_ranks_is_the_same_bit_by_bit(runs: Path) -> None:
    for rank in range(2):
        assert log(runs, rank, "stopped") == log(runs, rank, "alone")


def test_ranks_with_few_exchanges_leave_together_when_one_is_warned(runs: Path) -> None:
    for rank in range(2):
        assert log(runs, rank, "seldom") == log(runs, rank, "alone")


@pytest.mark.parametrize("job", ["resized", "shards"])
def test_a_run_resumed_with_another_number_of_ranks_ends_where_it_would_have(runs: Path, job: str) -> None:
    every = list(range(101))
    assert samples(runs, 3 if job == "resized" else 2, job) == dict.fromkeys(range(3), every)
    (_, rate, loss), (_, other_rate, other_loss) = log(runs, 0, job)[-1], log(runs, 0, "plain")[-1]
    assert rate == other_rate
    assert loss == pytest.approx(other_loss, rel=1e-4)


def test_two_checkpoints_are_kept_and_progress_is_reported(runs: Path) -> None:
    assert len(list((runs / "stopped" / "checkpoints").iterdir())) == 2
    done, saved = (runs / "stopped" / "progress").read_text().split()
    assert float(done) == 303
    assert float(saved) == 303, "a run that is done is saved as such"


def test_ranks_adapt_their_batch_at_the_same_step_and_report_their_progress(runs: Path) -> None:
    lengths = [[len(numbers) for epoch, numbers, _ in log(runs, rank, "adapts") if epoch != "end"] for rank in range(2)]
    assert lengths[0] == lengths[1] or all(abs(a - b) <= 1 for a, b in zip(*lengths, strict=True))
    assert max(lengths[0]) <= 12
    report = msgspec.json.decode((runs / "adapts" / "progress").read_text().splitlines()[1], type=SessionReport)
    assert report.profile is not None
    assert credible(report.profile)
    assert report.profile.seen_gpus == 2
    assert report.profile.batch.size == report.batch_size
