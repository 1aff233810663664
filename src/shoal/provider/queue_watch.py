"""Watches the queue of an engine and writes its jobs in the form of ``sacct`` output, for `shoal shadow`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shoal.wire.files import replace_file

COLUMNS = (
    *("JobID", "User", "Account", "Partition", "State", "Submit", "Eligible", "Start", "End", "Timelimit", "NNodes"),
    *("AllocTRES", "NodeList"),
)
"""Columns of the written file, as ``sacct`` names them."""


@dataclass(slots=True)
class QueueWatch:
    """Jobs that an engine had since the watch began, the latest line of each; ``look`` writes them to ``file``.

    ``rows`` lists the engine's jobs: it takes the lines so far and returns, by job, the lines of ``COLUMNS`` that are
    new or changed. It raises ``EngineAway`` if the engine does not answer, and changes nothing in the engine.
    """

    file: Path
    rows: Callable[[Mapping[str, str]], Mapping[str, str]]
    jobs: dict[str, str] = field(default_factory=dict)

    def resume(self) -> None:
        """Take over the lines that an earlier watch has written."""
        if self.file.exists():
            lines = self.file.read_text().splitlines()[1:]
            self.jobs = {line.partition("|")[0]: line for line in lines}

    def look(self) -> int:
        """List the engine's jobs once, write the file, and return how many jobs it has."""
        self.jobs |= self.rows(self.jobs)
        replace_file(self.file, "\n".join(("|".join(COLUMNS), *self.jobs.values(), "")).encode())
        return len(self.jobs)
