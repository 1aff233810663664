"""The schema of workloads: a ``Job`` row holds the truth about a job and its owner's declarations.

``Job`` rejects values out of range and ``Workload`` rejects duplicate ids, so consumers need no checks. Rows of one
``app`` with a ``search`` are trials of that app: the searcher decides how far each is trained, and so which jobs are
submitted.
"""

import math
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeAlias

import msgspec

from shoal.core.batch_limits import BatchLimits
from shoal.core.errors import InputError, nearest
from shoal.core.job import PREEMPTIBLE, Conditions, JobSpec
from shoal.hpo.registry import parse_search
from shoal.hpo.search import Trial

MOST = 2**31 - 1
"""The largest number of GPUs or batch size of a job."""

ADAPTATIONS = ("accordion", "gns")
"""Rules by which an owner's script may change its batch size: Accordion (MLSys '21), or the gradient noise scale."""

_INF = math.inf
_WHEN = ("ok", "any", "notok", "start")
_COUNT = f"must be a whole number from 1 to {MOST}"
_POSITIVE = "must be a finite number above 0"
_NOT_NEGATIVE = "must be a finite number, at least 0"
_LOSS = "must be what the loss of a trial, 1 at first, tends to: from 0 to below 1"
_PACE = "must be how fast a trial's loss falls: a finite number above 0"


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One job: its submission, its request, and its true work.

    - ``work`` is the true total: effective samples when ``model`` is named, otherwise seconds of run time on the
      requested gang. ``declared_work`` is what the owner declares where that differs; with ``declares_work=False`` the
      owner declares none.
    - ``min_gpus`` and ``max_gpus`` bound an elastic job; None means ``gpus``.
    - ``batch_schedule`` holds ``(progress, batch size)``: at that progress the owner's script switches to that batch
      size. Progress ascends strictly and lies within the work.
    - ``deadline`` is absolute, on the clock of ``submitted``.
    - ``restart_seconds`` and ``checkpoint_gb`` are the cost of moving the job, where known.
    - ``preemptible`` is whether it may be stopped to make room: one of ``core.job.PREEMPTIBLE``. A job with ``yes``
      saves its work when it is stopped; any other loses what it has done since it last saved, which it does after
      every ``save_every`` seconds of a run, or never.
    - ``search`` makes the row a trial of its ``app``, e.g. ``halving:eta=2``: ``work`` is then a whole training, and
      ``max_gpus`` the largest gang after promotions. With a fraction x of the work done its loss is
      ``loss + (1 - loss) / (1 + pace * x)``, which only the app sees. Trials of an app are submitted together.
    - ``limits`` is ``(initial, most, least per GPU, most per GPU)`` in samples, within which a policy may have
      the batch size adapted: ``core.job.BatchLimits``. ``adaptation`` names the rule, ``accordion`` or ``gns``, by
      which the owner's script changes it; the changes are in ``batch_schedule``, which is never declared.
    - ``after`` names earlier jobs it waits for: an id, to complete, or an id with ``:any``, ``:notok`` or ``:start``.
      ``begin`` is its earliest start, on the clock of ``submitted``. Of the jobs of an ``array`` at most
      ``most_at_once`` are scheduled at a time. See ``core.job.Conditions``. A run that lasts ``time`` seconds is
      stopped and the job fails. ``priority`` orders the waiting jobs of a tenant. An ``exclusive``
      job asks for all GPUs of its nodes and shares them with no other.
    - ``user`` (by default the tenant) and ``name``, where known, say which jobs' lengths resemble each other.

    Every number is finite and in its range.
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
    preemptible: str = "yes"
    save_every: float | None = None
    after: tuple[str, ...] = ()
    begin: float | None = None
    array: str | None = None
    most_at_once: int | None = None
    time: float | None = None
    priority: int = 0
    exclusive: bool = False
    user: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        _check_values(_common_values(self), _COMMON_RULES)
        if _other_values(self) != _OTHER_DEFAULTS:
            self._check_others()

    def _check_others(self) -> None:
        """Check the values that most jobs leave at their defaults, which are valid together."""
        _check_values(_ruled_values(self), _OTHER_RULES)
        if self.min_gpus is not None or self.max_gpus is not None:
            _check_gang(self)
        if self.declared_work is not None and not self.declares_work:
            raise InputError("declared_work", self.declared_work, "must be left out where declares_work is false")
        if self.batch_schedule:
            _check_schedule(self)
        if self.deadline is not None and not self.submitted <= self.deadline < _INF:
            hint = f"must be finite and not before submission, at {self.submitted}"
            raise InputError("deadline", self.deadline, hint)
        if not (self.search is None and self.loss is None and self.pace is None):
            _check_trial(self)
        if not (self.limits is None and self.adaptation is None):
            _check_adaptive(self)
        if self.save_every is not None and self.preemptible == "yes":
            raise InputError("save_every", self.save_every, "has no effect on a job that saves when it is stopped")

    @property
    def dependencies(self) -> tuple[tuple[str, str], ...]:
        """The jobs it waits for, and when."""
        parts = ((text, text.rpartition(":")) for text in self.after)
        return tuple((p[0], p[2]) if p[2] in _WHEN else (text, "ok") for text, p in parts)

    def _conditions(self) -> Conditions | None:
        if not (self.after or self.begin is not None or self.array):
            return None
        return Conditions(self.dependencies, self.begin, False, self.array, self.most_at_once)

    def spec(self) -> JobSpec:
        """Return the specification that the owner declares, with the bounds of the gang filled in."""
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
            preemptible=self.preemptible,
            conditions=self._conditions(),
            time=self.time,
            priority=self.priority,
            exclusive=self.exclusive,
            user=self.user,
            name=self.name,
        )


