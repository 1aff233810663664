"""Lightning's Trainer under Shoal: one callback and one argument.

    shoal = ShoalCallback()
    trainer = Trainer(…, callbacks=[shoal])
    trainer.fit(model, loader, ckpt_path=shoal.newest())

What is saved, and how it is resumed, is Lightning's own; this says when, in all ranks at the same step, puts a file
in its place once it is whole, and keeps the last two. Without Shoal it does nothing.
"""

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from shoal.trainer.session import Session, Telling
from shoal.trainer.torch.step_action import Due, Watch

SAVE_EVERY_SECONDS = 600.0
_KEPT = 2


class ShoalCallback(Callback):  # type: ignore[misc]
    """One run's, in this rank."""

    def __init__(self, *, save_every: float = SAVE_EVERY_SECONDS, session: Session | None = None) -> None:
        self._session = session or Session()
        self._save_every = save_every
        self._watch: Watch | None = None
        self._step = self._saved = 0
        place = self._session.place
        self._folder = None if place.folder is None else place.folder / "checkpoints"

    def newest(self) -> str | None:
        """The newest checkpoint, to be resumed from; None without one, or without Shoal."""
        found = self._whole()
        return str(found[-1]) if found else None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Training begins, or goes on from a checkpoint."""
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._session.open()
            self._watch = Watch(self._session, save_every=self._save_every)
            self._step = self._saved = trainer.global_step

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """A batch is done, and the optimizer may have stepped."""
        if self._watch is None or trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        due = self._watch.step()
        if due is not Due.NOTHING:
            self._save(trainer)
            self._watch.saved()
        if self._session.place.rank == 0:
            total = trainer.estimated_stepping_batches
            loss = outputs["loss"] if isinstance(outputs, dict) else None
            self._session.tell(Telling(self._step, float(total), self._saved, loss=loss))
        if due is Due.LEAVE:
            self._session.leave()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Training is over."""
        if self._watch is not None:
            self._session.close()

    def _save(self, trainer: Any) -> None:
        assert self._folder is not None
        path = self._folder / f"{self._step:012d}.ckpt"
        partial = path.with_suffix(".partial")
        trainer.save_checkpoint(partial)
        if self._session.place.rank == 0:
            partial.rename(path)
            for old in self._whole()[:-_KEPT]:
                old.unlink()
        self._saved = self._step

    def _whole(self) -> list[Path]:
        return [] if self._folder is None else sorted(self._folder.glob("*.ckpt"))
