"""Context of a reproduction: the folder of public data, its extent, and stored results of earlier runs."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

from shoal.core.errors import InputError
from shoal.research.repro.stored_results import ResultCache

__all__ = ["ReproContext", "ResultCache"]


@dataclass(frozen=True, slots=True)
class ReproContext:
    """Folder of public traces, extent and processes of a reproduction; a ``quick`` one takes about a minute.

    ``announce`` is called with a line of text before each run. Runs that can be parallel have ``jobs`` processes.
    ``draws`` are the draws of the grounds: ``dev`` or ``held``.
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

        def make() -> Any:
            self.announce(label)
            return plain(measure(*arguments))

        return self.cache.get(key, make)


def plain(found: Any) -> Any:
    """Return a result as it is stored: a dataclass becomes a dict of its fields."""
    return asdict(found) if is_dataclass(found) and not isinstance(found, type) else found
