"""The one schema of jobs: a row says what is true of a job and what its owner declares.

A ``Job`` that exists is valid: its constructor refuses anything a simulator could stumble over. A ``Workload`` that
exists is sorted by submission and names no job twice. Rows of one ``app`` with a ``search`` are not jobs yet but the
trials of that app: which of them are trained how far, and so which jobs there are, is up to the app scheduler it names.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from shoal.core.errors import InputError, nearest
from shoal.core.job import BatchLimits, JobSpec
from shoal.hpo.registry import parse_search
from shoal.hpo.search import Trial

MOST = 2**31 - 1
"""The largest count (GPUs, batch size) a job may name; larger ones are slips of the pen and would not fit a column."""

ADAPTATIONS = ("accordion", "gns")
"""The rules by which an owner's script may change a batch size: Accordion (MLSys '21), or the gradient noise scale."""

_INF = math.inf


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One job: when it comes, what it asks for, and what it really is.

    - ``work`` is the true total: effective samples when ``model`` is named, otherwise seconds of run time on the
      requested gang. ``declared_work`` is what the owner claims where that differs; ``declares_work=False`` says that
      the owner claims nothing.
    - ``min_gpus`` and ``max_gpus`` bound an elastic job; None means ``gpus``.
    - ``batch_schedule`` holds ``(progress, batch size)``: on reaching that much work the owner's script switches to
      that batch size. Progress ascends strictly and lies within the work.
    - ``deadline`` is absolute, in the clock of ``submitted``.
    - ``restart_seconds`` and ``checkpoint_gb`` are the cost of moving the job, where known.
    - ``search`` makes the row a trial of its ``app``, e.g. ``halving:eta=2``: ``work`` is then a whole training, and
      ``max_gpus`` how wide its gang may become on promotion. Its loss starts at 1, and with a part x of the work done
      it is ``loss + (1 - loss) / (1 + pace * x)``, which only the app is told. Trials of an app come at one time.
    - ``limits`` is ``(initial, most, least per GPU, most per GPU)`` in samples, between which the owner lets a policy
      have the batch size adapted: ``core.job.BatchLimits``. ``adaptation`` names the rule, ``accordion`` or ``gns``,
      by which the owner's own script changes it; the changes themselves are the ``batch_schedule``, never declared.

    Relied upon: every number is finite and in its range, so no consumer has to check again.
    """

    id: str
    submitted: float
    gpus: int
    work: float
    declared_work: float | None = None
    declares_work: bool = True
    min_gpus: int | None = None
    max_gpus: int | None = None
    tenant: str = "default"
    app: str | None = None
    model: str | None = None
    batch_size: int | None = None
    batch_schedule: tuple[tuple[float, int], ...] = ()
    kinds: tuple[str, ...] | None = None
    weight: float = 1.0
    deadline: float | None = None
    restart_seconds: float | None = None
    checkpoint_gb: float | None = None
    search: str | None = None
    loss: float | None = None
    pace: float | None = None
    limits: tuple[int, int, int, int] | None = None
    adaptation: str | None = None

    def __post_init__(self) -> None:
        # Plain comparisons, written so that NaN fails them: this runs once per row of very long traces.
        if not 0.0 <= self.submitted < _INF:
            raise InputError("submitted", self.submitted, "must be a finite number of seconds, at least 0")
        if not 0.0 < self.work < _INF:
            raise InputError("work", self.work, "must be a finite number above 0")
        if not 1 <= self.gpus <= MOST:
            raise InputError("gpus", self.gpus, f"must be a whole number from 1 to {MOST}")
        if not 0.0 < self.weight < _INF:
            raise InputError("weight", self.weight, "must be a finite number above 0")
        if not self.id:
            raise InputError("id", self.id, "must not be empty")
        if not self.tenant:
            raise InputError("tenant", self.tenant, "must not be empty; leave the field out for 'default'")
        if self.min_gpus is not None or self.max_gpus is not None:
            _check_range(self)
        if self.declared_work is not None:
            _check_declared(self)
        if self.model is not None or self.batch_size is not None or self.batch_schedule:
            _check_batch(self)
        if self.kinds is not None and (not self.kinds or not all(self.kinds) or len(set(self.kinds)) < len(self.kinds)):
            raise InputError("kinds", list(self.kinds), "must be different kinds of GPU, at least one")
        if not (self.deadline is None and self.restart_seconds is None and self.checkpoint_gb is None):
            _check_times(self)
        if not (self.search is None and self.loss is None and self.pace is None):
            _check_trial(self)
        if not (self.limits is None and self.adaptation is None):
            _check_adaptive(self)

    def spec(self) -> JobSpec:
        """What the owner submits: the declared side of this row, with the bounds of its gang filled in."""
        declared = self.work if self.declared_work is None else self.declared_work
        return JobSpec(
            id=self.id,
            submitted=self.submitted,
            gpus=self.gpus,
            work=declared if self.declares_work else None,
            min_gpus=self.gpus if self.min_gpus is None else self.min_gpus,
            max_gpus=self.gpus if self.max_gpus is None else self.max_gpus,
            tenant=self.tenant,
            app=self.app,
            model=self.model,
            batch_size=self.batch_size,
            kinds=self.kinds,
            weight=self.weight,
            deadline=self.deadline,
            limits=None if self.limits is None else BatchLimits(*self.limits),
            adaptation=self.adaptation,
        )


