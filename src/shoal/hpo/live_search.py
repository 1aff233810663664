"""An app on a live cluster: its scheduler hears of trials over HTTP, and its orders become jobs and cancellations.

Losses are read off what jobs print: the last ``loss NUMBER`` of rank 0 counts, and ``nan`` is as bad as can be.
Progress is what jobs report. Nothing is kept here that the cluster does not know, but for the search itself: it ends
with this process. A step that failed because nobody answered can be taken again: no job is submitted twice.

Where GPUs are auctioned the app speaks for itself: what it says GPUs are worth to it rests on what its scheduler means
to run next, and on what the legs that ended have really taken.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf, isnan
from uuid import uuid4

from msgspec.structs import replace

from shoal.core.errors import InputError
from shoal.hpo.bidding import PhasePlan, gpu_seconds_left, valued
from shoal.hpo.search import AppSearch, Order, Searcher, SearchPhase, Train
from shoal.wire.client import Client
from shoal.wire.messages import Ahead, AppOffer, JobDetail, JobRow, LogPart, Submission, SubmissionBatch, Submitted

_NUMBER = r"[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|inf(?:inity)?\b|nan\b)"
_LOSS = re.compile(rf"\bloss[\s:=]+({_NUMBER})", re.IGNORECASE)
_TAIL = 2**16
"""Bytes of a log in which the last loss is looked for."""

_LOG_TRIES = 30
"""How often the log of a trial that ended is asked for before it is given up: its node may be away for a moment."""


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


def _nobody(trial: int, what: str) -> None:
    """Nobody wants to hear how trials fare."""


@dataclass(slots=True)
class Driver:
    """One search on one cluster. ``job`` writes down what to run for a leg; its ``app`` should be the same for all.

    It is also asked for legs that are only thought of, to tell the cluster what the app will want next.
    ``told`` hears, in words, what becomes of each trial.
    """

    client: Client
    search: AppSearch
    job: Callable[[Leg], Submission]
    told: Callable[[int, str], None] = _nobody
    running: dict[int, str] = field(default_factory=dict)
    """Jobs by the trials they train."""
    app: str | None = None
    """The app of its jobs, once there are any."""
    spent_gpu_seconds: float = 0.0
    trained: float = 0.0
    """What the legs that ended have taken, and the parts of a training that they were."""
    _spoken: tuple[frozenset[str], tuple[SearchPhase, ...]] | None = None
    _key: str = field(default_factory=lambda: uuid4().hex)
    _due: list[Order] = field(default_factory=list)
    _unread: dict[int, int] = field(default_factory=dict)
    _parted: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, client: Client, searcher: Searcher, trials: int, job: Callable[[Leg], Submission]) -> "Driver":
        """A search that has not begun."""
        return cls(client, AppSearch.of(searcher, trials), job)

    @property
    def over(self) -> bool:
        """Whether no trial is trained any more, and none is about to be."""
        return self.search.over and not self._due

    def run(self, poll_seconds: float = 1.0) -> None:
        """Search until no trial is trained any more."""
        self.step()
        while not self.over:
            time.sleep(poll_seconds)
            self.step()

    def step(self) -> None:
        """Hear how the trials fare and do what the scheduler wants then."""
        self.look()
        self.follow()
        self.bid()

    def look(self) -> None:
        """Hear how the trials fare."""
        live = {row.id: row for row in self.client.get("/v1/jobs", list[JobRow])} if self.running else {}
        for trial, job in list(self.running.items()):
            if job in live:
                self._on_the_way(trial, live[job])
                continue
            found = self.client.get(f"/v1/jobs/{job}", JobDetail)
            if found.job.ended is not None:
                self._ended(trial, found)

    def follow(self) -> None:
        """Do what the scheduler wants now: submit all its legs at once, then cancel whom it gives up."""
        self._due += self.search.ask()
        legs = [self._leg(order) for order in self._due if isinstance(order, Train)]
        if legs:
            self._submit(legs)
            self._due = [order for order in self._due if not isinstance(order, Train)]
        while self._due:
            trial = self._due[0].trial
            if trial in self.running:  # unless it ended while nobody answered
                self.client.call("DELETE", f"/v1/jobs/{self.running[trial]}", None, type(None))
                self._part(trial, f"given up: {self._last(trial)}")
                del self.running[trial]
            del self._due[0]
        for trial in self.search.passed_over():
            if trial not in self._parted:
                self._part(trial, f"given up: others do better than {self._last(trial)}")

    def bid(self) -> None:
        """Say what GPUs are worth to the app, if its jobs or its plans are others than when it last spoke."""
        now = frozenset(self.running.values()), self._ahead()
        if self.app is None or not self.running or now == self._spoken:
            return
        try:
            offer = self.client.get(f"/v1/apps/{self.app}/offer", AppOffer)
            valuation = valued(offer, self._plans(offer)) if offer.auctioned else None
            if valuation is not None:
                self.client.post(f"/v1/apps/{self.app}/bid", valuation, type(None))
        except InputError:  # a job ended, or came, in between: the next step sees it
            return
        self._spoken = now

    def _plans(self, offer: AppOffer) -> list[PhasePlan]:
        """The phases to come, in GPUs and GPU-seconds."""
        pace = self._pace(offer)
        trial = next(iter(self.running))
        plans = []
        for phase in self._ahead() if pace else ():
            gpus = self._thought_of(phase, trial).gpus
            plans.append(PhasePlan(phase.trials, gpus, pace * phase.part))
        return plans

    def _told_ahead(self, trial: int) -> list[Ahead] | None:
        """The phases after the legs that run now; None where the jobs do not say how much work they are."""
        thought = [(phase.trials, self._thought_of(phase, trial)) for phase in self._ahead()]
        ahead = [Ahead(count, job.gpus, job.work) for count, job in thought if job.work is not None and job.app]
        return ahead or None

    def _thought_of(self, phase: SearchPhase, trial: int) -> Submission:
        """A job as there will be in a phase to come."""
        return self.job(Leg(trial, 1, 0.0, phase.part, phase.wider))

    def _pace(self, offer: AppOffer) -> float:
        """GPU-seconds of a whole training: as ended legs took, else as those that run are expected to; 0: unknown."""
        if self.trained:
            return self.spent_gpu_seconds / self.trained
        left, parts = gpu_seconds_left(offer), {job.id: job.part for job in offer.jobs}
        known = [(job, self.search.trials[trial]) for trial, job in self.running.items() if job in left]
        trained = sum(parts[job] * (trial.until - trial.since) for job, trial in known)
        return sum(left[job] for job, _ in known) / trained if trained else 0.0

    def _ahead(self) -> tuple[SearchPhase, ...]:
        return self.search.searcher.ahead(tuple(self.search.trials))

    def _leg(self, order: Train) -> Leg:
        known = self.search.trials[order.trial]
        return Leg(order.trial, known.legs, known.since, known.until, order.wider)

    def _submit(self, legs: list[Leg]) -> None:
        """All or none of them."""
        ahead = self._told_ahead(legs[0].trial)
        jobs = [replace(self.job(leg), key=f"{self._key}.{leg.trial}.{leg.number}", ahead=ahead) for leg in legs]
        ids = self.client.post("/v1/jobs/batch", SubmissionBatch(jobs), Submitted).jobs
        self.app = jobs[0].app
        for leg, job, id in zip(legs, jobs, ids, strict=True):
            self.running[leg.trial] = id
            verb = "begins, up to" if leg.number == 1 else "goes on to"
            gpus = f"{job.gpus} GPU{'s' * (job.gpus > 1)}"
            self.told(leg.trial, f"{verb} {leg.until:.0%} of its training, on {gpus}, as {id}")

    def _ended(self, trial: int, found: JobDetail) -> None:
        """Hear of a trial whose job has ended."""
        row = found.job
        if row.state != "completed":
            self._lose(trial, f"{row.id} {row.state}: {row.reason or 'nothing is known of it'}")
            return
        try:
            loss = self._loss(row.id)
        except InputError as error:
            self._unread[trial] = self._unread.get(trial, 0) + 1
            if self._unread[trial] >= _LOG_TRIES:
                self._lose(trial, f"the log of {row.id} cannot be read: {error.hint}")
            return
        if loss is None:
            self._lose(trial, f"{row.id} ended without printing `loss NUMBER`")
        else:
            del self.running[trial]
            self._unread.pop(trial, None)
            known = self.search.trials[trial]
            self.spent_gpu_seconds += found.gpu_seconds
            self.trained += known.until - known.since
            self._hear(trial, known.until, loss)

    def _lose(self, trial: int, why: str) -> None:
        del self.running[trial]
        self.search.lose(trial)
        self._part(trial, f"lost: {why}")

    def _on_the_way(self, trial: int, row: JobRow) -> None:
        """Hear of a running trial that has passed a mark since it was last heard of."""
        known = self.search.trials[trial]
        if row.work is None:
            return
        at = known.since + (known.until - known.since) * row.done / row.work
        before = known.heard[-1][0] if known.heard else known.since
        passed = [mark for mark in self.search.searcher.marks if before < mark <= at and mark < known.until]
        try:
            loss = self._loss(row.id) if passed else None
        except InputError:  # its node does not answer just now, or it has moved; it is looked at again
            return
        if loss is not None:
            self._hear(trial, passed[-1], loss)

    def _hear(self, trial: int, at: float, loss: float) -> None:
        self.search.hear(trial, at, loss)
        self.told(trial, self._last(trial))

    def _last(self, trial: int) -> str:
        """The last that was heard of a trial, in words."""
        known = self.search.trials[trial]
        return f"loss {known.loss:.6g} after {known.heard[-1][0]:.0%} of its training" if known.heard else "no loss yet"

    def _part(self, trial: int, why: str) -> None:
        self._parted.add(trial)
        self.told(trial, why)

    def _loss(self, job: str) -> float | None:
        """The last loss a job printed; None where it printed none."""
        size = self.client.get(f"/v1/jobs/{job}/log?most=1", LogPart).size
        part = self.client.get(f"/v1/jobs/{job}/log?offset={max(size - _TAIL, 0)}&most={_TAIL}", LogPart)
        return last_loss(part.text)


def last_loss(text: str) -> float | None:
    """The last loss that a text names, infinity for one that is no number; None where it names none."""
    found = _LOSS.findall(text)
    loss = float(found[-1]) if found else None
    return inf if loss is not None and isnan(loss) else loss
