"""What Gavel tells each job: its share, what it has had of it, and whose turn it is."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.decision import NumberColumn, Verdicts
from shoal.core.reasons import LEASED, ReasonTemplate
from shoal.core.snapshot import Snapshot
from shoal.policy.base import explained
from shoal.policy.gavel.carry import Turn
from shoal.policy.shared_reasons import ROUND_NEW

ROUND_TURN = ReasonTemplate(
    9,
    "ROUND_TURN",
    "runs this round on {0}: its share is {1:,.0f}% there and {2:,.0f}% in all, it has had {3:,.0f}%{4}",
    (
        "kind",
        "share of time on the kind in percent",
        "share on all kinds in percent",
        "time received in percent",
        "note",
    ),
)
ROUND_FILLS = ReasonTemplate(
    10,
    "ROUND_FILLS",
    "runs this round on {0}, left over by others: its share is {1:,.0f}%, it has had {2:,.0f}%{3}",
    ("kind", "share of time on all kinds in percent", "time received in percent", "note"),
)
ROUND_WAITS = ReasonTemplate(
    30,
    "ROUND_WAITS",
    "waits: its share is {0:,.0f}%, mostly on {1}; it has had {2:,.0f}% and is owed {3:,.1f} rounds{4}",
    (
        "share of time on all kinds in percent",
        "kind of its largest share",
        "time received in percent",
        "rounds owed",
        "note",
    ),
)

REASONS = (ROUND_TURN, ROUND_FILLS, ROUND_WAITS, ROUND_NEW)
_TURN, _FILLS, _WAITS = ROUND_TURN, ROUND_FILLS, ROUND_WAITS
_NEW, _LEASED = ROUND_NEW, LEASED


def told(snapshot: Snapshot, turn: Turn) -> Verdicts:
    """The verdicts of a round. What a job has had and is owed counts from when its shares were computed."""
    runs = turn.kind >= 0
    codes = np.where(runs, np.where(turn.cell >= 0, _TURN.code, _FILLS.code), _WAITS.code)
    codes[(turn.places < 0) & ~runs] = _NEW.code
    codes[turn.kept] = _LEASED.code
    gpus = np.where(runs, snapshot.columns.gpus, 0).astype(np.int32)
    numbers = _RoundNumbers(turn, snapshot.now, np.array([*snapshot.cluster.kinds, ""]))
    verdicts, near = explained(snapshot, gpus, codes, numbers, turn.kind), turn.near
    if (turn.partner < 0).all() and not near.any():
        return verdicts
    hopeless = {i: verdicts.at(i) for i in np.flatnonzero(~snapshot.possible).tolist()}
    detailed = Verdicts(
        snapshot,
        gpus=gpus,
        codes=codes,
        numbers=numbers,
        kinds=turn.kind,
        partners=turn.partner,
        consolidated=near if near.any() else None,
    )
    return detailed.overruled(hopeless)


@dataclass(frozen=True, eq=False)
class _RoundNumbers(Mapping[ReasonTemplate, tuple[NumberColumn, ...]]):
    """The numbers of the sentences, worked out when somebody asks: most rounds nobody does."""

    turn: Turn
    now: float
    kinds: np.ndarray[tuple[int], np.dtype[np.str_]]

    def __getitem__(self, template: ReasonTemplate) -> tuple[NumberColumn, ...]:
        memory = self.turn.memory
        if template is _TURN:
            return self._where, self._there, self._total, self._had, self._note
        if template is _FILLS:
            return self.kinds[self.turn.kind], self._total, self._had, self._note
        if template is _WAITS:
            return self._total, self._best, self._had, self._by_job(self.turn.debt), self._note
        if template is _NEW or template is _LEASED:
            return (memory.end,)
        raise KeyError(template)

    def __iter__(self) -> Iterator[ReasonTemplate]:
        return iter((_TURN, _FILLS, _WAITS, _NEW, _LEASED))

    def __len__(self) -> int:
        return 5

    def _by_job(self, by_cell: Floats) -> Floats:
        memory = self.turn.memory
        total: Floats = np.append(memory.cells.totals(by_cell, len(memory.rows)), 0.0)[self.turn.places]
        return total

    @cached_property
    def _total(self) -> Floats:
        return 100.0 * self._by_job(self.turn.memory.cells.share)

    @cached_property
    def _had(self) -> Floats:
        return 100.0 * self._by_job(self.turn.memory.received) / max(self.now - self.turn.memory.start, 1e-9)

    @cached_property
    def _where(self) -> NumberColumn:
        near = self.turn.near
        where = self.kinds[self.turn.kind]
        return np.char.add(where, np.where(near, ", one node", "")) if near.any() else where

    @cached_property
    def _there(self) -> Floats:
        share = np.append(self.turn.memory.cells.share, 0.0)  # no cell is the last one
        there: Floats = 100.0 * share[self.turn.cell]
        return there

    @cached_property
    def _best(self) -> NumberColumn:
        """The kind on which a job has its largest share; none for a job without any."""
        cells = self.turn.memory.cells
        best = np.full(len(self.turn.memory.rows) + 1, -1)
        rising = np.argsort(cells.share, kind="stable")
        for side in (cells.first[rising], cells.second[rising]):
            alone = side >= 0
            best[side[alone]] = cells.kind[rising][alone]  # of several writes the last stays: the largest share
        named: NumberColumn = np.where(best < 0, "no kind", self.kinds[best])[self.turn.places]
        return named

    @cached_property
    def _note(self) -> NumberColumn:
        memory = self.turn.memory
        if not memory.notes:
            return memory.trouble
        notes = np.array([*memory.notes, ""])[self.turn.places]
        return np.char.add(notes, memory.trouble) if memory.trouble else notes
