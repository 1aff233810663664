"""Summary statistics of a workload.

GPU-hours need run times. A job without a model states its own. For a job with a model they are estimated from the
catalogue: its requested gang and initial batch size, on one node of the fastest kind it may use.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from shoal.core.topology import Locality
from shoal.perf.catalog import catalog
from shoal.workload.schema import Job, Workload

PERCENTILES = (0, 10, 25, 50, 75, 90, 99, 100)
"""Percentiles of run time in a description; 0 and 100 are the minimum and the maximum."""

_BAR = 32


@dataclass(frozen=True, slots=True)
class JobGroup:
    """The jobs of one size, model or tenant: their number and GPU-hours; jobs of unknown run time add 0 hours."""

    name: str
    jobs: int
    gpu_hours: float


@dataclass(frozen=True, slots=True)
class Description:
    """Statistics of one workload.

    ``span_seconds`` is from the first submission to the last. ``gpu_hours`` and ``duration_percentiles`` (seconds)
    count the jobs whose run time is known; ``unknown`` counts the others. ``mean_load_gpus`` is the GPUs that the jobs
    would keep busy on average over the span; None where all are submitted at once. Groups are sorted by size ascending,
    or by number of jobs descending.
    """

    name: str
    format: str
    source: str
    jobs: int
    skipped: int
    left_out: dict[str, int]
    span_seconds: float
    gpu_hours: float
    estimated: bool
    unknown: int
    mean_load_gpus: float | None
    duration_percentiles: dict[str, float]
    sizes: tuple[JobGroup, ...]
    models: tuple[JobGroup, ...]
    tenants: tuple[JobGroup, ...]
    elastic: int
    adaptive: int
    with_deadline: int
    undeclared: int
    trials: int

    def as_dict(self) -> dict[str, object]:
        """All statistics as plain values, for JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """All statistics as lines of text, with bar charts of the groups."""
        about = "about " if self.estimated else ""
        lines = [f"{self.name}: {self.jobs:,} jobs ({self.format}) over {_span(self.span_seconds)}"]
        lines += [f"  {count:,} {reason} left out" for reason, count in self.left_out.items()]
        lines += [f"  {self.skipped:,} broken rows skipped"] if self.skipped else []
        load = "" if self.mean_load_gpus is None else f", {self.mean_load_gpus:,.1f} GPUs busy on average"
        lines.append(f"  {about}{self.gpu_hours:,.1f} GPU-hours{load}")
        lines += [f"  {self.unknown:,} jobs of unknown run time"] if self.unknown else []
        lines += [f"  {what}" for what in self._traits()]
        if self.duration_percentiles:
            lines.append(f"run time{' (estimated)' if self.estimated else ''}")
            lines.append("  " + "  ".join(f"{p} {_span(s)}" for p, s in self.duration_percentiles.items()))
        lines += ["GPUs per job", *_bars(self.sizes)]
        for title, groups in (("models", self.models), ("tenants", self.tenants)):
            lines += [title, *_bars(groups)] if len(groups) > 1 else []
        return lines

    def _traits(self) -> list[str]:
        counts = (
            (self.elastic, "elastic"),
            (self.adaptive, "changing their batch size"),
            (self.with_deadline, "with a deadline"),
            (self.undeclared, "of undeclared work"),
            (self.trials, "trials, counted as whole trainings though a search gives most of them up"),
        )
        return [f"{count:,} {what}" for count, what in counts if count]


def describe(workload: Workload) -> Description:
    """Compute the statistics of a workload."""
    jobs = workload.jobs
    run_times = _RunTimes()
    durations = sorted(d for d in (run_times.seconds(job) for job in jobs) if d is not None)
    span = jobs[-1].submitted - jobs[0].submitted if jobs else 0.0
    total = sum(run_times.gpu_hours(job) for job in jobs)
    return Description(
        name=workload.name,
        format=workload.format,
        source=workload.source,
        jobs=len(jobs),
        skipped=len(workload.skipped),
        left_out=dict(workload.left_out),
        span_seconds=span,
        gpu_hours=total,
        estimated=any(job.model is not None for job in jobs),
        unknown=len(jobs) - len(durations),
        mean_load_gpus=total * 3600.0 / span if span > 0.0 else None,
        duration_percentiles={_label(p): _percentile(durations, p) for p in PERCENTILES} if durations else {},
        sizes=tuple(sorted(_groups(jobs, [str(j.gpus) for j in jobs], run_times), key=lambda g: int(g.name))),
        models=_groups(jobs, [j.model or "(none)" for j in jobs], run_times),
        tenants=_groups(jobs, [j.tenant for j in jobs], run_times),
        elastic=sum(j.spec().elastic for j in jobs if j.min_gpus is not None or j.max_gpus is not None),
        adaptive=sum(bool(j.batch_schedule) for j in jobs),
        with_deadline=sum(j.deadline is not None for j in jobs),
        undeclared=sum(not j.declares_work for j in jobs),
        trials=sum(j.search is not None for j in jobs),
    )


class _RunTimes:
    """Run times of jobs, from rates cached by job type: a trace has few types and many jobs."""

    def __init__(self) -> None:
        self._rates: dict[tuple[str, int, int | None, tuple[str, ...] | None], float] = {}

    def seconds(self, job: Job) -> float | None:
        if job.model is None:
            return job.work
        key = (job.model, job.gpus, job.batch_size, job.kinds)
        if key not in self._rates:
            self._rates[key] = _fastest_rate(*key)
        rate = self._rates[key]
        return job.work / rate if rate > 0.0 else None

    def gpu_hours(self, job: Job) -> float:
        return (self.seconds(job) or 0.0) * job.gpus / 3600.0


def _fastest_rate(model: str, gpus: int, batch_size: int | None, kinds: tuple[str, ...] | None) -> float:
    if model not in catalog().models:
        return 0.0
    profile = catalog().profile(model)
    allowed = [kind for kind in profile.kinds or () if kinds is None or kind in kinds]
    return max((profile.rate(kind, gpus, Locality.SAME_NODE, batch_size) for kind in allowed), default=0.0)


def _groups(jobs: Sequence[Job], names: Sequence[str], run_times: _RunTimes) -> tuple[JobGroup, ...]:
    counts = Counter(names)
    used = dict.fromkeys(names, 0.0)
    for job, name in zip(jobs, names, strict=True):
        used[name] += run_times.gpu_hours(job)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(JobGroup(name, count, used[name]) for name, count in ordered)


def _bars(groups: Sequence[JobGroup], most: int = 16) -> list[str]:
    top = max(group.jobs for group in groups)
    width = max(len(group.name) for group in groups[:most])
    lines = []
    for group in groups[:most]:
        bar = "█" * max(1, round(_BAR * group.jobs / top))
        lines.append(f"  {group.name:>{width}} {bar:<{_BAR}} {group.jobs:>7,} jobs {group.gpu_hours:>12,.1f} GPU-h")
    rest = groups[most:]
    return [*lines, f"  and {len(rest)} more with {sum(g.jobs for g in rest):,} jobs"] if rest else lines


def _label(percentile: int) -> str:
    return {0: "min", 50: "median", 100: "max"}.get(percentile, f"p{percentile}")


def _percentile(ordered: Sequence[float], percentile: int) -> float:
    at = (len(ordered) - 1) * percentile / 100.0
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def _span(seconds: float) -> str:
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s" if seconds else "0 s"
