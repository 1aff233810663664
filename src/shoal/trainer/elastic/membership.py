"""A worker's part in its job: the group it trains in, the order it is preparing for, and how it gets from one to other.

While it trains it says before each step for which generation it is ready (``word``) and hears after it what all have
said (``follow``); where all are ready for the same one they switch. A worker that has no group, because it has just
started or because its group broke, waits for the next (``regroup``). Nobody waits for ever.

References: Hwang et al., NSDI 2021, §4.3.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from torch.distributed import Store

from shoal.core.errors import ShoalError
from shoal.trainer.elastic.group import Builder, Built, GroupBroken, IdleThreads, Seat, WorkerGroup, room_of
from shoal.trainer.elastic.orders import Order, OrderSource
from shoal.trainer.elastic.rules import STOP, agreed, worth_keeping

_LOOK_SECONDS = 0.002
_LISTEN_SECONDS = 0.0005
_HOLD_SECONDS = 2.0
_LINGER_SECONDS = 5.0
_BEGUN, _OVER = "begun", "over"
_ENTERED, _DROPPED, _SETTLED = "entered", "dropped", "settled"


class Stranded(ShoalError):
    """A worker without a group was told of no other in time; its job starts again from the last checkpoint."""


class Membership:
    """One worker among the others. ``synchronise`` brings all members of a group they enter to the same state, and
    ``warned`` says whether this one was told to stop."""

    def __init__(
        self, seat: Seat, orders: OrderSource, synchronise: Callable[[WorkerGroup], None], warned: Callable[[], bool]
    ) -> None:
        self.generation = 0
        self.member = True
        self._seat, self._orders, self._synchronise, self._warned = seat, orders, synchronise, warned
        self._store = seat.connect()
        self._crew = IdleThreads()
        self._told_begun = False
        self._group: WorkerGroup | None = None
        self._kept: list[WorkerGroup] = []
        self._target: Order | None = None
        self._builder: Builder | None = None

    @property
    def group(self) -> WorkerGroup:
        """The group this worker trains in."""
        assert self._group is not None
        return self._group

    def word(self) -> int:
        """The generation this worker is ready for: the one it is in, or the newest ordered once that can be entered.

        ``STOP`` where it was told to stop: then all are to leave after this step.
        """
        if self._warned():
            return STOP
        order = self._orders.latest()
        if order is not None and (self._target is None or order.generation > self._target.generation):
            self._drop_target()
            self._aim(order)
        if self._target is None or (self._builder is not None and self._builder.built is None):
            return self.generation
        # An order that keeps nobody who trains would throw the training away; it is not followed.
        if not set(self._target.members) & set(self.group.members):
            return self.generation
        return max(self.generation, self._target.generation)

    def follow(self, words: Sequence[int]) -> bool:
        """Switch if all are ready for the same newer generation; whether the group is another now, or left.

        GroupBroken where that failed: then regroup.
        """
        generation = agreed(words, self.generation)
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
        """Come into a group, or learn that this worker is not needed any more; Stranded where neither happens in time.

        The group the worker was in, if any, is broken.
        """
        self._abandon_group()
        deadline, hold_until = time.monotonic() + self._seat.patience, 0.0
        while self.member and self._group is None:
            now = time.monotonic()
            order = self._orders.latest()
            if order is not None and (self._target is None or order.generation > self._target.generation):
                hold_until = hold_until or now + _HOLD_SECONDS
                if self._can_withdraw() or now > hold_until:
                    self._drop_target()
                    self._aim(order)
                    deadline, hold_until = now + self._seat.patience, 0.0
            if self._warned() or _is_told(self._store, _OVER):
                # One that trains in no group has nothing that could be saved for all.
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
        # Once its group is built, those who enter it wait for this worker.
        is_built = self._builder is not None and self._builder.built is not None
        time.sleep(_LISTEN_SECONDS if is_built else _LOOK_SECONDS)

    def tell_begun(self) -> None:
        """A step has been trained."""
        if not self._told_begun:
            self._store.set(_BEGUN, "")
            self._told_begun = True

    def has_begun(self) -> bool:
        """Whether anybody in this job has trained a step since it was started."""
        return _is_told(self._store, _BEGUN)

    def tell_over(self) -> None:
        """All has been trained: whoever was about to join need not."""
        # In a gang the first rank keeps the store, and may be through already.
        with suppress(RuntimeError):
            self._store.set(_OVER, "")

    def close(self) -> None:
        """Give up everything. A group that the others are building is built with them first, and then dropped; where
        this worker was told to stop the others were too, and none will be built."""
        if self._builder is not None:
            # Where the job is stopped its store may be gone already.
            with suppress(RuntimeError):
                self._drop_target()
        for group in (*self._kept, *([self._group] if self._group is not None else [])):
            self._crew.do(group.close)
        self._kept, self._group = [], None
        self._crew.rest(_HOLD_SECONDS if self._warned() else _LINGER_SECONDS)

    # ── orders ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _aim(self, order: Order) -> None:
        """Prepare for an order: beside training, if this worker is in a group."""
        self._target, self._builder = order, None
        stays = self._group is not None and self._group.members == order.members
        if self._seat.worker in order.members and not stays:
            kept = next((group for group in reversed(self._kept) if group.members == order.members), None)
            stepping = self._group is not None
            self._builder = Builder(self._seat, order, kept, self._crew, stepping=stepping)

    def _drop_target(self) -> None:
        """A newer order has come: whoever waits for this worker to enter the older one's group hears that it won't."""
        if self._builder is not None:
            self._builder.discard()
            room_of(self._store, self._builder.order.generation).set(_DROPPED, "")
            self._builder = None

    def _can_withdraw(self) -> bool:
        """Have nothing more built for the target, if it can be helped; whether nobody counts on this worker for it.

        On one who trains elsewhere nobody counts: without its word nobody switches. One who does not has no word. It
        is let go while the group is not built, and after that when one who trains has dropped it.
        """
        builder = self._builder
        if builder is None or builder.stepping:
            return True
        builder.withdraw()
        if builder.built is None:
            return builder.ended
        return _is_told(room_of(self._store, builder.order.generation), _DROPPED)

    # ── groups ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _try_target(self, target: Order) -> None:
        if self._seat.worker not in target.members:
            self.member = False
            return
        if self._builder is None:
            self._aim(target)
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
        """One who trains enters when all agree; the rest follow. Where nobody trains any more nobody is waited for."""
        if builder.stepping or not built.stepping:
            return True
        return _is_told(room_of(self._store, builder.order.generation), _ENTERED)

    def _enter(self, group: WorkerGroup) -> None:
        room = room_of(self._store, self.generation)
        room.set(_ENTERED, "")
        old, self._group, self._builder = self._group, group, None
        try:
            self._synchronise(group)
        finally:
            # Not before: until the others are here too they may be in the old group's last collective.
            self._sort_out(old)
        room.set(_SETTLED, "")

    def _sort_out(self, old: WorkerGroup | None) -> None:
        """Keep the groups that may be of use again, and close the rest."""
        groups = [group for group in (*self._kept, *([old] if old is not None else [])) if group is not self._group]
        useful = worth_keeping([group.members for group in groups], self.group.members)
        self._kept = [groups[position] for position in useful]
        for position, group in enumerate(groups):
            if position not in useful:
                self._crew.do(group.close)

    def _abandon_group(self) -> None:
        """Close a broken group at once: members that still wait in it learn of it by that."""
        if self._group is not None:
            self._crew.do(self._group.close)
            self._group = None

    def _leave(self) -> None:
        """Leave, when the others are in their next group: they may still be in the last collective of this one."""
        self.member = False
        room = room_of(self._store, self.generation)
        deadline = time.monotonic() + _LINGER_SECONDS
        while not _is_told(room, _SETTLED) and not _is_told(self._store, _OVER) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)


def _is_told(store: Store, what: str) -> bool:
    return bool(store.check([what]))
