"""Context of a reproduction: the folder of public data, its extent, and stored results of earlier runs."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

from shoal.core.errors import InputError


@dataclass(slots=True)
class ResultCache:
    """Results by key, stored in ``file`` as one JSON line each; without a file, in memory only.

    A key is plain JSON and holds everything that a result depends on.
    """

    file: Path | None = None
    _results: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.file is None or not self.file.exists():
            return
        for number, line in enumerate(self.file.read_text().splitlines(), start=1):
            try:
                row = json.loads(line)
                self._results[_encoded(row["key"])] = row["value"]
            except (ValueError, KeyError, TypeError) as error:
                hint = f"line {number} is not a stored result; name another file or remove this one"
                raise InputError("out", str(self.file), hint) from error

    def get(self, key: Mapping[str, Any], make: Callable[[], Any]) -> Any:
        """Return the stored result of a key; if there is none, compute it with ``make`` and store it."""
        found = self._results.get(_encoded(key))
        if found is None:
            found = make()
            self.put(key, found)
        return found

    def put(self, key: Mapping[str, Any], result: Any) -> None:
        """Store a result, in place of an earlier one of the same key."""
        self._results[_encoded(key)] = result
        if self.file is not None:
            with self.file.open("a") as stored:
                stored.write(json.dumps({"key": key, "value": result}) + "\n")

    def items(self) -> Iterator[tuple[dict[str, Any], Any]]:
        """Yield all keys with their results."""
        return ((json.loads(key), result) for key, result in self._results.items())


def _encoded(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)


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

        def make() -> Any:
            self.announce(label)
            found = measure(*arguments)
            return asdict(found) if is_dataclass(found) and not isinstance(found, type) else found

        return self.cache.get(key, make)
