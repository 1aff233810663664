"""An app on a live cluster: its scheduler hears of trials over HTTP, and its orders become jobs and cancellations.

Losses are read off what jobs print: the last ``loss NUMBER`` of rank 0 counts. Progress is what jobs report. Nothing is
kept here that the cluster does not know, but for the search itself: it ends with this process.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.search.api import Search, Searcher, Train
from shoal.wire.client import Client
from shoal.wire.messages import JobDetail, JobRow, LogPart, Submission, Submitted

_LOSS = re.compile(r"\bloss[\s:=]+([-+]?\d+\.?\d*(?:[eE][-+]?\d+)?)")
_TAIL = 2**16
"""Bytes of a log in which the last loss is looked for."""


@dataclass(frozen=True, slots=True)
class Leg:
    """A job to be made: train this trial from one part of its training to another, on so many times its first gang.

    ``number`` counts the trial's legs from 1; from the second on it finds a checkpoint of the leg before.
    """

    trial: int
    number: int
    since: float
    until: float
    wider: int


@dataclass(slots=True)
class Driver:
    """One search on one cluster. ``job`` writes down what to run for a leg; its ``app`` should be the same for all."""

    client: Client
    search: Search
    job: Callable[[Leg], Submission]
    running: dict[int, str] = field(default_factory=dict)
    """Jobs by the trials they train."""

    @classmethod
    def of(cls, client: Client, searcher: Searcher, trials: int, job: Callable[[Leg], Submission]) -> "Driver":
        """A search that has not begun."""
        return cls(client, Search.of(searcher, trials), job)

    def run(self, poll_seconds: float = 1.0) -> None:
        """Search until no trial is trained any more."""
        self.follow()
        while not self.search.over:
            time.sleep(poll_seconds)
            self.look()
            self.follow()

    def look(self) -> None:
        """Hear how the trials fare."""
        live = {row.id: row for row in self.client.get("/v1/jobs", list[JobRow])} if self.running else {}
        for trial, job in list(self.running.items()):
            row = live.get(job) or self.client.get(f"/v1/jobs/{job}", JobDetail).job
            if row.ended is None:
                self._on_the_way(trial, row)
                continue
            del self.running[trial]
            loss = self._loss(job) if row.state == "completed" else None
            if loss is None:
                self.search.lose(trial)
            else:
                self.search.hear(trial, self.search.trials[trial].until, loss)

    def follow(self) -> None:
        """Do what the scheduler wants now."""
        for order in self.search.ask():
            if isinstance(order, Train):
                known = self.search.trials[order.trial]
                leg = Leg(order.trial, known.legs, known.since, known.until, order.wider)
                self.running[order.trial] = self.client.post("/v1/jobs", self.job(leg), Submitted).jobs[0]
            else:
                self.client.call("DELETE", f"/v1/jobs/{self.running.pop(order.trial)}", None, type(None))

    def _on_the_way(self, trial: int, row: JobRow) -> None:
        """Hear of a running trial that has passed a mark since it was last heard of."""
        known = self.search.trials[trial]
        if row.work is None:
            return
        at = known.since + (known.until - known.since) * row.done / row.work
        before = known.heard[-1][0] if known.heard else known.since
        passed = [mark for mark in self.search.searcher.marks if before < mark <= at and mark < known.until]
        loss = self._loss(row.id) if passed else None
        if loss is not None:
            self.search.hear(trial, passed[-1], loss)

    def _loss(self, job: str) -> float | None:
        """The last loss a job printed; None where it printed none."""
        size = self.client.get(f"/v1/jobs/{job}/log?most=1", LogPart).size
        part = self.client.get(f"/v1/jobs/{job}/log?offset={max(size - _TAIL, 0)}&most={_TAIL}", LogPart)
        found = _LOSS.findall(part.text)
        return float(found[-1]) if found else None
