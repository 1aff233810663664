"""The one control loop, for virtual and for real time.

backend ──events──▶ journal ──fold──▶ state ──freeze──▶ snapshot ──▶ policy ──▶ placement ──▶ mechanism ──▶ backend
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from shoal.core.arrays import UInt8s
from shoal.core.commands import Command, Decided
from shoal.core.decision import Decision, Grant, Refusal, Verdict, Verdicts, in_words
from shoal.core.errors import PolicyError
from shoal.core.interfaces import Backend, Journal, MovePlanner, Placer, Policy
from shoal.core.snapshot import Snapshot
from shoal.core.units import JobId, Seconds
from shoal.engine.state import State


@dataclass(frozen=True, slots=True)
class Judgement:
    """The pure middle of a cycle: what was decided, what placement made of it, what is to be done."""

    decision: Decision
    verdicts: Verdicts
    commands: tuple[Command, ...]

    def record(self) -> Decided:
        """What the journal keeps of it."""
        return Decided(self.verdicts.digest(), self.decision.review_at, self.commands)


def judge(snapshot: Snapshot, policy: Policy, placer: Placer, move_planner: MovePlanner) -> Judgement:
    """Steps 4 to 6: decide, seat, plan. A pure function; replay calls it again and must get the same."""
    decision = policy.decide(snapshot)
    if not decision.review_at > snapshot.now:
        raise PolicyError(f"a review at t = {decision.review_at} is not after t = {snapshot.now}, when it was decided")
    asked = Verdicts.of(snapshot, decision.verdicts)
    seating = placer.place(snapshot, asked)
    verdicts = asked.overruled(seating.overruled)
    return Judgement(decision, verdicts, move_planner.plan(snapshot, verdicts, seating))


def judge_or_keep(snapshot: Snapshot, policy: Policy, placer: Placer, move_planner: MovePlanner) -> Judgement:
    """The same, for a cluster that must go on: where a policy fails, everyone stays as they are and is told why."""
    try:
        return judge(snapshot, policy, placer, move_planner)
    except Exception as error:
        return judge(
            snapshot, _StandStill(f"the policy failed ({type(error).__name__}: {error})"), placer, move_planner
        )


@dataclass(frozen=True, slots=True)
class _StandStill:
    """Nobody is moved, for a minute."""

    why: str

    def decide(self, snapshot: Snapshot) -> Decision:
        """Everyone as they are."""
        keeps, waits = in_words(f"keeps its GPUs: {self.why}"), in_words(f"waits: {self.why}")
        verdicts: dict[JobId, Verdict] = {}
        for job, view in snapshot.jobs.items():
            partner = snapshot.position_of(int(snapshot.columns.partner[view.position]))
            shared = snapshot.ids[partner] if partner >= 0 else None
            seats = view.placement
            verdicts[job] = (
                Refusal(waits)
                if seats is None
                else Grant(view.held, kind=view.kind, shared_with=shared, placement=seats, reason=keeps)
            )
        return Decision(verdicts, snapshot.now + 60.0, snapshot.carry)


@dataclass(slots=True)
class Loop:
    """The eight steps, and what they are made of."""

    backend: Backend
    state: State
    policy: Policy
    placer: Placer
    move_planner: MovePlanner
    journal: Journal
    watch: Callable[[Snapshot, Judgement], None] | None = None
    review_at: Seconds = float("inf")
    judge: Callable[[Snapshot, Policy, Placer, MovePlanner], Judgement] = judge
    told: UInt8s = field(default_factory=lambda: np.empty(0, dtype=np.uint8))
    """Codes of the last verdicts."""

    def cycle(self) -> bool:
        """One turn of the ring; false when the backend's world has come to rest."""
        heard = self.backend.wait(self.review_at)  # 1. hear events
        if heard.over:
            return False
        self.journal.record_events(heard)  # 2. record and fold them
        self.state.apply_events(heard.now, heard.events)
        if not heard.calls_for_decision(self.review_at, self.told):
            return True
        decided, carry = self._decide()  # 3. freeze a snapshot  4. decide  5. seat  6. plan the moves
        self.journal.record_decision(decided)  # 7. record
        self.state.apply_commands(decided.commands)  # 8. assume, then send
        self.state.end_cycle(carry)
        self.backend.send(decided.commands)
        self.review_at = decided.review_at
        return True

    def _decide(self) -> tuple[Decided, object | None]:
        """Steps 3 to 6. The snapshot ends with this call unless somebody keeps it, which spares copying it whole."""
        snapshot = self.state.freeze()
        judgement = self.judge(snapshot, self.policy, self.placer, self.move_planner)
        if self.watch is not None:
            self.watch(snapshot, judgement)
        self.told = judgement.verdicts.codes
        return judgement.record(), judgement.decision.carry

    def run(self) -> None:
        """Turn until the backend's world has come to rest."""
        while self.cycle():
            pass
