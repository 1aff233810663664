"""What a workload is made of, in numbers a person wants before running it.

Shares of GPU-time need run times. A job without a model states its own; for a job with one they come from the
catalogue, at its own gang and first batch size on one node of the fastest kind it may use, so they are estimates.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from shoal.core.topology import Locality
from shoal.perf.catalog import catalog
from shoal.workload.schema import Job, Workload

PERCENTILES = (0, 10, 25, 50, 75, 90, 99, 100)
"""The percentiles of run time that a description gives; 0 and 100 are the extremes."""

_BAR = 32


@dataclass(frozen=True, slots=True)
class JobGroup:
    """Jobs of one size, model or tenant: how many, and their GPU-hours where known."""

    name: str
    jobs: int
    gpu_hours: float


@dataclass(frozen=True, slots=True)
class Description:
    """A workload in numbers.

    ``span_seconds`` is from the first submission to the last. ``gpu_hours`` and ``duration_percentiles`` count the
    jobs whose run time is known; ``unknown`` is how many are not among them. ``mean_load_gpus`` is how many GPUs the
    jobs would keep busy over the span; None when all come at once. Groups are by size ascending, else by count.
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
        """Everything as plain values, for JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Everything as text, one line an entry, with small bars for the sizes."""
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
    """Describe a workload; cheap enough for the longest public traces."""
    jobs = workload.jobs
    hours = _GpuHours()
    durations = sorted(d for d in (hours.duration(job) for job in jobs) if d is not None)
    span = jobs[-1].submitted - jobs[0].submitted if jobs else 0.0
    total = sum(hours.of(job) for job in jobs)
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
        sizes=tuple(sorted(_groups(jobs, [str(j.gpus) for j in jobs], hours), key=lambda g: int(g.name))),
        models=_groups(jobs, [j.model or "(none)" for j in jobs], hours),
        tenants=_groups(jobs, [j.tenant for j in jobs], hours),
        elastic=sum(j.spec().elastic for j in jobs if j.min_gpus is not None or j.max_gpus is not None),
        adaptive=sum(bool(j.batch_schedule) for j in jobs),
        with_deadline=sum(j.deadline is not None for j in jobs),
        undeclared=sum(not j.declares_work for j in jobs),
        trials=sum(j.search is not None for j in jobs),
    )


class _GpuHours:
    """Run times of jobs; rates are remembered by what they depend on, since a trace has few types and many jobs."""

    def __init__(self) -> None:
        self._rates: dict[tuple[str, int, int | None, tuple[str, ...] | None], float] = {}

    def duration(self, job: Job) -> float | None:
        if job.model is None:
            return job.work
        key = (job.model, job.gpus, job.batch_size, job.kinds)
        if key not in self._rates:
            self._rates[key] = _fastest(*key)
        rate = self._rates[key]
        return job.work / rate if rate > 0.0 else None

    def of(self, job: Job) -> float:
        return (self.duration(job) or 0.0) * job.gpus / 3600.0


def _fastest(model: str, gpus: int, batch_size: int | None, kinds: tuple[str, ...] | None) -> float:
    if model not in catalog().models:
        return 0.0
    profile = catalog().profile(model)
    allowed = [kind for kind in profile.kinds or () if kinds is None or kind in kinds]
    return max((profile.rate(kind, gpus, Locality.SAME_NODE, batch_size) for kind in allowed), default=0.0)


def _groups(jobs: Sequence[Job], names: Sequence[str], hours: _GpuHours) -> tuple[JobGroup, ...]:
    counts = Counter(names)
    used = dict.fromkeys(names, 0.0)
    for job, name in zip(jobs, names, strict=True):
        used[name] += hours.of(job)
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
    """By linear interpolation between the two nearest."""
    at = (len(ordered) - 1) * percentile / 100.0
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def _span(seconds: float) -> str:
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s" if seconds else "0 s"
