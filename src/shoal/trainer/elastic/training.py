"""Data-parallel training whose workers join and leave between steps, without a restart.

The global batch size is constant for any number of workers: each takes its share of a step, in as many passes as its
memory requires, so the losses equal those of a run with a fixed number of workers up to rounding. After each switch all
workers hold the same state. A step that fails because a worker died is repeated by the remaining ones. Under Shoal,
rank 0 reports and saves progress; when the job is stopped, all workers leave after the same step.

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
from shoal.trainer.checkpoint import SAVE_EVERY_SECONDS
from shoal.trainer.elastic.checkpointing import ElasticCheckpoints
from shoal.trainer.elastic.group import GroupBroken, WorkerConfig, WorkerGroup
from shoal.trainer.elastic.membership import Membership, Stranded
from shoal.trainer.elastic.orders import OrderSource, orders_from
from shoal.trainer.elastic.rules import NOTHING, donors, stop_requested
from shoal.trainer.elastic.state import ReduceBuffer, hand_over, pack, take_over
from shoal.trainer.environment import read_rank_environment
from shoal.trainer.samples import Cursor, Epochs
from shoal.trainer.session import Progress, Session
from shoal.trainer.torch.state import Stateful, TorchState

LossOn: TypeAlias = Callable[[Int64s], Tensor]
"""Returns the model's mean loss on the samples of these indices."""


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """Size of a training: samples, epochs, batch size over all workers, and the most samples of one worker's pass."""

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
    """A change of group as seen by a worker that kept training; ``seconds`` is how long it was blocked."""

    generation: int
    before: int
    after: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ElasticStep:
    """A finished step: its number from 0, where it began, the mean loss over the batch, and the group that ran it.

    ``switch`` is the change of group just before it, if any.
    """

    number: int
    began: Cursor
    loss: float
    rank: int
    world: int
    generation: int
    switch: Switch | None


