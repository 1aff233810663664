"""Workloads of the grounds: each function returns one draw, from a generator or from a folder of public traces.

A draw is a number; equal draws give equal workloads. Generators take the draw as their seed. Public traces are drawn by
number (Pollux's and Sia's workloads), by permuting or resampling their jobs, or by slices (Philly).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from shoal.core.errors import InputError
from shoal.research.repro.afs import FOLDER as PHILLY
from shoal.research.repro.afs import trace
from shoal.research.repro.shockwave import public_trace
from shoal.workload.files import read_workload
from shoal.workload.generators.afs import misjudged, with_models
from shoal.workload.generators.randomness import poisson_arrivals, random_stream
from shoal.workload.generators.registry import generate
from shoal.workload.schema import Job, Workload, shifted

Source = Callable[[Path | None, int], Workload]
"""A draw's workload, given the folder of public data."""

SLICES = 10
"""Slices of a Philly trace, in order of time: the draws 1 to 10."""

_FIRST_SEED = 100
"""Added to a draw: the seeds of tests and documents, which lie below, are not draws."""


def generated(name: str, jobs: int, **options: Any) -> Source:
    """Return jobs of a generator, the draw being the seed."""
    return lambda data, draw: generate(name, jobs=jobs, seed=_FIRST_SEED + draw, **options)


def shockwave_public(trace: str) -> Source:
    """Return one of Shockwave's public traces, its jobs permuted over its arrival times; draw 0 is the trace itself."""
    return lambda data, draw: public_trace(_folder(data), trace, _FIRST_SEED + draw if draw else 0)


def gavel_public(trace: str) -> Source:
    """Return one of Gavel's public traces with its jobs drawn with replacement; draw 0 is the trace itself."""

    def make(data: Path | None, draw: int) -> Workload:
        whole = read_workload(_folder(data) / "gavel/traces/physical_cluster" / f"{trace}.trace", "gavel")
        if not draw:
            return whole
        picks = np.random.default_rng(_FIRST_SEED + draw).integers(len(whole.jobs), size=len(whole.jobs)).tolist()
        jobs = (
            msgspec.structs.replace(whole.jobs[pick], id=job.id, submitted=job.submitted, deadline=None)
            for pick, job in zip(picks, whole.jobs, strict=True)
        )
        return replace(whole, jobs=tuple(jobs))

    return make


def numbered(folder: str, format: str, jobs: int | None = None) -> Source:
    """Return a published workload by its number, at most its first ``jobs`` jobs."""

    def make(data: Path | None, draw: int) -> Workload:
        whole = read_workload(_folder(data) / folder / f"workload-{draw}.csv", format)
        return whole if jobs is None else whole.first(jobs)

    return make


