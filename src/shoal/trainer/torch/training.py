"""A PyTorch training loop that Shoal may stop, move, resize and tune, with four changed lines.

    run = Training(model, optimizer, scheduler)
    for epoch in run.epochs(90):
        for images, labels in run.batches(loader):

Without Shoal, and without a folder for checkpoints, all of it does nothing: the loop runs as it did before. With it the
total batch stays what it was, on however many ranks; an epoch uses each sample once; a run that was stopped resumes at
the next step, bit by bit where the number of ranks is the same.
"""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn, optim

from shoal.core.errors import InputError
from shoal.core.job import BatchSetting
from shoal.trainer.samples import Cursor
from shoal.trainer.session import Session, Telling
from shoal.trainer.torch.accumulation import Gate
from shoal.trainer.torch.adaptation import Adaptation, Adapting
from shoal.trainer.torch.checkpointing import Saving
from shoal.trainer.torch.data_feed import Feed, RankStep, StepSplit, feed_of
from shoal.trainer.torch.state import Stateful, TorchState
from shoal.trainer.torch.step_action import Due, Watch

SAVE_EVERY_SECONDS = 600.0
"""How much training a machine that fails may take with it."""


class Training:
    """One run of a script, in this rank. All ranks of the default process group make one, at the same point.

    ``more`` are further things with a state, by name. ``folder`` is for checkpoints without Shoal, which otherwise has
    its own place for them. ``most_local`` is how many samples a rank holds at once; as many as the loader's batch
    size, where nothing is said. ``adapt`` lets the batch size change.
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
        self._place = self._session.place
        within = folder or self._place.folder
        self._idle = within is None
        if within is None:
            return
        schedulers = {} if scheduler is None else {"scheduler": scheduler}
        state = TorchState(model, optimizer, {**schedulers, **(more or {})})
        self._watch = Watch(self._session, save_every=save_every)
        # A folder that the script names is the script's: who else writes there is its own affair.
        owner = "" if folder else self._place.job or ""
        self._saving = Saving(within / "checkpoints", owner, state, self._watch.agreement, self._place.rank)
        self._gate = Gate(model, optimizer, schedulers.values())
        self._adapting = None if adapt is None else Adapting(model, optimizer, adapt, self._place)
        if self._adapting is not None:
            self._gate.before_step = self._adapting.before_step
        self._adapted: Any = None
        self._most_local = most_local or 0
        self._batch = BatchSetting(self._place.batch or 0)
        self._at = Cursor()
        self._done = 0.0
        self._size = 0
        self._epochs = 0
        self._loss: Any = None
        self._due = Due.NOTHING
        self._resumed = self._begun = False
        self._in_step = self._asked = False

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left of ``count``; where the batch adapts, until as much was learned as in so many."""
        if self._idle:
            yield from range(count)
            return
        self._epochs = count
        self._resume()
        while self._left:
            epoch = self._at.epoch
            yield min(epoch, count - 1)
            if self._at.epoch == epoch:  # the loop was left early
                self._at = Cursor(epoch + 1)
            self._between_epochs()
            self._act(last=not self._left)
        # Warned on its way out, a run that is done would otherwise be taken up again from wherever it last saved.
        self._save(wait=True)
        self._watch.agreement.settle()
        self._done = float(count * self._size)
        self._tell()
        self._session.close()

    def batches(self, loader: Any) -> Iterator[Any]:
        """What this rank trains on in the rest of the epoch: what the loader would give, cut for the ranks at hand."""
        if self._idle:
            yield from loader
            return
        self._resume()
        feed = self._begin(loader)
        epoch = self._at.epoch
        while self._at.epoch == epoch and self._left:
            batch = self._batch
            steps, data = feed.begin(
                self._at, StepSplit(batch.size, self._place.rank, self._place.world, self._most_local)
            )
            for step in steps:
                yield from self._passes(step, data)
                if self._due is not Due.NOTHING and self._at.epoch == epoch:
                    self._act()
                if self._batch is not batch or (self._adapting is not None and not self._left):
                    break
            else:
                self._at = Cursor(epoch + 1)

    def save(self) -> None:
        """Save, and wait until it is written, for a later run to go on from; to be called in every rank.

        Within a step, when that step is done: its samples count as seen only then.
        """
        if self._idle:
            return
        if self._in_step:
            self._due = max(self._due, Due.SAVE)
            self._asked = True
        else:
            self._save(wait=True)

    def loss(self, value: Any) -> None:
        """Tell the loss of this step; it is read in the background, when it is reported."""
        self._loss = value

    def set_batch_size(self, size: int) -> None:
        """Train with so many samples a step over all ranks from the next step on, and let the scheduler know.

        To be called in every rank, at the same step.
        """
        if size < 1:
            raise InputError("size", size, "a step needs at least one sample")
        if not self._idle and size != self._batch.size:
            self._set(size)
            if self._adapting is not None:
                self._adapting.changed()

    # ── in a step ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _left(self) -> bool:
        """Whether there is something left to do; without ``epochs`` the script decides that."""
        if self._adapting is not None and self._adapting.choosing and self._size:
            return self._done < self._epochs * self._size
        return self._at.epoch < self._epochs or not self._epochs

    def _begin(self, loader: Any) -> Feed:
        feed = feed_of(loader)
        self._size = feed.epochs.size
        self._most_local = self._most_local or loader.batch_size
        if not self._begun:
            self._begun = True
            self._set(self._batch.size or loader.batch_size * self._place.world)
            if self._adapting is not None:
                self._begin_adapting(self._adapting)
        return feed

    def _begin_adapting(self, adapting: Adapting) -> None:
        limits = adapting.start(self._batch.size, self._adapted)
        if adapting.choosing:
            self._most_local = limits.most_local
            self._set(limits.initial if self._adapted is None else self._batch.size)
            first = adapting.first() if self._place.rank == 0 else None
            self._batch, self._most_local = self._watch.agreement.choose(first)

    def _set(self, size: int) -> None:
        """Train with so many samples a step, in as few passes as hold them."""
        largest = -(-size // self._place.world)
        self._batch = BatchSetting(size, -(-largest // self._most_local) - 1)

    def _passes(self, step: RankStep, data: Iterator[Any]) -> Iterator[Any]:
        """The data of a step, pass by pass; what follows a pass is done when the next is asked for."""
        seconds, adapting, exchanging = [], self._adapting, self._watch.exchanging
        if adapting is not None:
            even = step.samples == self._batch.size and step.samples % self._place.world == 0
            adapting.begin(even=even, exchanging=exchanging)
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
        figures: tuple[float, ...] = ()
        if adapting is not None:
            adapting.end(self._batch, len(step.passes[0].indices), seconds)
            figures = adapting.figures(self._batch) if exchanging else ()
        due = self._watch.step(figures)
        if due is not Due.NOTHING:
            self._due = max(self._due, due)
        if exchanging:
            if adapting is not None and self._watch.sums:
                self._adapt(adapting)
            self._tell()

    def _adapt(self, adapting: Adapting) -> None:
        batch, local = adapting.hear(self._watch.sums)
        if batch.size and (batch, local) != (self._batch, self._most_local):
            self._batch, self._most_local = batch, local
            adapting.changed()

    # ── between steps ─────────────────────────────────────────────────────────────────────────────────────────────

    def _between_epochs(self) -> None:
        if self._adapting is not None and not self._adapting.choosing:
            mine = self._adapting.epoch_ended(self._at.epoch, self._batch.size) if self._place.rank == 0 else 0
            self.set_batch_size(self._watch.agreement.choose(mine))

    def _act(self, *, last: bool = False) -> None:
        """Do what is due; at the end of an epoch only when the script has done with it, as it may go on at its end."""
        due, self._due = self._due, Due.NOTHING
        if due is Due.NOTHING:
            return
        asked, self._asked = self._asked, False
        self._save(wait=asked or due is Due.LEAVE)
        if due is Due.LEAVE and not last:
            self._watch.agreement.settle()
            self._tell()
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
        beside = {} if self._adapting is None else {"adapting": self._adapting.state()}
        self._saving.save(seen, facts, beside, wait=wait)
        self._watch.saved()

    def _resume(self) -> None:
        if self._resumed:
            return
        self._resumed = True
        self._session.open()
        found = self._saving.resume()
        if found is not None:
            facts, beside = found
            self._at = Cursor(facts["epoch"], facts["position"])
            self._done, self._size = facts["done"], facts["size"]
            if not self._place.batch:
                self._batch = BatchSetting(facts["batch"])
            self._adapted = beside.get("adapting")

    def _tell(self) -> None:
        if self._place.rank != 0:
            return
        self._session.tell(
            Telling(
                self._done,
                float(self._epochs * self._size),
                self._saving.saved or 0.0,
                batch_size=self._batch.size,
                loss=self._loss,
                profile=None if self._adapting is None else self._adapting.report(self._batch),
            )
        )
