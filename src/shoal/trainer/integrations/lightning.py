"""Callback for Lightning's Trainer: one callback and one argument.

    shoal = ShoalCallback()
    trainer = Trainer(…, callbacks=[shoal])
    trainer.fit(model, loader, ckpt_path=shoal.newest())

Lightning itself saves and resumes; the callback decides when, in all ranks at the same step, marks each checkpoint with
the job's id once it is complete, and keeps the last two. A checkpoint of another job is not used. Without Shoal it does
nothing.
"""

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from shoal.trainer.checkpoint import KEPT, SAVE_EVERY_SECONDS, is_marked, mark_complete
from shoal.trainer.session import Progress, Session
from shoal.trainer.torch.step_coordinator import StepAction, StepCoordinator


class ShoalCallback(Callback):  # type: ignore[misc]
    """Callback of one run in this rank."""

    def __init__(self, *, save_every: float = SAVE_EVERY_SECONDS, session: Session | None = None) -> None:
        self._session = session or Session()
        self._save_every = save_every
        self._coordinator: StepCoordinator | None = None
        self._step = self._saved = 0
        environment = self._session.environment
        self._folder = None if environment.folder is None else environment.folder / "checkpoints"

    def newest(self) -> str | None:
        """Path of the newest checkpoint; None without one or without Shoal."""
        return next((str(path) for path in reversed(self._all()) if self._is_own(path)), None)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the session."""
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._session.open()
            self._coordinator = StepCoordinator(self._session, save_every=self._save_every)
            self._step = self._saved = trainer.global_step

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After an optimizer step: save or leave if all ranks agreed to, and report progress."""
        if self._coordinator is None or trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        action = self._coordinator.step()
        if action is not StepAction.NOTHING:
            self._save(trainer)
            self._coordinator.saved()
        if self._session.environment.rank == 0:
            total = trainer.estimated_stepping_batches
            loss = outputs["loss"] if isinstance(outputs, dict) else None
            rate = trainer.optimizers[0].param_groups[0]["lr"] if trainer.optimizers else None
            self._session.report(Progress(self._step, float(total), self._saved, loss=loss, learning_rate=rate))
        if action is StepAction.LEAVE:
            self._session.leave()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Save the end of training, so that a job stopped after it does not resume before it; close the session."""
        if self._coordinator is not None:
            if self._saved != self._step:
                self._save(trainer)
            self._session.close()

    def _save(self, trainer: Any) -> None:
        assert self._folder is not None
        path = self._folder / f"{self._step:012d}.ckpt"
        partial = path.with_suffix(".partial")
        trainer.save_checkpoint(partial)
        if self._session.environment.rank == 0:
            partial.rename(path)
            mark_complete(_marker(path), self._session.environment.job or "")
            for old in self._all()[:-KEPT]:
                old.unlink()
                _marker(old).unlink(missing_ok=True)
        self._saved = self._step

    def _all(self) -> list[Path]:
        return [] if self._folder is None else sorted(self._folder.glob("*.ckpt"))

    def _is_own(self, path: Path) -> bool:
        return is_marked(_marker(path), self._session.environment.job or "")


def _marker(checkpoint: Path) -> Path:
    return checkpoint.with_suffix(".job")
