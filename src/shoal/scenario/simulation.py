"""One simulation: a scenario and a workload in; a summary, a table of jobs and a journal out."""

import gc
import resource
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

from shoal.core.decision import Decision
from shoal.core.interfaces import Policy
from shoal.core.snapshot import Snapshot
from shoal.engine.loop import Loop, judge
from shoal.engine.moves import StopStartPlanner
from shoal.perf.catalog import Catalog
from shoal.report.history import read_history
from shoal.report.metrics import JobResults, Summary, job_table, summarize
from shoal.scenario.backend import check_speeds, make_backend
from shoal.scenario.scenario import PLACERS, Scenario
from shoal.sim.backend import SimulatedBackend
from shoal.sim.cloud import Bill, Cloud
from shoal.sim.searches import Searches
from shoal.store.journal import JournalFile, MemoryJournal, SqliteJournal
from shoal.workload.schema import Workload

_MOST_UNFINISHED = 10


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The results of one simulation.

    ``summary`` is the document of ``summary.json`` (docs/metrics.md names every figure). ``jobs`` has one row per job:
    each column is an attribute, ``jobs.rows()`` gives dictionaries. ``journal`` reads the records; None where the
    journal was not kept.
    """

    summary: Summary
    jobs: JobResults
    bill: Bill | None = None
    """The rented nodes, if in a cloud."""
    journal: MemoryJournal | JournalFile | None = None


@dataclass(slots=True)
class _TimedPolicy:
    """Wraps a policy and measures the wall-clock seconds of each decision."""

    policy: Policy
    seconds: "array[float]" = field(default_factory=lambda: array("d"))

    def decide(self, snapshot: Snapshot) -> Decision:
        begin = perf_counter()
        decision = self.policy.decide(snapshot)
        self.seconds.append(perf_counter() - begin)
        return decision

    def figures(self) -> dict[str, float]:
        times = np.asarray(self.seconds) if self.seconds else np.zeros(1)
        p50, p99 = np.quantile(times, (0.5, 0.99)).tolist()
        return {"mean": float(times.mean()), "p50": p50, "p99": p99, "max": float(times.max())}


def run(
    scenario: Scenario,
    workload: Workload,
    *,
    journal_path: Path | None = None,
    progress: Callable[[int], None] | None = None,
    policy: Policy | None = None,
) -> SimulationResult:
    """Simulate a workload; the journal is written to ``journal_path``, or kept in memory.

    ``progress`` receives the number of completed jobs now and then. ``policy`` decides in place of the one that the
    scenario names.
    """
    begin = process_time()
    with _rare_garbage_collection():
        scenario = scenario.resolved(workload.jobs)
        known = scenario.speeds()
        check_speeds(scenario, workload.jobs, known)
        journal, measured, bill = _simulate(scenario, workload, known, journal_path, progress, policy)
        history = read_history(journal.raw())
        table = job_table(history, known)
    measured["cpu_seconds"] = process_time() - begin
    measured["peak_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if bill is not None:
        measured["rent"] = bill.summary()
    return SimulationResult(summarize(history, table, measured=measured), table, bill, journal)


def _simulate(
    scenario: Scenario,
    workload: Workload,
    known: Catalog,
    journal_path: Path | None,
    progress: Callable[[int], None] | None,
    policy: Policy | None,
) -> tuple[MemoryJournal | JournalFile, dict[str, Any], Bill | None]:
    """Run the loop to its end; return the journal, what only the loop knows for the summary, and a cloud's bill.

    The state and the backend are dropped on return, before the journal is read: that halves the memory in use.
    """
    timed = _TimedPolicy(policy or scenario.make_policy())
    backend = make_backend(scenario, workload.jobs, known)
    settings = scenario.settings(workload.name, policy)
    journal = MemoryJournal.begin(settings) if journal_path is None else SqliteJournal.begin(journal_path, settings)
    placer = PLACERS[scenario.placement]()
    loop = Loop(backend, scenario.make_state(known), timed, placer, StopStartPlanner(), journal)
    try:
        _run_to_end(loop, backend, progress)
    finally:
        if isinstance(journal, SqliteJournal):
            journal.close()
    written = journal if isinstance(journal, MemoryJournal) else JournalFile(journal.path)
    measured = {"unfinished": _unfinished(loop), "decision_seconds": timed.figures()}
    return written, measured, backend.bill() if isinstance(backend, Cloud) else None


def _unfinished(loop: Loop) -> list[dict[str, str]]:
    """The first few jobs that are live at the end of a run, each with the reason why it does not run."""
    if not loop.state.live:
        return []
    snapshot = loop.state.freeze()
    verdicts = judge(snapshot, loop.policy, loop.placer, loop.move_planner).verdicts
    first = enumerate(snapshot.ids[:_MOST_UNFINISHED])
    return [{"id": name, "reason": verdicts.reason(i).sentence()} for i, name in first]


def _run_to_end(
    loop: Loop, backend: SimulatedBackend | Searches | Cloud, progress: Callable[[int], None] | None
) -> None:
    cycles = 0
    while loop.cycle():
        cycles += 1
        if progress is not None and not cycles % 200:
            progress(backend.completed)
    if progress is not None:
        progress(backend.completed)


@contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    """Collect garbage rarely: a simulation makes no reference cycles, and a collection would visit all its objects."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(100_000, 50, 1000)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
