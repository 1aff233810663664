"""A job resumes from its own checkpoints only, whatever saves them, and says whose the others are."""

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from shoal.trainer.environment import RankEnvironment
from shoal.trainer.numpy_training import ArrayTraining
from shoal.trainer.session import Session, Stopped


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def session_of(job: str, folder: Path) -> Session:
    return Session(RankEnvironment(job, 1, folder=folder, progress=folder / "progress"))


def huggingface(job: str, folder: Path, saves: int | None) -> int:
    pytest.importorskip("transformers")
    from shoal.trainer.integrations.huggingface import ShoalCallback

    callback = ShoalCallback(session=session_of(job, folder))
    newest = callback.newest(folder)
    if saves is not None:
        state = SimpleNamespace(global_step=saves, max_steps=99, is_world_process_zero=True)
        arguments = SimpleNamespace(
            output_dir=str(folder), train_batch_size=1, gradient_accumulation_steps=1, world_size=1
        )
        (folder / f"checkpoint-{saves}").mkdir(exist_ok=True)
        callback.on_train_begin(arguments, state, None)
        callback.on_save(arguments, state, None)
        callback._session.close()
    return 0 if newest is None else int(newest.rpartition("-")[2])


def lightning(job: str, folder: Path, saves: int | None) -> int:
    pytest.importorskip("lightning")
    from shoal.trainer.integrations.lightning import ShoalCallback

    callback = ShoalCallback(session=session_of(job, folder), save_every=0.0)
    newest = callback.newest()
    if saves is not None:
        trainer = SimpleNamespace(
            global_step=saves - 1,
            estimated_stepping_batches=99,
            optimizers=[],
            save_checkpoint=lambda path: path.write_text("state"),
        )
        callback.on_train_start(trainer, None)
        for _ in range(100):  # ranks agree on a save some steps later
            trainer.global_step += 1
            callback.on_train_batch_end(trainer, None, None, None, 0)
            if callback._saved >= saves:
                break
        callback.on_train_end(trainer, None)
        for path in (folder / "checkpoints").glob("*.ckpt"):
            if int(path.stem) > saves:  # as if it had been saved when it was due
                path.rename(path.with_name(f"{saves:012d}.ckpt"))
                path.with_suffix(".job").rename(path.with_name(f"{saves:012d}.job"))
    return 0 if newest is None else int(Path(newest).stem)


def numpy(job: str, folder: Path, saves: int | None) -> int:
    training = ArrayTraining({"w": np.zeros(2)}, 99, session=session_of(job, folder))
    first = training.step
    if saves is not None:
        with suppress(Stopped):
            for step in training.steps():
                training.apply_votes(float(step + 1 == saves), 0.0)
    return first


def torch(job: str, folder: Path, saves: int | None) -> int:
    pytest.importorskip("torch")
    from torch import nn, optim

    from shoal.trainer.torch.checkpointing import RunCheckpoints
    from shoal.trainer.torch.rank_exchange import RankExchange
    from shoal.trainer.torch.state import TorchState

    model = nn.Linear(2, 1)
    state = TorchState(model, optim.SGD(model.parameters(), 0.1), {})
    checkpoints = RunCheckpoints(folder / "checkpoints", job, state, RankExchange(), 0)
    found = checkpoints.resume()
    if saves is not None:
        checkpoints.save(saves, {"seen": saves, "done": float(saves)}, {}, wait=True)
    return 0 if found is None else int(found[0]["seen"])


def elastic(job: str, folder: Path, saves: int | None) -> int:
    pytest.importorskip("torch")
    from torch import nn, optim

    from shoal.trainer.elastic.checkpointing import ElasticCheckpoints
    from shoal.trainer.torch.state import TorchState

    model = nn.Linear(2, 1)
    state = TorchState(model, optim.SGD(model.parameters(), 0.1), {})
    checkpoints = ElasticCheckpoints(RankEnvironment(job, 1, folder=folder), state, every=600.0)
    found = checkpoints.resume()
    if saves is not None:
        checkpoints.save({"seen": saves}, wait=True)
    return 0 if found is None else int(found["seen"])


@pytest.mark.parametrize("integration", [huggingface, lightning, numpy, torch, elastic])
def test_a_job_resumes_its_own_checkpoint_and_never_another_jobs(
    integration: Callable[[str, Path, int | None], int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert integration("ours-aaaa", tmp_path, 10) == 0
    assert integration("ours-aaaa", tmp_path, None) == 10
    with caplog.at_level(logging.WARNING, "shoal.trainer"):
        assert integration("theirs-bbbb", tmp_path, None) == 0
    assert "not used: it is of another job ('ours-aaaa', not 'theirs-bbbb')" in caplog.text


def test_a_job_of_hugging_faces_trainer_finds_its_own_checkpoint_below_another_jobs(tmp_path: Path) -> None:
    assert huggingface("theirs-bbbb", tmp_path, 50) == 0
    assert huggingface("ours-aaaa", tmp_path, 10) == 0
    assert huggingface("ours-aaaa", tmp_path, None) == 10
    (tmp_path / "checkpoint-60").mkdir()
    (tmp_path / "checkpoint-60" / "shoal.whole").touch()  # of an earlier version, which wrote no job
    (tmp_path / "checkpoint-70").mkdir()  # not complete
    assert huggingface("ours-aaaa", tmp_path, None) == 10