def _check_range(job: Job) -> None:
    low = job.gpus if job.min_gpus is None else job.min_gpus
    high = job.gpus if job.max_gpus is None else job.max_gpus
    if not 1 <= low <= MOST:
        raise InputError("min_gpus", low, f"must be a whole number from 1 to {MOST}")
    if not 1 <= high <= MOST:
        raise InputError("max_gpus", high, f"must be a whole number from 1 to {MOST}")
    if low > high:
        raise InputError("min_gpus", low, f"must not exceed max_gpus, which is {high}")
    if not low <= job.gpus <= high:
        raise InputError("gpus", job.gpus, f"must lie between min_gpus and max_gpus, which are {low} and {high}")


def _check_declared(job: Job) -> None:
    if not 0.0 < (job.declared_work or 0.0) < _INF:
        raise InputError("declared_work", job.declared_work, "must be a finite number above 0; leave it out for none")
    if not job.declares_work:
        raise InputError("declared_work", job.declared_work, "must be left out where declares_work is false")


def _check_batch(job: Job) -> None:
    if job.model is not None and not job.model:
        raise InputError("model", job.model, "must not be empty; leave the field out for none")
    if job.batch_size is not None and not 1 <= job.batch_size <= MOST:
        raise InputError("batch_size", job.batch_size, f"must be a whole number from 1 to {MOST}")
    if job.batch_schedule and job.model is None:
        raise InputError("batch_schedule", list(job.batch_schedule), "needs a model: without one no batch size matters")
    before = -_INF
    for progress, size in job.batch_schedule:
        if not 0.0 <= progress < job.work:
            raise InputError("batch_schedule", progress, f"progress must lie within the work, from 0 to {job.work}")
        if progress <= before:
            raise InputError("batch_schedule", progress, f"progress must ascend, and {before} comes before it")
        if not 1 <= size <= MOST:
            raise InputError("batch_schedule", size, f"a batch size must be a whole number from 1 to {MOST}")
        before = progress


def _check_times(job: Job) -> None:
    if job.deadline is not None and not job.submitted <= job.deadline < _INF:
        raise InputError("deadline", job.deadline, f"must be finite and not before submission, at {job.submitted}")
    for field, value in (("restart_seconds", job.restart_seconds), ("checkpoint_gb", job.checkpoint_gb)):
        if value is not None and not 0.0 <= value < _INF:
            raise InputError(field, value, "must be a finite number, at least 0")


def _check_trial(job: Job) -> None:
    if job.search is None:
        raise InputError("search", None, "must name the app scheduler of a trial that has a loss, e.g. halving")
    parse_search(job.search)
    if not job.app:
        raise InputError("app", job.app, "must name the app that a trial belongs to")
    if job.loss is None or not 0.0 <= job.loss < 1.0:
        raise InputError("loss", job.loss, "must be what the loss of a trial, 1 at first, tends to: from 0 to below 1")
    if job.pace is None or not 0.0 < job.pace < _INF:
        raise InputError("pace", job.pace, "must be how fast a trial's loss falls: a finite number above 0")
    if job.batch_schedule:
        raise InputError("batch_schedule", list(job.batch_schedule), "must be left out of a trial, trained in legs")
    if job.deadline is not None:
        raise InputError("deadline", job.deadline, "must be left out of a trial, which may be given up")


