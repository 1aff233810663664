"""A past decision of a live cluster, made again on the snapshot that its journal leads to."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np

from shoal.core.commands import Decided
from shoal.core.errors import InputError, JournalError
from shoal.core.events import EventBatch
from shoal.core.lifecycle import JobState
from shoal.core.snapshot import Snapshot
from shoal.core.units import JobId, TenantId
from shoal.engine.loop import Judgement
from shoal.engine.replay import Scheduler, apply_base, fold
from shoal.engine.state_image import decode_image
from shoal.live.foreign_names import without_foreign_names
from shoal.live.time_words import ClockWords
from shoal.scenario.scenario import Scenario
from shoal.store.codec import Base, Header, Record
from shoal.store.journal import JournalFile
from shoal.store.segments import segments
from shoal.wire.decision_messages import DecisionDetail, DecisionNode, VerdictRow

_REMEMBERED = 300
"""Decisions before the one asked for that are made again, so that the policy has its ``carry``; all of them if the
answer differs then."""

_GAP = "gap of the choice"


@dataclass(frozen=True, slots=True)
class MadeAgain:
    """A decision made again: its snapshot, the answer, the record of the journal, and the CPU seconds it took."""

    settings: Mapping[str, Any]
    snapshot: Snapshot
    judgement: Judgement
    written: Decided
    seconds: float

    @property
    def difference(self) -> str:
        """The difference from the journal in words; empty if there is none."""
        found = self.judgement.record()
        if found == self.written:
            return ""
        if found.commands != self.written.commands:
            return f"commands: {len(self.written.commands)} in the journal, {len(found.commands)} now"
        return "verdicts" if found.digest != self.written.digest else "time of the next review"


def past_decision(journal: Path, number: int, *, tenant: TenantId | None = None, limit: int = 1000) -> DecisionDetail:
    """Return decision ``number`` of a journal as a tenant (None: an admin) may see it; its rows at most ``limit``."""
    file = _segment_of(journal, number)
    made = _decide_again(JournalFile(file).read, number, number - _REMEMBERED)
    if made.difference:
        made = _decide_again(JournalFile(file).read, number, 0)
    return _detail(made, number, tenant, limit)


def _segment_of(journal: Path, number: int) -> Path:
    """Return the segment that has a decision."""
    for path in reversed(segments(journal)):
        head = list(islice(JournalFile(path).read(), 2))
        first = decode_image(head[1].state).cycle if len(head) > 1 and isinstance(head[1], Base) else 0
        if first <= number:
            return path
    raise InputError("decision", number, "was dropped with its segment of the journal, as `--keep` says")


def _decide_again(read: Callable[[], Iterator[Record]], number: int, first: int) -> MadeAgain:
    """Fold a segment up to a decision and make that one again; those from ``first`` on are made again for the carry."""
    scheduler: Scheduler | None = None
    settings: Mapping[str, Any] = {}
    for index, record in enumerate(read()):
        if isinstance(record, Header):
            settings = record.settings
            scheduler = Scenario.of_settings(settings).make_scheduler()
            fold(islice(read(), index), scheduler.state).decide_by(settings)
            continue
        if scheduler is None:
            raise JournalError("a journal must begin with its header")
        state = scheduler.state
        if isinstance(record, Base):
            apply_base(state, record)
        elif isinstance(record, EventBatch):
            state.apply_events(record.now, record.events)
        else:
            carry = None
            if state.cycle >= first:
                snapshot, began = state.freeze(), thread_time()
                judgement = scheduler.judge(snapshot, scheduler.policy, scheduler.placer, scheduler.move_planner)
                if state.cycle == number:
                    return MadeAgain(settings, snapshot, judgement, record, thread_time() - began)
                carry = judgement.decision.carry
                del snapshot, judgement
            state.apply_commands(record.commands)
            state.end_cycle(carry)
    raise InputError("decision", number, "has not been made yet")


def _detail(made: MadeAgain, number: int, tenant: TenantId | None, limit: int) -> DecisionDetail:
    snapshot, verdicts = made.snapshot, made.judgement.verdicts
    epoch = float(made.settings.get("epoch", 0.0))
    shown = [i for i, spec in enumerate(snapshot.specs) if tenant in (None, spec.tenant)]
    moves = {command.job: type(command).__name__.lower() for command in made.written.commands}
    rows, owners = snapshot.columns.rows, {spec.id: spec.tenant for spec in snapshot.specs}
    order = sorted(shown, key=lambda i: (int(rows[i]) not in moves, not verdicts.gpus[i]))
    granted, review_at = int(verdicts.gpus.sum()), made.written.review_at
    return DecisionDetail(
        number=number,
        at=epoch + snapshot.now,
        policy=str(made.settings["policy"]),
        same=not made.difference,
        difference=made.difference,
        review_at=epoch + review_at if isfinite(review_at) else None,
        gpus=sum(snapshot.cluster.capacity),
        granted=granted,
        all_jobs=len(shown),
        jobs=[_verdict_row(made, i, moves.get(int(rows[i]), ""), tenant, owners) for i in order[:limit]],
        nodes=_nodes(snapshot),
        foreign=len(rows) - len(shown),
        foreign_gpus=granted - int(verdicts.gpus[shown].sum()),
        gap=_gap(made.judgement),
        seconds=made.seconds,
    )


def _verdict_row(
    made: MadeAgain, i: int, move: str, tenant: TenantId | None, owners: Mapping[JobId, TenantId]
) -> VerdictRow:
    epoch = float(made.settings.get("epoch", 0.0))
    snapshot, verdicts = made.snapshot, made.judgement.verdicts
    spec, seats, reason = snapshot.specs[i], snapshot.placement(i), verdicts.reason(i)
    nodes = snapshot.cluster.nodes
    numbers = {
        name: value if isinstance(value, str) else float(value)
        for name, value in zip(reason.template.numbers, reason.numbers, strict=True)
        if isinstance(value, str) or isfinite(value)
    }
    return VerdictRow(
        job=spec.id,
        tenant=spec.tenant,
        state=JobState(int(snapshot.columns.state[i])).name.lower(),
        wanted=spec.gpus,
        held=0 if seats is None else seats.gpus,
        granted=int(verdicts.gpus[i]),
        reason=without_foreign_names(reason.sentence(ClockWords(epoch, snapshot.now)), tenant, owners.get),
        kind=None if seats is None else nodes[seats.nodes[0]].kind,
        nodes=[] if seats is None else [nodes[node].name for node in seats.nodes],
        move=move,
        numbers={name: value for name, value in numbers.items() if not (tenant and isinstance(value, str))},
    )


def _nodes(snapshot: Snapshot) -> list[DecisionNode]:
    cluster = snapshot.cluster
    withheld = {node for node, _ in cluster.withheld}
    held = np.zeros(len(cluster.nodes), dtype=np.intp)
    counted: set[int] = set()
    partners = snapshot.columns.partner
    for i, number in enumerate(snapshot.columns.rows.tolist()):
        seats = snapshot.placement(i)
        if seats is None or int(partners[i]) in counted:
            continue
        counted.add(number)
        for node, count in seats.seats:
            held[node] += count
    return [
        DecisionNode(
            name=node.name,
            kind=node.kind,
            gpus=node.gpus,
            free=max(0, node.gpus - int(held[index])) if index not in cluster.down else 0,
            up=index not in cluster.down,
            drained=index in withheld,
        )
        for index, node in enumerate(cluster.nodes)
        if index not in cluster.removed
    ]


def _gap(judgement: Judgement) -> float | None:
    """Return the gap that the policy proves: from the reasons of its verdicts, in percent there, or from its carry."""
    for template, columns in judgement.verdicts.numbers.items():
        if _GAP in template.numbers and (judgement.verdicts.codes == template.code).any():
            return float(np.max(columns[template.numbers.index(_GAP)])) / 100.0
    found = getattr(judgement.decision.carry, "gap", None)
    return float(found) if isinstance(found, float) else None
