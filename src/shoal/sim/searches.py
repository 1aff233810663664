"""Simulated hyper-parameter searches: apps that submit, promote and cancel the jobs of their trials.

A backend around `SimulatedBackend`. Submissions and cancellations join the batch of the events that caused them, after
these events, app by app in the order of the events. The ring and its journal see jobs that arrive and end, and nothing
of searches.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from shoal.core.commands import Command
from shoal.core.events import Event, EventBatch, JobCompleted, JobCrashed, JobMeasured, JobSubmitted
from shoal.core.job import JobSpec
from shoal.core.units import JobId, JobNumber, Seconds
from shoal.hpo.registry import parse_search
from shoal.hpo.search import AppSearch, SearchPhase, Train, Trial
from shoal.sim.adaptive_jobs import TunerOptions
from shoal.sim.backend import SimulatedBackend
from shoal.sim.faults import NO_FAULTS, Faults
from shoal.sim.truth import RestartCost, Truth
from shoal.workload.schema import LEG, Job, trials_by_app

Declare = Callable[[Job, float], JobSpec]
"""Job spec that an owner submits, from a job and the ratio of its true speed to its profile's."""


def _gang(row: Job, wider: int) -> int:
    """GPUs of a trial promoted to a gang ``wider`` times as large, as far as the trial can use them."""
    return min(row.gpus * wider, max(row.max_gpus or row.gpus, row.gpus))


def _work(row: Job, part: float, gpus: int) -> float:
    """A part of a trial's work; without a model work is in seconds of the requested gang, so a wider gang has less."""
    return row.work * part * (1.0 if row.model is not None else row.gpus / gpus)


def _leg(row: Job, trial: Trial, wider: int, now: Seconds) -> Job:
    gpus, part = _gang(row, wider), trial.until - trial.since
    work = _work(row, part, gpus)
    return structs.replace(
        row,
        id=row.id if trial.legs == 1 else f"{row.id}{LEG}{trial.legs}",
        submitted=now,
        gpus=gpus,
        min_gpus=gpus if row.min_gpus is None else row.min_gpus,
        max_gpus=gpus,
        work=work,
        declared_work=None if row.declared_work is None else row.declared_work * work / row.work,
    )


@dataclass(slots=True, eq=False)
class _App:
    """An app: its search, its trials with their true speeds, and by trial the number of the job that trains it now."""

    search: AppSearch
    rows: Sequence[Job]
    speeds: Sequence[float]
    jobs: dict[int, JobNumber] = field(default_factory=dict)

    def report_loss(self, trial: int, job: Job, progress: float) -> None:
        """Report to the search how far a trial's job is, and its true loss there."""
        row, leg = self.rows[trial], self.search.trials[trial]
        at = leg.until if progress >= job.work else leg.since + (leg.until - leg.since) * progress / job.work
        floor, pace = row.loss or 0.0, row.pace or 0.0
        self.search.record(trial, at, floor + (1.0 - floor) / (1.0 + pace * at))

    def marks(self, trial: int, job: Job) -> tuple[float, ...]:
        """The progress values of a trial's job at which the search wants its loss."""
        since, until = self.search.trials[trial].since, self.search.trials[trial].until
        within = [mark for mark in self.search.searcher.marks if since < mark < until]
        return tuple(job.work * (mark - since) / (until - since) for mark in within)

    def spec(self, trial: int, job: Job, declare: Declare) -> JobSpec:
        """The spec submitted for a trial: the job, and the phases that the app plans to run after it."""
        row, spec = self.rows[trial], declare(job, self.speeds[trial])
        if spec.work is None:
            return spec
        declared = spec.work / job.work

        def phase_ahead(phase: SearchPhase) -> tuple[int, int, float]:
            gpus = _gang(row, phase.wider)
            return phase.trials, gpus, declared * _work(row, phase.part, gpus)

        return replace(spec, ahead=tuple(map(phase_ahead, self.search.searcher.ahead(tuple(self.search.trials)))))


