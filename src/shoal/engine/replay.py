"""Replay: feed a journal's events to a fresh state, decide everything again, and stop at the first difference."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shoal.core.errors import JournalError, ShoalError
from shoal.core.events import Heard
from shoal.core.seams import Mechanism, Placer, Policy
from shoal.core.units import Seconds
from shoal.engine.loop import judge
from shoal.engine.state import State
from shoal.store.codec import Decided, Header, Record


@dataclass(frozen=True, slots=True)
class Replayed:
    """How much of a journal was derived again without a difference."""

    decisions: int
    events: int
    commands: int
    now: Seconds


class ReplayDifference(ShoalError):
    """A decision came out otherwise than the journal says."""


def replay(
    records: Iterator[Record],
    state: State,
    policy: Policy,
    placer: Placer,
    mechanism: Mechanism,
    progress: Callable[[int], None] | None = None,
) -> Replayed:
    """Derive every decision of a journal again; the first that differs raises ``ReplayDifference``."""
    decisions = events = commands = 0
    heard: Heard | None = None
    for record in records:
        if isinstance(record, Heard):
            if heard is not None:
                raise JournalError(f"two batches of events in a row at t = {record.now}, with no decision between")
            heard = record
            _hear(state, record)
            events += len(record.events)
        elif isinstance(record, Decided):
            if heard is None:
                raise JournalError(f"decision {decisions} has no events before it")
            heard = None
            _check(state, record, policy, placer, mechanism)
            decisions += 1
            commands += len(record.commands)
            if progress is not None and not decisions % 1000:
                progress(decisions)
        elif not isinstance(record, Header):
            raise JournalError(f"a journal holds no {type(record).__name__}")
    return Replayed(decisions, events, commands, state.now)


def _hear(state: State, heard: Heard) -> None:
    try:
        backwards = not heard.now >= state.now
        state.hear(heard.now, heard.events)
    except (LookupError, TypeError, ValueError) as error:
        # A checksum says that a record is as it was written, not that its numbers name jobs and nodes there are.
        raise JournalError(f"the events up to t = {heard.now} s cannot have happened: {error!r}") from error
    if backwards:
        raise JournalError(f"time runs back, to t = {heard.now} s")


def _check(state: State, written: Decided, policy: Policy, placer: Placer, mechanism: Mechanism) -> None:
    snapshot = state.freeze()
    judgement = judge(snapshot, policy, placer, mechanism)
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
        raise ReplayDifference(f"{when}, differs in its {what}")
    state.assume(written.commands)
    state.settle(judgement.decision.carry)