def philly(trace: int, jobs: int, gpus: int, load: float, *, models: bool = False) -> Source:
    """Return consecutive jobs of one of Philly's virtual clusters, with arrivals scaled to a load of ``gpus`` GPUs.

    The load is the GPU-seconds of the slice over those of the cluster from the first to the last arrival. Jobs for more
    than half of the cluster and jobs longer than a day, a few of which would decide all figures of a slice, are left
    out. With ``models`` each job trains one of AFS's models and is elastic.
    """

    def make(data: Path | None, draw: int) -> Workload:
        found = sorted((_folder(data) / PHILLY).glob(f"{trace:02d}_*"))
        if not found:
            raise InputError("data", str(data), f"has no file {PHILLY}/{trace:02d}_…")
        whole = _philly_file(found[0])
        fitting = [job for job in whole.jobs if job.gpus <= gpus // 2 and job.work <= 86400.0]
        begin = (len(fitting) - jobs) * (draw - 1) // (SLICES - 1)
        cut = replace(whole, jobs=tuple(_at_load(fitting[begin : begin + jobs], gpus, load)))
        return with_models(cut, _FIRST_SEED + draw) if models else cut

    return make


def afs_trace(number: int) -> Source:
    """Return one of AFS's eleven traces; the draw is the seed of the models that its jobs train."""
    return lambda data, draw: trace(_folder(data) / PHILLY, number, draw)


@cache
def _philly_file(path: Path) -> Workload:
    return read_workload(path, "simple")


def _at_load(jobs: Sequence[Job], gpus: int, load: float) -> list[Job]:
    moved = shifted(jobs, jobs[0].submitted)
    span = sum(job.gpus * job.work for job in moved) / (gpus * load)
    scale = span / moved[-1].submitted
    return [msgspec.structs.replace(job, submitted=job.submitted * scale) for job in moved]


def jobs_of_seconds(jobs: int, gpus: int, load: float) -> Source:
    """Return rigid jobs of 5 s to 2 min, with restarts of 3 s, at a load of ``gpus`` GPUs."""

    def make(data: Path | None, draw: int) -> Workload:
        rng = random_stream(_FIRST_SEED + draw)
        drawn = [(rng.pick((1, 2, 4, 8), (0.7, 0.15, 0.1, 0.05)), rng.log_uniform(5.0, 120.0)) for _ in range(jobs)]
        every = sum(wanted * seconds for wanted, seconds in drawn) / jobs / (gpus * load)
        times = poisson_arrivals(rng, jobs, every)
        made = (
            Job(id=str(i), submitted=at, gpus=wanted, work=seconds, restart_seconds=3.0)
            for i, (at, (wanted, seconds)) in enumerate(zip(times, drawn, strict=True))
        )
        return Workload("jobs of seconds", tuple(made), "generated", f"draw {draw}")

    return make


def small_beside_wide(gpus: int, hours: float, load: float) -> Source:
    """Return an endless stream of small jobs, and every 3 hours a gang for half or all of the cluster.

    Small jobs ask for 1 or 2 GPUs for 5 to 30 min and alone are this load of ``gpus`` GPUs; a wide gang runs 1 hour.
    The stream lasts for ``hours``, wide gangs arrive in the first half of it.
    """

    def make(data: Path | None, draw: int) -> Workload:
        rng = random_stream(_FIRST_SEED + draw)
        made: list[Job] = []
        at = 0.0
        while at < 3600.0 * hours:
            wanted, seconds = rng.pick((1, 2)), rng.log_uniform(300.0, 1800.0)
            made.append(Job(id=f"small-{len(made)}", submitted=at, gpus=wanted, work=seconds))
            at += rng.exponential(1.5 * 837.0 / (gpus * load))  # 1.5 GPUs for 837 s on average
        for i in range(int(hours / 6.0)):
            wanted, begin = rng.pick((gpus // 2, gpus)), 3600.0 * (3 * i + rng.uniform())
            made.append(Job(id=f"wide-{i}", submitted=begin, gpus=wanted, work=3600.0))
        return Workload("small jobs beside wide gangs", tuple(made), "generated", f"draw {draw}")

    return make


def changed(source: Source, **fields: Any) -> Source:
    """Return a source that sets these fields of every job."""

    def make(data: Path | None, draw: int) -> Workload:
        whole = source(data, draw)
        return replace(whole, jobs=tuple(msgspec.structs.replace(job, **fields) for job in whole.jobs))

    return make


def undeclared(source: Source) -> Source:
    """Return a source whose jobs declare no work."""
    return changed(source, declared_work=None, declares_work=False)


def declared(source: Source) -> Source:
    """Return a source whose jobs all declare their true work."""
    return changed(source, declared_work=None, declares_work=True)


def wrong_lengths(source: Source, factor: float) -> Source:
    """Return a source whose jobs declare their work times or divided by ``factor``, with equal chances."""
    return lambda data, draw: misjudged(declared(source)(data, draw), factor, _FIRST_SEED + draw)


def not_saving(source: Source, part: float) -> Source:
    """Return a source in which a fraction ``part`` of the jobs do not save when they are stopped.

    Half of those save every 30 min, the others never.
    """

    def make(data: Path | None, draw: int) -> Workload:
        whole, rng = source(data, draw), random_stream(_FIRST_SEED + draw)

        def without_saving(job: Job) -> Job:
            every = 1800.0 if rng.chance(0.5) else None
            return msgspec.structs.replace(job, preemptible="auto", save_every=every)

        jobs = tuple(without_saving(job) if rng.chance(part) else job for job in whole.jobs)
        return replace(whole, jobs=jobs)

    return make


def _folder(data: Path | None) -> Path:
    if data is None:
        raise InputError("data", None, "name the folder of public traces with --data DIR or $SHOAL_DATA")
    return data
