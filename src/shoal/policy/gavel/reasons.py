"""The reasons of Gavel's policies and the verdicts of a round."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.decision import NumberColumn, Verdicts
from shoal.core.reasons import LEASED, ReasonTemplate
from shoal.core.snapshot import Snapshot
from shoal.policy.base import explained
from shoal.policy.gavel.carry import RoundPlan
from shoal.policy.shared_reasons import ROUND_NEW

ROUND_TURN = ReasonTemplate(
    9,
    "ROUND_TURN",
    "runs this round on {kind}: its share is {share of time on the kind in percent:,.0f}% there and "
    "{share on all kinds in percent:,.0f}% in all, it has had {time received in percent:,.0f}%{note}",
)
ROUND_FILLS = ReasonTemplate(
    10,
    "ROUND_FILLS",
    "runs this round on {kind}, left over by others: its share is {share of time on all kinds in percent:,.0f}%, it"
    " has had {time received in percent:,.0f}%{note}",
)
ROUND_WAITS = ReasonTemplate(
    30,
    "ROUND_WAITS",
    "waits: its share is {share of time on all kinds in percent:,.0f}%, mostly on {kind of its largest share}; it "
    "has had {time received in percent:,.0f}% and is owed {rounds owed:,.1f} rounds{note}",
)

REASONS = (ROUND_TURN, ROUND_FILLS, ROUND_WAITS, ROUND_NEW)
_TURN, _FILLS, _WAITS = ROUND_TURN, ROUND_FILLS, ROUND_WAITS
_NEW, _LEASED = ROUND_NEW, LEASED


def round_verdicts(snapshot: Snapshot, plan: RoundPlan) -> Verdicts:
    """The verdicts of a round; time received and owed counts from when the shares were computed."""
    runs = plan.kind >= 0
    codes = np.where(runs, np.where(plan.cell >= 0, _TURN.code, _FILLS.code), _WAITS.code)
    codes[(plan.positions < 0) & ~runs] = _NEW.code
    codes[plan.kept] = _LEASED.code
    gpus = np.where(runs, snapshot.columns.gpus, 0).astype(np.int32)
    numbers = _RoundNumbers(plan, snapshot.now, np.array([*snapshot.cluster.kinds, ""]))
    verdicts, near = explained(snapshot, gpus, codes, numbers, plan.kind), plan.on_one_node
    if (plan.partner < 0).all() and not near.any():
        return verdicts
    infeasible = {i: verdicts.at(i) for i in np.flatnonzero(~snapshot.possible).tolist()}
    detailed = Verdicts(
        snapshot,
        gpus=gpus,
        codes=codes,
        numbers=numbers,
        kinds=plan.kind,
        partners=plan.partner,
        consolidated=near if near.any() else None,
    )
    return detailed.overruled(infeasible)


@dataclass(frozen=True, eq=False)
class _RoundNumbers(Mapping[ReasonTemplate, tuple[NumberColumn, ...]]):
    """The numbers of the reasons, computed when first read; in most rounds none is read."""

    plan: RoundPlan
    now: float
    kinds: np.ndarray[tuple[int], np.dtype[np.str_]]

    def __getitem__(self, template: ReasonTemplate) -> tuple[NumberColumn, ...]:
        carry = self.plan.carry
        if template is _TURN:
            return self._kind_and_locality, self._cell_share, self._share, self._received, self._note
        if template is _FILLS:
            return self.kinds[self.plan.kind], self._share, self._received, self._note
        if template is _WAITS:
            return self._share, self._best_kind, self._received, self._by_job(self.plan.debt), self._note
        if template is _NEW or template is _LEASED:
            return (carry.end,)
        raise KeyError(template)

    def __iter__(self) -> Iterator[ReasonTemplate]:
        return iter((_TURN, _FILLS, _WAITS, _NEW, _LEASED))

    def __len__(self) -> int:
        return 5

    def _by_job(self, by_cell: Floats) -> Floats:
        carry = self.plan.carry
        total: Floats = np.append(carry.cells.totals(by_cell, len(carry.rows)), 0.0)[self.plan.positions]
        return total

    @cached_property
    def _share(self) -> Floats:
        return 100.0 * self._by_job(self.plan.carry.cells.share)

    @cached_property
    def _received(self) -> Floats:
        return 100.0 * self._by_job(self.plan.carry.received) / max(self.now - self.plan.carry.start, 1e-9)

    @cached_property
    def _kind_and_locality(self) -> NumberColumn:
        near = self.plan.on_one_node
        where = self.kinds[self.plan.kind]
        return np.char.add(where, np.where(near, ", one node", "")) if near.any() else where

    @cached_property
    def _cell_share(self) -> Floats:
        share = np.append(self.plan.carry.cells.share, 0.0)  # index −1: no cell
        there: Floats = 100.0 * share[self.plan.cell]
        return there

    @cached_property
    def _best_kind(self) -> NumberColumn:
        """The kind on which a job has its largest share; none for a job without any."""
        cells = self.plan.carry.cells
        best = np.full(len(self.plan.carry.rows) + 1, -1)
        rising = np.argsort(cells.share, kind="stable")
        for side in (cells.first[rising], cells.second[rising]):
            alone = side >= 0
            best[side[alone]] = cells.kind[rising][alone]  # the last write, the largest share, stays
        named: NumberColumn = np.where(best < 0, "no kind", self.kinds[best])[self.plan.positions]
        return named

    @cached_property
    def _note(self) -> NumberColumn:
        carry = self.plan.carry
        if not carry.notes:
            return carry.trouble
        notes = np.array([*carry.notes, ""])[self.plan.positions]
        return np.char.add(notes, carry.trouble) if carry.trouble else notes
