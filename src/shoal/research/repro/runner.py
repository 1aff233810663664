"""Runs reproductions, one after another or each in a process of its own; one that fails does not stop the others."""

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from threading import Thread
from typing import cast

from shoal.core.errors import ShoalError
from shoal.research.repro.causes import explained
from shoal.research.repro.context import ReproContext, ResultCache
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.stored_results import cpu_seconds
from shoal.research.repro.table import Table
from shoal.scenario.sweep import end_with_parent


@dataclass(frozen=True, slots=True)
class ReproOutcome:
    """The result of a reproduction: its tables, or the reason why there are none."""

    name: str
    tables: tuple[Table, ...] = ()
    cpu: float = 0.0
    failure: str = ""

    @property
    def verdicts(self) -> tuple[str, ...]:
        """The tables' verdicts, each once."""
        return tuple(dict.fromkeys(table.verdict for table in self.tables if table.verdict))


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The arguments from which each process makes the context of its reproductions."""

    folder: Path | None = None
    out: Path | None = None
    quick: bool = False
    draws: str = "dev"
    jobs: int = 1

    def context(self, announce: Callable[[str], None]) -> ReproContext:
        """Return a context that reads and extends the file of stored results."""
        return ReproContext(self.folder, self.quick, ResultCache(self.out), announce, self.jobs, self.draws)


def run_one(reproduction: Reproduction, context: ReproContext) -> ReproOutcome:
    """Run one reproduction; an error becomes its reason. One other than `ShoalError` is announced with its traceback.

    A full run names the causes of differences; differences of a quick run may have other causes.
    """
    used, reused = cpu_seconds(), context.cache.reused_cpu
    try:
        tables = tuple(reproduction.tables(context))
        tables = tables if context.quick else explained(reproduction.name, tables)
    except ShoalError as error:
        return ReproOutcome(reproduction.name, failure=str(error))
    except Exception as error:  # one that fails must not stop the others
        context.announce(traceback.format_exc())
        return ReproOutcome(reproduction.name, failure=f"{type(error).__name__}: {error}")
    cpu = cpu_seconds() - used + context.cache.reused_cpu - reused
    return ReproOutcome(reproduction.name, tables, cpu)


def run_reproductions(
    wanted: Sequence[Reproduction], settings: RunSettings, announce: Callable[[str], None]
) -> Iterator[ReproOutcome]:
    """Run reproductions in ``settings.jobs`` processes and yield each outcome as it ends, in no fixed order.

    A single reproduction, and all if ``jobs`` is 1, run in this process. If there are fewer reproductions than jobs,
    each gets an equal part of the jobs for its own runs.
    """
    if settings.jobs == 1 or len(wanted) < 2:
        context = settings.context(announce)
        for one in wanted:
            yield run_one(one, context)
        return
    each = replace(settings, jobs=max(1, settings.jobs // len(wanted)))
    waiting, running = list(wanted), dict[Connection, tuple[Reproduction, SpawnProcess]]()
    try:
        while waiting or running:
            while waiting and len(running) < settings.jobs:
                one = waiting.pop(0)
                reader, process = _started(one, each)
                running[reader] = one, process
            for ready in wait(list(running)):
                reader = cast(Connection, ready)
                message = _received(reader, *running[reader])
                if isinstance(message, str):
                    announce(message)
                    continue
                del running[reader]
                yield message
    finally:
        for _, process in running.values():
            process.terminate()


def _started(one: Reproduction, settings: RunSettings) -> tuple[Connection, SpawnProcess]:
    context = get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(one, settings, writer))
    process.start()
    writer.close()
    return reader, process


def _received(reader: Connection, one: Reproduction, process: SpawnProcess) -> str | ReproOutcome:
    """Return a line to announce, or the outcome; a process that ended without one has failed."""
    try:
        message: str | ReproOutcome = reader.recv()
    except EOFError:
        process.join()
        message = ReproOutcome(one.name, failure=f"its process ended with exit code {process.exitcode}")
    if isinstance(message, ReproOutcome):
        reader.close()
        process.join()
    return message


def _work(one: Reproduction, settings: RunSettings, writer: Connection) -> None:
    Thread(target=end_with_parent, daemon=True).start()
    writer.send(run_one(one, settings.context(lambda line: writer.send(f"{one.name}: {line}"))))
