"""Many runs: policies × seeds, in parallel processes, kept in one folder, resumed where they stopped."""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from multiprocessing import get_context, parent_process
from multiprocessing.sharedctypes import SynchronizedArray
from pathlib import Path
from threading import Thread
from typing import Any
from zlib import crc32

from shoal.core.errors import InputError, nearest
from shoal.report.files import JOBS, JOURNAL, SUMMARY, read_run, run_directory, write_run
from shoal.report.metrics import Summary
from shoal.scenario.scenario import Scenario, SimulationResult, run
from shoal.workload.files import read_workload
from shoal.workload.generators.registry import GENERATORS, generate
from shoal.workload.schema import Workload


@dataclass(frozen=True, slots=True)
class WorkloadSource:
    """Where jobs come from: a file of some format, or a generator by name; the seed matters only to a generator."""

    name: str
    format: str | None = None
    jobs: int | None = None
    window: tuple[float, float] | None = None
    skip_bad: bool = False

    def load(self, seed: int) -> Workload:
        """The workload for a seed."""
        if self.name in GENERATORS and self.format is None:
            return self._generated(seed)
        exists = bool(self.name) and Path(self.name).exists()
        if self.name in GENERATORS and not exists:
            raise InputError("format", self.format, f"{self.name} is generated and needs none; leave --format out")
        if not exists and not Path(self.name).suffix:
            hint = f"no such file, and as a generator {nearest(self.name, GENERATORS)}"
            raise InputError("workload", self.name, hint)
        workload = read_workload(self.name, self.format, skip_bad=self.skip_bad, window=self.window)
        return workload if self.jobs is None else workload.first(self.jobs)

    def _generated(self, seed: int) -> Workload:
        workload = generate(self.name, jobs=self.jobs, seed=seed)
        if self.window is None:
            return workload
        within = workload.window(*self.window)
        if not within.jobs:
            raise InputError(
                "window", f"{self.window[0]:g}:{self.window[1]:g}", "no job is submitted in it", where=self.name
            )
        return within


@dataclass(frozen=True, slots=True)
class SweepTask:
    """One run of a sweep."""

    scenario: Scenario
    source: WorkloadSource
    out: Path | None

    def fingerprint(self) -> str:
        """What a finished run on disk must have been made of to stand for this one."""
        settings = self.scenario.settings(self.source.name)
        settings["source"] = [self.source.format, self.source.jobs, self.source.window, self.source.skip_bad]
        settings["asked_knowledge"] = self.scenario.knowledge
        # A file under the same name may have been changed since.
        policy_file, dot_py, _ = self.scenario.policy.partition(".py:")
        own = f"{policy_file}.py" if dot_py else None
        measured = (str(path) for folder in self.scenario.profiles for path in sorted(Path(folder).glob("*/*.csv")))
        named = (self.source.name, self.scenario.faults, self.scenario.throughputs, own, *measured)
        settings["files"] = [crc32(Path(name).read_bytes()) for name in named if name and Path(name).is_file()]
        return json.dumps(settings, sort_keys=True, default=str)

    def directory(self) -> Path | None:
        """Where its results go."""
        return None if self.out is None else run_directory(self.out, self.scenario.policy, self.scenario.seed)


@dataclass(frozen=True, slots=True)
class Finished:
    """One run of a sweep that is done; ``resumed`` when it was found on disk."""

    task: SweepTask
    outcome: SimulationResult
    skipped: int = 0
    resumed: bool = False


def tasks(
    scenario: Scenario, policies: Sequence[str], seeds: Sequence[int], source: WorkloadSource, out: Path | None
) -> list[SweepTask]:
    """Every policy on every seed."""
    return [SweepTask(replace(scenario, policy=p, seed=s), source, out) for p in policies for s in seeds]


