"""Replay: feed a journal's events to a fresh state, decide everything again, and stop at the first difference.

``fold`` is the half of it that recovery needs: the same state, without deciding anything again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
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
from shoal.store.codec import Header, Record


@dataclass(frozen=True, slots=True)
class Replayed:
    """How much of a journal was derived again without a difference."""

    decisions: int
    events: int
    commands: int
    now: Seconds


@dataclass(frozen=True, slots=True)
class Scheduler:
    """Those who decided, and the state they decided on: an empty one, to be filled from the journal."""

    state: State
    policy: Policy
    placer: Placer
    move_planner: MovePlanner
    judge: Callable[[Snapshot, Policy, Placer, MovePlanner], Judgement] = judge


_NOBODY: UInt8s = np.empty(0, dtype=np.uint8)


class ReplayDifference(ShoalError):
    """A decision came out otherwise than the journal says, the one made ``at`` this time."""

    def __init__(self, message: str, at: Seconds) -> None:
        super().__init__(message)
        self.at = at


def fold(records: Iterable[Record], state: State) -> State:
    """The state after these records, with nothing decided again; what policies remembered is forgotten."""
    for record in records:
        if isinstance(record, EventBatch):
            _hear(state, record)
        elif isinstance(record, Decided):
            _assume(state, record)
            state.end_cycle(None)
    return state


def replay(
    read: Callable[[], Iterator[Record]],
    crew_of: Callable[[Mapping[str, Any]], Scheduler],
    progress: Callable[[int], None] | None = None,
    watch: Callable[[Snapshot, Judgement], None] | None = None,
) -> Replayed:
    """Derive every decision of a journal again; the first that differs raises ``ReplayDifference``.

    ``watch`` is shown each of them, with the moment it was made in.

    A journal that was taken up again has a header for each time; from there on a new crew decides, on the cluster and
    by the policy that header names, and remembers nothing from before.
    """
    decisions = events = commands = 0
    crew: Scheduler | None = None
    review_at, waiting, told = inf, False, _NOBODY
    for number, record in enumerate(read()):
        if isinstance(record, Header):
            review_at, waiting = (inf if crew is None else -inf), False
            crew = crew_of(record.settings)
            fold(islice(read(), number), crew.state)
        elif crew is None:
            raise JournalError("a journal must begin with its header")
        elif isinstance(record, EventBatch):
            if waiting:
                raise JournalError(f"events up to t = {record.now} s follow on others that no decision was made on")
            _hear(crew.state, record)
            waiting = record.calls_for_decision(review_at, told)
            events += len(record.events)
        else:
            if not waiting:
                raise JournalError(f"decision {decisions} has no events before it")
            waiting, review_at = False, record.review_at
            told = _check(crew, record, watch)
            decisions += 1
            commands += len(record.commands)
            if progress is not None and not decisions % 1000:
                progress(decisions)
    return Replayed(decisions, events, commands, crew.state.now if crew else 0.0)


def _hear(state: State, heard: EventBatch) -> None:
    try:
        backwards = not heard.now >= state.now
        state.apply_events(heard.now, heard.events)
    except (LookupError, TypeError, ValueError) as error:
        # A checksum says that a record is as it was written, not that its numbers name jobs and nodes there are.
        raise JournalError(f"the events up to t = {heard.now} s cannot have happened: {error!r}") from error
    if backwards:
        raise JournalError(f"time runs back, to t = {heard.now} s")


def _assume(state: State, written: Decided) -> None:
    try:
        state.apply_commands(written.commands)
    except (LookupError, TypeError, ValueError) as error:
        raise JournalError(f"decision {state.cycle} cannot have been carried out: {error!r}") from error


def _check(crew: Scheduler, written: Decided, watch: Callable[[Snapshot, Judgement], None] | None) -> UInt8s:
    """Derive one decision again; the codes of its verdicts."""
    state = crew.state
    snapshot = state.freeze()
    judgement = crew.judge(snapshot, crew.policy, crew.placer, crew.move_planner)
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
