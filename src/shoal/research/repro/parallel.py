"""Runs of a reproduction in several processes; each result is stored as soon as it is there."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from threading import Thread
from typing import Any

from shoal.research.repro.context import ReproContext, plain
from shoal.research.repro.stored_results import cpu_seconds
from shoal.scenario.sweep import end_with_parent


@dataclass(frozen=True, slots=True)
class Task:
    """One run: its key, a label to announce, and a function with its arguments, all of which can be pickled."""

    key: Mapping[str, Any]
    label: str
    measure: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


def run_all(context: ReproContext, tasks: Sequence[Task]) -> list[Any]:
    """Return the results of these runs in order, stored ones or computed in ``context.jobs`` processes."""
    missing = [task for task in tasks if context.jobs > 1 and task.key not in context.cache]
    if len(missing) > 1:
        with ProcessPoolExecutor(min(context.jobs, len(missing)), get_context("spawn"), _begin_worker) as pool:
            pending: dict[Future[tuple[Any, float]], Task] = {pool.submit(_timed, task): task for task in missing}
            try:
                for number, future in enumerate(as_completed(pending), start=1):
                    task = pending[future]
                    context.cache.put(task.key, *future.result())
                    context.announce(f"{task.label} [{number} of {len(missing)}]")
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    return [context.run(task.key, task.label, task.measure, *task.arguments) for task in tasks]


def _timed(task: Task) -> tuple[Any, float]:
    before = cpu_seconds()
    return plain(task.measure(*task.arguments)), cpu_seconds() - before


def _begin_worker() -> None:
    Thread(target=end_with_parent, daemon=True).start()
