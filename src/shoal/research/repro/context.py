"""Context of a reproduction: the folder of public data, its extent, and stored results of earlier runs."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, is_dataclass
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from typing import Any

from shoal.core.errors import InputError
from shoal.research.repro.stored_results import ResultCache, cpu_seconds
from shoal.scenario.sweep import end_with_parent

__all__ = ["Measurement", "ReproContext", "ResultCache"]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run of a reproduction: its result's key, a line that names it, and a module's function with arguments."""

    key: Mapping[str, Any]
    label: str
    measure: Callable[..., Any]
    arguments: tuple[Any, ...] = ()

    def plain(self) -> Any:
        """Return the result as plain JSON; a dataclass becomes a dict of its fields."""
        found = self.measure(*self.arguments)
        return asdict(found) if is_dataclass(found) and not isinstance(found, type) else found

    def timed(self) -> tuple[Any, float]:
        """Return the result as plain JSON and the CPU seconds it took."""
        before = cpu_seconds()
        return self.plain(), cpu_seconds() - before


@dataclass(frozen=True, slots=True)
class ReproContext:
    """``folder`` holds the public traces; ``quick`` asks for a part of the experiment that takes about a minute.

    ``announce`` is called with a line of text before each run. ``jobs`` is the number of processes of those that run in
    parallel, ``draws`` the draws of the grounds: ``dev`` or ``held``.
    """

    folder: Path | None
    quick: bool = False
    cache: ResultCache = field(default_factory=ResultCache)
    announce: Callable[[str], None] = lambda _: None
    jobs: int = 1
    draws: str = "dev"

    @property
    def data(self) -> Path:
        """The folder of public traces; raises ``InputError`` if none was given."""
        if self.folder is None:
            raise InputError("data", None, "name the folder of public traces with --data DIR or $SHOAL_DATA")
        return self.folder

    def run(self, key: Mapping[str, Any], label: str, measure: Callable[..., Any], *arguments: Any) -> Any:
        """Return the stored result of a key, or announce ``label``, call ``measure`` and store its result.

        The result is plain JSON; a dataclass becomes a dict of its fields.
        """
        wanted = Measurement(key, label, measure, arguments)

        def make() -> Any:
            self.announce(label)
            return wanted.plain()

        return self.cache.get(key, make)

    def run_all(self, wanted: Sequence[Measurement]) -> list[Any]:
        """Return the results of all in order; those that are not stored run in ``jobs`` processes.

        Functions and arguments are sent to the processes, so they must be picklable.
        """
        todo = [one for one in wanted if self.jobs > 1 and self.cache.find(one.key) is None]
        if len(todo) > 1:
            with ProcessPoolExecutor(min(self.jobs, len(todo)), get_context("spawn"), _begin_worker) as pool:
                running: dict[Future[tuple[Any, float]], Measurement] = {pool.submit(one.timed): one for one in todo}
                try:
                    for number, future in enumerate(as_completed(running), start=1):
                        one = running[future]
                        self.cache.put(one.key, *future.result())
                        self.announce(f"{one.label} [{number} of {len(todo)}]")
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
        return [self.run(one.key, one.label, one.measure, *one.arguments) for one in wanted]


def _begin_worker() -> None:
    Thread(target=end_with_parent, daemon=True).start()