@dataclass(slots=True)
class Searches:
    """A simulated backend ``world`` with apps that search; ``marks`` are by job id, also read by ``world``."""

    world: SimulatedBackend
    declare: Declare
    marks: dict[JobId, tuple[float, ...]]
    _coming: dict[JobId, tuple[_App, int]] = field(default_factory=dict)
    _trained: dict[JobNumber, tuple[_App, int]] = field(default_factory=dict)
    _submitted: int = 0

    @classmethod
    def of(
        cls,
        truth: Truth,
        declare: Declare,
        restart_cost: RestartCost,
        faults: Faults = NO_FAULTS,
        seed: int = 0,
        measurement_noise: float = 0.0,
        *,
        tuning: TunerOptions | None = None,
    ) -> "Searches":
        """Return a backend in which the jobs of ``truth`` arrive: trials when their apps begin them."""
        speeds = {job.id: factor for job, factor in zip(truth.jobs, truth.factors, strict=True)}
        apps = {
            name: _App(AppSearch.of(parse_search(rows[0].search or ""), len(rows)), rows, [speeds[r.id] for r in rows])
            for name, rows in trials_by_app(truth.jobs).items()
        }
        jobs, specs = [], []
        coming: dict[JobId, tuple[_App, int]] = {}
        marks: dict[JobId, tuple[float, ...]] = {}
        for row in truth.jobs:
            if row.search is None:
                jobs.append(row)
                specs.append(declare(row, speeds[row.id]))
            elif (app := apps.pop(row.app or "", None)) is not None:
                for order in app.search.next_orders():
                    job = _leg(app.rows[order.trial], app.search.trials[order.trial], 1, row.submitted)
                    jobs.append(job)
                    specs.append(app.spec(order.trial, job, declare))
                    coming[job.id], marks[job.id] = (app, order.trial), app.marks(order.trial, job)
        real = Truth(jobs, truth.topology, truth.catalog, [speeds[job.id] for job in jobs])
        world = SimulatedBackend(
            real,
            specs,
            restart_cost,
            faults,
            seed,
            marks=marks,
            measurement_noise=measurement_noise,
            tuning=tuning or TunerOptions(),
        )
        return cls(world, declare, marks, coming)

    @property
    def completed(self) -> int:
        """Number of jobs that completed or failed."""
        return self.world.completed

    def send(self, commands: Sequence[Command]) -> None:
        """Carry out commands at once."""
        self.world.send(commands)

    def wait(self, until: Seconds) -> EventBatch:
        """Jump to the next event that calls for a decision or that an app waits for, and no further than ``until``."""
        batch = self.world.wait(until)
        concerned = dict.fromkeys(app for event in batch.events if (app := self._dispatch(event)) is not None)
        done = [event for app in concerned for event in self._act(app)]
        return EventBatch(batch.now, (*batch.events, *done), batch.over) if done else batch

    def _dispatch(self, event: Event) -> _App | None:
        """Pass an event to the app it concerns, and return that app."""
        if isinstance(event, JobSubmitted):
            self._admitted(self._coming.pop(event.spec.id, None))
            return None
        if not isinstance(event, JobCompleted | JobMeasured | JobCrashed) or event.job not in self._trained:
            return None
        app, trial = self._trained[event.job]
        job = self.world.truth.jobs[event.job]
        if isinstance(event, JobCrashed):
            if not event.blamed or event.retry_in > 0:
                return None
            app.search.drop(trial)  # it crashed too often and is not retried
        elif isinstance(event, JobCompleted) or event.done in self.marks[job.id]:
            app.report_loss(trial, job, event.done)
        else:
            return None
        if not app.search.trials[trial].running:
            del self._trained[event.job], app.jobs[trial]
        return app

    def _admitted(self, trained: tuple[_App, int] | None) -> None:
        """Count one more admitted job, and note its app and the trial that it trains, if any."""
        if trained is not None:
            app, trial = trained
            app.jobs[trial] = self._submitted
            self._trained[self._submitted] = trained
        self._submitted += 1

    def _act(self, app: _App) -> Iterator[Event]:
        """Carry out the app's next orders, and yield their events."""
        for order in app.search.next_orders():
            trial = order.trial
            if isinstance(order, Train):
                job = _leg(app.rows[trial], app.search.trials[trial], order.wider, self.world.now)
                self.marks[job.id] = app.marks(trial, job)
                resumes = app.search.trials[trial].since > 0.0
                yield self.world.submit(app.spec(trial, job, self.declare), job, app.speeds[trial], resumes=resumes)
                self._admitted((app, trial))
            else:
                number = app.jobs.pop(trial)
                del self._trained[number]
                yield self.world.cancel(number)
