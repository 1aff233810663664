"""Data-parallel training whose workers come and go between steps: nobody restarts, no sample is lost or used twice.

The global batch stays as it is whatever the number of workers; each takes its share of a step, in as many passes as
its memory asks for. So the losses are those of a run on any fixed number of workers, but for rounding. After every
switch all workers hold the same state. A step that fails because a worker died is done again by those left. Under Shoal
a worker that is rank 0 tells how far training is and saves it; told to stop, all leave after the same step.

References: Hwang et al., Elastic Resource Sharing for Distributed Deep Learning (AFS and CoDDL), NSDI 2021, §4.2, §4.3.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from shoal.core.arrays import Int64s
from shoal.core.errors import InputError
from shoal.trainer.elastic.checkpointing import ElasticSaving
from shoal.trainer.elastic.group import GroupBroken, Seat, WorkerGroup
from shoal.trainer.elastic.membership import Membership, Stranded
from shoal.trainer.elastic.orders import OrderSource, orders_from
from shoal.trainer.elastic.rules import NOTHING, donors, stopping
from shoal.trainer.elastic.state import ReduceBuffer, Stateful, hand_over, pack, take_over
from shoal.trainer.rank_environment import read_place
from shoal.trainer.samples import Cursor, Epochs
from shoal.trainer.session import Session, Telling
from shoal.trainer.torch.state import TorchState

LossOn: TypeAlias = Callable[[Int64s], Tensor]
"""The mean loss of the model on these samples."""

SAVE_EVERY_SECONDS = 600.0
"""How much training is lost at most where nobody is left who has it."""


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """What is to be trained on: samples, epochs, samples per step over all workers, and the most one worker's memory
    holds at once."""

    samples: Epochs
    epochs: int
    batch: int
    most_local: int

    def __post_init__(self) -> None:
        for field in ("epochs", "batch", "most_local"):
            if getattr(self, field) < 1:
                raise InputError(field, getattr(self, field), "must be at least 1")


@dataclass(frozen=True, slots=True)
class Switch:
    """A change of group as a worker that trained on saw it: for so many seconds it did nothing else."""

    generation: int
    before: int
    after: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ElasticStep:
    """A step that counted: which one, from 0; where it began; the loss over the whole batch; who took part in it.

    ``switch`` is the change of group just before it, if there was one.
    """

    number: int
    began: Cursor
    loss: float
    rank: int
    world: int
    generation: int
    switch: Switch | None


class Elastic:
    """One worker's training.

    ``also`` are further things with a state that all workers must share, such as a schedule of the learning rate.
    ``began`` and ``steps_done`` say what the model holds already, where the script has loaded it from a checkpoint of
    its own; else, under Shoal, it goes on from the job's last. One is written every ``save_every`` seconds, and when
    the job is told to stop.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_on: LossOn,
        course: TrainingPlan,
        *,
        seat: Seat | None = None,
        orders: OrderSource | None = None,
        also: Sequence[Stateful] = (),
        began: Cursor | None = None,
        steps_done: int = 0,
        save_every: float = SAVE_EVERY_SECONDS,
        session: Session | None = None,
    ) -> None:
        self._optimizer, self._loss_on, self._course = optimizer, loss_on, course
        self._stateful: tuple[Stateful, ...] = (model, optimizer, *also)
        self._device = next(model.parameters()).device
        self._cursor = Cursor() if began is None else began
        self._number = steps_done
        self._fresh = began is None
        self._joined = False
        self._ledger = ReduceBuffer(model)
        self._switch: Switch | None = None
        # Any worker may come to be rank 0, which reports: each has all that takes.
        self._session = session or Session(replace(read_place(), rank=0))
        more = {str(place): each for place, each in enumerate(also)}
        self._saving = ElasticSaving(self._session.place, TorchState(model, optimizer, more), every=save_every)
        self._membership = Membership(
            seat or Seat.from_environment(os.environ),
            orders or orders_from(os.environ),
            self._synchronise,
            lambda: self._session.warned,
        )

    @property
    def complete(self) -> bool:
        """Whether all epochs are trained; a worker that was let go before that ends without being."""
        return self._cursor.epoch >= self._course.epochs

    def steps(self) -> Iterator[ElasticStep]:
        """Train; each step as it is done. Ends when all is trained, or when this worker is not needed any more.

        ``Stopped``, a ``SystemExit``, is raised in every worker after the same step where the job is told to stop.
        """
        try:
            self._session.open()
            self._resume()
            self._rehearse()
            self._membership.regroup()
            while self._membership.member and not self.complete:
                done = self._train()
                if done is None:
                    self._membership.regroup()
                    continue
                step, words = done
                self._switch = None
                yield step
                self._report(step, words)
                if not self.complete:
                    self._follow(words)
            if self._session.warned and not self.complete:
                self._session.leave()
            self._finish()
        finally:
            self._membership.close()
            self._session.close()

    # ── a step ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _train(self) -> tuple[ElasticStep, list[int]] | None:
        """One step, and what each rank said in it; None where it failed and has to be done again."""
        group, began = self._membership.group, self._cursor
        course = self._course
        passes = course.samples.passes(began, course.batch, group.rank, group.world, course.most_local)
        self._ledger.begin()
        loss = torch.zeros((), device=self._device)
        for part in passes:
            # A copy, for torch takes no array it may not write to.
            of_part = self._loss_on(part.indices.copy()) * (part.weight / group.world)
            torch.autograd.backward(of_part)
            loss += of_part.detach()
        share = sum(part.weight for part in passes) / group.world
        whole = self._ledger.enter(loss, share, self._membership.word(), group.rank, group.world)
        if not _holds(partial(group.add_up, whole)):
            self._ledger.undo()
            return None
        mean, words = self._ledger.settle(group.world)
        self._optimizer.step()
        self._cursor = course.samples.after(began, course.batch)
        step = ElasticStep(
            self._number, began, mean, group.rank, group.world, self._membership.generation, self._switch
        )
        self._membership.tell_begun()
        self._number += 1
        return step, words

    def _rehearse(self) -> None:
        """Do what the first step does and forget it, so that the others need not wait for what it sets up."""
        course = self._course
        samples = course.samples.share(Cursor(), min(course.batch, course.most_local), 0, 1)
        self._ledger.begin()
        with torch.random.fork_rng(devices=[self._device] if self._device.type == "cuda" else []):
            torch.autograd.backward(self._loss_on(samples.copy()) * 0.0)
        self._ledger.undo()

    # ── what Shoal is told and tells ──────────────────────────────────────────────────────────────────────────────

    def _resume(self) -> None:
        """Go on from the job's last checkpoint; but once somebody has trained, its state is the one to have."""
        if not self._fresh or self._membership.has_begun():
            return
        facts = self._saving.resume()
        if facts is not None:
            self._cursor, self._number = Cursor(facts["epoch"], facts["position"]), facts["steps"]
            self._fresh = False

    def _report(self, step: ElasticStep, words: list[int]) -> None:
        """After a step, and what the script does after it: save if that is due, and leave if all are to."""
        leave = stopping(words) and not self.complete
        if step.rank == 0:
            if leave or self._saving.due or self._session.lapsing:
                self._saving.save(self._facts(), wait=leave)
                self._session.secured()
            samples, course = self._course.samples, self._course
            self._session.tell(
                Telling(
                    samples.seen(self._cursor),
                    float(course.epochs * samples.size),
                    self._saving.saved,
                    batch_size=course.batch,
                    loss=step.loss,
                    generation=step.generation,
                )
            )
        if leave:
            self._session.leave()

    def _facts(self) -> dict[str, int]:
        return {**asdict(self._cursor), "steps": self._number, "seen": self._course.samples.seen(self._cursor)}

    # ── switching ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _follow(self, words: list[int]) -> None:
        before, begin = self._membership.group.world, time.perf_counter()
        changed = False

        def follow() -> None:
            nonlocal changed
            changed = self._membership.follow(words)

        if not _holds(follow):
            self._membership.regroup()
        if changed and self._membership.member:
            seconds = time.perf_counter() - begin
            self._switch = Switch(self._membership.generation, before, self._membership.group.world, seconds)

    def _synchronise(self, group: WorkerGroup) -> None:
        """Everybody in the group comes to the state of who holds most."""
        held = torch.zeros(group.world, dtype=torch.float64, device=self._device)
        held[group.rank] = self._worth()
        group.add_up(held)
        steps = [int(count) for count in held.tolist()]
        if max(steps) == NOTHING and self._membership.has_begun():
            raise Stranded(
                f"nobody in generation {self._membership.generation} has what was trained so far; start the job from "
                "its last checkpoint, and keep with every order at least one worker that trains"
            )
        takers = donors(steps)
        packed = None
        for taker, donor in takers.items():
            if donor == group.rank:
                packed = packed or pack(self._state())
                hand_over(packed, partial(group.send, rank=taker))
        if group.rank in takers:
            self._become(take_over(partial(group.receive, rank=takers[group.rank]), self._device))
        self._joined = True

    def _worth(self) -> int:
        """The steps this worker holds. What one started with counts only as long as nobody has trained."""
        if self._joined:
            return self._number
        return NOTHING if self._fresh or self._membership.has_begun() else self._number

    def _state(self) -> dict[str, Any]:
        return {
            "cursor": asdict(self._cursor),
            "number": self._number,
            "stateful": [each.state_dict() for each in self._stateful],
        }

    def _become(self, state: dict[str, Any]) -> None:
        for each, taken in zip(self._stateful, state["stateful"], strict=True):
            each.load_state_dict(taken)
        self._cursor, self._number = Cursor(**state["cursor"]), state["number"]

    def _finish(self) -> None:
        """End together: who comes through this knows that everybody holds the last step."""
        while self._membership.member and self.complete:
            if _holds(partial(self._membership.group.add_up, torch.zeros(1, device=self._device))):
                self._membership.tell_over()
                return
            self._membership.regroup()


def _holds(collective: Callable[[], None]) -> bool:
    """Do it; whether the group held. What a failed one kept alive is let go here, connections among it."""
    try:
        collective()
    except GroupBroken:
        return False
    return True
