"""Hugging Face's Trainer under Shoal: one callback and one argument.

    shoal = ShoalCallback()
    trainer = Trainer(…, callbacks=[shoal])
    trainer.train(resume_from_checkpoint=shoal.newest(arguments.output_dir))

What is saved, and how it is resumed, is the Trainer's own; this says when, in all ranks at the same step, and marks the
checkpoints that are whole. Without Shoal it does nothing.
"""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from shoal.trainer.session import Session, Telling
from shoal.trainer.torch.step_action import Due, Watch

_WHOLE = "shoal.whole"
SAVE_EVERY_SECONDS = 600.0


class ShoalCallback(TrainerCallback):  # type: ignore[misc]
    """One run's, in this rank."""

    def __init__(self, *, save_every: float = SAVE_EVERY_SECONDS, session: Session | None = None) -> None:
        self._session = session or Session()
        self._save_every = save_every
        self._watch: Watch | None = None
        self._leaving = False
        self._saved = 0
        self._loss: float | None = None

    def newest(self, folder: str | Path) -> str | None:
        """The newest whole checkpoint below the Trainer's output folder, to be resumed from; None without Shoal."""
        if not self._session.place.managed:
            return None
        found = [path.parent for path in Path(folder).glob(f"checkpoint-*/{_WHOLE}")]
        newest = max(found, key=lambda path: int(path.name.rpartition("-")[2]), default=None)
        return None if newest is None else str(newest)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training begins, or goes on from a checkpoint."""
        if self._session.place.managed:
            self._session.open()
            self._watch = Watch(self._session, save_every=self._save_every)
            self._saved = state.global_step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The optimizer has stepped."""
        if self._watch is None:
            return
        due = self._watch.step()
        if due is not Due.NOTHING:
            control.should_save = True
        if due is Due.LEAVE:
            self._leaving = control.should_training_stop = True
        self._tell(args, state)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A checkpoint has been written."""
        if self._watch is None:
            return
        self._watch.saved()
        if state.is_world_process_zero:
            (Path(args.output_dir) / f"checkpoint-{state.global_step}" / _WHOLE).touch()
            self._saved = state.global_step
            self._tell(args, state)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """The Trainer logs something, a loss perhaps."""
        self._loss = (logs or {}).get("loss", self._loss)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training is over, or to be left."""
        if self._watch is None:
            return
        if self._leaving and state.global_step < state.max_steps:
            self._session.leave()
        self._session.close()

    def _tell(self, args: Any, state: Any) -> None:
        if self._session.place.rank == 0:
            batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
            telling = Telling(state.global_step, state.max_steps, self._saved, batch_size=batch, loss=self._loss)
            self._session.tell(telling)