def _check_adaptive(job: Job) -> None:
    field = "adaptation" if job.limits is None else "limits"
    if job.model is None:
        raise InputError(field, getattr(job, field), "needs a model: without one no batch size matters")
    if job.adaptation is not None and job.adaptation not in ADAPTATIONS:
        raise InputError("adaptation", job.adaptation, nearest(job.adaptation, ADAPTATIONS))
    if job.limits is None:
        return
    initial, most, least_local, most_local = job.limits
    if not 1 <= initial <= most <= MOST:
        raise InputError("limits", list(job.limits), "the initial batch size must be from 1 to the largest")
    if not 1 <= least_local <= most_local <= MOST:
        raise InputError("limits", list(job.limits), "the least per GPU must be from 1 to the most per GPU")


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs in order of submission, and where they came from.

    Relied upon: ``jobs`` is sorted by submission, jobs of one instant staying in the order of the file, and no id
    occurs twice. ``skipped`` holds one message for each broken row that was passed over on request; ``left_out``
    counts, by reason, the sound rows that are not GPU jobs that ran (CPU jobs, job steps, jobs never started).
    """

    name: str
    jobs: tuple[Job, ...]
    format: str = "shoal"
    source: str = ""
    skipped: tuple[str, ...] = ()
    left_out: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "jobs", tuple(sorted(self.jobs, key=_submitted)))
        if len({job.id for job in self.jobs}) < len(self.jobs):
            seen: set[str] = set()
            for job in self.jobs:
                if job.id in seen:
                    raise InputError("id", job.id, "names two jobs; ids must differ", where=self.source)
                seen.add(job.id)
        apps = trials_by_app(self.jobs)
        for app, trials in apps.items():
            _check_app(app, trials, self.source)
        if apps and (marked := next((job.id for job in self.jobs if LEG in job.id), None)):
            raise InputError("id", marked, f"must not contain {LEG!r}, as later legs of trials do", where=self.source)

    def __len__(self) -> int:
        return len(self.jobs)

    def window(self, start: float, end: float) -> "Workload":
        """Only the jobs submitted in ``[start, end)``, on a clock that begins at ``start``."""
        if not (0.0 <= start < end):
            raise InputError("window", f"{start:g}:{end:g}", "must be A:B in seconds with 0 <= A < B")
        jobs = shifted((job for job in self.jobs if start <= job.submitted < end), start)
        return Workload(self.name, tuple(jobs), self.format, self.source, self.skipped, self.left_out)

    def first(self, count: int) -> "Workload":
        """Only the first ``count`` jobs to be submitted."""
        if count < 1:
            raise InputError("jobs", count, "must be at least 1")
        return Workload(self.name, self.jobs[:count], self.format, self.source, self.skipped, self.left_out)


def _submitted(job: Job) -> float:
    return job.submitted


LEG = "#"
"""Stands between a trial's id and the number of a later leg."""


def trials_by_app(jobs: Iterable[Job]) -> dict[str, list[Job]]:
    """The trials of every app that is searched, in order."""
    apps: dict[str, list[Job]] = {}
    for job in jobs:
        if job.search is not None and job.app is not None:
            apps.setdefault(job.app, []).append(job)
    return apps


def _check_app(app: str, trials: list[Job], where: str) -> None:
    first = trials[0]
    for job in trials:
        if (job.search, job.submitted) != (first.search, first.submitted):
            one, other = (f"{row.id} has {row.search!r} at {row.submitted:g} s" for row in (first, job))
            raise InputError("app", app, f"{one}, {other}; its trials must have one search and time", where=where)
    parse_search(first.search or "").orders([Trial()] * len(trials))


def shifted(jobs: Iterable[Job], origin: float) -> list[Job]:
    """The same jobs on a clock that begins at ``origin``: submissions and deadlines move together."""
    if origin == 0.0:
        return list(jobs)
    replace = msgspec.structs.replace
    return [
        replace(job, submitted=job.submitted - origin)
        if job.deadline is None
        else replace(job, submitted=job.submitted - origin, deadline=job.deadline - origin)
        for job in jobs
    ]
