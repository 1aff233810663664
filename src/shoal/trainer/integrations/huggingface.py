"""Callback for Hugging Face's Trainer: one callback and one argument.

    shoal = ShoalCallback()
    trainer = Trainer(…, callbacks=[shoal])
    trainer.train(resume_from_checkpoint=shoal.newest(arguments.output_dir))

The Trainer itself saves and resumes; the callback decides when, in all ranks at the same step, and marks complete
checkpoints with the job's id. Checkpoints of other jobs in the same folder are not used. Without Shoal it does nothing.
"""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from shoal.trainer.checkpoint import SAVE_EVERY_SECONDS, is_marked, mark_complete
from shoal.trainer.session import Progress, Session
from shoal.trainer.torch.step_coordinator import StepAction, StepCoordinator

_WHOLE = "shoal.whole"


class ShoalCallback(TrainerCallback):  # type: ignore[misc]
    """Callback of one run in this rank."""

    def __init__(self, *, save_every: float = SAVE_EVERY_SECONDS, session: Session | None = None) -> None:
        self._session = session or Session()
        self._save_every = save_every
        self._coordinator: StepCoordinator | None = None
        self._leaving = False
        self._saved = 0
        self._logs: dict[str, Any] = {}

    def newest(self, folder: str | Path) -> str | None:
        """Path of this job's newest complete checkpoint in the Trainer's output folder; None without one or Shoal."""
        job = self._session.environment.job
        if job is None:
            return None
        found = [path for path in Path(folder).glob(f"checkpoint-*/{_WHOLE}") if path.parent.name[11:].isdigit()]
        found.sort(key=lambda path: int(path.parent.name[11:]), reverse=True)
        newest = next((path.parent for path in found if is_marked(path, job)), None)
        return None if newest is None else str(newest)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the session."""
        if self._session.environment.managed:
            self._session.open()
            self._coordinator = StepCoordinator(self._session, save_every=self._save_every)
            self._saved = state.global_step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save or leave if all ranks agreed to, save the last step, and report progress."""
        if self._coordinator is None:
            return
        action = self._coordinator.step()
        if action is not StepAction.NOTHING or state.global_step >= state.max_steps:
            control.should_save = True
        if action is StepAction.LEAVE:
            self._leaving = control.should_training_stop = True
        self._report(args, state)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Mark the checkpoint as complete."""
        if self._coordinator is None:
            return
        self._coordinator.saved()
        if state.is_world_process_zero:
            saved = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            mark_complete(saved / _WHOLE, self._session.environment.job or "")
            self._saved = state.global_step
            self._report(args, state)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Keep the loss and the learning rate for the next report."""
        self._logs |= {name: logs[name] for name in ("loss", "learning_rate") if name in (logs or {})}

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave if the job was stopped, else close the session."""
        if self._coordinator is None:
            return
        if self._leaving and state.global_step < state.max_steps:
            self._session.leave()
        self._session.close()

    def _report(self, args: Any, state: Any) -> None:
        if self._session.environment.rank == 0:
            batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
            progress = Progress(state.global_step, state.max_steps, self._saved, batch_size=batch, **self._logs)
            self._session.report(progress)
