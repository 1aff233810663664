"""A search on a live cluster: reads trials' progress over HTTP, submits and cancels jobs as its searcher orders.

A trial's loss is the last ``loss NUMBER`` that rank 0 printed; ``nan`` counts as infinite. Progress is what jobs
report. The search itself is kept in this process alone and ends with it. A step that failed because the server did not
answer can be repeated: no job is submitted twice.

Where GPUs are auctioned the app bids, from the phases its searcher plans and the GPU-seconds that ended legs took.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf, isfinite, isnan
from uuid import uuid4

from msgspec.structs import replace

from shoal.core.errors import InputError
from shoal.hpo.bidding import PhasePlan, gpu_seconds_left, valued
from shoal.hpo.search import AppSearch, Order, Searcher, SearchPhase, Train
from shoal.wire.client import Client
from shoal.wire.messages import Ahead, AppOffer, JobDetail, JobRow, LogPart, Submission, SubmissionBatch, Submitted
from shoal.wire.search_messages import SearchReport, TrialReport, TrialState

_NUMBER = r"[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|inf(?:inity)?\b|nan\b)"
_LOSS = re.compile(rf"\bloss[\s:=]+({_NUMBER})", re.IGNORECASE)
_TAIL = 2**16
"""Bytes at the end of a log that are searched for the last loss."""

_MOST_ROWS = 1000
"""Most jobs that one request lists; the state of others is read one by one."""

_MOST_SHOWN, _MOST_LOSSES = 2000, 200
"""Trials, and losses of each, that the cluster's page is sent."""

_LOG_TRIES = 30
"""Attempts to read the log of an ended trial before the trial is dropped: its node may be briefly unreachable."""


@dataclass(frozen=True, slots=True)
class Leg:
    """A job to submit: train a trial from fraction ``since`` to ``until``, on ``wider`` times its first gang.

    ``number`` counts the trial's legs from 1; from the second on there is a checkpoint of the leg before.
    """

    trial: int
    number: int
    since: float
    until: float
    wider: int


def _ignore(trial: int, what: str) -> None:
    """Report nothing."""


