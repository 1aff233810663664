"""The control loop, the same for simulated and for real time::

backend ──events──▶ journal ──fold──▶ state ──freeze──▶ snapshot ──▶ policy ──▶ placer ──▶ move planner ──▶ backend
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from shoal.core.arrays import UInt8s
from shoal.core.commands import Command, Decided
from shoal.core.decision import Decision, Grant, Refusal, Verdict, Verdicts
from shoal.core.events import Event, EventBatch
from shoal.core.interfaces import Backend, Journal, MovePlanner, Placer, Policy
from shoal.core.reasons import in_words
from shoal.core.snapshot import JobView, Snapshot
from shoal.core.units import Seconds
from shoal.core.value import Value
from shoal.engine.priorities import ByPriority
from shoal.engine.quotas import ask_within_quotas
from shoal.engine.state import State
from shoal.engine.suspension import bound_to_nodes, checked_seating
from shoal.engine.unsaved_work import ask

_KEPT_SECONDS: Seconds = 60.0
"""Seconds from a decision in which the policy failed to the next."""


class Judgement(Value, frozen=True, gc=True):
    """The result of steps 4 to 6: the policy's decision, the verdicts after placement, and the commands."""

    decision: Decision
    verdicts: Verdicts
    commands: tuple[Command, ...]

    def record(self) -> Decided:
        """Return the record of this judgement for the journal."""
        return Decided(self.verdicts.digest(), self.decision.review_at, self.commands)


def judge(snapshot: Snapshot, policy: Policy, placer: Placer, move_planner: MovePlanner) -> Judgement:
    """Decide, place and plan the moves. A pure function: replay calls it again and must get an equal result.

    An answer of the policy that breaks its contract raises ``PolicyError``. A policy that overran its time at this
    decision is not asked again.
    """
    if snapshot.overran is not None:
        policy = _KeepPlacements(snapshot.overran)
    elif snapshot.priorities:
        policy = ByPriority(policy)
    decision, asked = ask_within_quotas(policy, snapshot) if snapshot.quotas else ask(policy, snapshot)
    if snapshot.suspensions.runs:
        asked = bound_to_nodes(snapshot, asked)
    seating = placer.place(snapshot, asked)
    if snapshot.suspensions.runs:
        seating = checked_seating(snapshot, seating)
    verdicts = asked.overruled(seating.overruled)
    return Judgement(decision, verdicts, move_planner.plan(snapshot, verdicts, seating))


def judge_or_keep(snapshot: Snapshot, policy: Policy, placer: Placer, move_planner: MovePlanner) -> Judgement:
    """Judge; if the policy fails, keep every job where it is and give the failure as the reason.

    For a live cluster, which must not stop because of a faulty policy.
    """
    try:
        return judge(snapshot, policy, placer, move_planner)
    except Exception as error:
        return keep(snapshot, error, placer, move_planner)


def keep(snapshot: Snapshot, error: Exception, placer: Placer, move_planner: MovePlanner) -> Judgement:
    """Return the judgement that keeps every job where it is, with the policy's error as the reason."""
    cause = error.__cause__ or error
    stay = _KeepPlacements(f"the policy failed ({type(cause).__name__}: {cause})")
    return judge(snapshot, stay, placer, move_planner)


@dataclass(frozen=True, slots=True)
class _KeepPlacements:
    """A policy that changes nothing; ``why`` is part of every job's reason."""

    why: str

    def decide(self, snapshot: Snapshot) -> Decision:
        verdicts = {job: self._verdict(snapshot, view) for job, view in snapshot.jobs.items()}
        return Decision(verdicts, snapshot.now + _KEPT_SECONDS, snapshot.carry)

    def _verdict(self, snapshot: Snapshot, view: JobView) -> Verdict:
        seats = view.placement
        if seats is None:
            return Refusal(in_words(f"waits: {self.why}"))
        partner = snapshot.position_of(int(snapshot.columns.partner[view.position]))
        shared = snapshot.ids[partner] if partner >= 0 else None
        reason = in_words(f"keeps its GPUs: {self.why}")
        return Grant(view.held, kind=view.kind, shared_with=shared, placement=seats, reason=reason)


@dataclass(slots=True)
class Loop:
    """Runs cycles of eight steps: see ``cycle``.

    ``judge`` may return events instead of a judgement: they are recorded and folded, and it is called again on the
    changed snapshot. ``watch`` is called with every snapshot and judgement. The next decision is due at ``review_at``,
    or earlier if an urgent event arrives. ``verdict_codes`` are the reason codes of the last decision, by position
    in its snapshot.
    """

    backend: Backend
    state: State
    policy: Policy
    placer: Placer
    move_planner: MovePlanner
    journal: Journal
    watch: Callable[[Snapshot, Judgement], None] | None = None
    review_at: Seconds = float("inf")
    judge: Callable[[Snapshot, Policy, Placer, MovePlanner], "Judgement | tuple[Event, ...]"] = judge
    verdict_codes: UInt8s = field(default_factory=lambda: np.empty(0, dtype=np.uint8))

    def cycle(self) -> bool:
        """Run one cycle; return false if the backend reports that nothing more can happen."""
        batch = self.backend.wait(self.review_at)  # 1. wait for events
        if batch.over:
            return False
        self.journal.record_events(batch)  # 2. record and fold them
        self.state.apply_events(batch.now, batch.events)
        if not batch.calls_for_decision(self.review_at, self.verdict_codes):
            return True
        decided, carry = self._decide()  # 3. freeze a snapshot  4. decide  5. place  6. plan the moves
        self.journal.record_decision(decided)  # 7. record
        self.state.apply_commands(decided.commands)  # 8. fold the commands, then send them
        self.state.end_cycle(carry)
        self.backend.send(decided.commands)
        self.review_at = decided.review_at
        return True

    def _decide(self) -> tuple[Decided, object | None]:
        """Run steps 3 to 6. The snapshot is dropped on return, so that the state need not copy its columns."""
        while True:
            snapshot = self.state.freeze()
            judgement = self.judge(snapshot, self.policy, self.placer, self.move_planner)
            if isinstance(judgement, Judgement):
                break
            self.journal.record_events(EventBatch(snapshot.now, judgement))
            self.state.apply_events(snapshot.now, judgement)
        if self.watch is not None:
            self.watch(snapshot, judgement)
        self.verdict_codes = judgement.verdicts.codes
        return judgement.record(), judgement.decision.carry

    def run(self) -> None:
        """Run cycles until the backend reports that nothing more can happen."""
        while self.cycle():
            pass
