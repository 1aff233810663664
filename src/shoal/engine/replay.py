"""Replay: make every decision of a journal again on a fresh state, and stop at the first difference.

``fold`` gives the state without deciding anything again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import Any

import numpy as np

from shoal.core.arrays import UInt8s
from shoal.core.commands import Decided
from shoal.core.errors import JournalError, ShoalError
from shoal.core.events import EventBatch
from shoal.core.interfaces import MovePlanner, Placer, Policy
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds
from shoal.engine.loop import Judgement, judge
from shoal.engine.state import State
from shoal.engine.state_image import decode_image, encode_image, image_of, restore
from shoal.store.codec import Base, Header, Record


@dataclass(frozen=True, slots=True)
class Replayed:
    """The numbers of decisions, events and commands replayed without a difference, and the time of the last.

    ``begin`` and ``end`` are encoded images of the state: of the base that a segment begins with (empty if it has
    none) and of the state after the last record.
    """

    decisions: int
    events: int
    commands: int
    now: Seconds
    begin: bytes = field(default=b"", compare=False, repr=False)
    end: bytes = field(default=b"", compare=False, repr=False)

    def followed_by(self, later: "Replayed") -> "Replayed":
        """Return the numbers of this and of the next segment together."""
        return Replayed(
            self.decisions + later.decisions,
            self.events + later.events,
            self.commands + later.commands,
            later.now,
            self.begin,
            later.end,
        )


@dataclass(frozen=True, slots=True)
class Scheduler:
    """A state and the policy, placer and move planner that decide on it; for replay the state is empty at first."""

    state: State
    policy: Policy
    placer: Placer
    move_planner: MovePlanner
    judge: Callable[[Snapshot, Policy, Placer, MovePlanner], Judgement] = judge


class ReplayDifference(ShoalError):
    """A decision, made ``at`` this time, that differs from the one in the journal."""

    def __init__(self, message: str, at: Seconds) -> None:
        super().__init__(message)
        self.at = at


def fold(records: Iterable[Record], state: State) -> State:
    """Return the state after these records, without deciding anything again; its ``carry`` is None."""
    for record in records:
        if isinstance(record, Base):
            apply_base(state, record)
        elif isinstance(record, EventBatch):
            _apply_events(state, record)
        elif isinstance(record, Decided):
            _apply_commands(state, record)
            state.end_cycle(None)
        else:
            state.decide_by(record.settings)
    return state


def apply_base(state: State, base: Base) -> None:
    """Begin a segment: restore an empty state from the base; one that was folded up to here drops its ended jobs."""
    restore(state, image_of(state) if state.cycle or state.submitted else decode_image(base.state))


def replay(
    read: Callable[[], Iterator[Record]],
    scheduler_of: Callable[[Mapping[str, Any]], Scheduler],
    progress: Callable[[int], None] | None = None,
    watch: Callable[[Snapshot, Judgement], None] | None = None,
) -> Replayed:
    """Make every decision of a journal again; the first that differs raises ``ReplayDifference``.

    ``scheduler_of`` returns the scheduler for a header's settings. ``progress`` is called with the number of decisions
    after every thousand, ``watch`` with every snapshot and judgement. A journal that was resumed has a header for each
    time; from there on a new scheduler decides, with the cluster and policy of that header and without ``carry``.
    """
    decisions = events = commands = 0
    begin = b""
    scheduler: Scheduler | None = None
    review_at, due = inf, False
    verdict_codes: UInt8s = np.empty(0, dtype=np.uint8)
    for number, record in enumerate(read()):
        if isinstance(record, Header):
            review_at, due = (inf if scheduler is None else -inf), False
            scheduler = scheduler_of(record.settings)
            fold(islice(read(), number), scheduler.state).decide_by(record.settings)
        elif scheduler is None:
            raise JournalError("a journal must begin with its header")
        elif isinstance(record, Base):
            begin, review_at = record.state, -inf
            apply_base(scheduler.state, record)
        elif isinstance(record, EventBatch):
            if due and not record.of_a_decision:
                raise JournalError(f"events up to t = {record.now} s follow on others that no decision was made on")
            _apply_events(scheduler.state, record)
            due = record.calls_for_decision(review_at, verdict_codes)
            events += len(record.events)
        else:
            if not due:
                raise JournalError(f"decision {decisions} has no events before it")
            due, review_at = False, record.review_at
            verdict_codes = _check(scheduler, record, watch)
            decisions += 1
            commands += len(record.commands)
            if progress is not None and not decisions % 1000:
                progress(decisions)
    state = scheduler.state if scheduler is not None else None
    end = b"" if state is None else encode_image(image_of(state))
    return Replayed(decisions, events, commands, state.now if state is not None else 0.0, begin, end)


def _apply_events(state: State, batch: EventBatch) -> None:
    try:
        backwards = not batch.now >= state.now
        state.apply_events(batch.now, batch.events)
    except (LookupError, TypeError, ValueError) as error:
        # A checksum shows that a record is as it was written, not that its numbers name existing jobs and nodes.
        raise JournalError(f"the events up to t = {batch.now} s cannot have happened: {error!r}") from error
    if backwards:
        raise JournalError(f"time runs back, to t = {batch.now} s")


def _apply_commands(state: State, written: Decided) -> None:
    try:
        state.apply_commands(written.commands)
    except (LookupError, TypeError, ValueError) as error:
        raise JournalError(f"decision {state.cycle} cannot have been carried out: {error!r}") from error


def _check(scheduler: Scheduler, written: Decided, watch: Callable[[Snapshot, Judgement], None] | None) -> UInt8s:
    """Make one decision again; return the reason codes of its verdicts."""
    state = scheduler.state
    snapshot = state.freeze()
    judgement = scheduler.judge(snapshot, scheduler.policy, scheduler.placer, scheduler.move_planner)
    derived = judgement.record()
    if derived != written:
        what = "verdicts" if derived.digest != written.digest else "time of the next review"
        if derived.commands != written.commands:
            first = next(
                (pair for pair in zip(written.commands, derived.commands, strict=False) if pair[0] != pair[1]),
                (f"{len(written.commands)} commands", f"{len(derived.commands)}"),
            )
            what = f"commands: the journal has {first[0]}, this replay {first[1]}"
        when = f"decision {state.cycle} at t = {state.now:,.3f} s, with {len(snapshot.columns)} live jobs"
        raise ReplayDifference(f"{when}, differs in its {what}", state.now)
    if watch is not None:
        watch(snapshot, judgement)
    state.apply_commands(written.commands)
    state.end_cycle(judgement.decision.carry)
    return judgement.verdicts.codes
