"""Membership of a worker in its job's groups: the group it trains in, the next order, and the switch between them.

Before each step a training worker announces the generation it is ready for (`ready_generation`). After the step it has
the announcements of all (`follow`); if all are ready for the same newer one they switch. A worker without a group,
because it has just started or its group broke, waits for the next one (`regroup`). Every wait has a time limit.

References: Hwang et al., NSDI 2021, §4.3.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from torch.distributed import Store

from shoal.core.errors import ShoalError
from shoal.trainer.elastic.group import (
    Builder,
    Built,
    GroupBroken,
    IdleThreads,
    WorkerConfig,
    WorkerGroup,
    generation_store,
)
from shoal.trainer.elastic.orders import Order, OrderSource
from shoal.trainer.elastic.rules import STOP, agreed_generation, worth_keeping

_LOOK_SECONDS = 0.002
_LISTEN_SECONDS = 0.0005
_HOLD_SECONDS = 2.0
_LINGER_SECONDS = 5.0
_BEGUN, _OVER = "begun", "over"
_ENTERED, _DROPPED, _SETTLED = "entered", "dropped", "settled"


class Stranded(ShoalError):
    """A worker without a group got no usable order in time; its job must restart from the last checkpoint."""


class Membership:
    """Membership of one worker.

    ``synchronise`` brings all members of a newly entered group to the same state; ``warned`` says whether this worker
    was asked to stop.
    """

    def __init__(
        self,
        seat: WorkerConfig,
        orders: OrderSource,
        synchronise: Callable[[WorkerGroup], None],
        warned: Callable[[], bool],
    ) -> None:
        self.generation = 0
        self.member = True
        self._seat, self._orders, self._synchronise, self._warned = seat, orders, synchronise, warned
        self._store = seat.connect()
        self._threads = IdleThreads()
        self._marked_begun = False
        self._group: WorkerGroup | None = None
        self._kept: list[WorkerGroup] = []
        self._target: Order | None = None
        self._builder: Builder | None = None

    @property
    def group(self) -> WorkerGroup:
        """The group this worker trains in."""
        assert self._group is not None
        return self._group

    def ready_generation(self) -> int:
        """The generation this worker is ready for: its own, or the newest ordered one once its group is built.

        ``STOP`` if the worker was asked to stop: all workers then leave after this step.
        """
        if self._warned():
            return STOP
        order = self._orders.latest()
        if order is not None and (self._target is None or order.generation > self._target.generation):
            self._drop_target()
            self._prepare(order)
        if self._target is None or (self._builder is not None and self._builder.built is None):
            return self.generation
        # An order without any training worker would lose the training state, so it is ignored.
        if not set(self._target.members) & set(self.group.members):
            return self.generation
        return max(self.generation, self._target.generation)

    def follow(self, ready: Sequence[int]) -> bool:
        """Switch if all ranks are ready for the same newer generation; returns whether the group changed or was left.

        Raises ``GroupBroken`` if the switch failed; call `regroup` then.
        """
        generation = agreed_generation(ready, self.generation)
        if generation is None:
            return False
        target, builder = self._target, self._builder
        assert target is not None
        assert target.generation == generation
        self.generation = generation
        if self._seat.worker not in target.members:
            self._leave()
            return True
        if builder is None:
            return False
        assert builder.built is not None
        self._enter(builder.built.group)
        return True

    def regroup(self) -> None:
        """Enter a group, or find that this worker is no longer needed; raises ``Stranded`` if neither happens in time.

        The worker's previous group, if any, is broken.
        """
        self._abandon_group()
        deadline, hold_until = time.monotonic() + self._seat.patience, 0.0
        while self.member and self._group is None:
            now = time.monotonic()
            order = self._orders.latest()
            if order is not None and (self._target is None or order.generation > self._target.generation):
                hold_until = hold_until or now + _HOLD_SECONDS
                if self._withdraw() or now > hold_until:
                    self._drop_target()
                    self._prepare(order)
                    deadline, hold_until = now + self._seat.patience, 0.0
            if self._warned() or _is_set(self._store, _OVER):
                # A worker without a group holds no state to save.
                self.member = False
            elif self._target is not None and self._target.generation > self.generation:
                self._try_target(self._target)
            if self.member and self._group is None:
                self._pause(now > deadline)

    def _pause(self, too_long: bool) -> None:
        if too_long:
            raise Stranded(
                f"worker {self._seat.worker} has no group since generation {self.generation} and heard of no other in "
                f"{self._seat.patience:g} s; end it, and start the job from its last checkpoint"
            )
        # Members that entered the group wait for this worker, so poll faster.
        is_built = self._builder is not None and self._builder.built is not None
        time.sleep(_LISTEN_SECONDS if is_built else _LOOK_SECONDS)

    def mark_begun(self) -> None:
        """Record in the store that a step was trained."""
        if not self._marked_begun:
            self._store.set(_BEGUN, "")
            self._marked_begun = True

    def has_begun(self) -> bool:
        """Whether any worker has trained a step since the job started."""
        return _is_set(self._store, _BEGUN)

    def mark_finished(self) -> None:
        """Record in the store that training is complete, for workers about to join."""
        # In a fixed gang the first rank hosts the store and may have ended already.
        with suppress(RuntimeError):
            self._store.set(_OVER, "")

    def close(self) -> None:
        """Close all groups. A group that others are building is completed first, unless the job is stopped."""
        if self._builder is not None:
            # The store of a stopped job may be gone already.
            with suppress(RuntimeError):
                self._drop_target()
        for group in (*self._kept, *([self._group] if self._group is not None else [])):
            self._threads.do(group.close)
        self._kept, self._group = [], None
        self._threads.rest(_HOLD_SECONDS if self._warned() else _LINGER_SECONDS)

    # ── orders ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _prepare(self, order: Order) -> None:
        """Prepare for an order, in the background if this worker is in a group."""
        self._target, self._builder = order, None
        stays = self._group is not None and self._group.members == order.members
        if self._seat.worker in order.members and not stays:
            kept = next((group for group in reversed(self._kept) if group.members == order.members), None)
            stepping = self._group is not None
            self._builder = Builder(self._seat, order, kept, self._threads, stepping=stepping)

    def _drop_target(self) -> None:
        """Discard the present target, and record that in the store, for members that wait for this worker."""
        if self._builder is not None:
            self._builder.discard()
            generation_store(self._store, self._builder.order.generation).set(_DROPPED, "")
            self._builder = None

    def _withdraw(self) -> bool:
        """Cancel the target's group if possible; return whether no member waits for this worker.

        Members do not wait for a worker that trains elsewhere, since no switch happens without its announcement. A
        worker that does not train is free while the group is not built, and after that once a training member has
        dropped the group.
        """
        builder = self._builder
        if builder is None or builder.stepping:
            return True
        builder.withdraw()
        if builder.built is None:
            return builder.ended
        return _is_set(generation_store(self._store, builder.order.generation), _DROPPED)

    # ── groups ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _try_target(self, target: Order) -> None:
        if self._seat.worker not in target.members:
            self.member = False
            return
        if self._builder is None:
            self._prepare(target)
        assert self._builder is not None
        built = self._builder.built
        if built is None or not self._may_enter(self._builder, built):
            return
        self.generation = target.generation
        try:
            self._enter(built.group)
        except GroupBroken:
            pass
        else:
            return
        self._abandon_group()

    def _may_enter(self, builder: Builder, built: Built) -> bool:
        """Return whether this worker may enter: a training one when all agree, others after the first has entered."""
        if builder.stepping or not built.stepping:
            return True
        return _is_set(generation_store(self._store, builder.order.generation), _ENTERED)

    def _enter(self, group: WorkerGroup) -> None:
        store = generation_store(self._store, self.generation)
        store.set(_ENTERED, "")
        old, self._group, self._builder = self._group, group, None
        try:
            self._synchronise(group)
        finally:
            # Only now: until all have entered, some may be in the old group's last collective.
            self._close_useless_groups(old)
        store.set(_SETTLED, "")

    def _close_useless_groups(self, old: WorkerGroup | None) -> None:
        groups = [group for group in (*self._kept, *([old] if old is not None else [])) if group is not self._group]
        useful = worth_keeping([group.members for group in groups], self.group.members)
        self._kept = [groups[position] for position in useful]
        for position, group in enumerate(groups):
            if position not in useful:
                self._threads.do(group.close)

    def _abandon_group(self) -> None:
        """Close a broken group at once, so that members still waiting in it see the failure."""
        if self._group is not None:
            self._threads.do(self._group.close)
            self._group = None

    def _leave(self) -> None:
        """Leave once the others are in their next group: they may still be in the last collective of this one."""
        self.member = False
        store = generation_store(self._store, self.generation)
        deadline = time.monotonic() + _LINGER_SECONDS
        while not _is_set(store, _SETTLED) and not _is_set(self._store, _OVER) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)


def _is_set(store: Store, what: str) -> bool:
    return bool(store.check([what]))