def _count(value: int) -> bool:
    return 1 <= value <= MOST


def _positive(value: float) -> bool:
    return 0.0 < value < _INF


def _not_negative(value: float) -> bool:
    return 0.0 <= value < _INF


_Rules: TypeAlias = tuple[tuple[str, Callable[[Any], bool], str], ...]
"""Rules for one field each: a predicate that NaN fails, and the error's hint. None always passes."""

_COMMON_RULES: _Rules = (
    ("submitted", _not_negative, "must be a finite number of seconds, at least 0"),
    ("work", _positive, _POSITIVE),
    ("gpus", _count, _COUNT),
    ("id", bool, "must not be empty"),
    ("tenant", bool, "must not be empty; leave the field out for 'default'"),
)
_OTHER_RULES: _Rules = (
    ("weight", _positive, _POSITIVE),
    ("min_gpus", _count, _COUNT),
    ("max_gpus", _count, _COUNT),
    ("declared_work", _positive, f"{_POSITIVE}; leave it out for none"),
    ("model", bool, "must not be empty; leave the field out for none"),
    ("batch_size", _count, _COUNT),
    (
        "kinds",
        lambda kinds: kinds and all(kinds) and len(set(kinds)) == len(kinds),
        "must be different kinds of GPU, at least one",
    ),
    ("restart_seconds", _not_negative, _NOT_NEGATIVE),
    ("checkpoint_gb", _not_negative, _NOT_NEGATIVE),
    ("limits", lambda sizes: 1 <= sizes[0] <= sizes[1] <= MOST, "the initial batch size must be from 1 to the largest"),
    ("limits", lambda sizes: 1 <= sizes[2] <= sizes[3] <= MOST, "the least per GPU must be from 1 to the most per GPU"),
    ("begin", _not_negative, _NOT_NEGATIVE),
    ("time", _positive, _POSITIVE),
    ("most_at_once", _count, _COUNT),
    ("array", bool, "must not be empty; leave the field out for none"),
    ("priority", lambda priority: abs(priority) <= MOST, f"must be a whole number from -{MOST} to {MOST}"),
    ("loss", lambda loss: 0.0 <= loss < 1.0, _LOSS),
    ("pace", _positive, _PACE),
    ("preemptible", PREEMPTIBLE.__contains__, f"must be one of {', '.join(PREEMPTIBLE)}"),
    ("save_every", _positive, _POSITIVE),
)
_common_values = attrgetter(*(field for field, _, _ in _COMMON_RULES))
_ruled_values = attrgetter(*(field for field, _, _ in _OTHER_RULES))

_UNCHECKED = ("app", "user", "name", "after", "exclusive")
"""Fields of which any value is valid in a job whose other fields are."""

_OTHERS = {
    field.name: field.default
    for field in msgspec.structs.fields(Job)
    if field.name not in {*_UNCHECKED, *(name for name, _, _ in _COMMON_RULES)}
}
_other_values, _OTHER_DEFAULTS = attrgetter(*_OTHERS), tuple(_OTHERS.values())


def _check_values(values: tuple[Any, ...], rules: _Rules) -> None:
    for value, (field, valid, hint) in zip(values, rules, strict=True):
        if value is not None and not valid(value):
            raise InputError(field, list(value) if isinstance(value, tuple) else value, hint)


def _check_gang(job: Job) -> None:
    low = job.gpus if job.min_gpus is None else job.min_gpus
    high = job.gpus if job.max_gpus is None else job.max_gpus
    if low > high:
        raise InputError("min_gpus", low, f"must not exceed max_gpus, which is {high}")
    if not low <= job.gpus <= high:
        raise InputError("gpus", job.gpus, f"must lie between min_gpus and max_gpus, which are {low} and {high}")


def _check_schedule(job: Job) -> None:
    if job.model is None:
        raise InputError("batch_schedule", list(job.batch_schedule), "needs a model: without one no batch size matters")
    before = -_INF
    for progress, size in job.batch_schedule:
        if not 0.0 <= progress < job.work:
            raise InputError("batch_schedule", progress, f"progress must lie within the work, from 0 to {job.work}")
        if progress <= before:
            raise InputError("batch_schedule", progress, f"progress must ascend, and {before} comes before it")
        if not _count(size):
            raise InputError("batch_schedule", size, f"a batch size {_COUNT}")
        before = progress


