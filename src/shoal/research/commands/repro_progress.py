"""Progress of ``shoal repro run`` on stderr: a bar with the names still to do, or a line after each reproduction."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from shoal.cli.output import duration, warn
from shoal.research.repro.runner import ReproOutcome

_NAMES_SHOWN = 6


class RunProgress(Protocol):
    """Shows how many reproductions have ended and which are still to do."""

    @contextmanager
    def ended(self, outcome: ReproOutcome) -> Iterator[None]:
        """Count one that has ended; output printed within the context does not disturb the bar."""
        yield


@contextmanager
def shown_progress(names: Sequence[str]) -> Iterator[RunProgress]:
    """A bar on stderr where that is a terminal; elsewhere lines, if there are several reproductions."""
    if not sys.stderr.isatty():
        yield _ProgressLines(list(names))
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), redirect_stdout=False) as bar:
        task = bar.add_task(_to_do(names), total=len(names))
        left = list(names)

        class _Bar:
            @contextmanager
            def ended(self, outcome: ReproOutcome) -> Iterator[None]:
                left.remove(outcome.name)
                bar.stop()
                yield
                bar.start()
                bar.update(task, advance=1, description=_to_do(left))

        yield _Bar()


class _ProgressLines:
    """A line on stderr after each of several reproductions."""

    def __init__(self, names: list[str]) -> None:
        self._left, self._count = names, len(names)

    @contextmanager
    def ended(self, outcome: ReproOutcome) -> Iterator[None]:
        self._left.remove(outcome.name)
        yield
        if self._count > 1:
            how = "failed" if outcome.failure else f"{duration(outcome.cpu)} of CPU time"
            done = self._count - len(self._left)
            warn(f"[{done}/{self._count}] {outcome.name}: {how}. {_to_do(self._left)}")


def _to_do(left: Sequence[str]) -> str:
    if not left:
        return "Nothing left to do."
    more = f" and {len(left) - _NAMES_SHOWN} more" if len(left) > _NAMES_SHOWN else ""
    return f"Still to do: {', '.join(left[:_NAMES_SHOWN])}{more}"
