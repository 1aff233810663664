"""The present state of a cluster, folded from its journal. The journal is only read, also while it is being written."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from shoal.core.commands import Decided
from shoal.core.errors import JournalError
from shoal.core.events import EventBatch, NodeJoined, NodeReturned
from shoal.core.job import JobSpec
from shoal.core.reasons import STOPPING
from shoal.core.topology import Node
from shoal.core.units import Seconds
from shoal.engine.replay import Scheduler, fold
from shoal.engine.state_image import image_of, renumbered, restore
from shoal.forecast.fork import Fork
from shoal.scenario.scenario import Scenario
from shoal.sim.truth import RestartCost
from shoal.store.codec import HEADER, Header, Record
from shoal.store.journal import JournalFile

Source: TypeAlias = Path | Sequence[Record]
"""A journal: the path of its file, or its records."""

_STOPPING = np.array([STOPPING.code], dtype=np.uint8)
"""A journal does not hold the last verdicts, so a job may have been waiting for a run to stop."""


@dataclass(frozen=True, slots=True)
class Present:
    """A cluster at one moment: its scheduler with the folded state, and the number of journal ``records`` read.

    ``review_at`` is when the next decision is due. Times are in seconds of the journal's own clock.
    """

    scenario: Scenario
    scheduler: Scheduler
    review_at: Seconds
    records: int

    def fork(self, arrivals: Sequence[JobSpec] = ()) -> Fork:
        """Return this moment as the beginning of simulations in which these jobs are still to arrive."""
        cost = RestartCost.parse(self.scenario.restart_cost)
        return Fork.of(self.scheduler.state, self.scenario.speeds(), cost, arrivals)


def read_present(source: Source, now: Seconds, *, added: Sequence[Node] = (), most: int | None = None) -> Present:
    """Fold a journal, or its first ``most`` records, up to ``now``; then the ``added`` nodes join, up."""
    scenario = Scenario.of_settings(_last_settings(source, most))
    review, scheduler = _NextReview(), scenario.make_scheduler()
    state = fold(review.read(islice(_records(source), most)), scheduler.state)
    for index, node in enumerate(added, len(state.topology.nodes)):
        joined = NodeJoined(state.now, index, node.name, node.kind, node.gpus, node.rack)
        state.apply_events(state.now, (joined, NodeReturned(state.now, index)))
    scenario = replace(scenario, cluster=replace(state.topology, down=frozenset()))
    if state.submitted > len(state.register.ids):  # simulations number their jobs from 0 on
        restore(state, renumbered(image_of(state)))
    if now > state.now:
        state.apply_events(now, ())
    return Present(scenario, scheduler, max(review.at, state.now), review.records)


def _records(source: Source) -> Iterator[Record]:
    if not isinstance(source, Path):
        yield from source
        return
    journal = JournalFile(source)
    yield from journal.read()
    if journal.cut is not None:
        raise JournalError(f"{source}: {journal.cut}")


def _last_settings(source: Source, most: int | None) -> Mapping[str, Any]:
    """The settings in force at the end. Of a file only raw arrays are read, which is ten times cheaper."""
    if isinstance(source, Path):
        headers = [raw[2] for raw in islice(JournalFile(source).raw(), most) if raw[0] == HEADER]
    else:
        headers = [record.settings for record in islice(source, most) if isinstance(record, Header)]
    if not headers:
        raise JournalError("a journal must begin with its header")
    settings: Mapping[str, Any] = headers[-1]
    return settings


@dataclass(slots=True)
class _NextReview:
    """The time of the next review after the ``records`` read: −∞ if a decision is due already."""

    at: Seconds = inf
    records: int = 0

    def read(self, records: Iterable[Record]) -> Iterator[Record]:
        """Yield the same records, and keep the time up to date."""
        for record in records:
            self.records += 1
            if isinstance(record, Decided):
                self.at = record.review_at
            elif not isinstance(record, EventBatch) or record.calls_for_decision(self.at, _STOPPING):
                self.at = -inf  # until the decision is read
            yield record