def sweep(
    todo: Sequence[SweepTask], *, parallel: int = 1, progress: Callable[[Mapping[int, int]], None] | None = None
) -> list[Finished]:
    """Run them all, in the order given; ``progress`` is told completed jobs by task."""
    _check_apart(todo)
    found = {i: done for i, task in enumerate(todo) if (done := _finished_before(task)) is not None}
    missing = [i for i in range(len(todo)) if i not in found]
    if progress is not None and found:
        progress({i: len(found[i].outcome.jobs) for i in found})
    if parallel > 1 and len(missing) > 1:
        found.update(_in_processes(todo, missing, parallel, progress))
    else:
        for i in missing:
            found[i] = perform(todo[i], None if progress is None else _one(progress, i))
    return [found[i] for i in range(len(todo))]


def _check_apart(todo: Sequence[SweepTask]) -> None:
    """Refuse runs that would be kept in one folder, each in place of the other."""
    first: dict[Path, SweepTask] = {}
    for task in todo:
        directory = task.directory()
        if directory is not None and (other := first.setdefault(directory, task)) is not task:
            hint = f"would be kept in {directory} as {other.scenario.policy!r} is; leave one of them out"
            raise InputError("policy", task.scenario.policy, hint)


def _one(progress: Callable[[Mapping[int, int]], None], i: int) -> Callable[[int], None]:
    return lambda completed: progress({i: completed})


def perform(task: SweepTask, progress: Callable[[int], None] | None = None) -> Finished:
    """Run one task and, where it has a folder, keep its results there; the summary is written last."""
    workload = task.source.load(task.scenario.seed)
    directory = task.directory()
    if directory is None:
        return Finished(task, run(task.scenario, workload, progress=progress), len(workload.skipped))
    try:
        if directory.exists():
            shutil.rmtree(directory)  # an unfinished run: `_finished_before` has refused anything else
        directory.mkdir(parents=True)
    except OSError as error:
        raise InputError("out", str(directory), f"cannot be written: {error.strerror or error}") from error
    outcome = run(task.scenario, workload, journal_path=directory / JOURNAL, progress=progress)
    kept: Summary = {**outcome.summary, "fingerprint": task.fingerprint()}
    write_run(directory, kept, outcome.jobs)
    return Finished(task, outcome, len(workload.skipped))


def _finished_before(task: SweepTask) -> Finished | None:
    """The run as found on disk; an unfinished one is none, one made of something else is an error."""
    directory = task.directory()
    if directory is None or not directory.exists():
        return None
    if not directory.is_dir():
        raise InputError("out", str(directory), "is a file; choose another folder")
    if not (directory / SUMMARY).exists():
        strangers = [p.name for p in directory.iterdir() if not p.name.startswith((JOURNAL, JOBS, SUMMARY))]
        if strangers:
            raise InputError("out", str(directory), f"holds other files ({strangers[0]}); choose another folder")
        return None
    run_found = read_run(directory)
    summary: dict[str, Any] = dict(run_found.summary)
    if summary.pop("fingerprint", None) != task.fingerprint():
        raise InputError("out", str(directory), "holds a run with other settings; choose another folder or remove it")
    return Finished(task, SimulationResult(summary, run_found.jobs), resumed=True)


_counts: "SynchronizedArray[int] | None" = None


def _begin_worker(counts: "SynchronizedArray[int]") -> None:
    global _counts  # noqa: PLW0603  a worker process is told once where to count
    _counts = counts
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this worker when the sweep is killed: it must not write into a folder that the next one has taken over."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _perform_numbered(i: int, task: SweepTask) -> Finished:
    def told(completed: int) -> None:
        if _counts is not None:
            _counts[i] = completed

    return perform(task, told)


def _in_processes(
    todo: Sequence[SweepTask],
    missing: Sequence[int],
    parallel: int,
    progress: Callable[[Mapping[int, int]], None] | None,
) -> dict[int, Finished]:
    context = get_context("spawn")
    counts: SynchronizedArray[int] = context.Array("q", len(todo))
    with ProcessPoolExecutor(min(parallel, len(missing)), context, _begin_worker, (counts,)) as pool:
        futures = {pool.submit(_perform_numbered, i, todo[i]): i for i in missing}
        pending = set(futures)
        try:
            while pending:
                done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()  # an error in one run ends the sweep at once; finished runs stay on disk
                if progress is not None:
                    progress({i: counts[i] for i in missing})
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        return {i: future.result() for future, i in futures.items()}