def _check_trial(job: Job) -> None:
    if job.search is None:
        raise InputError("search", None, "must name the app scheduler of a trial that has a loss, e.g. halving")
    parse_search(job.search)
    if not job.app:
        raise InputError("app", job.app, "must name the app that a trial belongs to")
    if job.loss is None:
        raise InputError("loss", None, _LOSS)
    if job.pace is None:
        raise InputError("pace", None, _PACE)
    if job.batch_schedule:
        raise InputError("batch_schedule", list(job.batch_schedule), "must be left out of a trial, trained in legs")
    if job.deadline is not None:
        raise InputError("deadline", job.deadline, "must be left out of a trial, which may be given up")


def _check_adaptive(job: Job) -> None:
    if job.model is None:
        field = "adaptation" if job.limits is None else "limits"
        raise InputError(field, getattr(job, field), "needs a model: without one no batch size matters")
    if job.adaptation is not None and job.adaptation not in ADAPTATIONS:
        raise InputError("adaptation", job.adaptation, nearest(job.adaptation, ADAPTATIONS))


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs in order of submission, and their origin.

    ``jobs`` is sorted by submission, jobs of one instant in the order of the file, and no id occurs twice. ``skipped``
    holds one message for each broken row skipped on request; ``left_out`` counts, by reason, the valid rows that are
    not GPU jobs that ran (CPU jobs, job steps, jobs never started).
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
        _check_dependencies(self.jobs, self.source)
        apps = trials_by_app(self.jobs)
        for app, trials in apps.items():
            _check_app(app, trials, self.source)
        if apps and (marked := next((job.id for job in self.jobs if LEG in job.id), None)):
            raise InputError("id", marked, f"must not contain {LEG!r}, as later legs of trials do", where=self.source)

    def __len__(self) -> int:
        return len(self.jobs)

    def window(self, start: float, end: float) -> "Workload":
        """Return the jobs submitted in ``[start, end)`` seconds, with times relative to ``start``."""
        if not (0.0 <= start < end):
            raise InputError("window", f"{start:g}:{end:g}", "must be A:B in seconds with 0 <= A < B")
        kept = [job for job in self.jobs if start <= job.submitted < end]
        if any(job.after for job in kept):  # what was submitted before the window has ended by then
            ids = {job.id for job in kept}
            kept = [_waiting_only_for(job, ids) for job in kept]
        jobs = shifted(kept, start)
        return Workload(self.name, tuple(jobs), self.format, self.source, self.skipped, self.left_out)

    def first(self, count: int) -> "Workload":
        """Return the first ``count`` jobs to be submitted."""
        if count < 1:
            raise InputError("jobs", count, "must be at least 1")
        return Workload(self.name, self.jobs[:count], self.format, self.source, self.skipped, self.left_out)


def _check_dependencies(jobs: tuple[Job, ...], where: str) -> None:
    for job in jobs:
        if job.most_at_once is not None and job.array is None:
            hint = "needs array, the name that the jobs share"
            raise InputError("most_at_once", job.most_at_once, hint, where=where)
    if not any(job.after for job in jobs):
        return
    seen: set[str] = set()
    for job in jobs:
        for id, _ in job.dependencies:
            if id not in seen:
                raise InputError("after", id, f"{job.id} can only wait for jobs submitted before it", where=where)
        seen.add(job.id)


def _waiting_only_for(job: Job, ids: set[str]) -> Job:
    kept = tuple(text for text, (id, _) in zip(job.after, job.dependencies, strict=True) if id in ids)
    return msgspec.structs.replace(job, after=kept)


def _submitted(job: Job) -> float:
    return job.submitted


LEG = "#"
"""Separates a trial's id from the number of a later leg."""


def trials_by_app(jobs: Iterable[Job]) -> dict[str, list[Job]]:
    """Trials by app, in order of submission."""
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
    """Return the jobs with submissions and deadlines relative to ``origin``."""
    if origin == 0.0:
        return list(jobs)
    replace = msgspec.structs.replace

    def moved(at: float | None) -> float | None:
        return None if at is None else at - origin

    def shift(job: Job) -> Job:
        """Return a job with its times shifted; it is not checked again, since a valid job stays valid."""
        if job.submitted < origin:
            return replace(job, submitted=job.submitted - origin)
        later = copy(job)
        msgspec.structs.force_setattr(later, "submitted", job.submitted - origin)
        return later

    return [
        shift(job)
        if job.deadline is None and job.begin is None
        else replace(
            job,
            submitted=job.submitted - origin,
            deadline=moved(job.deadline),
            begin=None if job.begin is None else max(0.0, job.begin - origin),
        )
        for job in jobs
    ]