@dataclass(slots=True)
class Driver:
    """One search on one cluster. ``job`` returns the submission of a leg; its ``app`` should be the same for all.

    ``job`` is also called for hypothetical legs, to declare the app's future phases. ``report`` gets the number of a
    trial and a sentence at each of its changes.
    """

    client: Client
    search: AppSearch
    job: Callable[[Leg], Submission]
    report: Callable[[int, str], None] = _ignore
    running: dict[int, str] = field(default_factory=dict)
    """Job id by trial."""
    app: str | None = None
    """App of the submitted jobs; None before the first."""
    spent_gpu_seconds: float = 0.0
    trained: float = 0.0
    """GPU-seconds of the ended legs, and the trainings they add up to."""
    _bid_for: tuple[frozenset[str], tuple[SearchPhase, ...]] | None = None
    describe: Callable[[int], tuple[dict[str, str], str]] = lambda _: ({}, "")
    """Returns the parameters of a trial and where its checkpoints are, for the cluster's page."""
    scheduler: str = ""
    _jobs: dict[int, list[str]] = field(default_factory=dict)
    _why: dict[int, str] = field(default_factory=dict)
    _reported: SearchReport | None = None
    _key: str = field(default_factory=lambda: uuid4().hex)
    _due: list[Order] = field(default_factory=list)
    _unread: dict[int, int] = field(default_factory=dict)
    _reported_end: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, client: Client, searcher: Searcher, trials: int, job: Callable[[Leg], Submission]) -> "Driver":
        """A new search over ``trials`` trials."""
        return cls(client, AppSearch.of(searcher, trials), job)

    @property
    def over(self) -> bool:
        """Whether no trial is being trained or about to be."""
        return self.search.over and not self._due

    def run(self, poll_seconds: float = 1.0) -> None:
        """Search until no trial is being trained, polling every ``poll_seconds``."""
        self.step()
        while not self.over:
            time.sleep(poll_seconds)
            self.step()

    def step(self) -> None:
        """Read the trials' progress, carry out the searcher's orders and bid."""
        self.look()
        self.follow()
        self.bid()
        self.show()

    def look(self) -> None:
        """Read the trials' progress and losses."""
        asked = f"/v1/jobs?limit={_MOST_ROWS}" + ("" if self.app is None else f"&app={self.app}")
        live = {row.id: row for row in self.client.get(asked, list[JobRow])} if self.running else {}
        for trial, job in list(self.running.items()):
            if job in live:
                self._check_mark(trial, live[job])
                continue
            found = self.client.get(f"/v1/jobs/{job}", JobDetail)
            if found.job.ended is not None:
                self._ended(trial, found)
            else:
                self._check_mark(trial, found.job)

    def follow(self) -> None:
        """Carry out the searcher's orders: submit all legs at once, then cancel the killed trials."""
        self._due += self.search.next_orders()
        legs = [self._leg(order) for order in self._due if isinstance(order, Train)]
        if legs:
            self._submit(legs)
            self._due = [order for order in self._due if not isinstance(order, Train)]
        while self._due:
            trial = self._due[0].trial
            if trial in self.running:  # it may have ended while the server was unreachable
                self.client.call("DELETE", f"/v1/jobs/{self.running[trial]}", None, type(None))
                self._report_end(trial, f"given up: {self._latest(trial)}")
                del self.running[trial]
            del self._due[0]
        for trial in self.search.rejected():
            if trial not in self._reported_end:
                self._report_end(trial, f"given up: others do better than {self._latest(trial)}")

    def bid(self) -> None:
        """Send the app's valuation of GPUs, if its jobs or plans changed since the last one."""
        now = frozenset(self.running.values()), self._ahead()
        if self.app is None or not self.running or now == self._bid_for:
            return
        try:
            offer = self.client.get(f"/v1/apps/{self.app}/offer", AppOffer)
            valuation = valued(offer, self._plans(offer)) if offer.auctioned else None
            if valuation is not None:
                self.client.post(f"/v1/apps/{self.app}/bid", valuation, type(None))
        except InputError:  # a job ended or began in between: the next step sees it
            return
        self._bid_for = now

    def show(self) -> None:
        """Send the state of the search to the cluster, for its page, if it changed; a refusal is ignored."""
        if self.app is None:
            return
        report = self._state()
        if report != self._reported:
            try:
                self.client.post(f"/v1/apps/{self.app}/search", report, type(None))
            except InputError:  # an older control plane
                return
            self._reported = report

    def _state(self) -> SearchReport:
        rejected, trials = set(self.search.rejected()), list[TrialReport]()
        for number, trial in enumerate(self.search.trials):
            if not trial.legs or len(trials) == _MOST_SHOWN:
                continue
            parameters, place = self.describe(number)
            state: TrialState = "trained" if trial.until >= 1 else "waiting"
            if number in self.running:
                state = "training"
            elif number in rejected or number in self._reported_end:
                state = "lost" if self._why.get(number, "").startswith("lost") else "given_up"
            losses = [(part, loss if isfinite(loss) else None) for part, loss in trial.losses[-_MOST_LOSSES:]]
            trials.append(
                TrialReport(
                    trial=number, state=state, parameters=parameters, jobs=self._jobs.get(number, []), losses=losses,
                    why=self._why.get(number, ""), place=place,
                )
            )  # fmt: skip
        return SearchReport(scheduler=self.scheduler, over=self.over, best=self.search.best, trials=trials)

    def _plans(self, offer: AppOffer) -> list[PhasePlan]:
        """The future phases, in GPUs and GPU-seconds."""
        whole = self._training_gpu_seconds(offer)
        trial = next(iter(self.running))
        plans = []
        for phase in self._ahead() if whole else ():
            gpus = self._planned_job(phase, trial).gpus
            plans.append(PhasePlan(phase.trials, gpus, whole * phase.part))
        return plans

    def _declared_ahead(self, trial: int) -> list[Ahead] | None:
        """The phases after the running legs; None where jobs declare no work."""
        planned = [(phase.trials, self._planned_job(phase, trial)) for phase in self._ahead()]
        ahead = [Ahead(count, job.gpus, job.work) for count, job in planned if job.work is not None and job.app]
        return ahead or None

    def _planned_job(self, phase: SearchPhase, trial: int) -> Submission:
        return self.job(Leg(trial, 1, 0.0, phase.part, phase.wider))

    def _training_gpu_seconds(self, offer: AppOffer) -> float:
        """GPU-seconds of a whole training, from ended legs, else estimated from running ones; 0: unknown."""
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
        """Submit jobs for these legs, all or none."""
        ahead = self._declared_ahead(legs[0].trial)
        jobs = [replace(self.job(leg), key=f"{self._key}.{leg.trial}.{leg.number}", ahead=ahead) for leg in legs]
        ids = self.client.post("/v1/jobs/batch", SubmissionBatch(jobs), Submitted).jobs
        self.app = jobs[0].app
        for leg, job, id in zip(legs, jobs, ids, strict=True):
            self.running[leg.trial] = id
            self._jobs.setdefault(leg.trial, []).append(id)
            verb = "begins, up to" if leg.number == 1 else "goes on to"
            gpus = f"{job.gpus} GPU{'s' * (job.gpus > 1)}"
            self.report(leg.trial, f"{verb} {leg.until:.0%} of its training, on {gpus}, as {id}")

    def _ended(self, trial: int, found: JobDetail) -> None:
        row = found.job
        if row.state != "completed":
            self._drop(trial, f"{row.id} {row.state}: {row.reason or 'nothing is known of it'}")
            return
        try:
            loss = self._loss(row.id)
        except InputError as error:
            self._unread[trial] = self._unread.get(trial, 0) + 1
            if self._unread[trial] >= _LOG_TRIES:
                self._drop(trial, f"the log of {row.id} cannot be read: {error.hint}")
            return
        if loss is None:
            self._drop(trial, f"{row.id} ended without printing `loss NUMBER`")
        else:
            del self.running[trial]
            self._unread.pop(trial, None)
            known = self.search.trials[trial]
            self.spent_gpu_seconds += found.gpu_seconds
            self.trained += known.until - known.since
            self._record(trial, known.until, loss)

    def _drop(self, trial: int, why: str) -> None:
        del self.running[trial]
        self.search.drop(trial)
        self._report_end(trial, f"lost: {why}")

    def _check_mark(self, trial: int, row: JobRow) -> None:
        """Record the loss of a running trial that has passed a mark since its last loss."""
        known = self.search.trials[trial]
        if row.work is None:
            return
        at = known.since + (known.until - known.since) * row.done / row.work
        before = known.losses[-1][0] if known.losses else known.since
        passed = [mark for mark in self.search.searcher.marks if before < mark <= at and mark < known.until]
        try:
            loss = self._loss(row.id) if passed else None
        except InputError:  # its node does not answer, or it moved: the next step tries again
            return
        if loss is not None:
            self._record(trial, passed[-1], loss)

    def _record(self, trial: int, at: float, loss: float) -> None:
        self.search.record(trial, at, loss)
        self.report(trial, self._latest(trial))

    def _latest(self, trial: int) -> str:
        known = self.search.trials[trial]
        return (
            f"loss {known.loss:.6g} after {known.losses[-1][0]:.0%} of its training" if known.losses else "no loss yet"
        )

    def _report_end(self, trial: int, why: str) -> None:
        self._reported_end.add(trial)
        self._why[trial] = why[:500]
        self.report(trial, why)

    def _loss(self, job: str) -> float | None:
        size = self.client.get(f"/v1/jobs/{job}/log?most=1", LogPart).size
        part = self.client.get(f"/v1/jobs/{job}/log?offset={max(size - _TAIL, 0)}&most={_TAIL}", LogPart)
        return last_loss(part.text)


def last_loss(text: str) -> float | None:
    """The last ``loss NUMBER`` of a text, infinity for ``nan``; None for none."""
    found = _LOSS.findall(text)
    loss = float(found[-1]) if found else None
    return inf if loss is not None and isnan(loss) else loss
