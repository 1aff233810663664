"""Runs cells in parallel processes; their results are stored by key, so that none runs twice."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from typing import Any

from shoal.core.errors import InputError, nearest
from shoal.research.grounds.cells import FAILED, LIMIT, cells
from shoal.research.grounds.ground import GROUNDS
from shoal.research.repro.context import ResultCache
from shoal.scenario.sweep import end_with_parent

Key = tuple[str, str, int]
"""Ground, policy and draw of a cell."""

Results = Mapping[Key, Mapping[str, Any]]
_FIELDS = ("ground", "policy", "draw")


def kept_cells(kept: ResultCache) -> dict[Key, dict[str, Any]]:
    """Return the results of all cells in a file of stored results."""
    return {
        (key["ground"], key["policy"], key["draw"]): result for key, result in kept.items() if key.keys() == {*_FIELDS}
    }


def selected(names: Iterable[str], data: Path | None = None) -> list[str]:
    """Return the grounds of these names whose data is there; ``gavel-*`` selects by beginning, none selects all.

    Grounds that only the published numbers need are not among all.
    """
    found: list[str] = []
    for name in names:
        matching = [one for one in GROUNDS if one.startswith(name[:-1])] if name.endswith("*") else [name]
        if not matching or matching[0] not in GROUNDS:
            raise InputError("ground", name, nearest(name, GROUNDS))
        found += matching
    found = found or [name for name, ground in GROUNDS.items() if not ground.published]
    return [name for name in dict.fromkeys(found) if GROUNDS[name].available(data)]


def wanted_cells(grounds: Sequence[str], policies: Sequence[str], which: str, count: int) -> list[Key]:
    """Return the cells of these grounds and policies on the first ``count`` draws, first draws first."""
    numbers = {name: GROUNDS[name].draws(which)[:count] for name in grounds}
    return [
        (name, policy, numbers[name][place])
        for place in range(max(map(len, numbers.values()), default=0))
        for name in grounds
        for policy in policies
        if place < len(numbers[name])
    ]


def run_cells(
    wanted: Sequence[Key],
    kept: ResultCache,
    *,
    data: Path | None,
    jobs: int = 1,
    limit: float = LIMIT,
    announce: Callable[[str], None] = lambda _: None,
) -> dict[Key, Mapping[str, Any]]:
    """Run the cells without a result in ``kept``, in ``jobs`` processes, and return the results of all.

    A cell that was stopped at a lower CPU limit or failed runs again. ``announce`` is called with a line after each.
    """
    found: dict[Key, Mapping[str, Any]] = dict(kept_cells(kept))
    todo = [key for key in dict.fromkeys(wanted) if key not in found or _to_be_repeated(found[key], limit)]

    def add(key: Key, result: dict[str, Any], number: int) -> None:
        found[key] = result
        kept.put(dict(zip(_FIELDS, key, strict=True)), result)
        text = result.get("stopped") or f"JCT {result['jct']:,.0f} s, CPU {result['cpu']:.1f} s"
        announce(f"[{number}/{len(todo)}] {key[0]}, draw {key[2]}, {key[1]}: {text}")

    if jobs == 1 or len(todo) < 2:
        for number, key in enumerate(todo, start=1):
            add(key, cells(*key, data=data, limit=limit), number)
    else:
        _in_processes(todo, data, jobs, limit, add)
    return {key: found[key] for key in wanted}


def _to_be_repeated(result: Mapping[str, Any], limit: float) -> bool:
    failed = str(result.get("stopped", "")).startswith(FAILED)
    return failed or ("jct" not in result and result.get("cpu", limit) < limit)


def _begin_worker() -> None:
    Thread(target=end_with_parent, daemon=True).start()


def _in_processes(
    todo: Sequence[Key], data: Path | None, jobs: int, limit: float, add: Callable[[Key, dict[str, Any], int], None]
) -> None:
    with ProcessPoolExecutor(min(jobs, len(todo)), get_context("spawn"), _begin_worker) as pool:
        futures: dict[Future[dict[str, Any]], Key] = {
            pool.submit(cells, *key, data=data, limit=limit): key for key in todo
        }
        pending = set(futures)
        try:
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for number, future in enumerate(done, start=len(todo) - len(pending) - len(done) + 1):
                    add(futures[future], future.result(), number)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
