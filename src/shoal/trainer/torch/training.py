"""A PyTorch training loop that Shoal can stop, move, resize and tune, with four changed lines.

    run = Training(model, optimizer, scheduler)
    for epoch in run.epochs(90):
        for images, labels in run.batches(loader):

Without Shoal and without a checkpoint folder the loop runs unchanged. Under Shoal the batch size over all ranks stays
constant for any number of ranks, an epoch uses each sample once, and a stopped run resumes at its next step, bit for
bit if the number of ranks is the same.
"""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn, optim

from shoal.core.errors import InputError
from shoal.core.job import BatchSetting
from shoal.trainer.checkpoint import SAVE_EVERY_SECONDS
from shoal.trainer.samples import Cursor
from shoal.trainer.session import Progress, Session
from shoal.trainer.torch.accumulation import AccumulationGate
from shoal.trainer.torch.adaptation import Adaptation, BatchAdaptation
from shoal.trainer.torch.checkpointing import RunCheckpoints
from shoal.trainer.torch.data_feed import DataFeed, RankStep, StepSplit, make_feed
from shoal.trainer.torch.state import Stateful, TorchState
from shoal.trainer.torch.step_coordinator import StepAction, StepCoordinator


class Training:
    """One run of a script in this rank. All ranks of the default process group create one at the same point.

    ``more`` holds further stateful objects by name. ``folder`` is a checkpoint folder for runs without Shoal.
    ``most_local`` is the most samples of one pass; by default the loader's batch size. ``adapt`` lets the batch size
    change.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: optim.Optimizer,
        scheduler: Stateful | None = None,
        *,
        more: Mapping[str, Stateful] | None = None,
        folder: Path | None = None,
        most_local: int | None = None,
        adapt: Adaptation | None = None,
        save_every: float = SAVE_EVERY_SECONDS,
        session: Session | None = None,
    ) -> None:
        self._session = session or Session()
        self._environment = self._session.environment
        within = folder or self._environment.folder
        self._idle = within is None
        if within is None:
            return
        schedulers = {} if scheduler is None else {"scheduler": scheduler}
        state = TorchState(model, optimizer, {**schedulers, **(more or {})})
        self._coordinator = StepCoordinator(self._session, save_every=save_every)
        # The script is responsible for a folder that it names, so no job owns the checkpoints there.
        owner = "" if folder else self._environment.job or ""
        self._checkpoints = RunCheckpoints(
            within / "checkpoints", owner, state, self._coordinator.exchange, self._environment.rank
        )
        self._groups = optimizer.param_groups
        self._gate = AccumulationGate(model, optimizer, schedulers.values())
        self._adapting = None if adapt is None else BatchAdaptation(model, optimizer, adapt, self._environment)
        if self._adapting is not None:
            self._gate.before_step = self._adapting.before_step
        self._adapted: Any = None
        self._most_local = most_local or 0
        self._batch = BatchSetting(self._environment.batch or 0)
        self._at = Cursor()
        self._done = 0.0
        self._size = 0
        self._epochs: int | None = None
        self._loss: Any = None
        self._action = StepAction.NOTHING
        self._resumed = self._begun = False
        self._in_step = self._asked = False

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the remaining epochs; with an adaptive batch size, until the work of ``count`` epochs is done."""
        if self._idle:
            yield from range(count)
            return
        self._epochs = count
        self._resume()
        while self._left:
            epoch = self._at.epoch
            yield min(epoch, count - 1)
            if self._at.epoch == epoch:  # the script left the loop early
                self._at = Cursor(epoch + 1)
            self._between_epochs()
            self._act(last=not self._left)
        # A finished run that is stopped here would otherwise resume from its last checkpoint.
        self._save(wait=True)
        self._coordinator.exchange.settle()
        self._done = float(count * self._size)
        self._report()
        self._session.close()

    def batches(self, loader: Any) -> Iterator[Any]:
        """Yield this rank's data in the rest of the epoch: the loader's samples, divided for the present ranks."""
        if self._idle:
            yield from loader
            return
        self._resume()
        feed = self._begin(loader)
        epoch = self._at.epoch
        while self._at.epoch == epoch and self._left:
            batch = self._batch
            steps, data = feed.begin(
                self._at, StepSplit(batch.size, self._environment.rank, self._environment.world, self._most_local)
            )
            for step in steps:
                yield from self._passes(step, data)
                if self._action is not StepAction.NOTHING and self._at.epoch == epoch:
                    self._act()
                if self._batch is not batch or (self._adapting is not None and not self._left):
                    break
            else:
                self._at = Cursor(epoch + 1)

    def save(self) -> None:
        """Save a checkpoint and wait until it is written; call it in every rank.

        Within a step the checkpoint is written when the step ends, since its samples count only then.
        """
        if self._idle:
            return
        if self._in_step:
            self._action = max(self._action, StepAction.SAVE)
            self._asked = True
        else:
            self._save(wait=True)

    def loss(self, value: Any) -> None:
        """Set the loss of this step; the value is read in the background when it is reported."""
        self._loss = value

    def set_batch_size(self, size: int) -> None:
        """Set the batch size over all ranks, in samples, from the next step on, and report it to the scheduler.

        Call it in every rank at the same step.
        """
        if size < 1:
            raise InputError("size", size, "a step needs at least one sample")
        if not self._idle and size != self._batch.size:
            self._set(size)
            if self._adapting is not None:
                self._adapting.batch_changed()

    # ── in a step ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _left(self) -> bool:
        """Whether training remains; without `epochs` the script decides."""
        if self._epochs is None:
            return True
        if self._adapting is not None and self._adapting.choosing and self._size:
            return self._done < self._epochs * self._size
        return self._at.epoch < self._epochs

    def _begin(self, loader: Any) -> DataFeed:
        feed = make_feed(loader)
        self._size = feed.epochs.size
        self._most_local = self._most_local or loader.batch_size
        if not self._begun:
            self._begun = True
            self._set(self._batch.size or loader.batch_size * self._environment.world)
            if self._adapting is not None:
                self._begin_adapting(self._adapting)
        return feed

    def _begin_adapting(self, adapting: BatchAdaptation) -> None:
        limits = adapting.start(self._batch.size, self._adapted)
        if adapting.choosing:
            self._most_local = limits.most_local
            self._set(limits.initial if self._adapted is None else self._batch.size)
            batch, local = adapting.first_setting() if self._environment.rank == 0 else (self._batch, 0)
            numbers = self._coordinator.exchange.broadcast((batch.size, batch.accumulation, local))
            self._batch, self._most_local = BatchSetting(numbers[0], numbers[1]), numbers[2]

    def _set(self, size: int) -> None:
        """Set the batch size in samples, in as few passes as hold it."""
        largest = -(-size // self._environment.world)
        self._batch = BatchSetting(size, -(-largest // self._most_local) - 1)

    def _passes(self, step: RankStep, data: Iterator[Any]) -> Iterator[Any]:
        """Yield the data of a step, pass by pass; a pass is completed when the next one is requested."""
        seconds, adapting, exchanging = [], self._adapting, self._coordinator.exchanging
        if adapting is not None:
            even = step.samples == self._batch.size and step.samples % self._environment.world == 0
            adapting.begin_step(even=even, exchanging=exchanging)
            self._gate.rate_factor = adapting.rate_factor(self._batch.size, self._done / self._size)
        for number, part in enumerate(step.passes):
            began = time.perf_counter()
            self._gate.enter(part, number, len(step.passes))
            self._in_step = True
            yield next(data)
            self._in_step = False
            seconds.append(time.perf_counter() - began)
        self._gate.leave()
        self._at = step.after
        self._done += step.samples * (1.0 if adapting is None else adapting.efficiency(self._batch.size))
        values: tuple[float, ...] = ()
        if adapting is not None:
            adapting.end_step(self._batch, len(step.passes[0].indices), seconds)
            values = adapting.exchange_values(self._batch) if exchanging else ()
        action = self._coordinator.step(values)
        if action is not StepAction.NOTHING:
            self._action = max(self._action, action)
        if exchanging:
            if adapting is not None and self._coordinator.sums:
                self._adapt(adapting)
            self._report()

    def _adapt(self, adapting: BatchAdaptation) -> None:
        batch, local = adapting.apply_exchange(self._coordinator.sums)
        if batch.size and (batch, local) != (self._batch, self._most_local):
            self._batch, self._most_local = batch, local
            adapting.batch_changed()

    # ── between steps ─────────────────────────────────────────────────────────────────────────────────────────────

    def _between_epochs(self) -> None:
        if self._adapting is not None and not self._adapting.choosing:
            mine = self._adapting.epoch_ended(self._at.epoch, self._batch.size) if self._environment.rank == 0 else 0
            self.set_batch_size(self._coordinator.exchange.broadcast(mine))

    def _act(self, *, last: bool = False) -> None:
        """Carry out the pending action; ``last`` is set after the last epoch, when leaving is no longer needed."""
        action, self._action = self._action, StepAction.NOTHING
        if action is StepAction.NOTHING:
            return
        asked, self._asked = self._asked, False
        self._save(wait=asked or action is StepAction.LEAVE)
        if action is StepAction.LEAVE and not last:
            self._coordinator.exchange.settle()
            self._report()
            self._session.leave()

    def _save(self, *, wait: bool) -> None:
        seen = self._at.epoch * self._size + self._at.position
        facts = {
            "epoch": self._at.epoch,
            "position": self._at.position,
            "seen": seen,
            "done": self._done,
            "batch": self._batch.size,
            "size": self._size,
        }
        # Before the first batch, adaptation has not begun: what it resumed from is still its state.
        adapting = self._adapting.state() if self._adapting is not None and self._begun else self._adapted
        beside = {} if adapting is None else {"adapting": adapting}
        self._checkpoints.save(seen, facts, beside, wait=wait)
        self._coordinator.saved()

    def _resume(self) -> None:
        if self._resumed:
            return
        self._resumed = True
        self._session.open()
        found = self._checkpoints.resume()
        if found is not None:
            facts, beside = found
            self._at = Cursor(facts["epoch"], facts["position"])
            self._done, self._size = facts["done"], facts["size"]
            if not self._environment.batch:
                self._batch = BatchSetting(facts["batch"])
            self._adapted = beside.get("adapting")

    def _report(self) -> None:
        if self._environment.rank != 0:
            return
        profile = self._adapting.report(self._batch) if self._adapting is not None and self._begun else None
        self._session.report(
            Progress(
                self._done,
                float((self._epochs or 0) * self._size),
                self._checkpoints.saved or 0.0,
                batch_size=self._batch.size,
                loss=self._loss,
                profile=profile,
                learning_rate=self._groups[0]["lr"],
            )
        )
