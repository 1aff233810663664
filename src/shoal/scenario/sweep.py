"""A sweep: policies × seeds in parallel processes, results in one folder, resumed after an interruption."""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any
from zlib import crc32

from shoal.core.errors import InputError
from shoal.report.files import JOBS, JOURNAL, SUMMARY, read_run, run_directory, write_run
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import SimulationResult, run
from shoal.scenario.workload_source import WorkloadSource
from shoal.store.journal import JournalFile

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import SynchronizedArray


@dataclass(frozen=True, slots=True)
class SweepTask:
    """One run of a sweep."""

    scenario: Scenario
    source: WorkloadSource
    out: Path | None

    def fingerprint(self) -> str:
        """The settings and file checksums by which a finished run on disk is recognised as this one."""
        settings = self.scenario.settings(self.source.name)
        settings["source"] = [self.source.format, self.source.jobs, self.source.window, self.source.skip_bad]
        settings["asked_knowledge"] = self.scenario.knowledge  # None: the policy's default, which jobs can change
        policy_file, dot_py, _ = self.scenario.policy.partition(".py:")
        own = f"{policy_file}.py" if dot_py else None
        measured = (str(path) for folder in self.scenario.profiles for path in sorted(Path(folder).glob("*/*.csv")))
        named = (self.source.name, self.scenario.faults, self.scenario.throughputs, own, *measured)
        settings["files"] = [crc32(Path(name).read_bytes()) for name in named if name and Path(name).is_file()]
        return json.dumps(settings, sort_keys=True, default=str)

    def directory(self) -> Path | None:
        """The folder of its results; None where they are not kept."""
        return None if self.out is None else run_directory(self.out, self.scenario.policy, self.scenario.seed)


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished run: ``skipped`` broken rows of its workload; ``resumed`` if its results were found on disk."""

    task: SweepTask
    outcome: SimulationResult
    skipped: int = 0
    resumed: bool = False


def tasks(
    scenario: Scenario, policies: Sequence[str], seeds: Sequence[int], source: WorkloadSource, out: Path | None
) -> list[SweepTask]:
    """Return one task for each pair of policy and seed."""
    return [SweepTask(replace(scenario, policy=p, seed=s), source, out) for p in policies for s in seeds]


def sweep(
    todo: Sequence[SweepTask], *, parallel: int = 1, progress: Callable[[Mapping[int, int]], None] | None = None
) -> list[Finished]:
    """Run all tasks that are not finished on disk; results are in the order given.

    ``progress`` receives the number of completed jobs by task number. An error in one run ends the sweep; finished runs
    stay on disk.
    """
    _check_folders(todo)
    found = {i: done for i, task in enumerate(todo) if (done := _finished_before(task)) is not None}
    missing = [i for i in range(len(todo)) if i not in found]
    if progress is not None and found:
        progress({i: len(found[i].outcome.jobs) for i in found})
    if parallel > 1 and len(missing) > 1:
        found.update(_in_processes(todo, missing, parallel, progress))
    else:
        for i in missing:
            found[i] = perform(todo[i], None if progress is None else _for_task(progress, i))
    return [found[i] for i in range(len(todo))]


def _check_folders(todo: Sequence[SweepTask]) -> None:
    """Refuse two runs that would be kept in the same folder."""
    first: dict[Path, SweepTask] = {}
    for task in todo:
        directory = task.directory()
        if directory is not None and (other := first.setdefault(directory, task)) is not task:
            hint = f"would be kept in {directory} as {other.scenario.policy!r} is; leave one of them out"
            raise InputError("policy", task.scenario.policy, hint)


def _for_task(progress: Callable[[Mapping[int, int]], None], i: int) -> Callable[[int], None]:
    return lambda completed: progress({i: completed})


def perform(task: SweepTask, progress: Callable[[int], None] | None = None) -> Finished:
    """Run one task; where it has a folder, write journal and job table there, then the summary."""
    workload = task.source.load(task.scenario.seed)
    directory = task.directory()
    if directory is not None:
        _clear(directory)
    path = None if directory is None else directory / JOURNAL
    outcome = run(task.scenario, workload, journal_path=path, progress=progress)
    settings = {**outcome.summary["settings"], **task.source.settings()}
    # A journal in memory is dropped: it is too large to send between processes.
    journal = None if path is None else outcome.journal
    outcome = replace(outcome, summary={**outcome.summary, "settings": settings}, journal=journal)
    if directory is not None:
        write_run(directory, {**outcome.summary, "fingerprint": task.fingerprint()}, outcome.jobs)
    return Finished(task, outcome, len(workload.skipped))


def _clear(directory: Path) -> None:
    try:
        if directory.exists():
            shutil.rmtree(directory)  # an unfinished run: `_finished_before` has refused anything else
        directory.mkdir(parents=True)
    except OSError as error:
        raise InputError("out", str(directory), f"cannot be written: {error.strerror or error}") from error


def _finished_before(task: SweepTask) -> Finished | None:
    """Return the run found on disk, None if missing or unfinished; a run with other settings is an error."""
    directory = task.directory()
    if directory is None or not directory.exists():
        return None
    if not directory.is_dir():
        raise InputError("out", str(directory), "is a file; choose another folder")
    if not (directory / SUMMARY).exists():
        other_files = [p.name for p in directory.iterdir() if not p.name.startswith((JOURNAL, JOBS, SUMMARY))]
        if other_files:
            raise InputError("out", str(directory), f"holds other files ({other_files[0]}); choose another folder")
        return None
    run_found = read_run(directory)
    summary: dict[str, Any] = dict(run_found.summary)
    if summary.pop("fingerprint", None) != task.fingerprint():
        raise InputError("out", str(directory), "holds a run with other settings; choose another folder or remove it")
    journal = JournalFile(run_found.journal) if run_found.journal else None
    return Finished(task, SimulationResult(summary, run_found.jobs, journal=journal), resumed=True)


_counts: "SynchronizedArray[int] | None" = None


def _begin_worker(counts: "SynchronizedArray[int]") -> None:
    global _counts  # noqa: PLW0603  set once in each worker process
    _counts = counts
    Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    """Exit when the parent process ends, so that no orphan writes into a folder that the next sweep resumes."""
    from multiprocessing import parent_process

    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _perform_numbered(i: int, task: SweepTask) -> Finished:
    def count(completed: int) -> None:
        if _counts is not None:
            _counts[i] = completed

    return perform(task, count)


def _in_processes(
    todo: Sequence[SweepTask],
    missing: Sequence[int],
    parallel: int,
    progress: Callable[[Mapping[int, int]], None] | None,
) -> dict[int, Finished]:
    # Imported here: they would be a twentieth of the CPU time of a small run in this process.
    from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
    from multiprocessing import get_context

    context = get_context("spawn")
    counts: SynchronizedArray[int] = context.Array("q", len(todo))
    with ProcessPoolExecutor(min(parallel, len(missing)), context, _begin_worker, (counts,)) as pool:
        futures = {pool.submit(_perform_numbered, i, todo[i]): i for i in missing}
        pending = set(futures)
        try:
            while pending:
                done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()  # raises the error of a failed run
                if progress is not None:
                    progress({i: counts[i] for i in missing})
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        return {i: future.result() for future, i in futures.items()}