class Elastic:
    """Training of one worker.

    ``also`` holds further stateful objects that all workers share, such as a learning-rate schedule. If the script has
    loaded a checkpoint of its own, ``began`` and ``steps_done`` state the training that the model has had; otherwise,
    under Shoal, training resumes from the job's last checkpoint. A checkpoint is written every ``save_every`` seconds
    and when the job is stopped.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_on: LossOn,
        plan: TrainingPlan,
        *,
        seat: WorkerConfig | None = None,
        orders: OrderSource | None = None,
        also: Sequence[Stateful] = (),
        began: Cursor | None = None,
        steps_done: int = 0,
        save_every: float = SAVE_EVERY_SECONDS,
        session: Session | None = None,
    ) -> None:
        self._optimizer, self._loss_on, self._plan = optimizer, loss_on, plan
        self._stateful: tuple[Stateful, ...] = (model, optimizer, *also)
        self._device = next(model.parameters()).device
        self._cursor = Cursor() if began is None else began
        self._number = steps_done
        self._fresh = began is None
        self._joined = False
        self._buffer = ReduceBuffer(model)
        self._switch: Switch | None = None
        # Any worker may become rank 0, which reports, so each has a session that can.
        self._session = session or Session(replace(read_rank_environment(), rank=0))
        more = {str(place): each for place, each in enumerate(also)}
        self._checkpoints = ElasticCheckpoints(
            self._session.environment, TorchState(model, optimizer, more), every=save_every
        )
        self._membership = Membership(
            seat or WorkerConfig.from_environment(os.environ),
            orders or orders_from(os.environ),
            self._synchronise,
            lambda: self._session.warned,
        )

    @property
    def complete(self) -> bool:
        """Whether all epochs are trained; False in a worker that left earlier."""
        return self._cursor.epoch >= self._plan.epochs

    def steps(self) -> Iterator[ElasticStep]:
        """Train, yielding each finished step; ends when training is complete or this worker is no longer needed.

        Raises ``Stopped``, a ``SystemExit``, in every worker after the same step when the job is stopped.
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
                step, ready = done
                self._switch = None
                yield step
                self._report(step, ready)
                if not self.complete:
                    self._follow(ready)
            if self._session.warned and not self.complete:
                self._session.leave()
            self._finish()
        finally:
            self._membership.close()
            self._session.close()

    # ── a step ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _train(self) -> tuple[ElasticStep, list[int]] | None:
        """Run one step; returns it with each rank's announced generation, None if it failed and must be repeated."""
        group, began = self._membership.group, self._cursor
        plan = self._plan
        passes = plan.samples.passes(began, plan.batch, group.rank, group.world, plan.most_local)
        self._buffer.begin()
        loss = torch.zeros((), device=self._device)
        for part in passes:
            # A copy: torch accepts only writable arrays.
            of_part = self._loss_on(part.indices.copy()) * (part.weight / group.world)
            torch.autograd.backward(of_part)
            loss += of_part.detach()
        share = sum(part.weight for part in passes) / group.world
        whole = self._buffer.enter(loss, share, self._membership.ready_generation(), group.rank, group.world)
        if not _succeeds(partial(group.add_up, whole)):
            self._buffer.undo()
            return None
        mean, ready = self._buffer.settle(group.world)
        self._optimizer.step()
        self._cursor = plan.samples.after(began, plan.batch)
        step = ElasticStep(
            self._number, began, mean, group.rank, group.world, self._membership.generation, self._switch
        )
        self._membership.mark_begun()
        self._number += 1
        return step, ready

    def _rehearse(self) -> None:
        """Run and discard a step, so that other workers need not wait for this worker's one-time set-up."""
        plan = self._plan
        samples = plan.samples.share(Cursor(), min(plan.batch, plan.most_local), 0, 1)
        self._buffer.begin()
        with torch.random.fork_rng(devices=[self._device] if self._device.type == "cuda" else []):
            torch.autograd.backward(self._loss_on(samples.copy()) * 0.0)
        self._buffer.undo()

    # ── reports and checkpoints ──────────────────────────────────────────────────────────────────────────────────

    def _resume(self) -> None:
        """Load the job's last checkpoint unless a worker has trained since the job started."""
        if not self._fresh or self._membership.has_begun():
            return
        facts = self._checkpoints.resume()
        if facts is not None:
            self._cursor, self._number = Cursor(facts["epoch"], facts["position"]), facts["steps"]
            self._fresh = False

    def _report(self, step: ElasticStep, ready: list[int]) -> None:
        """Report a step; save if a checkpoint is due; leave if the job is stopped."""
        leave = stop_requested(ready) and not self.complete
        if step.rank == 0:
            if leave or self._checkpoints.due or self._session.lapsing:
                self._checkpoints.save(self._facts(), wait=leave)
                self._session.secured()
            samples, plan = self._plan.samples, self._plan
            self._session.report(
                Progress(
                    samples.seen(self._cursor),
                    float(plan.epochs * samples.size),
                    self._checkpoints.saved,
                    batch_size=plan.batch,
                    loss=step.loss,
                    generation=step.generation,
                    learning_rate=self._optimizer.param_groups[0]["lr"],
                )
            )
        if leave:
            self._session.leave()

    def _facts(self) -> dict[str, int]:
        return {**asdict(self._cursor), "steps": self._number, "seen": self._plan.samples.seen(self._cursor)}

    # ── switching ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _follow(self, ready: list[int]) -> None:
        before, begin = self._membership.group.world, time.perf_counter()
        changed = False

        def follow() -> None:
            nonlocal changed
            changed = self._membership.follow(ready)

        if not _succeeds(follow):
            self._membership.regroup()
        if changed and self._membership.member:
            seconds = time.perf_counter() - begin
            self._switch = Switch(self._membership.generation, before, self._membership.group.world, seconds)

    def _synchronise(self, group: WorkerGroup) -> None:
        """Bring every worker of the group to the state of a worker with the most steps."""
        held = torch.zeros(group.world, dtype=torch.float64, device=self._device)
        held[group.rank] = self._steps_held()
        group.add_up(held)
        steps = [int(count) for count in held.tolist()]
        if max(steps) == NOTHING and self._membership.has_begun():
            raise Stranded(
                f"no worker of generation {self._membership.generation} holds the training state; start the job from "
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

    def _steps_held(self) -> int:
        """Steps this worker holds; a loaded checkpoint counts only until some worker has trained."""
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
        """Wait for all workers: after this collective each knows that all of them hold the last step.

        Rank 0 saves it: a job that is stopped after its last step would otherwise resume from an earlier checkpoint.
        """
        while self._membership.member and self.complete:
            if _succeeds(partial(self._membership.group.add_up, torch.zeros(1, device=self._device))):
                if self._membership.group.rank == 0:
                    self._checkpoints.save(self._facts(), wait=True)
                self._membership.mark_finished()
                return
            self._membership.regroup()


def _succeeds(collective: Callable[[], None]) -> bool:
    """Run a collective; return False if the group broke.

    A function of its own, so that returning releases the references of a failed collective.
    """
    try:
        collective()
    except GroupBroken:
        return False
    return True
